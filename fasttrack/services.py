"""The real parts behind the lane's interfaces. Everything heavy is imported here, when a command needs it."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrack_validation.errors import UserError

from .lane import Services
from .package import Bundle, Document, Gated, Pick, PullRequest, cells, combined

if TYPE_CHECKING:
    from fasttrack_validation.claims.cells import Cell
    from fasttrack_validation.contracts import ModelContract
    from fasttrack_validation.performance.runner import Runner

    from .model_dir import ModelDirectory
    from .report.data import ReportData
    from .report.record import DesignRecord
    from .selection import Place


def default(*, records: bool = True) -> Services:
    """The services of an installed package. Raises UserError when torch does not fit, or Triton where it `records`."""
    from . import doctor

    doctor.require_toolchain(records=records)
    return Services(
        contract=contract, judge=judge, packager=Writers(), gate=gate, why_no_timing=why_no_timing,
        check_policy=check_policy,
    )  # fmt: skip


def contract(name: str) -> "ModelContract":
    """The contract called `name`."""
    from fasttrack_validation import contracts

    return contracts.load(name)


def judge(contract: "ModelContract", unsafe_no_sandbox: bool, device: str = "auto"):
    """The judge of `contract`, to be entered. `device`: auto, cpu or gpu."""
    from fasttrack_validation.judge.judge import Judge

    from .storage import kernel_cache

    return Judge(contract, cache=kernel_cache(), unsafe_no_sandbox=unsafe_no_sandbox, device=device)


def check_policy(checkout: Path, base: str, contract: str, op: str) -> None:
    """Refuses to judge with other rules than those of the base: such evidence would be stale when it is written."""
    from fasttrack_validation import contracts, digests

    from .gate import policy_files
    from .git import Repository

    with Repository.open(checkout).quarantine() as objects:
        source, files = policy_files(objects, base)
    same = digests.judge_digest(files) == digests.installed_judge_digest()
    if not same or contracts.contract_digest(contract, op, files) != contracts.contract_digest(contract, op):
        part = f"the contract of {op}" if same else "the judge"
        raise UserError(
            f"{part} in use is not the one at {base[:12]} ({source}): verdicts would not count there",
            "commit or stash what differs under validation/, or install fasttrack from that commit",
        )


def why_no_timing() -> str:
    """Why a run has no measurements."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA GPU on this machine"
    return "it is measured beside each candidate, in the same session"


def gate(checkout: Path, base: str, head: str, model: str) -> Gated:
    """The answer of `fasttrack gate`, with the reasons of the stages that decide it."""
    from .gate import StageStatus, run_gate

    answer = run_gate(checkout, base, head, model)
    reasons = tuple(
        f"{reason.id}: {reason.message}. {reason.remedy}"
        for stage in answer.stages
        if stage.required and stage.status is not StageStatus.PASS
        for reason in stage.reasons
    )
    return Gated(answer.exit_code, reasons, answer)


def statement(
    directory: "ModelDirectory", op: str, picks: Sequence[Pick], performance: "Sequence[tuple[Place, Cell, Cell]]"
) -> Document:
    """An in-toto statement about an op's sources, the contract and the judge. `performance`: place, own cell, stock path's."""
    import platform

    from . import evidence

    verdict = combined(picks)
    root = directory.path
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    files |= {name: text.encode() for name, text in picks[0].candidate.files.items()}
    made = evidence.state(
        evidence.Stage.JUDGE, verdict, directory.manifest.op(op).kernels, files, toolchain=verdict.toolchain,
        hardware={"executor": verdict.executor, "machine": platform.machine()},
        software={"python": platform.python_version(), "system": platform.system(), "sandbox": verdict.sandbox},
        configuration=verdict.config,
        performance=tuple(
            evidence.PerformanceCell(hardware=hardware, tp=tp, bucket=f"{low}-{high}", candidate=mine, stock=stock)
            for (hardware, tp, (low, high)), mine, stock in performance
        ),
    )  # fmt: skip
    text = json.dumps(json.loads(made.canonical_json()), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return Document(evidence.file_name(made), text)


class Writers:
    """Evidence, report and draft pull request by the rooms that own them."""

    def evidence(self, bundle: Bundle) -> Document:
        """An in-toto statement about the op's sources, the contract and the judge, with a cell for every place."""
        return statement(bundle.directory, bundle.request.op, bundle.picks, tuple(cells(bundle)))

    def report(self, bundle: Bundle, evidence: Document, written: Sequence[Document]) -> tuple[Document, ...]:
        """The design report as a page for browsers and as Markdown, what it says beside evidence, and the archive."""
        from .report import record
        from .report.assemble import archive_document
        from .report.render import render

        archive = archive_document(bundle)
        told, data = self._data(bundle, evidence, (*written, archive))
        markdown, page = render(data)
        return (
            Document(record.PAGE, page), Document(record.MARKDOWN, markdown), Document(record.DESIGN, told.text()), archive,
        )  # fmt: skip

    def pull_request(
        self, bundle: Bundle, evidence: Document, written: Sequence[Document], commit: str, gate: Gated
    ) -> PullRequest:
        """Title and body of the draft."""
        from .pull_request import pull_request
        from .report.assemble import archive_document

        _, data = self._data(bundle, evidence, (*written, archive_document(bundle)))
        draft = pull_request(data, gate.answer, head=commit, branch=bundle.request.branch)
        return PullRequest(draft.title, draft.body)

    def _data(
        self, bundle: Bundle, document: Document, written: Sequence[Document]
    ) -> "tuple[DesignRecord, ReportData]":
        from . import evidence
        from .report.assemble import record_of
        from .report.page import report_data

        root = bundle.directory.path
        files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        files |= {one.path: one.text.encode() for one in (*written, document)}
        told = record_of(bundle, evidence.parse(files[document.path], document.path), written)
        return told, report_data(files, bundle.directory.manifest, told)


def no_grid_card(hardware: str) -> str | None:
    """Why cells of the performance grid cannot be measured on this machine, or None."""
    import torch

    from fasttrack_validation.performance.hardware import profile

    if not torch.cuda.is_available():
        return "no GPU here"
    found, wanted = torch.cuda.get_device_name(), profile(hardware).cuda_name
    return None if found == wanted else f"this machine has {found}, the cells are for {wanted}"


@contextmanager
def grid_runner(
    contract: "ModelContract", directory: Path, hardware: str, quads: int, say: Callable[[str], None]
) -> Iterator["Runner"]:
    """What measures cells on this machine's GPU: both paths in processes of their own."""
    import torch

    from fasttrack_validation.performance.arm import Arm
    from fasttrack_validation.performance.hardware import profile
    from fasttrack_validation.performance.runner import Runner

    memory = torch.cuda.get_device_properties(0).total_memory
    with Arm("specialised", contract.model, directory) as fast, Arm("stock", contract.model, directory) as stock:
        yield Runner(contract, profile(hardware), fast, stock, memory_bytes=memory, quads=quads, say=say)
