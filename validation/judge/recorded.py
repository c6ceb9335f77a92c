"""A candidate as it was recorded: everything that ruling needs, so that it can happen on another machine, later.

A record that was read from a file is checked again from the ground up: its digests must be those of the contract and
the judge that are installed, its workloads are worked out anew (unseen layouts from their seeds), its plans validated,
its device code audited. Who made a file could still have compiled other sources than the candidate's: a verdict on it
is as good as the machine that recorded it.
"""

import itertools
from collections.abc import Collection, Mapping

from pydantic import Field

from ..contracts.base import Far, OpContract, Workload
from ..errors import UserError
from ..records import Frozen
from .candidate import Candidate
from .device_code.audit import audit
from .device_code.records import TARGETS, CompileProblem, DeviceCode, target_name
from .pack import KernelPack, variant_key
from .verdict import CheckResult, KernelAudit, Outcome

SCHEMA = 1
STAGES = ("record", "plan", "compile")
"""Checks that can end a recording."""


class RecordedError(UserError):
    """A record that cannot be ruled on here. `reason` is a stable id (`recorded.*`)."""

    def __init__(self, reason: str, what: str, how: str = "record the candidate again with `fasttrack record`") -> None:
        super().__init__(what, how)
        self.reason = reason

    def __reduce__(self):
        return (type(self), (self.reason, self.what, self.how))


class Recorded(Frozen):
    """What recording and compiling left behind. `stopped` holds the check that ended it, where one did."""

    schema_version: int = SCHEMA
    model: str
    candidate: Candidate
    hardware: str = Field(description="profile that the plans were recorded for")
    contract_digest: str
    judge_digest: str
    checked: tuple[str, ...] = Field(description="declared workloads that every executor runs")
    declared: tuple[str, ...] = Field(description="declared workloads with a plan; a GPU runs all of them")
    unseen: dict[str, tuple[int, ...]] = Field(description="declared workload -> seeds of its unseen layouts")
    far_base: str | None = Field(description="the workload that is run with offsets beyond 32 bits")
    packs: dict[str, KernelPack] = Field(default={}, description="workload -> plan")
    codes: tuple[DeviceCode, ...] = Field(default=(), description="every variant for every target")
    stopped: tuple[CheckResult, ...] = ()
    toolchain: dict[str, str]
    sandbox: str = Field(description="what confined the candidate's code while it was recorded")
    unsafe: bool
    seconds: dict[str, float]


    def only(self, contract: OpContract, names: tuple[str, ...]) -> "Recorded":
        """The part of the record that ruling on these declared workloads needs; what is checked anywhere stays.

        Raises RecordedError for a workload that the record has no plan for.
        """
        if unknown := [name for name in names if name not in self.declared]:
            raise RecordedError("recorded.workloads", f"the record has no plan for {unknown[0]!r}")
        kept = {"declared": names, "unseen": {n: s for n, s in self.unseen.items() if n in (*names, *self.checked)}}
        planned = workloads_of(contract, self.checked, kept["declared"], kept["unseen"], self.far_base).planned
        packs = {name: pack for name, pack in self.packs.items() if name in planned}
        needed = {variant_key(variant) for pack in packs.values() for variant in pack.kernels.values()}
        codes = tuple(code for code in self.codes if code.kernel in needed)
        return self.model_copy(update={**kept, "packs": packs, "codes": codes})


class Workloads(Frozen):
    """The workloads of a record, as the contract gives them."""

    checked: tuple[Workload, ...]
    declared: tuple[Workload, ...]
    unseen: dict[str, tuple[Workload, ...]]
    far: Far | None
    far_base: Workload | None

    @property
    def planned(self) -> dict[str, Workload]:
        """Every workload that needs a plan, by name."""
        unseen = itertools.chain.from_iterable(self.unseen.values())
        distant = (self.far.workload,) if self.far else ()
        return {w.name: w for w in (*self.declared, *self.checked, *unseen, *distant)}

    def unseen_of(self, bases: tuple[Workload, ...]) -> tuple[Workload, ...]:
        """The unseen layouts of these workloads."""
        return tuple(itertools.chain.from_iterable(self.unseen.get(base.name, ()) for base in bases))


def workloads_of(
    contract: OpContract, checked: tuple[str, ...], declared: tuple[str, ...], unseen: Mapping[str, tuple[int, ...]],
    far_base: str | None,
) -> Workloads:  # fmt: skip
    """The workloads behind the names and seeds. Raises RecordedError for a name that the contract does not declare."""
    known = {w.name: w for w in (*contract.workloads(), *contract.small())}
    for name in (*checked, *declared, *unseen, *((far_base,) if far_base else ())):
        if name not in known:
            raise RecordedError("recorded.workloads", f"{contract.op} declares no workload {name!r}")
    base = known[far_base] if far_base else None
    return Workloads(
        checked=tuple(known[name] for name in checked),
        declared=tuple(known[name] for name in declared),
        unseen={name: tuple(_unseen(contract, known[name], seeds)) for name, seeds in unseen.items()},
        far=contract.far(base) if base else None,
        far_base=base,
    )


def _unseen(contract: OpContract, base: Workload, seeds: tuple[int, ...]):
    for number, seed in enumerate(seeds):
        varied = contract.vary(base, seed)
        name = varied.name if not number else f"{varied.name}_{number + 1}"
        yield varied.model_copy(update={"name": name, "held_out": True})


def verify(
    recorded: Recorded, model: str, contract: OpContract, contract_digest: str, judge_digest: str
) -> Workloads:
    """Whether a record may be ruled on with this contract and judge; its workloads. Raises RecordedError."""
    if recorded.schema_version != SCHEMA:
        message = f"the record has schema {recorded.schema_version}, this judge reads {SCHEMA}"
        raise RecordedError("recorded.schema", message)
    if (recorded.model, recorded.candidate.op) != (model, contract.op):
        theirs = f"{recorded.model}/{recorded.candidate.op}"
        raise RecordedError("recorded.model", f"the record is for {theirs}, not for {model}/{contract.op}")
    if recorded.contract_digest != contract_digest:
        message = f"the contract of {contract.op} is not the one that the record was made for"
        raise RecordedError("recorded.contract", message)
    if recorded.judge_digest != judge_digest:
        raise RecordedError("recorded.judge", "the installed judge is not the one that the record was made by")
    workloads = workloads_of(contract, recorded.checked, recorded.declared, recorded.unseen, recorded.far_base)
    for names in (recorded.checked, recorded.declared):
        if twice := [name for name in names if names.count(name) > 1]:
            raise RecordedError("recorded.workloads", f"the record lists {twice[0]} twice: one exam is not two")
    missing = [w.name for w in workloads.checked if not recorded.unseen.get(w.name)]
    if missing or not recorded.checked:
        message = f"the record has no unseen layout of {(missing or ['any workload'])[0]}"
        raise RecordedError("recorded.workloads", message)
    if contract.far(workloads.checked[0]) is not None and workloads.far is None:
        raise RecordedError("recorded.workloads", "the record has no workload with offsets beyond 32 bits")
    if any(check.outcome is Outcome.PASS for check in recorded.stopped):
        raise RecordedError("recorded.stopped", "the record says that it was stopped by a check that passed")
    if not recorded.stopped:
        _verify_packs(recorded, workloads)
        _verify_codes(recorded)
    return workloads


def require_whole(recorded: Recorded, contract: OpContract, workloads: Collection[str] | None = None) -> None:
    """Raises RecordedError unless the record covers every declared workload, or the named, each with an unseen layout.

    `Judge.record` makes such records unless it is told which workloads to take. A file that covers less would sit a
    smaller exam than its verdict seems to say.
    """
    declared = {w.name for w in contract.workloads()} if workloads is None else set(workloads)
    lacking = sorted(declared - set(recorded.declared)) or sorted(n for n in declared if not recorded.unseen.get(n))
    if lacking and not recorded.stopped:
        message = f"the record does not cover {lacking[0]} of {contract.op}, or has no unseen layout of it"
        raise RecordedError("recorded.workloads", message)


def _verify_packs(recorded: Recorded, workloads: Workloads) -> None:
    planned = workloads.planned
    if set(recorded.packs) != set(planned):
        odd = sorted(set(recorded.packs) ^ set(planned))[0]
        raise RecordedError("recorded.plans", f"plans and workloads do not match: {odd!r}")
    candidate = recorded.candidate.digest()
    for name, pack in recorded.packs.items():
        if (pack.op, pack.workload, pack.candidate_digest) != (recorded.candidate.op, name, candidate):
            message = f"the plan of {name} belongs to another candidate, op or workload"
            raise RecordedError("recorded.candidate", message)


def _verify_codes(recorded: Recorded) -> None:
    variants = {variant_key(v): v for pack in recorded.packs.values() for v in pack.kernels.values()}
    needed = {(key, target_name(target)) for key in variants for target in TARGETS}
    given = [(code.kernel, code.target) for code in recorded.codes]
    if set(given) != needed or len(given) != len(needed):
        odd = sorted(set(given) ^ needed or set(given))[0]
        message = f"device code does not match the kernels of the plans: {odd[0]} for {odd[1]}"
        raise RecordedError("recorded.codes", message)
    for code in recorded.codes:
        constants = {name for name, kind in variants[code.kernel].signature.items() if kind == "constexpr"}
        expected = set(variants[code.kernel].signature) - constants
        where = f"{code.kernel} for {code.target}"
        if set(code.parameters) != expected or len(code.parameters) != len(expected):
            raise RecordedError("recorded.codes", f"the parameters of {where} are not those of its plan")
        if not code.cubin.startswith(b"\x7fELF") or code.entry.encode() not in code.cubin:
            raise RecordedError("recorded.codes", f"the code of {where} is no cubin with an entry {code.entry!r}")


def audits(codes: tuple[DeviceCode, ...]) -> tuple[KernelAudit, ...]:
    """What the machine code says. Raises RecordedError where its listings contradict each other."""
    found = []
    for code in codes:
        figures = audit(code)
        if isinstance(figures, CompileProblem):
            raise RecordedError("recorded.codes", f"{code.kernel} for {code.target}: {figures.message}")
        found.append(figures)
    return tuple(found)
