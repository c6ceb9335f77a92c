"""compute-sanitizer over a plan (C15): the replay worker runs under the tool, once for each order of the streams.

No kernel is excluded by its name, which a candidate chooses: the judge's own run under the tool as well, and what they
write counts as written. For initcheck that would leave nothing to find, since the judge fills all memory; so there it
gives contents to nothing but inputs, weights, states and persistent buffers, and a read of scratch, of an output or of
a guard band that the plan did not write before is a finding. Racecheck sees hazards in shared memory only: lanes that
race through global memory are not its business.
"""

import shutil
import site
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contracts.base import TensorRole
from ..arena import Arena
from ..device_code.records import DeviceCode
from ..pack import KernelPack
from . import sanitizer_log
from .device import Device
from .executor import DELAY_NS, MAX_DELAY_NS, regions
from .faults import DeviceFault, DeviceLost
from .kernels import NAMES as OWN_KERNELS
from .sanitizer_log import Finding

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM = "compute-sanitizer"
_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin", "/usr/lib/nvidia-cuda-toolkit/bin")
# An instrumented kernel takes up to a few hundred times as long, and the first of each is patched when it is loaded.
PATIENCE = 20.0
ERROR_CODE = 86
_LOG_BYTES = 4 << 20


@dataclass(frozen=True)
class Report:
    """What one tool said of a plan: findings, or why it did not run. Clean where there is neither."""

    tool: str
    findings: tuple[Finding, ...] = ()
    not_run: str = ""

    @property
    def outcome(self) -> str:
        """pass, fail or not run."""
        return "fail" if self.findings else "not run" if self.not_run else "pass"


def find() -> str | None:
    """The path of compute-sanitizer: on the path, where toolkits put it, or in the Python packages."""
    versioned = sorted(map(str, Path("/usr/local").glob("cuda-*/bin")), reverse=True)
    packaged = [
        str(one) for folder in {*site.getsitepackages(), sysconfig.get_path("purelib")}
        for one in sorted(Path(folder).glob("nvidia/*/bin"))
    ]  # fmt: skip
    for place in (None, ":".join((*_PLACES, *versioned, *packaged))):
        if found := shutil.which(PROGRAM, path=place):
            return found
    return None


def check(
    device: Device, pack: KernelPack, codes: Mapping[str, DeviceCode], arena: Arena, tool: str, program: str
) -> Report:
    """Runs `pack` on the sealed `arena` under one tool. `codes` maps the keys of pack.kernels to code for the device."""
    with tempfile.TemporaryDirectory(prefix="fasttrack-sanitizer-") as folder:
        log = Path(folder) / "log"
        watched = device.watched(command(program, tool, log), PATIENCE)
        stopped, code = "", None
        try:
            _run(watched, pack, codes, arena, blank=tool == "initcheck")
            code = watched.finish()
        except (DeviceFault, DeviceLost) as fault:
            stopped = str(fault).splitlines()[0]
            if not (isinstance(fault, DeviceFault) and fault.status == "hang"):
                code = watched.finish()
        finally:
            watched.close()
        text = log.read_bytes()[:_LOG_BYTES].decode(errors="replace") if log.is_file() else ""
    return judged(tool, sanitizer_log.read(text), {one.entry for one in codes.values()}, stopped, code)


def command(program: str, tool: str, log: Path) -> list[str]:
    """The command that the worker is started with. The judge probes the driver with calls that may fail."""
    return [
        program, "--tool", tool, "--log-file", str(log), "--error-exitcode", str(ERROR_CODE), "--target-processes", "all",
        "--report-api-errors", "no", "--show-backtrace", "no", "--",
    ]  # fmt: skip


def judged(tool: str, log: sanitizer_log.Log, entries: set[str], stopped: str, code: int | None) -> Report:
    """What a log, the end of the run and the tool's exit code say together. A log without a summary shows no pass."""
    own = set(OWN_KERNELS) - entries
    if blamed := tuple(one for one in log.findings if one.kernel not in own):
        return Report(tool, findings=blamed)
    if log.findings:
        return Report(tool, not_run=f"it reports the judge's own {log.findings[0].kernel}: {log.findings[0].message}")
    for why in (
        log.complaint,
        stopped,
        "it wrote no summary" if log.errors is None else "",
        f"it counts {log.errors} errors and names no kernel" if log.errors else "",
        f"it ended with {code}" if code else "",
        "it was killed: it did not end" if code is None else "",
    ):
        if why:
            return Report(tool, not_run=why)
    return Report(tool)


def _run(device: Device, pack: KernelPack, codes: Mapping[str, DeviceCode], arena: Arena, *, blank: bool) -> None:
    """One direct run for each stream that can be late, and one with none late, each on memory of its own."""
    outputs = {name for name, spec in arena.specs.items() if spec.role is TensorRole.OUTPUT}
    empty = sorted(outputs | set(pack.scratch)) if blank else []
    with device.session(pack, codes) as session:
        for number, delays in enumerate(_orders(pack)):
            session.slot(number, arena.fd, arena.size, regions(pack, arena), whole=False, blank=empty)
            session.run([number], delays=delays)


def _orders(pack: KernelPack) -> Sequence[Mapping[str, int]]:
    streams = [launch.stream for launch in pack.launches]
    late = list(dict.fromkeys(streams)) if len(set(streams)) > 1 else []
    return [{}, *({name: min(DELAY_NS, MAX_DELAY_NS // streams.count(name))} for name in late)]
