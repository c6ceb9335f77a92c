"""From what the supervisor relayed to a result that can be shown and stored: the last place that trusts nothing."""

import os
import signal
import unicodedata
from typing import Any

from . import frames
from .records import JobResult, JobStatus

_QUOTED_CHARACTERS = 16_000


def job_result(answer: dict[str, Any], blobs: tuple[bytes, ...]) -> JobResult:
    """The result of a job, from the supervisor's word (`answer`) and the job's own (frame, output, error output)."""
    frame, out, err = blobs
    status, value, parts, error = _outcome(answer, frame)
    return JobResult(
        status=status,
        value=value,
        blobs=parts,
        error=quote(error),
        stdout=quote(out.decode("utf-8", "replace")),
        stderr=quote(err.decode("utf-8", "replace")),
        seconds=answer["seconds"],
    )


def _outcome(answer: dict[str, Any], frame: bytes) -> tuple[JobStatus, dict[str, Any], tuple[bytes, ...], str]:
    if answer["ended"] != "exit":
        return JobStatus(answer["ended"]), {}, (), f"stopped: {answer['ended'].replace('_', ' ')}"
    if os.WIFSIGNALED(answer["status"]):
        number = os.WTERMSIG(answer["status"])
        return JobStatus.KILLED, {}, (), f"killed by signal {number} ({signal.strsignal(number)})"
    if not frame:
        return JobStatus.ERROR, {}, (), f"ended with exit code {os.waitstatus_to_exitcode(answer['status'])}, no result"
    try:
        document, parts = frames.decode(frame)
    except frames.FrameError as error:
        return JobStatus.ERROR, {}, (), f"unreadable result: {error}"
    match document:
        case {"value": dict(value), **rest} if not rest:
            return JobStatus.OK, value, parts, ""
        case {"error": str(error), "out_of_memory": bool(memory), **rest} if not rest and not parts:
            return JobStatus.OUT_OF_MEMORY if memory else JobStatus.ERROR, {}, (), error
    return JobStatus.ERROR, {}, (), "unreadable result: neither a value nor an error"


def quote(text: str) -> str:
    """The end of `text`, without control, formatting, private and line-separator characters (newline, tab stay)."""
    return "".join(
        character
        for character in text[-_QUOTED_CHARACTERS:]
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    )
