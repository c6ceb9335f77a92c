"""One job's supervisor: trusted, outside the jail. Puts the job in, keeps its clock, carries out what it wrote.

It shares neither pid namespace nor Landlock domain with the job. What it relays it never interprets.
"""

import contextlib
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import struct
import time
from typing import Any

from . import frames, jail
from .plan import Plan, RungModule
from .records import Limits, Profile

MAX_REQUEST_BYTES = 1 << 30
MAX_MEMORY_FILES = 200
STARTED = b"+"

_TICK_SECONDS = 0.1
_CHUNK = 1 << 16
_SETUP_SECONDS = 60.0
_PRINTED_BYTES = 1 << 16
# A uid that no account has and no other running job takes; jobs cannot count against or signal each other.
_FIRST_UID = 0x7F000000
_NOBODY = 65534


def supervise(connection: socket.socket, roots: tuple[str, ...]) -> None:
    """Runs the job that `connection` asks for and answers on it with one frame, until end of file.

    The answer: a document with `ended` (exit, timeout, output_limit, out_of_memory, or setup with `failed`), `status`
    (the wait status), `seconds`, `facts`; and three blobs: result, standard output, standard error.
    """
    request, memory = _receive(connection)
    connection.sendall(STARTED)
    rung: RungModule = importlib.import_module(request["rung"])
    root = os.geteuid() == 0 and rung.CONFINES
    uid = _job_uid() if root else os.geteuid()
    plan = Plan(
        profile=Profile(request["profile"]),
        entry=request["entry"],
        payload=request["payload"],
        limits=Limits(**request["limits"]),
        roots=roots,
        memory=memory,
        uid=uid,
        gid=uid if root else os.getegid(),
        drop_uid=root,
    )
    try:
        try:
            rung.outside(plan)
            answer, blobs = _Job(plan, rung, connection).run()
        finally:
            rung.clean(plan)
    except Exception as error:
        answer, blobs = {"ended": "setup", "failed": jail.describe(error)}, (b"", b"", b"")
    connection.sendall(frames.encode(answer, blobs))


def _receive(connection: socket.socket) -> tuple[dict[str, Any], tuple[int, ...]]:
    head, memory, _, _ = socket.recv_fds(connection, 8, MAX_MEMORY_FILES)
    (size,) = struct.unpack(">Q", head)
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the judge went away")
        data += chunk
    return frames.decode(bytes(data))[0], tuple(memory)


def _job_uid() -> int:
    wished = _FIRST_UID + os.getpid()
    for line in pathlib.Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= wished < inside + count:
            return wished
    return _NOBODY


class _Job:
    def __init__(self, plan: Plan, rung: RungModule, connection: socket.socket) -> None:
        self.plan, self.rung, self.connection = plan, rung, connection
        self.zygote = os.getppid()
        self.result, self.printed = bytearray(), {"out": bytearray(), "err": bytearray()}
        self.printed_bytes = 0
        self.setup, self.status = bytearray(), bytearray()
        self.started: float | None = None

    def run(self) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        names = ("setup", "status", "result", "out", "err")
        pipes = {name: os.pipe() for name in ("life", *names)}
        self.first = os.fork()
        if self.first == 0:
            with jail.exiting(1):
                self.connection.close()
                os.close(pipes["life"][1])
                ends = {name: pipes[name][1] for name in names}
                for name in names:
                    os.close(pipes[name][0])
                jail.first(self.plan, self.rung, jail.Channels(life=pipes["life"][0], **ends))
        os.close(pipes["life"][0])
        for name in names:
            os.close(pipes[name][1])
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.first, self.first)  # as the child does itself: whoever comes first
        self.ends = {pipes[name][0]: name for name in names}
        try:
            ended = self._watch()
        finally:
            finished = time.monotonic()
            self._kill()
        self._drain()
        if self.started is None:
            return {"ended": "setup", "failed": self._setup_message()}, (b"", b"", b"")
        if ended is None and len(self.result) > self.plan.limits.output_bytes:
            ended = "output_limit"
        answer = {
            "ended": ended or "exit",
            "status": struct.unpack("=i", self.status)[0] if len(self.status) == 4 else signal.SIGKILL,
            "seconds": round(finished - self.started, 6),
            "facts": self.facts,
        }
        return answer, (bytes(self.result), bytes(self.printed["out"]), bytes(self.printed["err"]))

    def _watch(self) -> str | None:
        """Relays until the job ends by itself (None), or says which limit it passed."""
        poller = select.poll()
        for descriptor in self.ends:
            poller.register(descriptor, select.POLLIN)
        poller.register(self.connection, select.POLLIN)
        set_up_until = time.monotonic() + _SETUP_SECONDS
        next_look = 0.0
        while True:
            now = time.monotonic()
            deadline = set_up_until if self.started is None else self.started + self.plan.limits.wall_seconds
            if now >= deadline:
                return "timeout"
            if now >= next_look:
                next_look = now + _TICK_SECONDS
                if os.getppid() != self.zygote:
                    raise EOFError("the sandbox went away")
                if self.started is not None and (passed := self._measure()):
                    return passed
            for descriptor, _ in poller.poll(1000 * min(_TICK_SECONDS, deadline - now) + 1):
                if descriptor == self.connection.fileno():
                    raise EOFError("the judge went away")  # it has nothing to say while a job runs
                name = self.ends[descriptor]
                if not self._take(descriptor, name):
                    poller.unregister(descriptor)
                    if name == "status":
                        return None
                if (
                    len(self.result) > self.plan.limits.output_bytes
                    or self.printed_bytes > self.plan.limits.output_bytes
                ):
                    return "output_limit"

    def _take(self, descriptor: int, name: str) -> bool:
        """Reads what is there; False at end of file."""
        data = os.read(descriptor, _CHUNK)
        if name == "result":
            self.result += data
        elif name == "setup":
            self.setup += data
            if not data and self.started is None:
                self._set_up()
        elif name == "status":
            self.status += data
        else:
            self.printed_bytes += len(data)
            kept = self.printed[name]
            kept += data[: _PRINTED_BYTES - len(kept)]
        return bool(data)

    def _set_up(self) -> None:
        # Written before any code of the job ran, and closed by then: its word can be taken.
        with contextlib.suppress(ValueError):
            message = json.loads(self.setup)
            if "ready" in message:
                self.facts = message["ready"]
                self.started = time.monotonic()

    def _setup_message(self) -> str:
        try:
            return json.loads(self.setup)["failed"]
        except (ValueError, KeyError):
            return "the jail's first process ended without a word"

    def _measure(self) -> str | None:
        if self.plan.may_fork and _resident_bytes(self.first) > self.plan.limits.memory_bytes:
            return "out_of_memory"
        if not self.plan.scratch_is_sized and _tree_bytes(self.plan.scratch) > self.plan.limits.scratch_bytes:
            return "output_limit"
        return None

    def _kill(self) -> None:
        """Ends every process of the job and reaps it.

        The end of process 1 is the end of its pid namespace. Without one, the filter keeps every process of the job
        in one process group, and signalling a group is atomic against fork; what left the group all the same (where
        no filter is) was adopted by the supervisor.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.first, signal.SIGKILL)
        while True:
            for child in _children(os.getpid()):
                os.kill(child, signal.SIGKILL)
            try:
                os.wait()
            except ChildProcessError:
                return

    def _drain(self) -> None:
        for descriptor, name in self.ends.items():
            while self._take(descriptor, name) and len(self.result) <= self.plan.limits.output_bytes:
                pass
            os.close(descriptor)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []  # it has ended since


def _resident_bytes(first: int) -> int:
    """Resident memory of the job's processes, the jail's first not counted; pages that they share count twice."""
    total, queue = 0, _children(first)
    while queue:
        pid = queue.pop()
        queue += _children(pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


def _tree_bytes(top: str) -> int:
    total = 0
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
