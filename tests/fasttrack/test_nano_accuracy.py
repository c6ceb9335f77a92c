"""Both arms over real HTTP on the trained nano checkpoint: identical arms pass, planted mistakes are judged as the power
predicts, and the same mistakes are what numerics sees.
"""

import json
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nano_server
import pytest
import torch
from long_tests import long

from fasttrack.cli import run
from fasttrack_validation.accuracy.power import power
from fasttrack_validation.accuracy.rule import Rule
from fasttrack_validation.contracts.kimi_k3.nano import served
from fasttrack_validation.generation.paths import Backend, Setup

pytest.importorskip("lm_eval", reason="pip install 'fasttrack[exams]'")
pytestmark = pytest.mark.slow

KIND, ITEMS, SEED = "kimi_k3_nano_product", 24, 4


@contextmanager
def nano(fault):
    command = [sys.executable, str(Path(nano_server.__file__)), fault]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert select.select([process.stdout], [], [], 180)[0], "no server"
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def exam(tmp_path_factory):
    place = tmp_path_factory.mktemp("nano")
    assert run(["exam", "build", KIND, "--seed", str(SEED), "--items-each", str(ITEMS), "-o", str(place / "exam")]) == 0
    for margin in (5, 15):
        arguments = ["--margin", str(margin), "--looks", "1", "--temperature", "0", "--max-tokens", "10"]
        assert run(["exam", "plan", str(place / "exam"), *arguments, "-o", str(place / f"{margin}.toml")]) == 0
    return place


@pytest.fixture(scope="module")
def stock():
    """The stock arm: what `fasttrack serve` starts."""
    from served import serving

    with serving("--backend", "plain", "--context", "256", "--sessions", "4") as one:
        yield one.url


def validated(exam, stock, fault, margin, capsys):
    capsys.readouterr()
    with nano(fault) as url:
        code = run(["validate", "kimi_k3", "--stage", "accuracy", "--plan", str(exam / f"{margin}.toml"), "--exams", str(exam),
                    "--stock-url", stock, "--candidate-url", url, "--workers", "4", "-o", str(exam / f"{fault}-{margin}"),
                    "--json"])  # fmt: skip
    out = capsys.readouterr().out
    (record,) = json.loads(out[out.index("{") :])["outcome"]["exams"]
    return code, record


def test_identical_arms_pass_word_for_word(exam, stock, capsys):
    code, record = validated(exam, stock, "none", 15, capsys)
    assert record["result"]["findings"] == [] and code == 0
    assert record["result"]["verdict"] == "pass" and record["result"]["paired"]["difference"] == 0
    assert 0.1 < record["result"]["paired"]["baseline"] < 0.9, "an exam that shows nothing"
    texts = []
    for arm in ("baseline", "candidate"):
        lines = (exam / "none-15" / record[arm]["file"]).read_text().splitlines()
        texts.append([json.loads(line)["text"] for line in lines[1:]])
        assert json.loads(lines[0])["kernels"] == ({} if arm == "baseline" else json.loads(lines[0])["kernels"])
    assert texts[0] == texts[1]


@long
@pytest.mark.parametrize(("fault", "margin"), [("gates_rolled", 15), ("forgets", 5)])
def test_a_planted_mistake_is_judged_as_the_power_predicts(exam, stock, fault, margin, capsys):
    """One that costs everything fails; one that costs some points is at least not let through by so small an exam."""
    code, record = validated(exam, stock, fault, margin, capsys)
    result = record["result"]
    if result["verdict"] == "invalid":
        # A mistake that also changes how long answers are, or whether there is any, is stopped before a score.
        assert {one["reason"] for one in result["findings"]} <= {"length_ratio", "truncated", "unparsed", "null_content"}
        assert code == 1
        return
    loss, paired = -result["paired"]["difference"], result["paired"]
    assert loss > 0
    spread = ITEMS * paired["se"] ** 2
    rule = Rule(margin_points=margin, looks=(1,))
    passes = power(rule, items=ITEMS, repeats=1, within=spread, loss=loss)
    assert passes < 0.5 and result["verdict"] != "pass"
    # By hand: the rule fails an arm where even the upper bound lies beyond the margin.
    beyond = result["decision"]["upper"] < -margin / 100
    assert (result["verdict"], code) == (("fail", 1) if beyond else ("inconclusive", 3))


@long
@pytest.mark.parametrize("fault", ["gates_rolled", "forgets"])
def test_numerics_sees_the_same_mistakes(fault):
    """Errors of logits against float64, token by token: far beyond 1.25 times those of the plain path."""
    setup = Setup(model="kimi_k3", backend=Backend.PLAIN, checkpoint=served.CHECKPOINT, context=64, sessions=1)
    tokens = [served.BOS, *served.encode("product 12 34\n=408\n")]

    def logits(path):
        path.open(0)
        return torch.cat([path.decode(0, token) for token in tokens]).double()

    with torch.inference_mode():
        exact = logits(served.Plain(setup.model_copy(update={"backend": Backend.ORACLE}), served.EXACT))
        plain, wrong = (logits(nano_server.Path(setup, name)) for name in ("none", fault))
    assert (wrong - exact).abs().median() > 3 * (plain - exact).abs().median()
