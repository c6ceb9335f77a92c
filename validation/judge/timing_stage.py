"""The last stage of a GPU machine: accepted plans are timed, and audited calls of the timing judged like any trial."""

from collections.abc import Callable, Mapping, Sequence

from ..contracts.base import OpContract, Workload
from ..timing.stock import StockFailed
from .device_code.records import DeviceCode
from .examination import examine, settle
from .pack import KernelPack, variant_key
from .replay.faults import DeviceFault, DeviceLost
from .ruling import Ruling
from .prepare import PrepareFailed
from .stopwatch import Disturbed, Stopwatch
from .trials import Trial, TrialSpec

Prepare = Callable[[KernelPack, TrialSpec], Mapping[str, bytes]]


def time_plans(
    stopwatch: Stopwatch, contract: OpContract, packs: Mapping[str, KernelPack], codes: Mapping[str, DeviceCode],
    workloads: Sequence[Workload], prepare: Prepare, ruling: Ruling,
) -> None:  # fmt: skip
    """Times the plan of each workload, until one shows a fault of the candidate's.

    `codes` maps variant keys to code for the stopwatch's card. What is the stock path's or the card's fault leaves a
    cell "not measured", with its reason, and no mark on the candidate.
    """
    for workload in workloads:
        pack = packs[workload.name]
        own = {key: codes[variant_key(variant)] for key, variant in pack.kernels.items()}

        def prepared(distribution: str, seed: int, workload=workload, pack=pack) -> Mapping[str, bytes]:
            return prepare(pack, TrialSpec(workload, distribution, seed, layout_seed=0))

        try:
            timing, audits = stopwatch.time(contract.op, workload, pack, own, prepared, tests=len(workloads))
        except (DeviceFault, PrepareFailed) as fault:
            status = fault.status if isinstance(fault, DeviceFault) else "error"
            ended = Trial(TrialSpec(workload, "while timed", 0, 0), status, str(fault), {})
            settle(examine(contract, [ended]), contract, ruling)
            return
        except (Disturbed, StockFailed, DeviceLost, ValueError) as error:
            ruling.untimed(stopwatch.hardware, workload.name, str(error).splitlines()[0])
            continue
        for trial in audits:  # first: wrong numbers say more than a clock that wonders about them
            settle(examine(contract, [trial]), contract, ruling)
        ruling.timed(stopwatch.hardware, workload.name, timing)
        if ruling.stopped:
            return
