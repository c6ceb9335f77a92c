"""Two real servers, token by token, through proxies that spoil answers: from the command line to its exit code."""

import json
import shutil
from collections import Counter

import pytest
import served
from faulty_proxy import Proxy
from long_tests import long

from fasttrack import cli
from fasttrack_validation.durable import held
from fasttrack_validation.contracts.kimi_k3.nano.served import CHECKPOINT
from fasttrack_validation.contracts.kimi_k3.nano.tokenizer import BOS, encode
from fasttrack_validation.numerics.servers.journal import kept

pytestmark = pytest.mark.slow
PROMPTS = {"sum": "add 12 34\n2+4+0=6c0\n1+3+0=4c0\n=46\n", "prose": "Ada has a red ball and a cat.\n" * 2}


def build(place):
    """A tree of the packages: another build, once something in it is replaced."""
    rooms = {"fasttrack": "fasttrack", "validation": "fasttrack_validation", "models": "fasttrack_models"}
    for room, package in rooms.items():
        shutil.copytree(served.ROOT / room, place / package, ignore=shutil.ignore_patterns("__pycache__", "checkpoint"))
    return place


def replaced(tree, file, old, new):
    path = tree / "fasttrack_validation" / file
    text = path.read_text("utf-8")
    assert text.count(old) == 1, (file, old)
    path.write_text(text.replace(old, new), "utf-8")
    return tree


def gates_exchanged(place):
    """Another build, in which two heads have each other's output gate."""
    gate = 'step.projected["g"].sigmoid().unflatten(1, (self.shard.heads, -1))'
    exchanged = gate + "[:, [1, 0, *range(2, self.shard.heads)]]"
    return replaced(build(place), "contracts/kimi_k3/kda_decode/oracle.py", gate, exchanged)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Stock; the same arithmetic in another build; a fault in another build; the oracle; ranks as a control."""
    place = tmp_path_factory.mktemp("builds")
    weights = served.checkpoint(place / "checkpoint")
    twin = replaced(build(place / "twin"), "generation/engine.py", "PART = 256", "PART = 256  # unchanged")
    wrong = gates_exchanged(place / "wrong")
    common = ("--checkpoint", str(weights), "--context", "256", "--sessions", "4")
    with served.serving(*common) as stock, served.serving(*common, tree=twin) as twin:
        with served.serving(*common, tree=wrong) as wrong, served.serving(*common, "--backend", "oracle") as oracle:
            with served.serving(*common, "--tp", "2") as ranks:
                yield {"stock": stock, "twin": twin, "wrong": wrong, "oracle": oracle, "ranks": ranks, "weights": weights}


@pytest.fixture
def tokens(tmp_path):
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": name, "tokens": [BOS, *encode(text)]}) for name, text in PROMPTS.items()]
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def run(tokens, tmp_path, capsys):
    def call(stock, candidate, *more, out="out"):
        command = ["validate", "kimi_k3", "--stage", "numerics", "--stock-url", stock, "--candidate-url", candidate]
        command += ["--tokens", str(tokens), "--out", str(tmp_path / out), "--replicas", "2", "--json", *more]
        if "--recompute" in more:
            command = [*command[:4], "--out", str(tmp_path / out), "--json", "--recompute"]
        code = cli.run(command)
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), tmp_path / out / "servers.jsonl"

    return call


COUNT = sum(len(encode(text)) for text in PROMPTS.values())


def test_identical_arithmetic_passes_a_fault_is_seen_and_one_build_is_refused(servers, run):
    urls = {name: one.url for name, one in servers.items() if name != "weights"}
    code, said, file = run(urls["stock"], urls["twin"])
    assert (code, said["result"], said["tokens"], said["deterministic"]) == (0, "pass", COUNT, True)
    assert {s["maximum"] for s in said["spreads"]} == {0.0}
    # The same from the records alone.
    code, again, _ = run(urls["stock"], urls["twin"], "--recompute")
    assert code == 0 and {**again, "out": ""} == {**said, "out": ""}
    others = ("--oracle-url", urls["oracle"], "--control-url", urls["ranks"])
    code, said, _ = run(urls["stock"], urls["wrong"], *others, out="w")
    assert code == 1 and said["result"] == "fail" and said["reference"] == "oracle", said["text"]
    # Without anything that shows noise the difference is seen, and nobody says that it is a fault.
    code, said, _ = run(urls["stock"], urls["wrong"], out="n")
    assert code == 3 and "repeats itself to the last bit" in said["text"]
    code, said, _ = run(urls["stock"], urls["stock"], out="s")
    assert (code, said["reason"]) == (2, "same_build")
    code, said, _ = run(urls["stock"], urls["oracle"], out="d")
    assert (code, said["reason"]) == (2, "dtype")


def test_other_ranks_as_a_control_let_honest_ranks_pass_and_a_fault_fail(run, tmp_path):
    """The stock server repeats itself: the control alone shows noise."""
    common = ("--checkpoint", str(CHECKPOINT), "--context", "256", "--sessions", "4")
    with served.serving(*common) as stock, served.serving(*common, "--tp", "4") as control:
        with served.serving(*common, "--tp", "2") as ranks:
            code, said, _ = run(stock.url, ranks.url, "--control-url", control.url)
            assert (code, said["result"], said["deterministic"]) == (0, "pass", False), said["text"]
            differs = {s["path"]: s["median"] for s in said["spreads"] if s["metric"] == "log_prob"}
            assert differs["again-1"] == differs["again-2"] == 0 < min(differs["candidate"], differs["control-1"])
            code, said, _ = run(stock.url, ranks.url, out="alone")
            assert (code, said["result"]) == (3, "inconclusive")
        with served.serving(*common, tree=gates_exchanged(tmp_path / "tree")) as wrong:
            code, said, _ = run(stock.url, wrong.url, "--control-url", control.url, out="wrong")
            assert (code, said.get("result")) == (1, "fail"), said


def test_a_build_is_the_same_one_whatever_does_not_compute(servers, run, tmp_path):
    """Started with another context, or from a tree without a commit in which only what compares has changed."""
    tree = replaced(build(tmp_path / "tree"), "numerics/servers/compare.py", "WORST = 10", "WORST = 11")
    weights = ("--checkpoint", str(servers["weights"]), "--sessions", "2")
    with served.serving(*weights, "--context", "200", tree=tree) as other:
        assert other.build["commit"] is None and other.build["path"]["context"] == 200
        assert other.fingerprint == servers["stock"].fingerprint
        code, said, _ = run(servers["stock"].url, other.url)
    assert (code, said["reason"]) == (2, "same_build")
    known = {servers[name].fingerprint for name in ("stock", "twin", "wrong", "oracle", "ranks")}
    assert len(known) == 5


def test_two_do_not_compare_into_one_directory_and_fresh_begins_anew(servers, run, tmp_path):
    urls = {name: servers[name].url for name in ("stock", "twin")}
    code, said, file = run(urls["stock"], urls["twin"])
    before = file.read_bytes()
    with held(tmp_path / "out"):
        for more in ((), ("--fresh",)):
            code, refused, _ = run(urls["stock"], urls["twin"], *more)
            assert code == 2 and "another process runs the stage" in json.dumps(refused)
    assert file.read_bytes() == before
    code, again, _ = run(urls["stock"], urls["twin"], "--fresh")
    assert code == 0 and again["tokens"] == said["tokens"]


def test_whatever_fails_on_the_way_costs_requests_and_no_token_counts_twice(servers, run):
    faults = [429, "half", 500, "html", "nothing", "fine", 503, "half"]
    with Proxy(servers["stock"].url, list(faults)) as stock, Proxy(servers["twin"].url, list(faults)) as twin:
        code, said, file = run(stock.url, twin.url, "--piece", "9")
        assert code == 0 and said["tokens"] == COUNT
        pieces = list(kept(file)[1])
        places = Counter((p.arm, p.prompt, p.start + n) for p in pieces for n in range(len(p.tokens)))
        assert set(places.values()) == {1} and len(places) == 4 * COUNT
        # Asked again only for what had not come whole: one request a piece, and one for each fault.
        assert stock.asked + twin.asked == len(pieces) + 2 * (len(faults) - 1)
        asked = stock.asked
        code, same, _ = run(stock.url, twin.url, "--piece", "9")
        assert code == 0 and same == said and stock.asked == asked  # nothing is asked again
        # A run that was cut off in the middle of a line goes on behind the last whole one.
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])
        code, same, _ = run(stock.url, twin.url, "--piece", "9")
        assert code == 0 and same == said and stock.asked < 2 * asked


def path_changed(body, **fields):
    body["data"][0]["fasttrack"]["path"] |= fields
    return body


def fewer(body):
    for entry in body["choices"][0]["prompt_logprobs"][1:]:
        least = max(entry, key=lambda name: entry[name]["rank"] if entry[name]["rank"] <= 8 else 0)
        del entry[least]
    return body


def other_build(body):
    return body | {"system_fingerprint": "fp_other"}


def without_scores(body):
    body["choices"][0]["prompt_logprobs"] = None
    return body


def other_words(body):
    for entry in filter(None, body["choices"][0]["prompt_logprobs"]):
        for score in entry.values():
            score["decoded_token"] += "!"
    return body


SPOILT = {
    "revision": ("/v1/models", lambda body: path_changed(body, revision="other")),
    "tokenizer": ("/v1/models", lambda body: path_changed(body, tokenizer="other")),
    "dtype": ("/v1/models", lambda body: path_changed(body, dtype="float16")),
    "unknown": ("/v1/models", lambda body: path_changed(body, revision=None)),
    "missing": ("/v1/completions", without_scores),
    "truncated": ("/v1/completions", fewer),
    "changed": ("/v1/completions", other_build),
    "tokenizer ": ("/v1/completions", other_words),
}


@pytest.mark.parametrize("reason", SPOILT)
def test_servers_and_answers_that_cannot_be_compared_are_refused(servers, run, reason):
    path, change = SPOILT[reason]
    with Proxy(servers["twin"].url, always={path: change}) as twin:
        code, said, _ = run(servers["stock"].url, twin.url)
    assert (code, said["reason"]) == (2, reason.strip())


@long
def test_a_server_that_gives_nothing_ends_the_run_and_keeps_what_is_known(servers, run, monkeypatch):
    from fasttrack_validation.numerics.servers import client

    monkeypatch.setattr(client, "_LONGEST_WAIT", 0.01)
    with Proxy(servers["twin"].url, ["html"] * 50) as twin:
        code, said, file = run(servers["stock"].url, twin.url)
        assert code == 2 and "no whole answer in 8 attempts" in said["error"]["what"]
        assert {piece.arm for piece in kept(file)[1]} == {"stock"}
        twin.faults.clear()
        code, said, _ = run(servers["stock"].url, twin.url)
        assert code == 0 and said["tokens"] == COUNT
