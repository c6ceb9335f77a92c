"""Runs cells of the grid: both paths found right, then timed against each other; each result is handed over at once."""

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from math import ceil
from typing import Any, Protocol

from ..contracts import ModelContract
from ..contracts.grid import Ambiguous, CellSpec, Examined, Shard
from ..numerics.calibrate import Decision, Ruling, decide, measure
from ..timing.clocks import Card, conditions, disturbance
from ..timing.plausibility import cold_share, physical_floor_us
from ..timing.session import QUADS, Contestant, Method, Times, run_session
from ..timing.slots import MOST_SLOTS, rotation
from .arm import ArmFailed, Laid
from .hardware import Hardware
from .records import Call, Failed, Measured, NotRun, Path

MEMORY_SHARE = 0.42
"""Of the card, for one path; the rest is for what is drawn for the oracle, and for what libraries keep"""
BESIDE_SHARE = 0.08
"""Of the card: what is drawn for the oracle may take this while copies of both paths are laid out; a cell of more is drawn first"""
LEAST_REPLAY_US = 500.0
"""Of a replay, were it as fast as the hardware can be: starting one belongs to none of its calls, and on an H200 takes 20 to 30 us
with what putting inputs back leaves in the L2"""
WHOLE_SHARE = 0.92
"""Of the card, for both paths together where one copy of each fills it"""
OWN_PROCESSES = 3
"""Of ours on the card: this one, which draws for the oracle, and one for each path"""
_DRAWS = 8
_Right = tuple[int, Mapping[str, Examined]]
"""A copy's number, and what must come out of it, by path"""


class ArmLike(Contestant, Protocol):
    """What a runner asks of a path's process; see arm.Arm."""

    def machine(self) -> dict[str, str]: ...
    def ceiling(self) -> float: ...
    def lay_out(self, spec: CellSpec, hardware: str, seeds: Sequence[int]) -> Laid: ...
    def produced(self, selection: Mapping[str, Any], copy: int) -> dict[str, Any]: ...
    def free(self) -> None: ...
    def restart(self) -> None: ...


class Runner:
    """One card with both paths' processes. `device` is where the oracle's inputs are drawn: where the paths draw."""

    def __init__(
        self, model: ModelContract, hardware: Hardware, specialised: ArmLike, stock: ArmLike, *, memory_bytes: int,
        device: str = "cuda", quads: int = QUADS, source: random.Random | None = None, card: Card | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self._model, self._hardware, self._device, self._quads = model, hardware, device, quads
        self._specialised, self._stock = specialised, stock
        self._memory, self._source, self._card = memory_bytes, source or random.SystemRandom(), card or Card()
        self._say = say

    @cached_property
    def ceiling(self) -> float:
        """Bytes per second of a large read on this card, measured once in a run."""
        return self._stock.ceiling()

    @cached_property
    def machine(self) -> dict[str, str]:
        """Of both processes; a fact on which they differ is said of each."""
        own, other = self._specialised.machine(), self._stock.machine()
        return own | {f"stock {name}": value for name, value in other.items() if own.get(name) != value}

    def run(self, spec: CellSpec) -> Measured | Failed | NotRun:
        """One cell. Raises nothing that a path does wrong: that is the cell's outcome."""
        shard = self._model.grid.shard(spec, self._hardware.name)
        try:
            slots = self._slots(shard)
        except ValueError as error:
            return NotRun(reason=str(error))
        looked = self._card.look()
        if why := looked and disturbance(conditions([looked]), OWN_PROCESSES):
            return Failed(stage="card", reason=why)
        try:
            return self._measured(spec, shard, slots)
        except ArmFailed as error:
            return Failed(stage="path", reason=str(error).strip())
        finally:
            self._free()

    def _slots(self, shard: Shard) -> int:
        """How many copies take turns. Raises ValueError where the card cannot hold them."""
        if shard.copies is None:
            copy, memory = max(shard.path_bytes), int(self._memory * MEMORY_SHARE)
            least = rotation(shard.cost.bytes, self._hardware.l2_bytes, slot_bytes=copy, memory_bytes=memory)
            floor_us = physical_floor_us(shard.cost.bytes, shard.cost.flops, self._hardware)
            return max(least, min(ceil(LEAST_REPLAY_US / floor_us), memory // copy, MOST_SLOTS))
        # What the oracle is drawn from is gone before the paths draw theirs.
        need = max(shard.copies * sum(shard.path_bytes), shard.slot_bytes)
        if need > self._memory * WHOLE_SHARE:
            raise ValueError(f"both paths need {need / 1e9:.0f} GB of the card's {self._memory / 1e9:.0f} GB")
        return shard.copies

    def _free(self) -> None:
        for arm in (self._specialised, self._stock):
            try:
                arm.free()
            except ArmFailed:  # it ended: the next cell shall find one
                arm.restart()

    def _measured(self, spec: CellSpec, shard: Shard, slots: int) -> Measured | Failed:
        ceiling = self.ceiling  # before the copies: its read needs the card's memory
        (copy, examined), laid = self._prepared(spec, shard, slots)
        self._say("results of both paths")
        rulings = self._ruled(examined, copy)
        for name, found in rulings.items():
            wrong = [ruling for ruling in found if ruling.decision is not Decision.PASS]
            if wrong:
                return Failed(stage="results", reason=f"{name} path: {wrong[0].message}")
        cost = shard.cost
        cold = cold_share(cost.bytes, slots, self._hardware.l2_bytes)
        method = Method(quads=self._quads, slots=slots, cold=round(cold, 3), l2_bytes=self._hardware.l2_bytes)
        self._say("timing")
        session = run_session(
            self._specialised, self._stock, method, source=self._source, card=self._card,
            floor_us=physical_floor_us(cost.bytes, cost.flops, self._hardware, cold=cold),
        )  # fmt: skip
        if session.faults:
            return Failed(stage="timing", reason=f"{session.faults[0].reason}: {session.faults[0].message}")
        if why := disturbance(session.conditions, OWN_PROCESSES):
            return Failed(stage="card", reason=why)

        def path(times: Times) -> Path:
            facts = laid[times.name].model_dump(exclude={"calls"})
            return Path(
                microseconds=times.microseconds, samples=times.samples, rulings=rulings[times.name], **facts
            )

        calls = laid[self._specialised.name].calls
        return Measured(
            specialised=path(session.a), stock=path(session.b), comparison=session.comparison,
            target_floor_us=cost.bytes / ceiling * 1e6,
            physical_floor_us=physical_floor_us(cost.bytes, cost.flops, self._hardware), bytes=cost.bytes,
            stock_bytes=shard.stock_cost.bytes,
            ceiling_bytes_per_second=ceiling, method=method, conditions=session.conditions,
            examined_rows=examined[self._specialised.name].rows, calls=tuple(Call(op=op, kernel=kernel) for op, kernel in calls),
        )  # fmt: skip

    def _ruled(self, examined: Mapping[str, Examined], copy: int) -> dict[str, tuple[Ruling, ...]]:
        """By path, side by side: of a long cache there is much to fetch and to compare."""

        def one(arm: ArmLike) -> tuple[str, tuple[Ruling, ...]]:
            right = examined[arm.name]
            return arm.name, ruled(right, arm.produced(right.selection, copy))

        with ThreadPoolExecutor(2) as pool:
            return dict(pool.map(one, (self._specialised, self._stock)))

    def _prepared(self, spec: CellSpec, shard: Shard, slots: int) -> tuple[_Right, Mapping[str, Laid]]:
        """What must come out of one of the copies, and both paths laid out, by path."""
        for _ in range(_DRAWS):
            seeds = [self._source.getrandbits(60) for _ in range(slots)]
            try:
                return self._laid_out(spec, shard, seeds)
            except Ambiguous as error:
                last = error
        raise ArmFailed(f"{_DRAWS} times {slots} draws in a row: {last}")

    def _laid_out(self, spec: CellSpec, shard: Shard, seeds: Sequence[int]) -> tuple[_Right, Mapping[str, Laid]]:
        """Side by side where the card holds all three: each has a process of its own, and most of it is Python and compilers.

        Raises Ambiguous.
        """
        arms, slots = (self._specialised, self._stock), len(seeds)
        if self._holds_all(shard):
            self._say(f"the oracle, and {slots} copies for each path")
            with ThreadPoolExecutor(len(arms)) as pool:
                laying = {arm.name: pool.submit(arm.lay_out, spec, self._hardware.name, seeds) for arm in arms}
                right = self._examined(shard, seeds)
                self._say("waiting for both paths")
            return right, {name: laid.result() for name, laid in laying.items()}
        self._say("drawing, and the oracle")
        right, laid = self._examined(shard, seeds), {}
        for arm in arms:
            self._say(f"{arm.name} path: preparing {slots} copies")
            laid[arm.name] = arm.lay_out(spec, self._hardware.name, seeds)
        return right, laid

    def _holds_all(self, shard: Shard) -> bool:
        """Whether both paths and what is drawn for the oracle find room together."""
        if shard.copies is None:
            return shard.slot_bytes <= self._memory * BESIDE_SHARE
        return shard.copies * sum(shard.path_bytes) + shard.slot_bytes <= self._memory * WHOLE_SHARE

    def _examined(self, shard: Shard, seeds: Sequence[int]) -> _Right:
        """Of the first copy whose rows any honest arithmetic decides alike. Raises Ambiguous where there is none."""
        import torch

        for copy, seed in enumerate(seeds):
            try:
                return copy, shard.examined(shard.draw(seed, self._device))
            except Ambiguous as error:
                last = str(error)
            finally:
                # The card gets back what was drawn.
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        raise Ambiguous(last)


def ruled(examined: Examined, produced: Mapping[str, Any]) -> tuple[Ruling, ...]:
    """A path's results against the oracle, with the contract's tolerances."""
    comparisons = {comparison.tensor: comparison for comparison in examined.comparisons}
    return tuple(
        decide(comparisons[name], [measure(comparisons[name], exact, plain, got, range(len(got)))])
        for name, (exact, plain, got) in examined.results(produced).items()
    )
