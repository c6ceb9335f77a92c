"""One verdict on a wrong kernel whose host code attacks the judge, with candidate and judge apart or in one process.

    python one_process.py apart|together CACHE

Prints status and reason in its last line. `together` is what C1 forbids: jobs run here, in the process that holds oracle, seeds, expected
values and ruling. A process of its own, because what the candidate replaces stays replaced.
"""

import importlib
import sys
import tempfile
import threading
from pathlib import Path

from fake_kernels import TOY
from judging import model_of, replaced
from samples import SAMPLES
from toy_contract import Toy

from fasttrack_validation.judge import judge as judging
from fasttrack_validation.judge import sandboxes
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.executor import codes_for
from fasttrack_validation.judge.replay.fake import CODE_MARK
from fasttrack_validation.sandbox import JobResult, JobStatus

SAMPLE = SAMPLES["imports the judge"]
WRONG = CODE_MARK + replaced(TOY, "values * weights", "values * weights * 2").encode()


class Here:
    """A sandbox that is none: every job runs in the caller's process."""

    description = "none"

    def __init__(self, *arguments, **options) -> None:
        self._turn = threading.Lock()  # Triton compiles in one thread of a process at a time

    def run(self, entry: str, payload: dict, *, memory=(), limits=None) -> JobResult:
        """As `Sandbox.run`."""
        module, _, function = entry.partition(":")
        with self._turn, tempfile.TemporaryDirectory() as scratch:
            found = getattr(importlib.import_module(module), function)(payload, [], Path(scratch))
        value, blobs = found if isinstance(found, tuple) else (found, [])
        return JobResult(status=JobStatus.OK, value=value, blobs=tuple(blobs))

    def close(self) -> None:
        """As `Sandbox.close`."""


def main(how: str, cache: str) -> None:
    """Rules and prints."""
    if how == "together":
        sandboxes.Sandbox = Here
    # The device's code is the candidate's as well: it doubles the product, as its source says.
    judging.codes_for = lambda codes, capability: {
        key: code.model_copy(update={"cubin": WRONG}) for key, code in codes_for(codes, capability).items()
    }
    candidate = Candidate(op=SAMPLE.op, entry="kernel.py", files={"kernel.py": SAMPLE.text})
    with Device("fake") as device, judging.Judge(model_of(Toy()), cache=Path(cache), device=device, timed=False) as judge:
        found = judge.screen(candidate)
    print(found.status, found.reason)


if __name__ == "__main__":
    main(*sys.argv[1:])
