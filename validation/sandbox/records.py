"""What a sandboxed job is given, what comes back, and what the self-test saw."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from ..records import Frozen


class Profile(StrEnum):
    """What the jailed code may do. recorder: fork and execute compilers. interpreter: neither fork nor execute."""

    RECORDER = "recorder"
    INTERPRETER = "interpreter"


class Limits(Frozen):
    """What one job may use. Passing a limit costs that job only."""

    wall_seconds: float = Field(default=60.0, gt=0, description="from the end of the set-up to the end of the job")
    memory_bytes: int = Field(default=6 << 30, gt=0, description="address space of each process; resident sum of all")
    output_bytes: int = Field(default=64 << 20, gt=0, description="result, and standard output and error together")
    scratch_bytes: int = Field(default=256 << 20, gt=0, description="private scratch directory, and each file in it")
    processes: int = Field(default=16, gt=0, description="processes and threads alive at once, the job's own included")


class JobStatus(StrEnum):
    """How a job ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"


class JobResult(Frozen):
    """What a job left behind. `value`, `blobs`, `error`, `stdout` and `stderr` were written by hostile code: data only.

    `value` is finite JSON (no NaN, no infinity, valid Unicode). `error`, `stdout` and `stderr` are cut short and free
    of control and formatting characters; where `status` is not ok, `error` says why.
    """

    status: JobStatus
    value: dict[str, Any] = {}
    blobs: tuple[bytes, ...] = ()
    error: str = ""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class Trial(Frozen):
    """One act of the self-test: a forbidden one that must fail, or an honest one that must succeed."""

    act: str
    forbidden: bool
    held: bool = Field(description="forbidden and stopped, or honest and done")
    happened: str


class Rung(Frozen):
    """The confinement in force, and the self-test that chose it."""

    name: str
    description: str
    trials: tuple[Trial, ...]
    refused: tuple[str, ...] = Field(default=(), description="rungs that were tried before, each with what failed")
