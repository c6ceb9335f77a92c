"""A checkout with a proposal on a branch, and the bare repository that it is pushed to."""

import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fasttrack.gate import run_gate
from fasttrack.model_dir import parse_manifest
from fasttrack.report import record
from fasttrack.report.data import Provenance
from fasttrack.report.page import report_data
from fasttrack.report.render import render
from fasttrack_validation.claims.cells import Measured, NotMeasured
from fasttrack import evidence
from gated_change import KERNEL, M, STATEMENT, TABLE, contract_of, statement, tree

BRANCH = "fasttrack/alpha/decode/one"
MANIFEST = """[model]
name = "alpha"
title = "Alpha"
contract = "alpha"
owner = "Ada"
review_by = 2101-01-01
remove_by = 2102-01-01

[ops.decode]
kernels = ["kernels/k.py"]
dispatch = "dispatch/decode.toml"

[[envelope]]
hardware = "h200"
tp = 8
rows = [1, 4]
verify_width = 1
dtypes = ["bf16"]
"""
OLD = {"fasttrack.toml": MANIFEST.encode(), KERNEL: b"from . import shared\n", "kernels/shared.py": b"A = 1\n",
       "dispatch/decode.toml": TABLE}  # fmt: skip
gate = partial(run_gate, contract_of=contract_of)


def proposed(start: str, *, owner: str = "", kernel: bytes = b"from . import shared  # better\n") -> dict[str, bytes]:
    """The model directory of the proposal, with evidence and report."""
    measured = Measured(microseconds=7.5, low=7.4, high=7.6, repetitions=5, method="graph", hardware="h200")
    cell = evidence.PerformanceCell(hardware="h200", tp=8, bucket="1-4", candidate=measured, stock=NotMeasured(reason="no"))
    files = OLD | {KERNEL: kernel}
    files |= {STATEMENT: statement(files, performance=(cell,))}
    if owner:
        files |= {"report/owner.md": owner.encode()}
    who = Provenance(agent="search", seed=7, rounds=3, base_commit=start, author="Ada <ada@example.org>",
                     fallback_identity=False, source="evidence/archive/decode.json")  # fmt: skip
    told = record.DesignRecord(
        model="alpha", problem="decode: one launch less.", switch_off="stock", ops=(record.RecordedOp(op="decode"),),
        touched=(record.Touched(path=STATEMENT, status="A"), record.Touched(path=KERNEL, status="M")), provenance=who,
    )  # fmt: skip
    text, page = render(report_data(files, parse_manifest(MANIFEST, Path("fasttrack.toml")), told))
    return files | {record.DESIGN: told.text().encode(), record.MARKDOWN: text.encode(), record.PAGE: page.encode()}


@dataclass
class Checkout:
    """A checkout whose `origin` is a bare repository; the proposal is on BRANCH, and `main` is checked out."""

    path: Path
    bare: Path

    @classmethod
    def make(cls, place: Path) -> "Checkout":
        made = cls(place / "checkout", place / "remote.git")
        made.path.mkdir()
        made.git("init", "--quiet", "-b", "main")
        made.write(tree(OLD) | {"README.md": b"# a stack\n"})
        made.commit("base")
        subprocess.run(["git", "clone", "--quiet", "--bare", str(made.path), str(made.bare)], check=True)
        made.git("remote", "add", "origin", str(made.bare))
        made.propose()
        return made

    def copy(self, place: Path) -> "Checkout":
        """The same again, apart."""
        made = Checkout(place / "checkout", place / "remote.git")
        shutil.copytree(self.path, made.path)
        shutil.copytree(self.bare, made.bare)
        made.git("remote", "set-url", "origin", str(made.bare))
        return made

    def git(self, *arguments: str, where: Path | None = None) -> str:
        person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        done = subprocess.run(["git", *person, *arguments], cwd=where or self.path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def write(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD")

    def propose(self, **change) -> str:
        """The proposal, on BRANCH, from where `main` is; `main` is checked out again."""
        start = self.git("rev-parse", "main")
        self.git("switch", "--quiet", "-C", BRANCH, "main")
        self.write({f"{M}/{name}": data for name, data in proposed(start, **change).items()})
        commit = self.commit("alpha: decode")
        self.git("switch", "--quiet", "main")
        return commit

    def add(self, files: dict[str, bytes]) -> str:
        """One more commit on BRANCH."""
        self.git("switch", "--quiet", BRANCH)
        self.write(files)
        commit = self.commit("more")
        self.git("switch", "--quiet", "main")
        return commit

    def move_base(self, files: dict[str, bytes]) -> str:
        """A commit by somebody else on the remote's `main`; the checkout's stays where it is."""
        start = self.git("rev-parse", "main")
        self.write(files)
        commit = self.commit("somebody else's")
        self.git("push", "--quiet", "origin", f"{commit}:refs/heads/main")
        self.git("reset", "--quiet", "--hard", start)
        return commit

    def there(self, branch: str = BRANCH) -> str | None:
        command = ["git", "--git-dir", str(self.bare), "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
