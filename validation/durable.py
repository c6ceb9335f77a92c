"""Files that a crash leaves whole: one that only grows, line by line, and one that is replaced at once. Errors are the system's."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class GrowingFile:
    """A line is in it whole and on disk, or not at all. Open for one process at a time."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        """Opens it, or begins it with the permissions `mode`. What a crash left of a last line is cut off."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            data = path.read_bytes()
            self._size = data.rfind(b"\n") + 1
            self.torn = len(data) - self._size
            """Bytes of it that were cut off"""
            if self.torn:
                os.ftruncate(self._file, self._size)
                os.fsync(self._file)
            sync_directory(path.parent)
        except OSError:
            os.close(self._file)
            raise
        self.held = data[: self._size].split(b"\n")[:-1]
        """The lines that it had"""

    def append(self, line: str) -> None:
        """One more line, which outlives this process and the machine's power. Where that fails, nothing of it is there."""
        data, written = line.encode() + b"\n", 0
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._size + written)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """After a crash `path` has its old content or all of `data`. `temporary`: a name beside it, of no use afterwards."""
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """One process at a time has it, and whoever dies has it no more. BlockingIOError where another one does."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def sync_directory(directory: Path) -> None:
    """Makes renames and creations in it durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
