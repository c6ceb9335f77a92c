"""The self-test that chooses a rung: what the jailed acts are given, and how their outcomes are marked."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import acts, jail, roots
from .records import JobResult, JobStatus, Limits, Profile, Trial

if TYPE_CHECKING:
    from .sandbox import Sandbox

ENTRY = f"{acts.__name__}:attempt"
EXECUTE = f"{acts.__name__}:execute"
LIMITS = Limits(wall_seconds=30, memory_bytes=3 << 30, output_bytes=1 << 20, scratch_bytes=4 << 20, processes=8)

_PATTERN = b"\x01\x02\x03\x04"
_FILES_A_FOLDER = 4
_NOT_FOR = {
    Profile.RECORDER: ("fork", "execute a program"),
    Profile.INTERPRETER: ("start more processes than the limit", "start the same Python"),
}

KERNEL = """
import numpy, torch, triton
import triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

def main(memory, scratch):
    x, y, out = torch.frombuffer(memory[0], dtype=torch.float32).view(3, -1)
    add[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    return {}
"""


class Exam:
    """One sitting: a canary file, a stranger process, four bytes of shared memory."""

    def __init__(self, profile: Profile, environ: dict[str, str], readable: tuple[str, ...]) -> None:
        self._profile, self._environ, self._readable = profile, environ, readable

    def __enter__(self) -> "Exam":
        from .sandbox import sealed_memory

        with contextlib.ExitStack() as stack:
            canary = stack.enter_context(tempfile.NamedTemporaryFile(prefix="fasttrack-canary-"))
            canary.write(b"secret")
            canary.flush()
            os.chmod(canary.name, 0o644)
            self.memory = sealed_memory(len(_PATTERN))
            stack.callback(os.close, self.memory)
            os.pwrite(self.memory, _PATTERN, 0)
            # Ends by itself should the judge be killed: its standard input closes then.
            stranger = subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
            stack.callback(stranger.wait)
            stack.callback(stranger.stdin.close)
            self.payload = self._payload(Path(canary.name), stranger.pid)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _payload(self, canary: Path, stranger: int) -> dict[str, Any]:
        package = Path(__file__).parents[1]
        # Installed as a wheel the package lies among others that jobs may read. A home is private wherever it is, but
        # for the system accounts that live in /usr/sbin and the like.
        folders = {path for path in (Path.cwd(), package.parent) if not roots.covered(str(path), self._readable)}
        folders |= {path for path in (Path(roots.home()),) if not roots.covered(str(path), roots.SYSTEM)}
        private = [canary, Path("/etc/passwd"), *(file for folder in sorted(folders) for file in _some_files(folder))]
        numpy = importlib.util.find_spec("numpy")
        written = {"/", "/tmp", "/var/tmp", "/dev/shm", sys.prefix, sys.base_prefix, package, *folders}
        return {
            "skip": _NOT_FOR[self._profile],
            "unreadable": [str(path) for path in private if path.exists()],
            "unwritable": sorted(map(str, written)),
            "strangers": [os.getpid(), stranger],
            "environment": [*self._environ, *jail.SCRATCH_VARIABLES, "LC_CTYPE"],
            "memory_bytes": LIMITS.memory_bytes,
            "scratch_bytes": LIMITS.scratch_bytes,
            "processes": LIMITS.processes,
            "readable": [os.__file__, __file__, *([numpy.origin] if numpy else [])],
            "prefix": sys.prefix,
        }

    def mark(self, result: JobResult) -> tuple[Trial, ...]:
        """One trial an act, in order, and one for the whole. An act that is missing from the result has not held."""
        finished = result.status is JobStatus.OK
        trials = [Trial(act="finish the self-test", forbidden=False, held=finished, happened=result.error or "done")]
        for forbidden, names in ((True, acts.FORBIDDEN), (False, acts.HONEST)):
            for name in names:
                if name in _NOT_FOR[self._profile]:
                    continue
                succeeded, happened = result.value.get(name, (forbidden, "was not tried"))
                trials.append(Trial(act=name, forbidden=forbidden, held=succeeded is not forbidden, happened=happened))
        seen = os.pread(self.memory, len(_PATTERN), 0)
        arrived = seen == _PATTERN[::-1]
        trials.append(
            Trial(act="see what the job wrote to shared memory", forbidden=False, held=arrived, happened=seen.hex())
        )
        return tuple(trials)


def _some_files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in sorted(folder.iterdir()) if path.is_file() and os.access(path, os.R_OK)][
            :_FILES_A_FOLDER
        ]
    return []


def kernel(sandbox: "Sandbox") -> Trial:
    """Runs a small Triton kernel in an interpreter sandbox on shared memory and checks its sums."""
    import numpy

    from .sandbox import sealed_memory

    count = 40
    x, y = numpy.arange(count, dtype=numpy.float32), numpy.full(count, 0.5, dtype=numpy.float32)
    memory = sealed_memory(3 * x.nbytes)
    try:
        os.pwrite(memory, x.tobytes() + y.tobytes(), 0)
        result = sandbox.run(EXECUTE, {"source": KERNEL}, memory=(memory,))
        sums = numpy.frombuffer(os.pread(memory, x.nbytes, 2 * x.nbytes), dtype=numpy.float32)
        held = result.status is JobStatus.OK and bool((sums == x + y).all())
    finally:
        os.close(memory)
    happened = f"{count} sums in {result.seconds:.2f} s" if held else result.error or "wrong sums"
    return Trial(act="run a Triton kernel", forbidden=False, held=held, happened=happened)
