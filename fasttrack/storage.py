"""Where runs are kept, and writes that are either there in full or not at all."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from fasttrack_validation.durable import GrowingFile, replace_file
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import sha256


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """The state directory: $FASTTRACK_HOME, else fasttrack/ in the XDG state directory."""
    if own := environment.get("FASTTRACK_HOME"):
        if not os.path.isabs(own):
            raise UserError(f"FASTTRACK_HOME={own!r} is not absolute", "set it to an absolute path")
        return Path(own)
    base = environment.get("XDG_STATE_HOME", "")
    # The XDG base directory specification has relative values ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "fasttrack"


def runs_directory(checkout: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the runs on the repository at `checkout` are kept. Never inside the checkout (UserError)."""
    base = home(environment).resolve()
    checkout = checkout.resolve()
    if base.is_relative_to(checkout):
        raise UserError(f"the state directory {base} lies inside the checkout", "set FASTTRACK_HOME to a path outside")
    label = re.sub(r"[^A-Za-z0-9_.-]", "_", checkout.name)
    return base / f"{label}-{sha256(os.fsencode(checkout))[:12]}"


def kernel_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the judge keeps compiled kernels between runs."""
    return home(environment) / "kernels"


def verdict_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where `fasttrack evaluate` keeps verdicts."""
    return home(environment) / "verdicts"


def endpoint_memory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where is kept what model endpoints accept."""
    return home(environment) / "endpoints"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failure to write `path` (no space, no permission, a broken disk) into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}",
            "free space or fix the permissions, then run the command again (a run of the lane: `fasttrack propose --resume`); "
            "nothing finished is lost",
        ) from error


def write_file(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`, durably: after a crash the file has its old content or all of the new one."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, path.with_name(f".{path.name}.{os.getpid()}"))


def write_inside(root: Path, name: str, data: bytes) -> Path:
    """`write_file` at `root`/`name`. UserError where `name`, or a symbolic link on its way, leads out of `root`."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise UserError(f"{name!r} is no path inside {root}", "name a plain relative path")
    path = root
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise UserError(f"{path} is a symbolic link: what is written there would land elsewhere",
                            "put a real file or directory in its place")  # fmt: skip
    write_file(path, data)
    return path


class AppendOnly:
    """A file of lines that only grows. A line is in it whole and durable, or not at all."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`. An unfinished last line, left by a crash, is cut off and counted in `torn`."""
        self.path = path
        with writing(path):
            self._file = GrowingFile(path, 0o600)
        self.torn = self._file.torn
        self.lines = [line.decode("utf-8", errors="replace") for line in self._file.held]

    def append(self, line: str) -> None:
        """Adds one line. On a failed write the file is cut back to what it was, and a UserError raised."""
        with writing(self.path):
            self._file.append(line)
        self.lines.append(line)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
