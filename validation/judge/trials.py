"""One trial: a plan run once on fresh, judge-owned memory, and what it left there."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from ..contracts.base import Far, OpContract, TensorRole, Workload
from ..tensors import torch_dtype
from .arena import ALIGNMENT, Arena, StrayWrite
from .pack import KernelPack, Language
from .plan import ALIGNMENT as MINIMUM_ALIGNMENT

PLAUSIBLE, NOT_A_NUMBER = "plausible", "nan"


@dataclass(frozen=True)
class TrialSpec:
    """How one trial is set up. Everything drawn at random follows from `seed` and `layout_seed`."""

    workload: Workload
    distribution: str
    seed: int
    layout_seed: int
    poison: str = NOT_A_NUMBER
    order: str = "ascending"
    perturbed_row: int | None = None
    far: Far | None = None


@dataclass
class Trial:
    """What came of one trial. Tensors are logical, contiguous and the judge's own copies."""

    spec: TrialSpec
    status: str  # ok, violation, unsupported, error, or a sandbox status (timeout, killed, ...)
    message: str
    inputs: dict[str, torch.Tensor]
    produced: dict[str, torch.Tensor] = field(default_factory=dict)
    poison: dict[str, torch.Tensor] = field(default_factory=dict)
    stray: tuple[StrayWrite, ...] = ()
    dense: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Paged tensors as a kernel that assumes dense pages addresses them: before and after."""
    launches: tuple[Mapping[str, int], ...] = ()
    fingerprint: str = ""
    """Digest of what was drawn; empty until somebody looked, and where nothing was drawn"""
    seconds: float = 0.0
    unrestored: dict[str, int] = field(default_factory=dict)
    """Persistent buffers that the first step did not put back -> bytes that differ"""
    later: tuple[dict[str, torch.Tensor], ...] = ()
    """What further steps produced from the same inputs, where a plan has persistent buffers"""
    conflict: Mapping[str, object] | None = None
    """The first access that the executor's log refuses (interpreter/access_log.py), where there is such a log."""

    def forget(self) -> None:
        """Lets go of every tensor: a judge that kept those of all trials would need tens of gigabytes."""
        self.inputs, self.produced, self.poison, self.dense, self.later = {}, {}, {}, {}, ()


class Executor(Protocol):
    """Runs a plan on an arena: the interpreter on a CPU, launched device code on a GPU."""

    languages: Collection[Language]
    """What it can run."""

    @property
    def description(self) -> str:
        """What ran the plan, for the verdict."""

    def execute(
        self, pack: KernelPack, arena: Arena, order: str, shifts: Mapping[str, int]
    ) -> Mapping[str, object]:
        """Runs every launch of `pack` on the arena's memory: {status, message, launches, seconds}.

        `shifts` lowers the addresses of the named buffers by so many bytes.
        """


def run_trial(
    contract: OpContract, spec: TrialSpec, pack: KernelPack, prepared: Mapping[str, bytes], executor: Executor
) -> Trial:
    """Draws inputs, lays them out, executes, and takes back everything the verdict needs."""
    inputs = contract.make_inputs(spec.workload, spec.distribution, spec.seed)
    if spec.perturbed_row is not None:
        inputs = contract.perturb_row(inputs, spec.workload, spec.perturbed_row, spec.seed + 1)
    arena = lay_out(contract, spec, pack, prepared, inputs)
    try:
        shifts = _shift_pages(arena, spec.far, inputs) if spec.far else {}
        arena.seal()
        dense = dense_readings(contract, arena)
        outcome = executor.execute(pack, arena, spec.order, shifts)
        trial = Trial(
            spec, str(outcome["status"]), str(outcome.get("message", "")), inputs,
            launches=tuple(outcome.get("launches", ())), seconds=float(outcome.get("seconds", 0.0)),
            conflict=outcome.get("conflict"),
        )  # fmt: skip
        if trial.status == "ok":
            take_back(trial, contract, arena, dense)
            _take_further_steps(trial, contract, pack, arena, lambda: executor.execute(pack, arena, spec.order, shifts))
        return trial
    finally:
        arena.close()


def lay_out(
    contract: OpContract, spec: TrialSpec, pack: KernelPack, prepared: Mapping[str, bytes],
    inputs: Mapping[str, torch.Tensor],
) -> Arena:  # fmt: skip
    """An arena with everything in its place: inputs, weights, states, what `prepare` made, poison. Not yet sealed."""
    generator = np.random.Generator(np.random.PCG64(spec.layout_seed))
    # Twins get the alignment that a plan may rely on and no more: what holds at 256 bytes only shows there.
    alignment = MINIMUM_ALIGNMENT if spec.poison == PLAUSIBLE else ALIGNMENT
    specs = contract.tensors(spec.workload)
    arena = Arena(specs, pack.scratch, pack.prepared, generator, pack.persistent, alignment)
    for name, tensor in arena.specs.items():
        arena.put(name, _poison(tensor, spec) if tensor.role is TensorRole.OUTPUT else inputs[name])
        if tensor.role is TensorRole.STATE:
            arena.open_pages(name, _live_pages(contract, name, tensor.shape, inputs))
    for name, data in prepared.items():
        arena.put_bytes(name, data)
    return arena


def dense_readings(contract: OpContract, arena: Arena) -> dict[str, torch.Tensor]:
    """Paged tensors that a launch writes, as a kernel that assumes dense pages addresses them now."""
    return {name: _dense_reading(arena, name) for name in contract.produced if _is_paged(arena, name)}


def take_back(trial: Trial, contract: OpContract, arena: Arena, dense: Mapping[str, torch.Tensor]) -> None:
    """Puts into the trial what a finished run left in its sealed arena; `dense` are the readings from before."""
    trial.produced = {name: arena.take(name) for name in contract.produced}
    trial.poison = {
        name: arena.initial(name) for name in contract.produced if arena.specs[name].role is TensorRole.OUTPUT
    }
    trial.stray = arena.stray_writes()
    trial.dense = {name: (before, _dense_reading(arena, name)) for name, before in dense.items()}
    trial.unrestored = arena.unrestored()


def _take_further_steps(
    trial: Trial, contract: OpContract, pack: KernelPack, arena: Arena, execute: Callable[[], Mapping[str, object]]
) -> None:
    """Runs the plan again on the same inputs, with persistent buffers as the step before left them."""
    for number in range(max((_FURTHER_STEPS[buffer.after] for buffer in pack.persistent.values()), default=0)):
        arena.rewind()
        outcome = execute()
        trial.seconds += float(outcome.get("seconds", 0.0))
        if outcome["status"] != "ok":
            trial.status, trial.message = str(outcome["status"]), f"step {number + 2}: {outcome.get('message', '')}"
            return
        trial.later += ({name: arena.take(name) for name in contract.produced},)


# A restored buffer is the same at every step; of a counter three values more are seen.
_FURTHER_STEPS = {"restored": 1, "epoch": 3}


def _live_pages(contract: OpContract, name: str, shape: tuple[int, ...], inputs) -> tuple[bool, ...]:
    """Which pages (leading indices) of a state some live row owns."""
    rest = (0,) * (len(shape) - 1)
    return tuple(contract.row_of(name, (page, *rest), inputs) is not None for page in range(shape[0]))


def _shift_pages(arena: Arena, far: Far, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Raises the live page numbers in the arena; returns by how many bytes each pool's address goes down."""
    pages = inputs[far.pages]
    arena.put(far.pages, torch.where(pages > 0, pages + far.shift, pages))
    return {name: far.shift * arena.specs[name].strides[0] * arena.specs[name].dtype.bytes for name in far.pools}


def _poison(tensor, spec: TrialSpec) -> torch.Tensor:
    """What an output holds before the launch: NaN, or values that would pass for results at a glance.

    The NaN has bits that no arithmetic gives, so that a NaN result is not taken for one that was never written.
    Integers are drawn over their whole range either way: few values are plausible, and results hit those.
    """
    dtype = torch_dtype(tensor.dtype)
    generator = torch.Generator().manual_seed(spec.layout_seed)
    if not dtype.is_floating_point:
        bounds = torch.iinfo(dtype)
        return torch.randint(bounds.min, bounds.max, tensor.shape, generator=generator, dtype=dtype)
    if spec.poison == NOT_A_NUMBER:
        integer, bits = _NAN_BITS[dtype.itemsize]
        return torch.full(tensor.shape, bits, dtype=integer).view(dtype)
    return torch.randn(tensor.shape, generator=generator).to(dtype)


# Quiet NaN with a payload, right in every format of that many bytes (one: E4M3, which has but one, and E5M2).
_NAN_BITS = {
    1: (torch.uint8, 0x7F), 2: (torch.int16, 0x7FE5), 4: (torch.int32, 0x7FE5A5A5),
    8: (torch.int64, 0x7FFDA5A5A5A5A5A5),
}  # fmt: skip


def _is_paged(arena: Arena, name: str) -> bool:
    spec = arena.specs[name]
    dense = 1
    for size in spec.shape[1:]:
        dense *= size
    return bool(spec.shape) and spec.strides[0] != dense


def _dense_reading(arena: Arena, name: str) -> torch.Tensor:
    """A strided pool as a kernel that assumes dense pages addresses it. Page strides are never below dense ones."""
    spec = arena.specs[name]
    return arena.flat(name)[: int(np.prod(spec.shape))].reshape(spec.shape).clone()
