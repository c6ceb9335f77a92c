"""Files that grow line by line and are whole after any stop: flushed to disk, and rid of what a stop cut off."""

import json
import os
from pathlib import Path
from types import TracebackType

from ...errors import UserError


class Lines:
    """Records in JSON, one a line, behind a first line that says what they are about. A context manager: open while they grow."""

    def __init__(self, file: Path, first: str) -> None:
        """UserError where `file` is about something else."""
        self.file, self._first = file, first
        self.lines = self._existing()
        """Those that are there, without the first"""

    def __enter__(self) -> "Lines":
        temporary = self.file.with_name(self.file.name + ".new")
        temporary.write_text("".join(f"{line}\n" for line in (self._first, *self.lines)), "utf-8")
        os.replace(temporary, self.file)
        self._handle = self.file.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._handle.close()

    def append(self, line: str) -> None:
        """One more line, which outlives this process and the machine's power."""
        self._handle.write(line + "\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self.lines.append(line)

    def _existing(self) -> list[str]:
        if not self.file.exists():
            return []
        data = self.file.read_bytes()
        try:
            first, *lines = data[: data.rfind(b"\n") + 1].decode("utf-8").splitlines() or [self._first]
            for line in lines:
                json.loads(line)
        except ValueError as error:
            raise UserError(f"{self.file} is damaged", "remove the file: what it is about begins anew") from error
        if first != self._first:
            raise UserError(
                f"{self.file} holds records of another checkpoint, path or setting",
                "give another --out, or start over with --fresh",
            )
        return lines
