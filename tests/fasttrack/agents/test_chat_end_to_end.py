"""A language model on a real op: command line, real judge, sandbox, interpreter and compiler; only the model is scripted."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import small_model
from model_server import ModelServer, write

KEY = "sk-planted-0123456789abcdef"
KERNEL = Path(str(files("fasttrack_models.kimi_k3"))).joinpath("kernels/routing.py").read_text("utf-8")


def edited(old: str, new: str) -> str:
    assert KERNEL.count(old) == 1
    return KERNEL.replace(old, new)


BROKEN = edited("def launch(ctx, buffers, axes, config):", "def launch(ctx, buffers, axes, config:")
# The weights are not normalised.
WRONG = edited("tl.math.div_rn(own, tl.sum(own) + 1e-20)", "own")
# Leaves its selection in the input, so that the next call finds it there: a store that no plan allows.
CHEAT = edited(
    "    tl.store(ids + place, chosen)\n", "    tl.store(ids + place, chosen)\n    tl.store(logits + chosen, own)\n"
)
# Right, and reads every logit twice.
SLOW = edited(
    "    bits = tl.where(", "    again = tl.load(logits + expert, mask=inside, other=0.0, volatile=True)\n"
    "    choice = tl.where(again == again, choice, float('-inf'))\n    bits = tl.where(",
)  # fmt: skip
FAST = KERNEL.replace("Equal sums go", "Equal scores go")
SCRIPT = [
    write(text, note, {"num_warps": 2}, path="kernels/routing.py")
    for text, note in ((BROKEN, "broken"), (WRONG, "wrong"), (CHEAT, "cheat"), (SLOW, "right"), (FAST, "one read"))
]


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A Person", "-c", "user.email=person@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.slow
def test_from_a_broken_kernel_to_a_draft_pull_request(tmp_path):
    root, home = tmp_path / "checkout", tmp_path / "home"
    small_model.write(root, "routing")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=base")
    environment = {
        **os.environ,
        "FASTTRACK_HOME": str(home),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "OPENAI_API_KEY": KEY,
    }
    command = [sys.executable, "-m", "fasttrack"]

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], cwd=root, env=environment, capture_output=True, text=True)

    with ModelServer(SCRIPT, key=KEY) as server:
        done = call(
            "propose", "kimi_k3", "--op", "routing", "--agent", "chat", "--endpoint", server.url, "--llm", "scripted-1",
            "--price", "1,10", "--rounds", "5", "--budget-minutes", "60", "--seed", "3", "--hardware", "h200", "--json",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    attempts = json.loads(call("history", "--json").stdout)
    assert [(a["note"], a["status"]) for a in attempts] == [
        ("broken", "rejected"), ("wrong", "rejected"), ("cheat", "rejected"), ("right", "accepted"), ("one read", "accepted"),
    ]  # fmt: skip
    reasons = [a["reason"] for a in attempts[:3]]
    assert reasons[0] == "syntax" and reasons[1].startswith("numerics.") and reasons[2] == "execution.out_of_bounds"
    assert attempts[4]["microseconds"] < attempts[3]["microseconds"]
    assert git(root, "show", f"{outcome['branch']}:models/kimi_k3/kernels/routing.py") == FAST.strip()
    assert (outcome["bill"]["prompt"], outcome["bill"]["completion"]) == server.totals
    body = Path(outcome["body"]).read_text("utf-8")
    assert "the agent `chat` with the model `scripted-1`" in body and f"{server.totals[0]} tokens in" in body
    story = call("explain", outcome["run"]).stdout
    assert all(
        word in story for word in ("Turning points", "attempt 4", "execution.out_of_bounds", f"{server.totals[1]} out")
    )
    # What a model is shown is the public part of the exam.
    prompts = json.dumps(server.requests)
    assert "exact, one program a row" in prompts and "-unseen" not in prompts and KEY not in prompts
    assert not [p for p in home.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
