"""The sources that a kit is about: those that lie here, or those of its commit in the history here, read as git objects."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fasttrack_validation import digests
from fasttrack_validation.records import digest_files

from .. import model_dir
from ..gate import policy_files
from ..git import Repository
from ..model_dir import ModelDirectory
from ..server_grid import subject
from .plan import Kit

_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Origin:
    """A model directory with the exams and harness beside it.

    `validation`: path relative to `validation/` -> contents; None for what is installed. `fault`: why a kit is not of
    these sources. `note`: what a reader should know of them.
    """

    directory: ModelDirectory
    validation: Mapping[str, bytes] | None = None
    fault: str | None = None
    note: str | None = None


@contextmanager
def of(kit: Kit, directory: ModelDirectory) -> Iterator[Origin]:
    """Where the sources of `kit` are: here, else at its commit. One with a fault where they are neither."""
    wrong = _other(kit, directory, digests.package_digest())
    if wrong is None:
        yield Origin(directory)
        return
    if not _in_history(kit.commit, directory):
        how = f"the history here has no commit {kit.commit[:12]!r}: fetch it, or check it out and import there"
        yield Origin(directory, fault=f"it is about other {wrong} than these, and {how}")
        return
    with _at(kit.commit, directory) as there:
        wrong = _other(kit, there.directory, digest_files(there.validation))
        if wrong is not None:
            yield Origin(directory, fault=f"it is about other {wrong} than its commit {kit.commit[:12]} has")
            return
        note = f"it is about commit {kit.commit[:12]}: what was measured of sources that changed since is stale"
        yield replace(there, note=note)


def committed_validation(root: Path, commit: str) -> str:
    """Digest of `validation/` at a commit; of the installed one where the repository has none."""
    with Repository.open(root).quarantine() as objects:
        return digest_files(policy_files(objects, commit)[1])


def _other(kit: Kit, directory: ModelDirectory, validation: str) -> str | None:
    """What of a kit's sources is not this; None where all is."""
    if kit.subject != subject(directory):
        return f"sources of {kit.model}"
    return "exams or another harness" if kit.validation != validation else None


def _in_history(commit: str, directory: ModelDirectory) -> bool:
    if directory.checkout is None or not _COMMIT.fullmatch(commit):
        return False
    repository = Repository.open(directory.path)
    return repository.is_ancestor(commit, repository.resolve("HEAD"))


@contextmanager
def _at(commit: str, directory: ModelDirectory) -> Iterator[Origin]:
    """The sources at `commit`, in a directory that lives as long as the context."""
    name = directory.manifest.model.name
    with tempfile.TemporaryDirectory(prefix="fasttrack-kit-") as place:
        root = Path(place)
        (root / ".git").mkdir()  # what makes a checkout of it
        with Repository.open(directory.path).quarantine() as objects:
            _, validation = policy_files(objects, commit)
            for path, data in objects.files(commit, f"models/{name}").items():
                target = root / "models" / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        yield Origin(model_dir.load(name, root), validation)
