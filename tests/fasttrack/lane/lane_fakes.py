"""A toy model, its exam, and a judge with a time formula that can be worked out by hand. Shipped nowhere."""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from fasttrack.lane import Services
from fasttrack.package import Document, Gated, PullRequest, combined
from fasttrack_validation.claims.cells import Measured, Modelled, NotMeasured
from fasttrack_validation.contracts.base import Cost, Workload
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import CheckResult, Outcome, Status, Verdict, TimedCell, WorkloadResult

MANIFEST = """\
[model]
name = "toy"
title = "Toy"
contract = "toy"
owner = "Ada"
review_by = 2030-01-01
remove_by = 2031-01-01

[ops.copy]
kernels = ["kernels/copy.py", "kernels/extra.py"]
dispatch = "dispatch/copy.toml"
space = "kernels/copy.space.toml"

[[envelope]]
hardware = "h200"
tp = 8
rows = [1, 4]
verify_width = 1
dtypes = ["bf16"]

[[envelope]]
hardware = "gb300"
tp = 8
rows = [1, 4]
verify_width = 1
dtypes = ["bf16"]
"""

SPACE = """\
op = "copy"
entry = "copy.py"

[parameters]
BLOCK = [16, 32, 64, 128]
num_warps = [1, 2, 4]
flip = [false]

[default]
BLOCK = 32
num_warps = 4
flip = false

[[exclude]] # fewer elements than lanes
BLOCK = 16
num_warps = 4

[[in_flight]]
unit_bytes = 1024
tile = ["BLOCK"]
"""

ENTRY = """\
[[entry]]
hardware = "{hardware}"
tp = 8
rows = [{low}, {high}]
kernel = "kernels/copy.py"
config = {{ BLOCK = 32, flip = false, num_warps = 4 }}
basis = "modelled"
"""

TABLE = "\n".join(
    ENTRY.format(hardware=hardware, low=low, high=high)
    for hardware in ("gb300", "h200")
    for low, high in ((1, 1), (2, 4))
)

KERNEL = "def launch(ctx, buffers, axes, config):\n    pass\n"


def write_repository(root: Path) -> Path:
    """A git repository with the toy model."""
    model = root / "models" / "toy"
    files = {
        "fasttrack.toml": MANIFEST, "kernels/copy.space.toml": SPACE, "dispatch/copy.toml": TABLE,
        "kernels/copy.py": KERNEL, "kernels/extra.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(text)
    git(root, "init", "-q", "-b", "main")
    commit_all(root, "base")
    return root


def commit_all(root: Path, message: str) -> str:
    git(root, "add", "-A")
    git(root, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", message)
    return git(root, "rev-parse", "HEAD")


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Op:
    """Rows 1 and 4 at TP 8; a row moves one MiB."""

    model, op = "toy", "copy"

    def workloads(self, *, held_out: bool = False):
        return tuple(Workload(name=f"tp8-r{rows}", axes={"tp": 8, "rows": rows}) for rows in (1, 4))

    def cost(self, workload: Workload) -> Cost:
        return Cost(bytes_read=workload.axes["rows"] * 2**20, bytes_written=0, flops=0)


class Contract:
    """The exam of the toy model."""

    model = "toy"
    ops = {"copy": Op()}
    envelope = {
        name: SimpleNamespace(
            tp=(8,), min_rows=1, max_rows=4, verify_width=(1,), weights="bf16", conv_state="bf16",
            recurrent_state="fp32",
        )  # fmt: skip
        for name in ("h200", "gb300")
    }

    def op(self, name: str) -> Op:
        if name not in self.ops:
            raise UserError(f"no op of toy is called {name!r}", "known: copy")
        return self.ops[name]


def microseconds(config: dict, workload: str) -> float:
    """One row likes small blocks, four rows large ones; warps cost a little."""
    block, warps = config["BLOCK"], config["num_warps"]
    best = 16 if workload == "tp8-r1" else 128
    return 100 + abs(block - best) + warps + 0.5 * config["flip"]


class Judge:
    """Accepts unless told otherwise by a marker in the sources; keeps a log of what it was asked."""

    def __init__(self, log: Path | None = None, *, measured=(), hardware=("h200",), pause: float = 0.0) -> None:
        self.log, self.measured, self.hardware, self.pause = log, measured, hardware, pause
        self.refuse_confirmation = lambda candidate, workloads: False
        self.status = lambda candidate: Status.REJECTED if "WRONG" in "".join(candidate.files.values()) else None
        self.interrupt_after: int | None = None
        self.device, self.timed_on = "interpreter", None
        self.calls: list[tuple] = []

    def identity(self, op):
        return {"contract": "c" * 64, "judge": "d" * 64, "device": self.device, "timed_on": self.timed_on}

    def screen(self, candidate, workloads=("tp8-r1", "tp8-r4")):
        return self._rule("screen", candidate, tuple(workloads), self.status(candidate), workloads)

    def confirm(self, candidate, workloads, timed):
        bad = Status.REJECTED if self.refuse_confirmation(candidate, tuple(workloads)) else None
        return self._rule("confirm", candidate, tuple(workloads), bad, timed)

    def _rule(self, stage, candidate, workloads, status, timed):
        if self.interrupt_after is not None and len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.calls.append((stage, candidate.digest(), workloads))
        time.sleep(self.pause)
        status = status or Status.ACCEPTED
        bad = status is not Status.ACCEPTED
        verdict = Verdict(
            model="toy", op="copy", status=status, reason="C10.wrong" if bad else None,
            message="off by 3" if bad else "", candidate_digest=candidate.digest(), contract_digest="c" * 64,
            judge_digest="d" * 64, config=candidate.config,
            checks=(CheckResult(check="C10", title="precision", outcome=Outcome.FAIL if bad else Outcome.PASS),),
            workloads=() if bad else tuple(_result(w) for w in workloads),
            cells=() if bad else tuple(self._cell(candidate, w, h) for w in workloads if w in timed for h in self.hardware),
            executor="fake", sandbox="none",
        )  # fmt: skip
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(json.dumps([stage, candidate.digest(), workloads, os.getpid()]) + "\n")
        return verdict

    def _cell(self, candidate, workload, hardware):
        value = microseconds(candidate.config, workload)
        if (hardware, workload) in self.measured:
            cell = Measured(
                microseconds=value, low=value - 1, high=value + 1, repetitions=5, method="fake", hardware=hardware
            )
        else:
            model = Modelled(microseconds=value, model="fake/1", hardware=hardware, bound="bytes")
            cell = NotMeasured(reason="no GPU here", modelled=model)
        return TimedCell(hardware=hardware, workload=workload, cell=cell)


def _result(workload):
    return WorkloadResult(
        workload=workload, axes={"tp": 8}, held_out=False, launches=1, trials=1, distributions=(), errors=()
    )


class Packager:
    """Minimal writers."""

    def evidence(self, bundle):
        return Document("evidence/copy.json", combined(bundle.picks).canonical_json() + "\n")

    def report(self, bundle, evidence, written):
        return (Document("report/copy.md", f"# copy\n\n{len(bundle.evaluations)} candidates\n"),)

    def pull_request(self, bundle, evidence, written, commit, gate):
        return PullRequest("Faster copy", "body")


def services(judge: Judge, *, broken: tuple[str, ...] = ()) -> Services:
    @contextmanager
    def enter(contract, unsafe, device="cpu"):
        yield judge

    def gate(checkout, base, head, model):
        changed = git(Path(checkout), "diff", "--name-only", base, head).splitlines()
        assert changed and all(path.startswith(f"models/{model}/") for path in changed)
        return Gated(1 if broken else 0, broken, None)

    return Services(
        contract=lambda name: Contract(), judge=enter, packager=Packager(), gate=gate,
        why_no_timing=lambda: "no GPU here", check_policy=lambda *_: None,
    )  # fmt: skip
