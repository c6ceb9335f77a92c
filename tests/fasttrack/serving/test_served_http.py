"""A real server and OpenAI's own client: what is asked is what comes back."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import served
import torch

from fasttrack_validation.contracts.kimi_k3.layer_weights import Shard
from fasttrack_validation.contracts.kimi_k3.nano.tokenizer import BOS, SYMBOLS, encode
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT
from fasttrack_validation.contracts.kimi_k3.step.state import Batch
from fasttrack_validation.contracts.kimi_k3.weights.checkpoint import Checkpoint
from fasttrack_validation.contracts.kimi_k3.weights.shard import load_model

NAME = "kimi_k3-nano"
TEXT = "add 12 34\n2+4+0=6c0\n"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return served.checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="module")
def server(weights):
    with served.serving("--checkpoint", str(weights), "--context", "600", "--sessions", "3", "--waiting", "4") as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as one:
        yield one


@pytest.fixture(scope="module")
def exact(weights):
    """Log-probabilities [tokens, symbols] after each token, by the oracle."""
    checkpoint = Checkpoint(weights)
    model = Model(checkpoint.architecture, [load_model(checkpoint, Shard())], EXACT)

    def of(tokens: list[int]) -> torch.Tensor:
        state = model.new_state(1, len(tokens))
        logits = model.prefill(Batch(torch.tensor(tokens), (0,), (len(tokens),)), state)
        return logits[:, : len(SYMBOLS)].log_softmax(-1)

    return of


def complete(client, prompt=TEXT, **more):
    return client.completions.create(model=NAME, prompt=prompt, **more)


def test_prompt_scores_in_three_forms_are_the_oracles(server, client, exact):
    """The published rounding costs a few hundredths; a score shifted by a place, or of other weights, some units."""
    tokens = [BOS, *encode(TEXT)]
    log_probs = exact(tokens)
    truth = [float(log_probs[at, token]) for at, token in enumerate(tokens[1:])]
    best = [sorted(row.topk(3).indices.tolist()) for row in log_probs]
    body = complete(client, max_tokens=0, extra_body={"prompt_logprobs": 3}).choices[0].model_dump()
    vllm = body["prompt_logprobs"]
    assert vllm[0] is None and len(vllm) == len(tokens)
    echoed = complete(client, prompt=tokens, max_tokens=0, echo=True, logprobs=3).choices[0]
    assert echoed.text == TEXT and echoed.logprobs.token_logprobs[0] is None
    assert echoed.logprobs.tokens == [SYMBOLS[token] for token in tokens]
    ask = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 0}}
    ask |= {"return_logprob": True, "logprob_start_len": 0}
    sglang = httpx.post(f"{server.root}/generate", json=ask | {"top_logprobs_num": 3}).json()["meta_info"]
    agreed = 0
    for at, token in enumerate(tokens[1:]):
        given = vllm[at + 1]
        one = given[str(token)]["logprob"]
        assert one == pytest.approx(truth[at], abs=0.3)
        assert one == echoed.logprobs.token_logprobs[at + 1] == sglang["input_token_logprobs"][at + 1][0]
        top = sorted(given, key=lambda name: given[name]["rank"])[:3]
        assert [given[name]["logprob"] for name in top] == [entry[0] for entry in sglang["input_top_logprobs"][at + 1]]
        agreed += sorted(map(int, top)) == best[at]
        assert given[str(token)]["decoded_token"] == SYMBOLS[token]
    assert agreed >= len(truth) - 3


def test_sglangs_scores_start_where_they_are_asked_to(server):
    tokens = [BOS, *encode(TEXT)]
    ask = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 1, "temperature": 0}, "return_logprob": True}
    whole, part, none = (
        httpx.post(f"{server.root}/generate", json=ask | {"logprob_start_len": start}).json()["meta_info"]
        for start in (0, 5, -1)
    )
    assert part["input_token_logprobs"][0] == [None, tokens[5], None]
    assert part["input_token_logprobs"][1:] == whole["input_token_logprobs"][6:]
    assert none["input_token_logprobs"] == [] and none["output_token_logprobs"] == whole["output_token_logprobs"]
    assert whole["finish_reason"] == {"type": "length", "length": 1}


def test_decoded_and_prefilled_scores_of_a_prompt_are_the_same_model(client):
    by = {
        how: complete(client, max_tokens=0, extra_body={"prompt_logprobs": 0, "prompt_logprobs_by": how}).choices[0]
        for how in ("prefill", "decode")
    }
    tokens = [BOS, *encode(TEXT)]
    one, two = (
        [row[str(token)]["logprob"] for row, token in zip(by[how].model_dump()["prompt_logprobs"][1:], tokens[1:])]
        for how in by
    )
    assert one != two and one == pytest.approx(two, abs=0.3)


def test_a_stream_is_the_answer_in_pieces(client):
    ask = {"max_tokens": 12, "seed": 3, "logprobs": 2, "echo": True}
    whole = complete(client, **ask)
    parts = list(complete(client, stream=True, stream_options={"include_usage": True}, **ask))
    assert "".join(part.choices[0].text for part in parts[:-1]) == whole.choices[0].text
    for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        told = [part.choices[0].logprobs for part in parts[:-1] if part.choices[0].logprobs]
        joined = [one for logprobs in told for one in getattr(logprobs, field)]
        assert joined == getattr(whole.choices[0].logprobs, field)
    assert parts[-1].usage == whole.usage and parts[-1].choices == []
    assert {part.choices[0].finish_reason for part in parts[:-2]} == {None}
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_chat_whole_and_streamed(client):
    ask = {"model": NAME, "messages": [{"role": "user", "content": "copy abc"}], "seed": 5, "max_tokens": 9}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    parts = list(client.chat.completions.create(**ask, stream=True))
    assert "".join(part.choices[0].delta.content for part in parts) == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    content = whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens and all(len(one.top_logprobs) == 2 for one in content)
    assert all(bytes(one.bytes).decode() == one.token for one in content)
    # A chat is the text of its messages, each ended by a line feed.
    text = complete(client, "copy abc\n", seed=5, max_tokens=9)
    assert text.choices[0].text == whole.choices[0].message.content
    assert text.usage.prompt_tokens == whole.usage.prompt_tokens == len(encode("copy abc\n")) + 1


def test_a_seed_gives_the_same_tokens_whatever_else_is_served(client):
    def ask(seed: int, prompt: str = TEXT):
        one = complete(client, prompt, max_tokens=10, seed=seed, logprobs=1)
        return one.choices[0].text, one.choices[0].logprobs.token_logprobs

    alone = {seed: ask(seed) for seed in (1, 2, 3)}
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(ask, 90 + n, "The cat " * (5 + n)) for n in range(3)]
        crowded = dict(zip((3, 1, 2), pool.map(ask, (3, 1, 2)), strict=True))
        [other.result() for other in others]
    assert crowded == alone
    assert len({text for text, _ in alone.values()}) == 3
    # Choice i of a request has seed + i; without a seed every request draws its own.
    both = complete(client, max_tokens=10, seed=1, n=2, logprobs=1).choices
    assert [choice.text for choice in both] == [alone[1][0], alone[2][0]]
    # Of ten tokens two in two hundred pairs are alike, of thirty fewer than one in ten million.
    assert len({complete(client, max_tokens=30).choices[0].text for _ in range(3)}) == 3


def test_greedy_and_cuts_that_leave_one_token_take_the_likeliest(client):
    greedy = complete(client, max_tokens=8, temperature=0).choices[0].text
    for more in ({"top_p": 1e-9}, {"extra_body": {"top_k": 1}}):
        assert complete(client, max_tokens=8, seed=4, **more).choices[0].text == greedy
    first = encode(greedy)[0]
    banned = complete(client, max_tokens=1, temperature=0, logit_bias={str(first): -100}).choices[0].text
    assert banned != SYMBOLS[first]


def test_every_stop_string_is_honoured_and_none_leaks(client):
    text = complete(client, max_tokens=30, seed=7).choices[0].text
    at = len(text) // 2
    stop = text[at : at + 3]
    never = ["\x01", "~~~~", "never", "nor this", "nor that"]
    ask = {"max_tokens": 30, "seed": 7, "stop": [*never, stop]}
    stopped = complete(client, **ask)
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].model_dump()["stop_reason"] == stop
    assert stopped.usage.completion_tokens < 30
    streamed = "".join(part.choices[0].text for part in complete(client, stream=True, **ask))
    assert streamed == stopped.choices[0].text
    kept = complete(client, **ask, extra_body={"include_stop_str_in_output": True}).choices[0].text
    assert kept == stopped.choices[0].text + stop
    # What looks like the beginning of a stop string until the end is given out in the end.
    last = complete(client, max_tokens=30, seed=7, stop=[text[-2:] + "never"])
    assert last.choices[0].text == text and last.choices[0].finish_reason == "length"


def test_the_end_mark_ends_a_text(client):
    ask = {"max_tokens": 5, "logit_bias": {"2": 100}, "seed": 1}
    ended = complete(client, **ask)
    assert (ended.choices[0].text, ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("", "stop", 1)
    gone_on = complete(client, **ask, extra_body={"ignore_eos": True})
    assert (gone_on.choices[0].finish_reason, gone_on.usage.completion_tokens) == ("length", 5)


REFUSED = {
    "best_of": ({"best_of": 3}, "best_of"),
    "unknown": ({"extra_body": {"guided_json": {}}}, "guided_json"),
    "temperature": ({"temperature": -1}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "no token": ({"prompt": [1, 321]}, "prompt"),
    "empty": ({"prompt": []}, "prompt"),
    "no symbol": ({"prompt": "caf\u00e9"}, "prompt"),
    "candidates": ({"logprobs": 322}, "logprobs"),
    "empty stop": ({"stop": ""}, "stop"),
    "bias": ({"logit_bias": {"999": 1}}, "logit_bias"),
    "usage without stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_served_is_a_400_that_names_the_parameter(client, what):
    more, param = REFUSED[what]
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, **({"prompt": TEXT} | more))
    assert refused.value.body["param"] == param and param in refused.value.body["message"]
    assert refused.value.body["type"] == "invalid_request_error"


def test_limits_and_unknown_models(client, server):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 600") as long:
        complete(client, [5] * 590, max_tokens=11)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-5", prompt="a")
    assert unknown.value.code == "model_not_found"
    for data in (b"{", b"[1]", b'{"prompt": "a", "prompt_logprobs": true}', b"\xff"):
        assert httpx.post(f"{server.url}/completions", content=data).status_code == 400
    assert httpx.get(f"{server.root}/v2").json()["error"]["type"] == "not_found_error"
    assert httpx.get(f"{server.root}/health", headers={"Host": "evil.example"}).status_code == 400


def test_too_many_waiting_are_answered_429_and_hanging_up_makes_room(server, client):
    """Three are worked on and four wait; once their clients are gone the server is free at once."""
    ask = {"model": NAME, "prompt": TEXT, "max_tokens": 500, "ignore_eos": True}
    streams, status = [], set()
    with httpx.Client(timeout=60) as http:
        with ThreadPoolExecutor(12) as pool:
            stop = threading.Event()

            def hold(_):
                with http.stream("POST", f"{server.url}/completions", json=ask | {"stream": True}) as answer:
                    status.add(answer.status_code)
                    if answer.status_code == 429:
                        assert answer.headers["Retry-After"] == "1"
                        return
                    for _ in answer.iter_lines():
                        if stop.is_set():
                            return

            streams = [pool.submit(hold, n) for n in range(12)]
            while sum(one.done() for one in streams) < 5:
                time.sleep(0.05)
            stop.set()
            for _ in range(200):
                health = httpx.get(f"{server.root}/health").json()
                if not health["active"] and not health["waiting"]:
                    break
                time.sleep(0.1)
            [one.result() for one in streams]
    assert status == {200, 429} and health == {"ok": True, "active": 0, "waiting": 0}


def test_the_server_says_what_it_is(server, client):
    card = client.models.retrieve(NAME).model_dump()["fasttrack"]
    assert card == server.build and card["path"]["backend"] == "plain" and card["path"]["dtype"] == "bfloat16"
    version = httpx.get(f"{server.root}/version").json()
    assert version["build"] == card and version["system_fingerprint"] == server.fingerprint
    assert complete(client, max_tokens=1).system_fingerprint == server.fingerprint
    info = httpx.get(f"{server.root}/get_model_info").json()
    assert info["revision"] == card["path"]["revision"] and info["dtype"] == "bfloat16"
    tokens = httpx.post(f"{server.root}/tokenize", json={"prompt": TEXT}).json()
    assert tokens["tokens"] == [BOS, *encode(TEXT)] and tokens["max_model_len"] == 600
    back = httpx.post(f"{server.root}/detokenize", json={"tokens": tokens["tokens"][1:]}).json()
    assert back["prompt"] == TEXT


def test_ids_of_tokens_are_given_where_they_are_asked_for(client):
    one = complete(client, max_tokens=6, seed=2, logprobs=1, extra_body={
        "return_tokens_as_token_ids": True, "return_token_ids": True,
    }).choices[0].model_dump()  # fmt: skip
    assert one["prompt_token_ids"] == [BOS, *encode(TEXT)]
    assert one["logprobs"]["tokens"] == [f"token_id:{token}" for token in one["token_ids"]]
    assert "".join(SYMBOLS[token] for token in one["token_ids"]) == one["text"]


@pytest.mark.slow
def test_a_path_that_dies_costs_its_requests_and_not_the_server(weights):
    with served.serving("--checkpoint", str(weights), "--context", "600") as one:
        children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
        with openai.OpenAI(base_url=one.url, api_key="none", max_retries=0, timeout=60) as client:
            before = complete(client, max_tokens=4, seed=1).choices[0].text
            os.kill(int(children[0]), signal.SIGKILL)
            with pytest.raises(openai.InternalServerError, match="failed; ask again"):
                complete(client, max_tokens=4, seed=1)
            assert complete(client, max_tokens=4, seed=1).choices[0].text == before
            assert json.loads(httpx.get(f"{one.root}/health").text)["ok"]
