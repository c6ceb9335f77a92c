"""The judge's hold on a device: starts the worker, sets a deadline for every command, and recovers after a fault."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...sandbox import sealed_memory
from ...sandbox.frames import FrameError
from ..device_code.records import DeviceCode
from ..pack import KernelPack
from . import transport
from .driver import Facts
from .faults import DeviceFault, DeviceLost, classify
from .slots import ALIGNMENT, Region

START_SECONDS, LOAD_SECONDS, COPY_SECONDS, RUN_SECONDS, END_SECONDS = 120.0, 60.0, 120.0, 20.0, 30.0
_MOST_START_PATIENCE = 3.0
_PROBE_BYTES = 1 << 16
# What is kept of a worker's standard error: the first so many bytes, and of those the last lines are shown.
_SAID_BYTES, _SAID_LINES, _SAID_SHOWN = 1 << 16, 3, 600
# The worker's environment is made from nothing, but for where this machine keeps its driver and which device is meant.
_KEPT = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "CUDA_CACHE_DISABLE": "1",
    "CUDA_MODULE_LOADING": "EAGER",  # a kernel that is loaded at its first launch would wait for the whole device
}
_HOW = "see `nvidia-smi`; where the device stays lost, its machine has to be restarted"
_NOT_INSTALLED = "install the package into this environment: the process that holds the device sees no PYTHONPATH"


class Device:
    """One device, held by a worker process that is started when needed and replaced after every fault.

    `driver` is cuda or fake, `specification` what its `make` takes (for cuda the device's number). A run that takes
    longer than `run_seconds` is a hang. Threads take turns through `session`. Raises DeviceLost.
    """

    def __init__(
        self, driver: str = "cuda", specification: str = "", *, run_seconds: float = RUN_SECONDS,
        under: Sequence[str] = (), patience: float = 1.0,
    ) -> None:  # fmt: skip
        """`under` is a command that the worker is started with, a tool that watches it: such a worker is not replaced
        after a fault. Every deadline is `patience` times as long."""
        self._driver, self._specification, self.run_seconds = driver, specification, run_seconds
        self._under, self._patience = tuple(under), patience
        self._said: int | None = None
        self._turn = threading.RLock()
        self._process: subprocess.Popen | None = None
        self._connection: socket.socket | None = None
        self._facts: Facts | None = None
        self.restarts = 0
        """How many workers were started after the first."""

    def __enter__(self) -> "Device":
        self.facts
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def facts(self) -> Facts:
        """The device; starts the worker and proves that it computes."""
        with self._turn:
            if self._facts is None:
                self._start()
                self._probe()
            return self._facts

    def watched(self, command: Sequence[str], patience: float) -> "Device":
        """The same device for a worker of its own that is started under `command`."""
        return Device(
            self._driver, self._specification, run_seconds=self.run_seconds, under=command, patience=patience
        )

    @contextlib.contextmanager
    def session(self, pack: KernelPack, codes: Mapping[str, DeviceCode]) -> Iterator["Session"]:
        """A plan loaded afresh, global symbols included; everything of it is given back at the end.

        `codes` maps the keys of pack.kernels to device code for this device. After a fault the worker is replaced and
        the new one proved to work before anything else is run; DeviceFault is raised on, DeviceLost where it fails.
        """
        with self._turn:
            self.facts
            try:
                session = Session(self, pack, codes)
                yield session
                session.release()
            except DeviceFault as fault:
                if not self._under:
                    self._recover(fault)
                raise
            except BaseException:
                self.close()
                raise

    def call(
        self, command: str, request: dict[str, Any], *, blobs: Sequence[bytes] = (), memory: Sequence[int] = (),
        seconds: float = COPY_SECONDS,
    ) -> dict[str, Any]:  # fmt: skip
        """One command. Raises DeviceFault for what went wrong on the device, RuntimeError for a defect of the judge."""
        seconds *= self._patience
        self._connection.settimeout(seconds)
        try:
            transport.send(self._connection, {"command": command, **request}, tuple(blobs), memory)
            answer, _, descriptors = transport.receive(self._connection)
        except TimeoutError as error:
            raise DeviceFault("hang", f"{command} did not end within {seconds:g} s") from error
        except (transport.Closed, FrameError) as error:
            raise DeviceFault("worker_death", f"{command}: the process that holds the device {self._death()}") from error
        for descriptor in descriptors:
            os.close(descriptor)
        if "ok" in answer:
            return answer["ok"]
        fault = answer["error"]
        if fault["kind"] in ("command", "defect"):
            raise RuntimeError(f"the GPU worker could not carry out {command}: {fault['message']}")
        if fault["kind"] == "refused":
            raise DeviceFault("parameters", fault["message"])
        raise DeviceFault(classify(fault["code"]), fault["message"])

    def finish(self) -> int | None:
        """Lets the worker end by itself, and what watches it write down what it saw; the exit code.

        None where there was no worker, or none that ended in time: that one is killed.
        """
        process = self._process
        if process is None:
            return None
        self._connection.close()  # the worker ends when it finds nobody at the other end
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS * self._patience)
        code = process.returncode
        self.close()
        return code

    def close(self) -> None:
        """Ends the worker, whatever it is doing. Raises DeviceLost when it cannot be ended."""
        process, self._process, self._facts = self._process, None, None
        if process is None:
            return
        self._connection.close()
        os.close(self._said)
        # The whole group: a tool that watches the worker is not its only process. It may be gone already.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise DeviceLost("the process that holds the device cannot be ended: the driver keeps it", _HOW) from error

    def _start(self) -> None:
        self._connection, theirs = socket.socketpair()
        arguments = theirs.fileno(), os.getpid(), self._driver, self._specification
        code = f"from {__package__} import serve; serve.main(*{arguments!r})"
        environment = _ENVIRONMENT | {name: os.environ[name] for name in _KEPT if name in os.environ}
        with theirs:
            self._said = sealed_memory(_SAID_BYTES, "fasttrack-worker-stderr")
            try:
                self._process = subprocess.Popen(
                    [*self._under, sys.executable, "-I", "-c", code], env=environment, cwd="/", stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=self._said, pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                os.close(self._said)
                self._connection.close()
                raise DeviceLost(f"the process that holds the device did not start: {error}", _HOW) from error
        seconds = START_SECONDS * min(self._patience, _MOST_START_PATIENCE)
        self._connection.settimeout(seconds)
        try:
            greeting = transport.receive(self._connection)[0]
        except (TimeoutError, transport.Closed, FrameError) as error:
            late = isinstance(error, TimeoutError)
            ended = f"did not answer within {seconds:g} s" if late else self._death()
            said = self._last_words()
            self.close()
            how = _NOT_INSTALLED if "ModuleNotFoundError" in said else _HOW
            what = f"the process that holds the device did not start: it {ended}"
            raise DeviceLost(f"{what}, saying: {said}" if said else what, how) from error
        if "ok" not in greeting:
            self.close()
            raise DeviceLost(f"no usable device: {greeting['error']['message']}", _HOW)
        self._facts = Facts(**greeting["ok"])

    def _probe(self) -> None:
        from .kernels import drawn, host_digest

        seed, key = secrets.randbits(64), (secrets.randbits(64), secrets.randbits(64))
        expected = host_digest([drawn(seed, 0, _PROBE_BYTES // 8).astype("<u8").tobytes()], key)
        try:
            answer = self.call("probe", {"size": _PROBE_BYTES, "seed": seed, "key": list(key)}, seconds=self.run_seconds)
        except DeviceFault as fault:
            self.close()
            raise DeviceLost(f"the device does not run a known kernel: {fault}", _HOW) from fault
        if answer != {"digest": expected}:
            self.close()
            raise DeviceLost("the device computes a known kernel wrongly", _HOW)

    def _recover(self, fault: DeviceFault) -> None:
        self.close()
        self.restarts += 1
        try:
            self.facts
        except DeviceLost as lost:
            raise DeviceLost(f"{lost.what} (after: {fault})", lost.how) from fault

    def _last_words(self) -> str:
        """The end of what the worker wrote to standard error, in one line."""
        text = os.pread(self._said, _SAID_BYTES, 0).rstrip(b"\0").decode(errors="replace")
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        return " / ".join(lines[-_SAID_LINES:])[-_SAID_SHOWN:]

    def _death(self) -> str:
        try:
            return f"ended with {self._process.wait(1)}"
        except subprocess.TimeoutExpired:
            return "broke off"


@dataclass(frozen=True)
class Elapsed:
    """One replay of a captured graph, in nanoseconds."""

    event_ns: float
    """Between CUDA events on the stream, before and after the graph."""
    host_ns: int
    """On the host's clock, from before the launch until the whole device is drained."""


class Session:
    """One loaded plan. Slots are arenas; they run in the order in which a call names them."""

    def __init__(self, device: Device, pack: KernelPack, codes: Mapping[str, DeviceCode]) -> None:
        self._device, self._pack = device, pack
        self._entries = {key: code.entry for key, code in codes.items()}
        texts = {"cubin", "ptx", "sass", "ptxas_log", "resource_usage"}
        bare = dict.fromkeys(texts - {"cubin"}, "")
        listed = [{"key": key, **bare, **code.model_dump(mode="json", exclude=texts)} for key, code in codes.items()]
        cubins = [code.cubin for code in codes.values()]
        request = {"pack": pack.model_dump(mode="json"), "codes": listed}
        self._call("load", request, blobs=cubins, seconds=LOAD_SECONDS)

    def _call(self, command: str, request: dict[str, Any], **options: Any) -> dict[str, Any]:
        return self._device.call(command, request, **options)

    def slot(
        self, number: int, memory: int, size: int, regions: Mapping[str, Region], *, whole: bool = True,
        blank: Sequence[str] = (),
    ) -> int:  # fmt: skip
        """Places the arena in memfd `memory` on the device and binds the plan to it; its device address.

        The address is a random multiple of 256 inside a larger allocation, whose rest is noise and watched too. With
        `whole` an image of everything is kept for `restore`, else of the written regions alone. Regions named in
        `blank`, and everything between regions and around them, get no contents at all: for a tool that reports reads
        of memory that nobody wrote. Such a slot can only be run, and nothing put back.
        """
        lead = secrets.randbelow(256) * ALIGNMENT
        request = {
            "slot": number, "size": size, "whole": whole, "lead": lead, "slack": lead + ALIGNMENT,
            "seed": secrets.randbits(63), "blank": list(blank),
            "regions": {name: {**asdict(region), "kind": region.kind.value} for name, region in regions.items()},
        }  # fmt: skip
        return self._call("slot", request, memory=[memory])["address"]

    def run(
        self, slots: Sequence[int], *, graph: bool = False, repeats: int = 1, delays: Mapping[str, int] | None = None,
        roles: Sequence[str] = ("compute", "prefetch"), seconds: float | None = None,
    ) -> int:  # fmt: skip
        """Runs the plan on the slots, directly or captured in a graph, and waits; nanoseconds on the host's clock.

        A graph's kernels, as the driver names them, must be the plan's (DeviceFault launch_audit). Between `repeats` each slot is put back to its image. `delays` keeps streams busy for so many nanoseconds
        before each of their launches.
        """
        request = {
            "slots": list(slots), "graph": graph, "repeats": repeats, "delays": dict(delays or {}),
            "roles": list(roles),
        }  # fmt: skip
        answer = self._call("run", request, seconds=seconds or self._device.run_seconds)
        if graph and not delays:
            self._audit(answer["kernels"], len(slots) * repeats, roles)
        return answer["host_ns"]

    def capture(self, slots: Sequence[int], *, repeats: int = 1) -> int:
        """Captures one plan run for each slot, in order, in one graph, audited; the number of kernels in it."""
        kernels = self._call("capture", {"slots": list(slots), "repeats": repeats})["kernels"]
        self._audit(kernels, len(slots) * repeats)
        return sum(kernels.values())

    def _audit(self, kernels: Mapping[str, int], runs: int, roles: Sequence[str] = ("compute", "prefetch")) -> None:
        """Holds the kernels of a captured graph, as the driver counts and names them, against `runs` runs of the plan."""
        launched = (one.kernel for one in self._pack.launches if one.role in roles)
        planned = {name: count * runs for name, count in Counter(self._entries[key] for key in launched).items()}
        if kernels != planned:
            message = f"the graph has kernels {_listed(kernels)}, {runs} runs of the plan have {_listed(planned)}"
            raise DeviceFault("launch_audit", message)

    def replay(self, *, seconds: float | None = None) -> Elapsed:
        """Launches the captured graph once and waits for the whole device."""
        return Elapsed(**self._call("replay", {}, seconds=seconds or self._device.run_seconds))

    def restore(self, slots: Sequence[int]) -> None:
        """Puts slots back to their images and refills all scratch with fresh noise."""
        self._call("restore", {"slots": list(slots), "seed": secrets.randbits(63)})

    def freshen(self, slots: Sequence[int], seed: int, masks: Mapping[str, int]) -> None:
        """Flips bits of fixed regions of slots: those that follow from `seed` and the slot's place in the list, where
        the region's 64-bit mask allows it. Equal calls on equal slots leave equal contents."""
        self._call("freshen", {"slots": list(slots), "seed": seed, "masks": dict(masks)})

    def digest(self, slots: Sequence[int], key: tuple[int, int], *, everything: bool = False) -> list[str]:
        """A keyed 128-bit digest of each slot's written regions (storage, gaps included, in the order of names).

        With `everything`, of the whole allocation but scratch and counters: guard bands, gaps and inputs as well.
        """
        return self._call("digest", {"slots": list(slots), "key": list(key), "everything": everything})["digests"]

    def download(self, slot: int, memory: int) -> None:
        """Copies a slot's arena into memfd `memory`."""
        self._call("download", {"slot": slot}, memory=[memory])

    def reload(self) -> None:
        """Loads the code afresh: global symbols start anew. A captured graph is dropped; slots keep what they hold."""
        self._call("reload", {}, seconds=LOAD_SECONDS)

    def release(self) -> None:
        """Gives back slots, graph and code."""
        self._call("release", {})


def _listed(kernels: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in sorted(kernels.items())[:8]) or "none"
