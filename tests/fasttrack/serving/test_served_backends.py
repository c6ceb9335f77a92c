"""The same checkpoint by other paths, over HTTP: what each says of itself, and that it is the same model."""

import httpx
import openai
import pytest
import served

from fasttrack import cli
from long_tests import long
from fasttrack_validation.contracts.kimi_k3.nano.tokenizer import BOS, encode

TOKENS = [BOS, *encode("add 1\n")]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return served.checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


def scores(one, *, by=None):
    with openai.OpenAI(base_url=one.url, api_key="none", max_retries=0, timeout=300) as client:
        more = {"prompt_logprobs": 0} | ({"prompt_logprobs_by": by} if by else {})
        answer = client.completions.create(model="kimi_k3-nano", prompt=TOKENS, max_tokens=0, extra_body=more)
    rows = answer.choices[0].model_dump()["prompt_logprobs"]
    return [row[str(token)]["logprob"] for row, token in zip(rows[1:], TOKENS[1:], strict=True)]


@long
@pytest.mark.slow
def test_oracle_ranks_and_kernels_serve_the_same_model(weights):
    common = ("--checkpoint", str(weights), "--context", "64", "--sessions", "2")
    with served.serving(*common, "--backend", "oracle") as oracle:
        exact = scores(oracle)
        assert oracle.build["path"]["dtype"] == "float64"
    with served.serving(*common) as plain, served.serving(*common, "--tp", "2") as ranks:
        # Other sums: near, and not the same to the last bit.
        one, two = scores(plain, by="decode"), scores(ranks, by="decode")
        assert one == pytest.approx(exact, abs=0.5) and two == pytest.approx(exact, abs=0.5) and one != two
        assert len({plain.fingerprint, ranks.fingerprint, oracle.fingerprint}) == 3
        assert plain.build["path"]["revision"] == ranks.build["path"]["revision"] == oracle.build["path"]["revision"]
    with served.serving(*common, "--backend", "latency_specialized") as kernels:
        path = kernels.build["path"]
        # The card says what computes what, and scores of prompts come from the decode step unless asked otherwise.
        assert (path["prefill"], path["decode"]) == ("plain", "kimi_k3's kernels, interpreted")
        assert kernels.build["prompt_scores"] == "decode"
        counters = f"{kernels.url}/fasttrack/counters"
        assert httpx.get(counters).json() == {"kernels": {}, "acceptance_forced": False}
        ours = scores(kernels)
        assert ours == pytest.approx(exact, abs=0.5) and ours != one
        launched = httpx.get(counters).json()["kernels"]
        # One step a token that is followed by another; 3 KDA and 2 MLA layers, the first of the five dense.
        steps = len(TOKENS) - 1
        assert (launched["kda_decode"], launched["mla_core"], launched["experts"]) == (3 * steps, 2 * steps, 4 * steps)
        scores(kernels, by="prefill")
        assert httpx.get(counters).json()["kernels"] == launched


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--backend", "fast"), "no backend is called 'fast'"),
        (("--checkpoint", "/nowhere"), "no checkpoint of the nano model"),
        (("--context", "4096"), "2048 positions"),
        (("--backend", "latency_specialized", "--tp", "2", "--device", "cuda"), "serves one rank"),
        (("--backend", "stock"), "needs a CUDA GPU"),
        (("--tp", "3"), "split"),
    ],
)
def test_what_cannot_be_served_is_said_before_a_port_is_open(weights, arguments, says, capsys):
    common = ["serve", "kimi_k3", "--device", "cpu", "--port", "0", "--checkpoint", str(weights)]
    assert cli.run([*common, *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said


PROMPT = "times 74 x 38\n"


def completion(one):
    with openai.OpenAI(base_url=one.url, api_key="none", max_retries=0, timeout=300) as client:
        return client.completions.create(model="kimi_k3-nano", prompt=PROMPT, max_tokens=12, temperature=0)


@pytest.mark.gpu
def test_the_trained_model_is_served_on_a_gpu_by_the_stock_path_and_by_the_kernels():
    """Held against the plain path on a CPU: scores of a prompt in bf16 are near."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    exact = None
    for backend, device in (("plain", "cpu"), ("stock", "cuda"), ("latency_specialized", "cuda")):
        with served.serving("--backend", backend, "--context", "64", "--sessions", "1", device=device) as one:
            answer = completion(one)
            assert answer.choices[0].text and answer.usage.completion_tokens and answer.choices[0].finish_reason in ("stop", "length")
            found = scores(one)
            exact = exact or found
            assert found == pytest.approx(exact, abs=0.5), backend
            if backend == "latency_specialized":
                launched = httpx.get(f"{one.url}/fasttrack/counters").json()["kernels"]
                assert launched["kda_decode"] and launched["mla_core"]
