"""Digests of the judge's own sources: what a verdict was made by."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from .records import digest_files

# What decides a verdict, relative to `validation/`: the judge's rooms, and what they import of others. Contracts have digests
# of their own. Nothing else may be here: evidence is stale as soon as one of these files changes.
JUDGE_ROOMS = ("judge", "sandbox", "timing")
JUDGE_FILES = (
    "digests.py", "errors.py", "records.py", "tensors.py", "contracts/base.py", "claims/cells.py", "numerics/calibrate.py",
    "numerics/errors.py", "performance/hardware.py", "performance/hardware.toml",
)  # fmt: skip


def is_judge_source(path: str) -> bool:
    """Whether a POSIX path, relative to `validation/`, is part of the judge."""
    pure = PurePosixPath(path)
    if path in JUDGE_FILES:
        return True
    return len(pure.parts) > 1 and pure.parts[0] in JUDGE_ROOMS and pure.suffix in (".py", ".toml", ".cu", ".ptx")


def judge_digest(files: Mapping[str, bytes]) -> str:
    """Digest of the judge from a mapping of paths (relative to `validation/`) to contents, from disk or from git."""
    return digest_files({path: data for path, data in files.items() if is_judge_source(path)})


def package_files() -> dict[str, bytes]:
    """Every source and data file of the installed `validation` package, by POSIX path relative to it."""
    root = Path(__file__).parent
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def package_digest() -> str:
    """Digest of the installed package as it is on disk now: judge, contracts, thresholds, stock path, exams."""
    return digest_files(package_files())


@cache
def installed_judge_digest() -> str:
    """Digest of the judge that is running."""
    return judge_digest(package_files())
