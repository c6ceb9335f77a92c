"""Times an accepted plan against the stock path on one card, and says what the figures rest on."""

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property

from ..claims.cells import Measured
from ..contracts import ModelContract
from ..contracts.base import TensorRole, Workload
from ..performance.hardware import Hardware
from ..timing import hygiene
from ..timing.clocks import Card, conditions, disturbance
from ..timing.plausibility import cold_share, physical_floor_us
from ..timing.result import Timing
from ..timing.session import QUADS, STOCK, Method, Times, run_session
from ..timing.slots import rotation
from ..timing.stock import StockProcess
from .device_code.records import DeviceCode
from .pack import KernelPack
from .replay.device import Device
from .replay.timed import Bench
from .trials import Trial

INPUT_SETS = 4
# The card's memory is shared by the timed slots, the verifying ones, and the stock path with its repacked weights.
MEMORY_SHARE = 0.2

# Compute processes of the judge's on the card: the timed worker, the verifying one, the stock path's.
OWN_PROCESSES = 3

Prepare = Callable[[str, int], Mapping[str, bytes]]
"""(distribution, seed) of an input set -> what the candidate's `prepare` makes of its static tensors."""


class Disturbed(Exception):
    """The card is not ours alone, or slows itself: nothing was timed."""


class Stopwatch:
    """One card for timing: the device of the trials, a second worker that verifies, the stock path's process.

    A context manager. `tests` is how many comparisons share the error that the rule allows (see comparison.py).
    """

    def __init__(
        self, model: ModelContract, device: Device, hardware: Hardware, *, apart: Device | None = None,
        stock: StockProcess | None = None, source: random.Random | None = None, quads: int = QUADS,
        card: Card | None = None,
    ) -> None:  # fmt: skip
        self._model, self._device, self._hardware, self._quads = model, device, hardware, quads
        self._apart = apart or Device()
        self._stock = stock or StockProcess(model.model)
        self._source = source or random.SystemRandom()
        self._card = card or Card()
        self._stack = ExitStack()

    def __enter__(self) -> "Stopwatch":
        self._stack.enter_context(self._apart)
        self._stack.enter_context(self._stock)
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    @property
    def hardware(self) -> str:
        """Name of the card's profile."""
        return self._hardware.name

    @cached_property
    def ceiling(self) -> float:
        """Bytes per second of a large read on this card, measured once."""
        return self._stock.ceiling()

    def expect(self, op: str) -> None:
        """Lets the stock path's process load what `op` needs; does not wait for it."""
        self._stock.load(op)

    def time(
        self, op: str, workload: Workload, pack: KernelPack, codes: Mapping[str, DeviceCode], prepare: Prepare,
        *, tests: int = 1,
    ) -> tuple[Timing, list[Trial]]:  # fmt: skip
        """Times `pack` at `workload`; the trials are audited calls, for the judge to inspect like any other.

        `codes` maps the keys of pack.kernels to code for this card. Raises Disturbed, StockFailed, DeviceFault, DeviceLost,
        and ValueError when the card's memory cannot hold enough copies.
        """
        look = self._card.look()
        if why := look and disturbance(conditions([look]), OWN_PROCESSES):
            raise Disturbed(why)
        contract = self._model.op(op)
        specs = contract.tensors(workload)
        distribution = next(iter(contract.distributions))
        seeds = [self._source.getrandbits(62) for _ in range(INPUT_SETS)]
        prepared = prepare(distribution, seeds[0])
        cost = contract.cost(workload)
        own = sum(s.storage_elements * s.dtype.bytes * (1 if s.role is TensorRole.STATIC else 2) for s in specs)
        extra = sum(len(data) for data in prepared.values())
        slots = rotation(
            cost.bytes, self._hardware.l2_bytes, slot_bytes=own + extra,
            memory_bytes=int(self._device.facts.memory * MEMORY_SHARE),
        )  # fmt: skip
        cold = cold_share(cost.bytes, slots, self._hardware.l2_bytes)
        method = Method(quads=self._quads, slots=slots, cold=round(cold, 3), l2_bytes=self._hardware.l2_bytes)
        before = self._stock.switches()
        self._stock.capture(op, workload, distribution, seeds, slots)
        bench = Bench(contract, workload, distribution, seeds, pack, codes, prepared, slots, self._source)
        with bench.contestant(self._device, self._apart) as plan:
            session = run_session(
                plan, self._stock, method, source=self._source, card=self._card, tests=tests,
                floor_us=physical_floor_us(cost.bytes, cost.flops, self._hardware, cold=cold),
            )  # fmt: skip
            audits = bench.audits(plan)
        unclean = hygiene.fault(before, self._stock.switches())
        return Timing(
            candidate=self._measured(session.a, method), stock=self._measured(session.b, method),
            comparison=session.comparison, launches=len(pack.launches), stock_launches=self._stock.launches,
            physical_floor_us=physical_floor_us(cost.bytes, cost.flops, self._hardware),
            target_floor_us=cost.bytes / self.ceiling * 1e6, ceiling_bytes_per_second=self.ceiling,
            conditions=session.conditions, disturbed=disturbance(session.conditions, OWN_PROCESSES),
            stock_flags=dict(self._stock.flags()),
            samples={session.a.name: session.a.samples, session.b.name: session.b.samples}, faults=session.faults + ((unclean.model_copy(update={"contestant": STOCK}),) if unclean else ()),
        ), audits  # fmt: skip

    def _measured(self, times: Times, method: Method) -> Measured:
        interval = times.microseconds
        return Measured(
            microseconds=interval.median, low=interval.low, high=interval.high, repetitions=len(times.samples),
            method=method.text(), hardware=self._hardware.name,
        )  # fmt: skip
