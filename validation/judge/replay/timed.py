"""A plan as a contestant of a timing session: K arenas that take turns in one graph, and every timed call accounted for.

What keeps a candidate from being timed at something else than it was verified for:

- each replay starts from inputs that never were before (bits flipped by the judge), restored states, poisoned outputs
  and fresh scratch; after it a keyed digest of every slot's results is taken on the device, and kept by the judge;
- another process, which timed nothing and loads the code afresh for each replay, runs the same inputs directly, in random order and at
  other addresses, and must come to the same digests;
- slots chosen at random are audited: a replay like any other, downloaded before and after, so that its results are held
  against the float64 oracle and everything else against the guard bands and what the judge put there.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from ...contracts.base import OpContract, TensorRole, TensorSpec, Workload
from ...tensors import DType
from ...timing.plausibility import Fault, Reading
from ...timing.session import Replay, differing
from ..arena import Arena
from ..device_code.records import DeviceCode
from ..pack import KernelPack
from ..trials import Trial, TrialSpec, dense_readings, lay_out, take_back
from .device import Device, Session
from .executor import regions

AUDITS = 2

# The lowest bit of each element, repeated over 64 bits: values stay what they look like and contents never recur.
# Integers stay: page numbers, slots and chosen experts mean something.
_LOWEST_BITS = {DType.BF16: 0x0001000100010001, DType.F16: 0x0001000100010001, DType.F32: 0x0000000100000001}


class TimedPlan:
    """`session.Contestant` over two replay sessions of one plan: the one that is timed, and the one that verifies.

    Raises DeviceFault and DeviceLost from every method that runs something. `arenas` are those of the audited slots.
    """

    def __init__(
        self, timed: Session, apart: Session, slots: int, masks: Mapping[str, int], source: random.Random,
        name: str = "candidate",
    ) -> None:  # fmt: skip
        self.name, self.slots = name, slots
        self._timed, self._apart, self._masks, self._all = timed, apart, masks, range(slots)
        self._source = source
        self._key = source.getrandbits(64), source.getrandbits(64)

    def refresh(self, seed: int) -> None:
        """As `session.Contestant`."""
        self._renew(self._timed, seed)

    def replay(self) -> Reading:
        """As `session.Contestant`."""
        elapsed = self._timed.replay()
        return Reading(event_ns=max(1, round(elapsed.event_ns)), host_ns=elapsed.host_ns)

    def digests(self) -> tuple[str, ...]:
        """As `session.Contestant`."""
        return tuple(self._timed.digest(self._all, self._key))

    def verify(self, replays: Sequence[Replay]) -> Fault | None:
        """As `session.Contestant`. Flips accumulate, so `replays` are all that were made, from the first."""
        found = []
        for replay in replays:
            self._apart.reload()  # what a kernel remembers from one replay to the next would make both sides wrong alike
            self._renew(self._apart, replay.seed)
            # In another order: a kernel that counts its calls would leave out the same ones again.
            self._apart.run(self._source.sample(self._all, self.slots))
            found.append(self._apart.digest(self._all, self._key))
        return differing(replays, found)

    def audited(self, slot: int, arena: Arena, seed: int) -> dict[str, torch.Tensor]:
        """One more replay of all slots; leaves in `arena`, sealed before and read back after, what it did to `slot`.

        Gives the inputs that the replay had, by name.
        """
        self.refresh(seed)
        self._timed.download(slot, arena.fd)
        arena.seal()
        inputs = {name: arena.take(name) for name, spec in arena.specs.items() if spec.role is TensorRole.INPUT}
        self._timed.replay()
        self._timed.download(slot, arena.fd)
        return inputs

    def _renew(self, session: Session, seed: int) -> None:
        session.restore(self._all)
        session.freshen(self._all, seed, self._masks)


class Bench:
    """One op at one workload, laid out for timing on a device; `apart` is another worker on the same device.

    `seeds` draw one input set each; slot i gets set i modulo their number. The weights, and what `prepare` made of them,
    are the first set's everywhere. `source` is the judge's own randomness.
    """

    def __init__(
        self, contract: OpContract, workload: Workload, distribution: str, seeds: Sequence[int], pack: KernelPack,
        codes: Mapping[str, DeviceCode], prepared: Mapping[str, bytes], slots: int, source: random.Random,
    ) -> None:  # fmt: skip
        self._contract, self._workload, self._distribution = contract, workload, distribution
        self._pack, self._codes, self._prepared, self._slots, self._source = pack, codes, prepared, slots, source
        self._specs = contract.tensors(workload)
        drawn = [contract.make_inputs(workload, distribution, seed) for seed in seeds]
        moving = [s.name for s in self._specs if s.role in (TensorRole.INPUT, TensorRole.STATE)]
        self._seeds = seeds
        self._sets = [drawn[0] | {name: values[name] for name in moving} for values in drawn]
        self._audited = sorted(source.sample(range(slots), min(AUDITS, slots)))
        self._kept: dict[int, tuple[TrialSpec, Arena]] = {}

    @contextmanager
    def contestant(self, device: Device, apart: Device, name: str = "candidate") -> Iterator[TimedPlan]:
        """The plan on all slots, captured in one graph."""
        with device.session(self._pack, self._codes) as timed, apart.session(self._pack, self._codes) as verifying:
            try:
                for slot in range(self._slots):
                    self._place(slot, (timed, verifying))
                timed.capture(range(self._slots))
                yield TimedPlan(timed, verifying, self._slots, flips(self._specs), self._source, name)
            finally:
                for _, arena in self._kept.values():
                    arena.close()
                self._kept.clear()

    def audits(self, plan: TimedPlan) -> list[Trial]:
        """Audits the chosen slots of `plan`: trials as `trials.run_trial` gives them. Call after the session."""
        found = []
        for slot, (spec, arena) in self._kept.items():
            dense = dense_readings(self._contract, arena)
            inputs = self._sets[slot % len(self._sets)] | plan.audited(slot, arena, self._source.getrandbits(63))
            trial = Trial(spec, "ok", "", inputs)
            take_back(trial, self._contract, arena, dense)
            found.append(trial)
        return found

    def _place(self, slot: int, sessions: Sequence[Session]) -> None:
        which = slot % len(self._sets)
        spec = TrialSpec(self._workload, self._distribution, self._seeds[which], self._source.getrandbits(62))
        arena = lay_out(self._contract, spec, self._pack, self._prepared, self._sets[which])
        try:
            for session in sessions:
                session.slot(slot, arena.fd, arena.size, regions(self._pack, arena), whole=False)
        except BaseException:
            arena.close()
            raise
        if slot in self._audited:
            self._kept[slot] = spec, arena
        else:
            arena.close()


def flips(specs: Sequence[TensorSpec]) -> dict[str, int]:
    """The bits of each input that may change between replays."""
    return {s.name: _LOWEST_BITS[s.dtype] for s in specs if s.role is TensorRole.INPUT and s.dtype in _LOWEST_BITS}
