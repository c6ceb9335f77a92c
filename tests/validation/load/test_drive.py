"""Our own driver against a real server: loops, sessions, and every way in which an answer can be none."""

import json
from pathlib import Path

import pytest
from load_server import LoadServer

from fasttrack_validation.errors import UserError
from fasttrack_validation.load import counters, drive, figures, prompts
from fasttrack_validation.load.servers import Load, Server

HERE = Path(".")


def server(running, **more):
    return Server(**{"arm": "stock", "url": running.url, "model": "tiny", "tp": 8, "speculation": "off", **more})


def asked(count=4, isl=12, osl=10, load=None, seed=7):
    return prompts.prompts(load or Load(), count=count, isl=isl, osl=osl, seed=seed, folder=HERE)


def closed(running, count=4, concurrency=2, **more):
    how = {"temperature": 0.0, "seed": 7, "timeout_s": 10.0, **more}
    return drive.closed(server(running), asked(count), concurrency=concurrency, **how)


def test_a_closed_loop_keeps_its_places_and_counts_the_servers_tokens():
    with LoadServer(first_s=0.03, step_s=0.004) as running:
        run = closed(running, count=6, concurrency=3)
    assert running.most_in_flight == 3 and len(run.answers) == 6
    assert {one.output_tokens for one in run.answers} == {10} and {one.input_tokens for one in run.answers} == {12}
    assert all(len(one.gaps) == 9 for one in run.answers)
    found = figures.of(run, decode_only=False)
    # The server cannot be faster than its pace, a slow machine can make it slower; who reads a first piece late finds the next
    # ones there.
    assert found.ttft >= 0.029 and found.ttft + 9 * found.tpot >= 0.064
    body = running.requests[0][1]
    assert body["ignore_eos"] and body["stream"] and body["max_tokens"] == 10 and running.requests[0][0] == "/v1/completions"
    assert run.counters.drafts == 60 and run.counters.cache_queries == 72


def test_equal_seeds_ask_for_equal_things_and_others_for_others():
    assert asked(seed=1) == asked(seed=1) != asked(seed=2)
    ids = asked(load=Load(token_ids=(100, 200)), isl=5)
    assert all(len(one.ids) == 5 and set(one.ids) <= set(range(100, 201)) for one in ids)
    assert prompts.sessions(Load(), count=2, seed=3, folder=HERE) == prompts.sessions(Load(), count=2, seed=3, folder=HERE)
    first, second = prompts.sessions(Load(), count=2, seed=3, folder=HERE)
    shared = len(first.turns[0].text.split()) // 2
    assert first.turns[0].text.split()[:shared] == second.turns[0].text.split()[:shared]
    assert first.turns[1] != second.turns[1]


def test_an_open_loop_sends_whatever_is_in_flight():
    with LoadServer(first_s=0.2) as running:
        run = drive.open_(server(running), asked(5), rate=100.0, temperature=0.0, seed=7, timeout_s=10.0)
    # All five were sent within the first one's time to its first token.
    assert running.most_in_flight == 5
    starts = sorted(one.sent for one in run.answers)
    assert starts[0] < starts[-1] and len(run.whole) == 5


def test_sessions_carry_what_was_said():
    with LoadServer() as running:
        made = prompts.sessions(Load(), count=2, seed=1, folder=HERE)
        made = tuple(one.model_copy(update={"turns": one.turns[:3]}) for one in made)
        run = drive.replay(server(running), made, concurrency=1, temperature=0.0, seed=1, timeout_s=10.0)
    assert len(run.answers) == 6 and running.most_in_flight == 1
    bodies = [body for path, body in running.requests if path.endswith("/chat/completions")]
    assert [len(body["messages"]) for body in bodies] == [1, 3, 5, 1, 3, 5]
    assert bodies[2]["messages"][1]["role"] == "assistant" and bodies[2]["messages"][1]["content"].strip()
    assert run.answers[1].input_tokens > run.answers[0].input_tokens


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("status", "HTTP 503"), ("html", "broke off after 0 pieces"), ("cut", "peer closed|broke off|RemoteProtocolError"),
        ("no_usage", "no usage"), ("error", "illegal memory access"), ("hang", "no answer in time"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_an_error_with_its_reason(fault, said):
    with LoadServer(faults={1: fault}) as running:
        run = closed(running, count=3, concurrency=1, timeout_s=0.5)
    errors = [one.error for one in run.answers if one.error]
    assert len(errors) == 1 and len(run.whole) == 2
    import re

    assert re.search(said, errors[0]), errors[0]
    with pytest.raises(figures.NoFigure):
        figures.of(run, decode_only=False)


def test_a_server_that_is_not_there_fails_every_request():
    with LoadServer() as running:
        url = running.url
    gone = Server(arm="stock", url=url, model="tiny", tp=8, speculation="off")
    run = drive.closed(gone, asked(2), concurrency=2, temperature=0.0, seed=1, timeout_s=2.0)
    assert [one.error is not None for one in run.answers] == [True, True]
    with pytest.raises(OSError):
        counters.look(url)
    assert counters.read(url).values == {}


def test_degenerate_outputs_are_seen():
    with LoadServer(text=" no") as running:
        assert closed(running, count=2).repeated_ngrams is not None
        run = drive.closed(server(running), asked(2, osl=60), concurrency=2, temperature=0.0, seed=1, timeout_s=10.0)
    assert run.repeated_ngrams > 0.9


def test_acceptance_is_the_servers_count():
    with LoadServer(accepted=4) as running:
        run = closed(running, count=3)
    # 10 tokens in 3 verify steps, which the server counts as 3 accepted drafts each
    assert run.counters.drafts == 9 and figures.acceptance([run]) == pytest.approx(4.0)
    assert [len(one.gaps) for one in run.answers] == [2, 2, 2]
    with LoadServer(metrics=False) as silent:
        assert closed(silent).counters.drafts is None


def test_files_of_prompts_and_sessions(tmp_path):
    lines = [{"prompt": f"p{n}", "tokens": 1000} for n in range(3)] + [{"prompt": "long", "tokens": 30000}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    load = Load(prompts="p.jsonl")
    found = prompts.prompts(load, count=3, isl=1024, osl=5, seed=1, folder=tmp_path)
    assert sorted(one.text for one in found) == ["p0", "p1", "p2"]
    with pytest.raises(UserError, match="1 prompts of about 32000"):
        prompts.prompts(load, count=2, isl=32000, osl=5, seed=1, folder=tmp_path)
    (tmp_path / "s.jsonl").write_text('{"turns": [{"text": "a", "output_tokens": 3}]}\n{"turns": []}\n')
    with pytest.raises(UserError, match=r"s.jsonl:2"):
        prompts.sessions(Load(sessions="s.jsonl"), count=1, seed=1, folder=tmp_path)
    name = prompts.data_name(load, tmp_path, agentic=False)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "another"}))
    assert prompts.data_name(load, tmp_path, agentic=False) != name
