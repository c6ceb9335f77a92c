"""One file with everything that a kit gave: digests of all that is inside, and a signature over them."""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, sha256

from .. import signatures, storage, strict_json
from .plan import Kit

SEAL, MARK = "seal.json", "seal.json.sig"
MAX_FILES, MAX_BYTES = 20_000, 8 << 30
KEPT, MAX_KEPT = 32 << 20, 512 << 20
"""Bytes of one file, and of all, that are held in memory when a sealed file is read. Longer ones are digested alone"""
_TAKEN = ("kit.json", "serve.sh", "constraints.txt", "conditions.toml", "results", "servers", "plans")
_LEFT = ("results/done",)
_PADDING = 1 << 20

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class File(Frozen):
    """One file inside."""

    sha256: Sha256
    bytes: int = Field(ge=0)


class Seal(Frozen):
    """seal.json: what is inside, by path."""

    format: str = Field(pattern=r"^fasttrack\.seal/1$")
    files: dict[str, File]

    def canonical(self) -> bytes:
        """The bytes that are signed."""
        return (json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()


class Sealed(Frozen):
    """A sealed file, opened: every byte of it is what its seal says."""

    seal: bytes
    signature: bytes | None
    kit: Kit
    files: dict[str, bytes]
    """Contents of what has at most KEPT bytes"""
    long: tuple[str, ...]
    """The others: their digests are those of the seal"""


def seal(folder: Path, out: Path, key: Path | None) -> Seal:
    """Seals the kit in `folder` into `out` (.tar.gz). Equal contents give equal bytes.

    Raises UserError for a directory that is no kit, or where nothing was measured.
    """
    kit_of((folder / "kit.json").read_bytes() if (folder / "kit.json").is_file() else b"", str(folder))
    files = {name: path.read_bytes() for name, path in sorted(_files(folder)) if path.resolve() != out.resolve()}
    if not any(name.startswith("results/") for name in files):
        raise UserError(f"{folder} has no results", "run its ./run.sh first")
    made = Seal(format="fasttrack.seal/1", files={n: File(sha256=sha256(d), bytes=len(d)) for n, d in files.items()})
    text = made.canonical()
    contents = {SEAL: text}
    if key is not None:
        contents[MARK] = signatures.sign(text, key)
    storage.write_file(out, _archive({**contents, **files}))
    return made


def open_sealed(path: Path) -> Sealed:
    """Reads a sealed file. Nothing is unpacked to the disk.

    Raises UserError for what is no plain file inside, leaves the archive, is too large, is not in the seal, is missing,
    or is not what the seal says.
    """
    digests, contents = {}, {}
    try:
        for name, digest, data in _members(path):
            digests[name] = digest
            if data is not None:
                contents[name] = data
    except (OSError, EOFError, tarfile.TarError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read: {error}", "give what `fasttrack evidence seal` wrote") from error
    text, mark = contents.pop(SEAL, None), contents.pop(MARK, None)
    for name in (SEAL, MARK):
        digests.pop(name, None)
    if text is None:
        raise UserError(f"{path} has no {SEAL}", "give what `fasttrack evidence seal` wrote")
    try:
        found = Seal.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{path}: {SEAL}: {error.errors()[0]['msg']}", "seal it again, with this version") from error
    for name in sorted({*digests, *found.files}):
        if name not in found.files:
            raise UserError(f"{path}: {name} is not in its seal", "it was added afterwards: ask for the file again")
        if name not in digests:
            raise UserError(f"{path}: {name} is in its seal and not inside", "it was taken out: ask for the file again")
        if digests[name] != found.files[name].sha256:
            raise UserError(f"{path}: {name} is not what its seal says", "it was changed: ask for the file again")
    kit = kit_of(contents.get("kit.json", b""), str(path))
    return Sealed(seal=text, signature=mark, kit=kit, files=contents,
                  long=tuple(sorted(set(digests) - set(contents))))  # fmt: skip


def kit_of(data: bytes, where: str) -> Kit:
    """kit.json. Raises UserError for anything else."""
    if not data:
        raise UserError(f"{where} is no kit: it has no kit.json", "name a directory that `fasttrack kit` wrote")
    try:
        return Kit.model_validate(strict_json.loads(data))
    except ValidationError as error:
        said = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
    except ValueError as error:
        said = str(error)
    raise UserError(f"{where} has no kit.json that can be read: {said}", "name a kit's directory")


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for top in _TAKEN:
        start = folder / top
        for path in [start] if start.is_file() else start.rglob("*"):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not path.is_symlink() and not name.startswith(_LEFT) and path.name != "lock":
                yield name, path
    # Of exams the manifest alone: items may be licensed, and the key belongs to nobody else.
    for path in folder.glob("exams/*/manifest.json"):
        yield path.relative_to(folder).as_posix(), path


def _archive(contents: dict[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def _members(path: Path) -> Iterator[tuple[str, str, bytes | None]]:
    """(name, SHA-256, contents; None of long files) of what is inside, read piece by piece: a small file may unpack to
    much."""
    total, held, seen = 0, 0, set()
    with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
        for entry in archive:
            pure = PurePosixPath(entry.name)
            plain = entry.isreg() and not pure.is_absolute() and ".." not in pure.parts and pure.as_posix() == entry.name
            if not plain or "\\" in entry.name or not entry.name.isprintable():
                raise UserError(f"{path}: {entry.name!r} is no plain file inside it", "do not import it: ask who sent it")
            total += entry.size
            if entry.name in seen or len(seen) >= MAX_FILES or total > MAX_BYTES:
                raise UserError(
                    f"{path}: {entry.name} is there twice, or it holds more than {MAX_FILES} files or {MAX_BYTES >> 30} GB",
                    "ask for the file again, without raw results",
                )
            seen.add(entry.name)
            source, digest, pieces = archive.extractfile(entry), hashlib.sha256(), []
            held += entry.size if entry.size <= KEPT else 0
            if held > MAX_KEPT:
                raise UserError(f"{path}: its records take more than {MAX_KEPT >> 20} MB", "ask for the file again, without raw results")
            while piece := source.read(1 << 20):
                digest.update(piece)
                if entry.size <= KEPT:
                    pieces.append(piece)
            yield entry.name, digest.hexdigest(), b"".join(pieces) if entry.size <= KEPT else None
        # To the end, where the checksum over all of it is: a tar file's last blocks say nothing of what is cut off.
        if len(unpacked.read(_PADDING)) == _PADDING:
            raise UserError(f"{path}: more follows behind its last file", "do not import it: ask who sent it")
