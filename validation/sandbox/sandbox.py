"""The judge's side: a confined place in which jobs run, one process each."""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import SandboxUnavailable
from . import frames, outcome, selftest, supervisor
from .handle import START_SECONDS, ZygoteHandle
from .records import JobResult, Limits, Profile, Rung, Trial

RUNGS = ("namespaces", "landlock")
UNCONFINED = "none"

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    # What a library remembers at import must not be this user's home; each job then gets its own scratch.
    "HOME": "/nonexistent",
    # One thread each: a library's helper thread would be outside the filter, and forks would lose it.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_GRACE_SECONDS = 90.0
_HOW = (
    "allow unprivileged user namespaces (or run as root with CAP_SYS_ADMIN), or use Linux 6.2 or newer with Landlock "
    "enabled; --unsafe-no-sandbox runs candidates unconfined"
)


def sealed_memory(size: int, name: str = "fasttrack") -> int:
    """A memfd of `size` bytes that nobody can resize, for `Sandbox.run(memory=...)`. The caller closes it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    _seal(descriptor)
    return descriptor


def _seal(descriptor: int) -> None:
    # A job that could cut the file short would end the judge with SIGBUS at its next read.
    wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & wanted != wanted:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, wanted)
    except OSError as error:
        raise ValueError(
            f"memory file {descriptor} cannot be sealed ({error}): make it with sealed_memory()"
        ) from error


class Sandbox:
    """Runs jobs of trusted entry functions that handle untrusted code, each in a jail of its own.

    `preload` modules are imported once; `environ` is added to an otherwise empty environment; up to `concurrency` jobs
    run at a time (`run` may be called from any thread). At start each of `rungs`, in order, has to pass the self-test;
    the first that does is used. Raises SandboxUnavailable when none does, unless `unsafe`.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        preload: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        concurrency: int = 2,
        unsafe: bool = False,
        rungs: tuple[str, ...] = RUNGS,
    ) -> None:
        self.profile = profile
        self._preload, self._environ = preload, {**_ENVIRONMENT, **(environ or {})}
        self._slots = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._zygote: ZygoteHandle | None = ZygoteHandle(self._preload, self._environ)
        self._readable = self._zygote.roots
        self._running: set[socket.socket] = set()
        self._closed = False
        try:
            self.rung = self._choose(rungs, unsafe)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def description(self) -> str:
        """Which rung confines the jobs, and what it enforces: one line for the evidence."""
        return self.rung.description

    def close(self) -> None:
        """Ends every running job and the process that they are forked from."""
        with self._lock:
            self._closed = True
            for connection in self._running:
                connection.shutdown(socket.SHUT_RDWR)
            zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()

    def run(
        self, entry: str, payload: dict[str, Any], *, memory: Sequence[int] = (), limits: Limits = Limits()
    ) -> JobResult:
        """Calls `entry` ("package.module:function") as `function(payload, maps, scratch)` in a fresh jail.

        It returns a dict, or a dict and a list of bytes. `memory` are memfds (see `sealed_memory`); the job gets each
        mapped shared and writable. Raises ValueError for bad arguments, SandboxUnavailable when the jail cannot be put
        up; whatever the job does is in the result.
        """
        return self._run(self.rung.name, entry, payload, memory, limits)[0]

    def _run(
        self, rung: str, entry: str, payload: dict[str, Any], memory: Sequence[int], limits: Limits
    ) -> tuple[JobResult, dict[str, Any]]:
        if len(memory) > supervisor.MAX_MEMORY_FILES:
            raise ValueError(f"{len(memory)} memory files, at most {supervisor.MAX_MEMORY_FILES}")
        for descriptor in memory:
            _seal(descriptor)
        request = frames.encode(
            {
                "rung": f"{__package__}.rung_{rung}",
                "profile": self.profile,
                "entry": entry,
                "payload": payload,
                "limits": limits.model_dump(),
            }
        )
        with self._slots:
            answer, blobs = self._exchange(request, memory, limits)
        if answer["ended"] == "setup":
            raise SandboxUnavailable(f"{rung}: {answer['failed']}", _HOW)
        return outcome.job_result(answer, blobs), answer["facts"]

    def _exchange(
        self, request: bytes, memory: Sequence[int], limits: Limits
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        for _ in range(2):
            with self._connection() as (connection, zygote):
                connection.settimeout(START_SECONDS)
                try:
                    socket.send_fds(connection, [struct.pack(">Q", len(request))], list(memory))
                    connection.sendall(request)
                    started = connection.recv(1)
                except (BrokenPipeError, ConnectionResetError, TimeoutError):
                    started = b""
                answer = _answer(connection, limits) if started else None
                if self._closed:
                    raise RuntimeError("the sandbox was closed while the job ran")
            if answer:
                return answer
            self._drop(zygote)  # it died before the job began: nothing has run, so another may try
        raise SandboxUnavailable("the sandbox's parent process died twice before the job began", _HOW)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[tuple[socket.socket, ZygoteHandle]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the sandbox is closed")
                if self._zygote is None:
                    self._zygote = ZygoteHandle(self._preload, self._environ)
                zygote = self._zygote
                zygote.adopt(theirs)
                self._running.add(ours)
            theirs.close()
            try:
                yield ours, zygote
            finally:
                with self._lock:
                    self._running.discard(ours)

    def _drop(self, dead: ZygoteHandle) -> None:
        with self._lock:
            if self._zygote is dead:  # or another thread has replaced it
                self._zygote = None
        dead.close()

    def _choose(self, rungs: tuple[str, ...], unsafe: bool) -> Rung:
        refused: list[str] = []
        for name in rungs:
            try:
                trials, facts = self._try(name)
            except SandboxUnavailable as error:
                refused.append(error.what)
                continue
            if failed := [f"{trial.act} ({trial.happened[:100]})" for trial in trials if not trial.held]:
                refused.append(f"{name}: {'; '.join(failed)}")
                continue
            return Rung(name=name, description=_describe(name, facts), trials=trials, refused=tuple(refused))
        if not unsafe:
            raise SandboxUnavailable(f"no sandbox on this system: {' | '.join(refused) or 'no rung to try'}", _HOW)
        trials, _ = self._try(UNCONFINED)
        description = "none (--unsafe-no-sandbox): limits on memory, time, file size and output only"
        return Rung(name=UNCONFINED, description=description, trials=trials, refused=tuple(refused))

    def _try(self, rung: str) -> tuple[tuple[Trial, ...], dict[str, Any]]:
        with selftest.Exam(self.profile, self._environ, self._readable) as exam:
            result, facts = self._run(rung, selftest.ENTRY, exam.payload, (exam.memory,), selftest.LIMITS)
            return exam.mark(result), facts


def _answer(connection: socket.socket, limits: Limits) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    connection.settimeout(limits.wall_seconds + _GRACE_SECONDS)
    data = bytearray()
    try:
        while chunk := connection.recv(1 << 20):
            data += chunk
        return frames.decode(bytes(data))
    except (TimeoutError, ConnectionResetError, frames.FrameError):
        # The supervisor itself was killed (out of memory, say): its job went with it.
        return {"ended": "exit", "status": signal.SIGKILL, "seconds": 0.0, "facts": {}}, (b"", b"", b"")


def _describe(rung: str, facts: dict[str, Any]) -> str:
    parts = [
        f"{', '.join(facts['namespaces'])} namespaces, read-only root, tmpfs scratch" if "namespaces" in facts else "",
        f"Landlock ABI {facts['landlock_abi']}" if facts["landlock_abi"] else "",
        "seccomp allow-list",
        f"uid {'of the job alone' if facts['uid'] != os.geteuid() else facts['uid']}",
        "no capabilities, no new privileges",
        "limits on memory, time, processes, files and output",
    ]
    return f"{rung}: " + "; ".join(filter(None, parts))


def probe(*, unsafe: bool = False, rungs: tuple[str, ...] = RUNGS) -> Rung:
    """Runs the self-test for both profiles, and a Triton kernel in the interpreter; says what each act came to.

    Raises SandboxUnavailable where no rung of `rungs` holds, or no kernel runs in it, unless `unsafe`.
    """
    with Sandbox(Profile.RECORDER, unsafe=unsafe, rungs=rungs) as recorder:
        trials = list(recorder.rung.trials)
    environ = {"TRITON_INTERPRET": "1"}
    with Sandbox(
        Profile.INTERPRETER, preload=("torch", "triton"), environ=environ, unsafe=unsafe, rungs=rungs
    ) as interpreter:
        trials += [trial for trial in interpreter.rung.trials if trial.act not in {known.act for known in trials}]
        trials.append(selftest.kernel(interpreter))
        if not unsafe and not trials[-1].held:
            raise SandboxUnavailable(f"no Triton kernel ran in the sandbox: {trials[-1].happened}", _HOW)
        return interpreter.rung.model_copy(update={"trials": tuple(trials)})
