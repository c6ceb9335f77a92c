"""The judge again, on what a change brings: each touched op compiled for every target, and interpreted at its least batch.

The head's kernels are text here. They are recorded, compiled and interpreted by the judge's sandboxed processes alone;
this process imports none of them. What cannot run without a GPU is told, and counts where signed evidence stands for it.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import Status

from . import dispatch, model_dir
from .confinement.names import MANIFEST
from .stages import Reason, StageResult, StageStatus

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract
    from fasttrack_validation.judge.candidate import Candidate
    from fasttrack_validation.judge.verdict import Verdict

TARGETS = ("sm_90", "sm_103")
MINUTES = 10.0
_NEEDS_GPU = "execution.needs_gpu"


class Judging(Protocol):
    """What the re-check needs of a judge."""

    def confirm(self, candidate: "Candidate", workloads: tuple[str, ...]) -> "Verdict":
        """The verdict at the named workloads, with fresh seeds."""


@dataclass(frozen=True)
class Recheck:
    """How to re-check. `judge` opens a judge of a contract; `say` gets a line for each op."""

    contract: "Callable[[str], ModelContract]"
    judge: "Callable[[ModelContract], AbstractContextManager[Judging]]"
    same_policy: Callable[[str, str, Mapping[str, bytes]], bool]
    """(contract, op, files of the base's `validation/`): whether this judge is the base's"""
    minutes: float = MINUTES
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class _Task:
    op: str
    candidate: "Candidate"
    workload: str


def installed(say: Callable[[str], None], minutes: float = MINUTES) -> Recheck:
    """With the judge of this installation. Importing torch and Triton waits until there is something to judge."""

    def judge(contract: "ModelContract") -> AbstractContextManager[Judging]:
        from fasttrack_validation.judge.judge import Judge

        from .storage import kernel_cache

        return Judge(contract, cache=kernel_cache(), device="cpu", timed=False)

    def load(name: str) -> "ModelContract":
        from fasttrack_validation import contracts

        from . import doctor

        doctor.require_toolchain()
        return contracts.load(name)

    def same(contract: str, op: str, policy: Mapping[str, bytes]) -> bool:
        from fasttrack_validation import contracts, digests

        mine = digests.judge_digest(policy) == digests.installed_judge_digest()
        return mine and contracts.contract_digest(contract, op, policy) == contracts.contract_digest(contract, op)

    return Recheck(load, judge, same, minutes, say)


def stages(
    how: Recheck, manifest: Any, touched: Collection[str], files: Mapping[str, bytes], policy: Mapping[str, bytes],
    directory: str, vouched: Collection[str] = (),
) -> tuple[StageResult, StageResult]:  # fmt: skip
    """The stages `compile` and `recheck` of the gate. `touched`: ops; `vouched`: those with signed evidence from a GPU."""
    if not touched:
        return tuple(StageResult(stage=name, status=StageStatus.PASS, summary="the change touches no op") for name in
                     ("compile", "recheck"))  # fmt: skip
    told: dict[str, list[Reason]] = {"compile": [], "recheck": []}
    done = 0
    try:
        contract = how.contract(manifest.model.contract)
        try:
            model_dir.check_claims(manifest, contract, f"{directory}/{MANIFEST}")
        except UserError as error:
            message = f"{error.what} ({error.how})"
            told["recheck"].append(Reason(id="recheck.claims", message=message, remedy=error.how, path=f"{directory}/{MANIFEST}"))
        tasks = []
        for op in touched:
            if not how.same_policy(manifest.model.contract, op, policy):
                told["recheck"].append(_reason("recheck.policy", op, directory, manifest, StageStatus.NOT_RUN,
                                               "judge or contract here are not the base's",
                                               "install fasttrack from the base revision and run the gate again"))  # fmt: skip
                continue
            try:
                tasks += _tasks(op, manifest, files, contract)
            except UserError as error:
                told["recheck"].append(_reason("recheck.unreadable", op, directory, manifest, StageStatus.FAIL, error.what, error.how))
        ends = time.monotonic() + how.minutes * 60
        with how.judge(contract) as judge:
            for number, task in enumerate(tasks, 1):
                if time.monotonic() > ends:
                    rest = ", ".join(dict.fromkeys(one.op for one in tasks[number - 1 :]))
                    message = f"not reached within {how.minutes:g} minutes: {rest}"
                    told["recheck"].append(_reason("recheck.out_of_time", task.op, directory, manifest, StageStatus.NOT_RUN,
                                                   message, "run the gate with more --recheck-minutes"))  # fmt: skip
                    break
                how.say(f"re-check {number} of {len(tasks)}: {task.op} at {task.workload}")
                verdict = judge.confirm(task.candidate, (task.workload,))
                done += 1
                for stage, reason in _ruled(task, verdict, directory, manifest, vouched):
                    told[stage].append(reason)
    except UserError as error:
        reason = Reason(id="recheck.unavailable", message=error.what, remedy=error.how, status=StageStatus.NOT_RUN)
        told = {name: [reason] for name in told}
    return tuple(_stage(name, reasons, done, touched) for name, reasons in told.items())


def _tasks(op: str, manifest: Any, files: Mapping[str, bytes], contract: "ModelContract") -> Iterator[_Task]:
    """One for each kernel and configuration of an op's table, at the least workload of its places."""
    from fasttrack_validation.judge.candidate import Candidate

    entry = manifest.ops[op]
    try:
        texts = {name: files[name].decode("utf-8") for name in entry.kernels}
        table = dispatch.parse(files[entry.dispatch].decode("utf-8"), Path(entry.dispatch))
    except KeyError as error:
        raise UserError(f"{error.args[0]}, which the manifest names, is not there", "add the file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"a file of {op} is not UTF-8", "write it as UTF-8 text") from error
    examined = contract.op(op)
    workloads = examined.small() or examined.workloads()
    seen = set()
    for row in table.entry:
        key = (row.kernel, str(sorted(row.config.items())))
        if key in seen:
            continue
        seen.add(key)
        if row.kernel not in texts:
            raise UserError(f"{entry.dispatch} names {row.kernel}, which is not among the kernels of {op}", "correct it")
        fitting = [one for one in workloads if one.axes.get("tp") == row.tp and one.axes.get("rows", 0) >= row.rows[0]]
        least = min(fitting or workloads, key=lambda one: examined.cost(one).bytes)
        candidate = Candidate(op=op, entry=row.kernel, files=texts, config=dict(row.config))
        yield _Task(op, candidate, least.name)


def _ruled(
    task: _Task, verdict: "Verdict", directory: str, manifest: Any, vouched: Collection[str]
) -> Iterator[tuple[str, Reason]]:
    """What a verdict means for the two stages."""
    def reason(id: str, status: StageStatus, message: str, how: str) -> Reason:
        return _reason(id, task.op, directory, manifest, status, f"at {task.workload}: {message}", how)

    kernels = {audit.kernel for audit in verdict.audits}
    built = {target: {audit.kernel for audit in verdict.audits if audit.target == target} for target in TARGETS}
    said = f"{verdict.reason}: {verdict.message}"
    if not kernels or any(built[target] != kernels for target in TARGETS):
        status = StageStatus.FAIL if verdict.status is Status.REJECTED else StageStatus.NOT_RUN
        yield "compile", reason("compile.failed", status, said, f"it must compile for {' and '.join(TARGETS)}")
    if verdict.status is Status.ACCEPTED:
        return
    again = f"`fasttrack evaluate {verdict.model} --op {task.op} --candidate FILE` shows all of it"
    if verdict.status in (Status.REJECTED, Status.INVALID):
        yield "recheck", reason(f"recheck.{verdict.status}", StageStatus.FAIL, said, again)
    elif verdict.reason == _NEEDS_GPU:
        message = f"needs a GPU; {'signed evidence stands for it' if task.op in vouched else 'no signed evidence stands for it'}"
        how = "have a machine with a GPU judge it and sign: `fasttrack evidence sign`"
        yield "recheck", reason("recheck.needs_gpu", StageStatus.PASS, message, how)
    else:
        yield "recheck", reason(f"recheck.{verdict.status}", StageStatus.NOT_RUN, said, again)


def _reason(id: str, op: str, directory: str, manifest: Any, status: StageStatus, message: str, how: str) -> Reason:
    return Reason(id=id, message=f"{op}: {message}", remedy=how, status=status, op=op,
                  path=f"{directory}/{manifest.ops[op].kernels[0]}")  # fmt: skip


def _stage(name: str, reasons: list[Reason], done: int, touched: Collection[str]) -> StageResult:
    statuses = {reason.status for reason in reasons}
    status = next((one for one in (StageStatus.FAIL, StageStatus.NOT_RUN) if one in statuses), StageStatus.PASS)
    what = f"compiled for {' and '.join(TARGETS)}" if name == "compile" else "interpreted in the sandbox at their least batch"
    summary = f"{len(touched)} touched ops, {done} configurations: {what}"
    if reasons:
        summary += f"; {len(reasons)} remarks"
    return StageResult(stage=name, status=status, summary=summary, reasons=tuple(reasons))


def draft_reasons(result: StageResult, vouched: Collection[str]) -> Iterator[Reason]:
    """Why the change stays a draft: ops that only a GPU can run, and that no signed evidence stands for."""
    for reason in result.reasons:
        if reason.id == "recheck.needs_gpu" and reason.op not in vouched:
            yield reason
