"""Files that are whole after any stop: replaced at once, or grown line by line, flushed to disk, rid of what a stop cut off."""

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError

from ... import durable
from ...errors import UserError
from ...records import Frozen

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Lines:
    """Records in JSON, one a line, behind a first line that says what they are about. A context manager: open while they grow."""

    def __init__(self, file: Path, first: str, record: type[Frozen] | None = None) -> None:
        """`record`: what each line is. UserError where `file` is damaged, or about something else."""
        self.file, self._first, self._record = file, first, record
        self.lines = self._existing()
        """Those that are there, without the first"""

    def __enter__(self) -> "Lines":
        with writing(self.file):
            self._growing = durable.GrowingFile(self.file)
            if not self._growing.held:
                self._growing.append(self._first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._growing.close()

    def append(self, line: str) -> None:
        """One more line, which outlives this process and the machine's power."""
        with writing(self.file):
            self._growing.append(line)
        self.lines.append(line)

    def _existing(self) -> list[str]:
        if not self.file.exists():
            return []
        try:
            # The last one has no end: nothing, or what a stop cut off.
            first, *lines = [line.decode() for line in self.file.read_bytes().split(b"\n")[:-1]] or [self._first]
            if first != self._first and not _DIGEST.fullmatch(first):
                json.loads(first)
            for line in lines:
                if self._record:
                    self._record.model_validate_json(line)
                else:
                    dict(json.loads(line))
        except (ValueError, TypeError, ValidationError) as error:
            raise UserError(f"{self.file} is damaged", "remove the file: what it is about begins anew") from error
        if first != self._first:
            raise UserError(
                f"{self.file} holds records of another checkpoint, path or setting",
                "give another --out, or start over with --fresh",
            )
        return lines


def replace_file(file: Path, data: bytes) -> None:
    """`file` becomes `data`: after a crash it has its old content or all of the new one."""
    with writing(file):
        durable.replace_file(file, data, file.with_name(file.name + ".new"))


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Names `file` where the disk is full: neither writing nor a library that writes does."""
    try:
        yield
    except Exception as error:
        if getattr(error, "errno", None) != errno.ENOSPC and os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from error

