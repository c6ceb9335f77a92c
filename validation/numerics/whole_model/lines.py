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

from ...errors import UserError
from ...records import Frozen

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Lines:
    """Records in JSON, one a line, behind a first line that says what they are about. A context manager: open while they grow."""

    def __init__(self, file: Path, first: str, record: type[Frozen] | None = None) -> None:
        """`record`: what each line is. UserError where `file` is damaged, or about something else."""
        self.file, self._first, self._record = file, first, record
        self.lines, self._size = self._existing()
        """Those that are there, without the first; bytes of all that is whole"""

    def __enter__(self) -> "Lines":
        with writing(self.file):
            fresh = not self._size
            # In place: a copy that takes its place would have to come to disk first.
            self._handle = self.file.open("ab")
            self._handle.truncate(self._size)
            if fresh:
                self._write(self._first)
                sync_directory(self.file.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._handle.close()

    def append(self, line: str) -> None:
        """One more line, which outlives this process and the machine's power."""
        with writing(self.file):
            self._write(line)
        self.lines.append(line)

    def _write(self, line: str) -> None:
        self._handle.write(line.encode() + b"\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def _existing(self) -> tuple[list[str], int]:
        if not self.file.exists():
            return [], 0
        data = self.file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            first, *lines = whole.decode("utf-8").splitlines() or [self._first]
            if first != self._first and not _DIGEST.fullmatch(first):
                json.loads(first)
            for line in lines:
                self._record.model_validate_json(line) if self._record else dict(json.loads(line))
        except (ValueError, TypeError, ValidationError) as error:
            raise UserError(f"{self.file} is damaged", "remove the file: what it is about begins anew") from error
        if first != self._first:
            raise UserError(
                f"{self.file} holds records of another checkpoint, path or setting",
                "give another --out, or start over with --fresh",
            )
        return lines, len(whole)


def replace_file(file: Path, data: bytes) -> None:
    """`file` becomes `data`: after a crash it has its old content or all of the new one."""
    temporary = file.with_name(file.name + ".new")
    with writing(file):
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, file)
        sync_directory(file.parent)


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Names `file` where the disk is full: neither writing nor a library that writes does."""
    try:
        yield
    except Exception as error:
        if getattr(error, "errno", None) != errno.ENOSPC and os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from error


def sync_directory(directory: Path) -> None:
    """Names of new files outlive the machine's power as well."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
