"""The workbench: what every tool does. It holds no secret of the judge: all it sees is contract, model directory, archive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fasttrack_validation.claims.cells import Measured
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Outcome, Status, Verdict

from . import briefing, lineage
from .protocol import Evaluation, Proposal
from .tools import (
    Evaluate, Finish, History, ListFiles, Profile, ReadCandidate, ReadContract, ReadFile, Time, Tool, ToolProblem,
    WriteCandidate,
)  # fmt: skip

if TYPE_CHECKING:
    from fasttrack_validation.contracts.base import OpContract

    from ..model_dir import Bucket, ModelDirectory

PAGE = 24_000
"""Characters of a file that one call shows."""
_READABLE = (".py", ".cu", ".cuh", ".toml", ".md")


@dataclass(frozen=True)
class Result:
    """What a call came to: text for the agent; a proposal to judge; or the end of the run, with the agent's reason."""

    text: str = ""
    proposal: Proposal | None = None
    finish: str | None = None


class Workbench:
    """Serves the tools for one op of one run. `history` is the run's, set before each round."""

    def __init__(
        self, directory: "ModelDirectory", contract: "OpContract", buckets: Sequence["Bucket"],
        floors: Mapping[tuple[str, str], float | None],
    ) -> None:  # fmt: skip
        self.directory, self.contract, self.buckets, self.floors = directory, contract, tuple(buckets), floors
        self.op = contract.op
        self.history: Sequence[Evaluation] = ()
        self.draft: Candidate | None = None
        self._drafts: dict[str, Candidate] = {}
        space = directory.space(self.op)
        self.default = dict(space.default) if space else {}
        self.tree = directory.candidate(self.op, self.default)

    def call(self, tool: Tool) -> Result:
        """Follows a call. Raises ToolProblem where it cannot be followed."""
        match tool:
            case ReadContract():
                return Result(briefing.contract(self) + "\n\n" + briefing.interface())
            case ListFiles():
                return Result(self._list())
            case ReadFile():
                return Result(self._read(tool))
            case History():
                return Result(self.told(tool.last))
            case ReadCandidate():
                return Result(self._show(tool))
            case WriteCandidate():
                return Result(self._write(tool))
            case Evaluate():
                return self._evaluate(tool)
            case Time():
                return Result(self._time(tool.candidate))
            case Profile():
                return Result(self._profile(tool.candidate))
            case Finish():
                return Result(finish=briefing.line(tool.reason) or "the agent has nothing more to try")
        raise ToolProblem(f"{tool.name} is not served here")

    def write(self, files: Mapping[str | None, str], config: Mapping[str, object], base: str = "tree") -> Candidate:
        """A candidate of `files` over those of `base`; None as a path is the op's entry file. Raises ToolProblem."""
        start = self.candidate(base)
        laid = {self._place(path): text for path, text in files.items()}
        try:
            made = Candidate(
                op=self.op, entry=start.entry, files={**start.files, **laid}, config={**start.config, **config}
            )
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise ToolProblem(f"not a candidate: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        self._drafts[made.digest()] = self.draft = made
        return made

    def candidate(self, name: str) -> Candidate:
        """The candidate that a digest, the beginning of one, or `tree` names. Raises ToolProblem."""
        if name == "tree":
            return self.tree
        known = {e.proposal.candidate.digest(): e.proposal.candidate for e in self.history} | self._drafts
        found = [digest for digest in known if digest.startswith(name)] if len(name) >= 8 else []
        if len(found) != 1:
            raise ToolProblem(
                f"{'no' if not found else 'more than one'} candidate is called {name[:70]!r}; `history` lists them"
            )
        return known[found[0]]

    def told(self, last: int) -> str:
        """The latest attempts, one a line."""
        if not self.history:
            return "nothing has been judged yet"
        copies = lineage.duplicates(self.history)
        numbered = list(enumerate(self.history))[-last:]
        return "\n".join(attempt_line(number, evaluation, copies.get(number)) for number, evaluation in numbered)

    def _list(self) -> str:
        own = self.directory.manifest.op(self.op).kernels
        others = sorted(
            path.relative_to(self.directory.path).as_posix()
            for path in self.directory.path.rglob("*")
            if path.is_file() and not path.is_symlink() and path.suffix in _READABLE
        )
        lines = [f"{name} (a candidate may replace it{', the entry file' if name == own[0] else ''})" for name in own]
        return "\n".join(lines + [name for name in others if name not in own])

    def _read(self, tool: ReadFile) -> str:
        path = self.directory.path / tool.path
        inside = (
            path.resolve().is_relative_to(self.directory.path.resolve()) and ".." not in PurePosixPath(tool.path).parts
        )
        if not inside or path.suffix not in _READABLE or not path.is_file() or path.is_symlink():
            raise ToolProblem(f"no file {tool.path[:100]!r} can be read; `list_files` names those that can")
        return _page(path.read_text("utf-8", "replace"), tool.path, tool.offset)

    def _show(self, tool: ReadCandidate) -> str:
        candidate = self.candidate(tool.candidate)
        head = f"candidate {candidate.digest()}\nconfig {briefing.config(candidate)}\n"
        if (judged := self._judged(candidate)) is not None:
            head += ruling(judged.verdict) + "\n"
        text = "".join(f"{name}:\n{briefing.quoted(body)}\n" for name, body in sorted(candidate.files.items()))
        return head + _page(text, "its files", tool.offset, quote=False)

    def _write(self, tool: WriteCandidate) -> str:
        made = self.write({file.path: file.text for file in tool.files}, tool.config, tool.base)
        known = self._judged(made)
        return f"written: {made.digest()}" + (f"\nit has been judged before: {ruling(known.verdict)}" if known else "")

    def _evaluate(self, tool: Evaluate) -> Result:
        if not tool.candidate and self.draft is None:
            raise ToolProblem("nothing has been written yet; write_candidate first")
        candidate = self.candidate(tool.candidate) if tool.candidate else self.draft
        if (known := self._judged(candidate)) is not None:
            return Result(f"it has been judged before, and that costs no round: {ruling(known.verdict)}")
        return Result(proposal=Proposal(candidate, briefing.line(tool.note) or "no note"))

    def _time(self, name: str) -> str:
        judged = self._need(name)
        if judged.verdict.status is not Status.ACCEPTED:
            return f"it was not accepted, so it has no time: {ruling(judged.verdict)}"
        return times_table(judged.verdict, self.floors) or "nothing has timed it"

    def _profile(self, name: str) -> str:
        judged = self._need(name)
        return profile(judged.verdict, self)

    def _need(self, name: str) -> Evaluation:
        judged = self._judged(self.candidate(name))
        if judged is None:
            raise ToolProblem("that candidate has not been judged; evaluate it first")
        return judged

    def _judged(self, candidate: Candidate) -> Evaluation | None:
        digest = candidate.digest()
        return next((e for e in self.history if e.proposal.candidate.digest() == digest), None)

    def _place(self, path: str | None) -> str:
        """The path of a kernel file, however an agent has written it."""
        own = self.directory.manifest.op(self.op).kernels
        if path is None:
            return own[0]
        plain = path.strip().removeprefix("./").removeprefix(f"models/{self.directory.manifest.model.name}/")
        named = [name for name in own if name == plain] or [name for name in own if PurePosixPath(name).name == plain]
        if len(named) != 1:
            raise ToolProblem(f"{path[:100]!r} is not a file that a candidate of {self.op} may have: {', '.join(own)}")
        return named[0]


def ruling(verdict: Verdict) -> str:
    """A verdict for an agent: status, reason, and what each failed check says. No figure of the oracle is among it."""
    lines = [
        f"{verdict.status}" + (f": {verdict.reason}: {verdict.message}" if verdict.reason or verdict.message else "")
    ]
    for check in verdict.checks:
        if check.outcome in (Outcome.FAIL, Outcome.INVALID) and check.message and check.message != verdict.message:
            lines.append(f"  {check.check} {check.title}: {check.message}")
    return briefing.plain("\n".join(lines))


def attempt_line(number: int, evaluation: Evaluation, copy_of: int | None = None) -> str:
    """One attempt on one line."""
    verdict, proposal = evaluation.verdict, evaluation.proposal
    digest = proposal.candidate.digest()[:12]
    came = "accepted" if verdict.status is Status.ACCEPTED else f"{verdict.status}: {verdict.reason}: {verdict.message}"
    total = "" if evaluation.objective is None else f", {rounded(evaluation.objective)} us over all places"
    same = "" if copy_of is None else f", the same kernels as attempt {copy_of + 1}"
    parents = f", from {', '.join(parent[:12] for parent in proposal.parents)}" if proposal.parents else ""
    return briefing.line(f"{number + 1}. {digest}{parents} ({proposal.note}): {came}{total}{same}", 600)


def times_table(verdict: Verdict, floors: Mapping[tuple[str, str], float | None]) -> str:
    """Times to three digits, each with what it is: measured, or modelled."""
    lines = []
    for timed in verdict.cells:
        cell, floor = timed.cell, floors.get((timed.hardware, timed.workload))
        if isinstance(cell, Measured):
            text = f"{rounded(cell.microseconds)} us measured"
            if timed.timing is not None:
                text += f", stock path {rounded(timed.timing.stock.microseconds)} us"
        elif cell.modelled is not None:
            text = f"{rounded(cell.modelled.microseconds)} us modelled, not measured"
        else:
            text = f"not measured: {cell.reason}"
        bound = f"; floor at datasheet bandwidth {rounded(floor)} us" if floor else ""
        lines.append(f"{timed.hardware} {timed.workload}: {text}{bound}")
    return briefing.plain("\n".join(lines))


def profile(verdict: Verdict, bench: Workbench) -> str:
    """The recorded launches and what the machine code says of each kernel, beside the op's bytes and floor."""
    plan = verdict.plan
    if plan is None:
        return f"no plan was recorded: {ruling(verdict)}"
    workload = next((w for w in bench.contract.workloads() if w.name == plan.workload), None)
    lines = [f"{len(plan.launches)} launches at {plan.workload}"]
    if workload is not None:
        lines[0] += f"; the op moves {bench.contract.cost(workload).bytes} bytes there"
    for (hardware, name), floor in bench.floors.items():
        if name == plan.workload and floor:
            lines.append(f"floor on {hardware} at datasheet bandwidth: {rounded(floor)} us")
    for number, launch in enumerate(plan.launches, start=1):
        variant = plan.kernels[launch.kernel]
        grid = " x ".join(map(str, launch.grid))
        lines.append(
            f"{number}. {variant.function}: grid {grid}, stream {launch.stream}, {launch.role}, options {dict(variant.options)}"
        )
    for audit in verdict.audits:
        lines.append(
            f"{audit.kernel} for {audit.target}: {audit.threads} threads, {audit.registers} registers, "
            f"{audit.spill_store_bytes + audit.spill_load_bytes} bytes spilled, {audit.shared_bytes} bytes of shared memory, "
            f"{audit.barriers} barriers, tensor cores: {', '.join(audit.mma_types) or 'none'}"
        )
    return briefing.plain("\n".join(lines))


def rounded(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _page(text: str, what: str, offset: int, *, quote: bool = True) -> str:
    part = text[offset : offset + PAGE]
    shown = briefing.quoted(part) if quote else part
    end = offset + len(part)
    return shown + (
        f"\n({what} goes on: {end} of {len(text)} characters shown; read on with offset {end})"
        if end < len(text)
        else ""
    )
