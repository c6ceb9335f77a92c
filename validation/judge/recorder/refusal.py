"""Why a candidate cannot be recorded, and where in its files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

MAX_MESSAGE = 2000


class Refused(BaseException):
    """The candidate does something that a plan cannot hold. Not an Exception: a fallback must not swallow it.

    `reason` is a stable id (`record.*`), `where` is `file:line` inside of the candidate, or empty.
    """

    def __init__(self, reason: str, message: str, where: str = "") -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        # Half a surrogate pair is a valid Python string and no valid answer.
        self.message = message[:MAX_MESSAGE].encode("utf-8", "backslashreplace").decode("utf-8")
        self.where = where


class CandidateFiles:
    """Knows which code lies in the candidate's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def relative(self, filename: str) -> str | None:
        """POSIX path inside of the candidate, or None for anything else."""
        path = Path(filename)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else None

    def where(self, frame: FrameType | None = None) -> str:
        """`file:line` of the innermost candidate frame, from `frame` (default: the caller) outwards."""
        frame = frame or sys._getframe(1)
        while frame is not None:
            if name := self.relative(frame.f_code.co_filename):
                return f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def lines(self, traceback: TracebackType | None) -> list[str]:
        """`file:line in function` of every candidate frame of a traceback, outermost first."""
        found = []
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if name := self.relative(code.co_filename):
                found.append(f"{name}:{traceback.tb_lineno} in {code.co_name}")
            traceback = traceback.tb_next
        return found

    @contextmanager
    def blamed(self, stage: str) -> Iterator[None]:
        """Turns whatever candidate code raises into Refused, with the candidate's own traceback lines."""
        try:
            yield
        except Refused as refusal:
            lines = self.lines(refusal.__traceback__)
            refusal.where = refusal.where or (lines[-1].partition(" in ")[0] if lines else "")
            raise
        except BaseException as error:
            raise self._refusal(stage, error) from error

    def _refusal(self, stage: str, error: BaseException) -> Refused:
        lines = self.lines(error.__traceback__)
        if isinstance(error, SyntaxError) and (name := self.relative(error.filename or "")):
            lines.append(f"{name}:{error.lineno} in {stage}")
        reason = "record.torch_cuda" if _passes_through_torch_cuda(error.__traceback__) else "record.exception"
        message = f"{stage} raised {type(error).__name__}: {str(error)[: MAX_MESSAGE // 2]}"
        where = lines[-1].partition(" in ")[0] if lines else ""
        return Refused(reason, "\n  ".join((message, *lines)), where)


def _passes_through_torch_cuda(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").startswith("torch.cuda"):
            return True
        traceback = traceback.tb_next
    return False
