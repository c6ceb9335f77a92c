"""`models/<model>/`: the strict manifest, and the files it names."""

import datetime
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pydantic import Field, field_validator, model_validator

from fasttrack_validation.contracts.subgraph import SEPARATOR
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.records import Frozen, digest_files
from fasttrack_validation.tensors import DType

from . import dispatch, strict_toml
from .agents import space as design_space
from .dispatch import Config, Rows

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract
    from fasttrack_validation.contracts.base import OpContract

MANIFEST = "fasttrack.toml"


class Model(Frozen):
    """Who the model is, and who answers for the directory."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str = Field(min_length=1)
    contract: str = Field(description="directory under validation/contracts/ that examines it")
    owner: str = Field(min_length=1, description="a person or team")
    review_by: datetime.date
    remove_by: datetime.date


def _plain_paths(value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    for name in (value,) if isinstance(value, str) else value or ():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name or "\\" in name:
            raise ValueError(f"{name!r} is not a plain relative path inside the model directory")
    return value


class Decode(Frozen):
    """The whole-model decode path, relative to the model directory."""

    factory: str = Field(description="Python file through which the path is reached: Decoder, part, ServingContext")
    sources: tuple[str, ...] = Field(min_length=1, description="files that model-level results exercise beside kernels")
    faster: str | None = Field(default=None, description="table of the steps that were measured to take less time here")

    _inside = field_validator("factory", "sources", "faster")(_plain_paths)


class Op(Frozen):
    """Where the files of one op, or of several fused ones (`"a+b"`), lie, relative to the model directory."""

    kernels: tuple[str, ...] = Field(min_length=1, description="Python files; the first defines launch()")
    dispatch: str
    space: str | None = None

    _inside = field_validator("kernels", "dispatch", "space")(_plain_paths)


class Envelope(Frozen):
    """One hardware and TP that the model's kernels are claimed for. `rows` is inclusive at both ends."""

    hardware: str
    tp: int = Field(ge=1)
    rows: Rows
    verify_width: int = Field(ge=1, description="most tokens a request brings to one step: 1 + draft length")
    dtypes: tuple[DType, ...] = Field(min_length=1)

    @field_validator("rows")
    @classmethod
    def _ordered(cls, rows: Rows) -> Rows:
        if not 1 <= rows[0] <= rows[1]:
            raise ValueError(f"{list(rows)} is not a range [lo, hi] with 1 <= lo <= hi")
        return rows


class Manifest(Frozen):
    """`fasttrack.toml`."""

    model: Model
    decode: Decode | None = None
    ops: dict[str, Op] = Field(min_length=1)
    envelope: tuple[Envelope, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _once(self) -> "Manifest":
        places = [(entry.hardware, entry.tp) for entry in self.envelope]
        for place in places:
            if places.count(place) > 1:
                raise ValueError(f"two envelope entries for hardware {place[0]!r} and tp {place[1]}")
        return self

    def op(self, name: str) -> Op:
        """The op called `name`. Raises UserError listing the ops."""
        if name not in self.ops:
            raise UserError(f"model {self.model.name} has no op {name!r}", f"its ops: {', '.join(sorted(self.ops))}")
        return self.ops[name]


@dataclass(frozen=True)
class Bucket:
    """One place in a dispatch table and the declared workload that is judged for it."""

    hardware: str
    tp: int
    rows: Rows
    workload: str

    @property
    def place(self) -> tuple[str, int, Rows]:
        """(hardware, TP, rows)."""
        return (self.hardware, self.tp, self.rows)


@dataclass(frozen=True)
class ModelDirectory:
    """A model directory with a valid manifest. Files are read when asked for."""

    path: Path
    manifest: Manifest
    checkout: Path | None

    def sources(self, op: str) -> dict[str, str]:
        """The kernel files of `op`: path relative to the model directory -> text."""
        return {name: self._read(name) for name in self.manifest.op(op).kernels}

    def sources_digest(self, op: str) -> str:
        """One SHA-256 over the kernel files of `op`."""
        return digest_files({name: text.encode() for name, text in self.sources(op).items()})

    def decode_sources(self) -> dict[str, bytes]:
        """The decode path's own files: what every model-level result exercises beside kernels and tables.

        Raises UserError where the manifest names no decode path.
        """
        if self.manifest.decode is None:
            raise UserError(f"{self._manifest} names no decode path", "add [decode] with factory and sources")
        return {name: self._read(name).encode() for name in sorted(self.manifest.decode.sources)}

    def space(self, op: str) -> "design_space.Space | None":
        """The design space of `op`, where it declares one."""
        name = self.manifest.op(op).space
        if name is None:
            return None
        found = design_space.parse(self._read(name), self.path / name)
        entry = str(PurePosixPath(name).parent / found.entry)
        if found.op != op or entry != self.manifest.op(op).kernels[0]:
            raise UserError(
                f"{self.path / name} is for op {found.op!r} and file {entry!r}",
                f"{self._manifest} names it for op {op!r} and file {self.manifest.op(op).kernels[0]!r}",
            )
        return found

    def table(self, op: str) -> dispatch.Table:
        """The dispatch table of `op`, checked against the envelope and the kernel files.

        An op's table covers the envelope; that of fused ops holds the places where they replace their members.
        """
        entry = self.manifest.op(op)
        path = self.path / entry.dispatch
        table = dispatch.parse(self._read(entry.dispatch), path)
        check = dispatch.check_within if SEPARATOR in op else dispatch.check_cover
        check(table, self.envelope, path)
        for row in table.entry:
            if row.kernel not in entry.kernels:
                raise UserError(f"{path}: kernel {row.kernel!r} is not among the op's kernels", f"see {self._manifest}")
        return table

    def faster(self) -> "faster.Table":
        """The table of what was measured to be faster than the stock path. Raises UserError where the manifest names none."""
        from . import faster

        name = self.manifest.decode and self.manifest.decode.faster
        if not name:
            raise UserError(f"{self._manifest} names no such table", 'add faster = "dispatch/faster.toml" to [decode]')
        return faster.parse(self._read(name), self.path / name)

    def candidate(self, op: str, config: Config, *, files: dict[str, str] | None = None, entry: str | None = None):
        """The op's kernels, with `files` in place of those of the same path, as a Candidate.

        Raises UserError where `files` holds a path that the manifest does not list.
        """
        known = self.manifest.op(op).kernels
        for name in files or {}:
            if name not in known:
                raise UserError(
                    f"candidate file {name!r} is not among the kernels of op {op!r}",
                    f"name it as one of {', '.join(known)}, or list it under ops.{op}.kernels in {self._manifest}",
                )
        return Candidate(op=op, entry=entry or known[0], files={**self.sources(op), **(files or {})}, config=config)

    def place(self, candidate: Candidate, directory: Path | None = None) -> Candidate:
        """`candidate` under the file names that it would have in the model directory.

        A candidate's root is laid over the directory of the op's entry file, and its entry file over that file, so
        that relative imports keep their meaning and what is judged is what is installed.
        """
        entry = PurePosixPath(self.manifest.op(candidate.op).kernels[0])
        known = self.manifest.op(candidate.op).kernels
        if candidate.entry in known:
            return self.candidate(candidate.op, candidate.config, files=candidate.files, entry=candidate.entry)
        own = PurePosixPath(candidate.entry).parent
        files = {}
        for name, text in candidate.files.items():
            path = PurePosixPath(name)
            if name == candidate.entry:
                files[str(entry)] = text
            elif path.is_relative_to(own):
                files[str(entry.parent / path.relative_to(own))] = text
            else:
                files[name] = text
        return self.candidate(candidate.op, candidate.config, files=files)

    @property
    def envelope(self) -> tuple[tuple[str, int, Rows], ...]:
        """(hardware, TP, rows) of every envelope entry."""
        return tuple((entry.hardware, entry.tp, entry.rows) for entry in self.manifest.envelope)

    def check_contract(self, contract: "ModelContract") -> None:
        """Raises UserError where the manifest names an op, or claims an envelope, that the contract does not have."""
        check_claims(self.manifest, contract, str(self._manifest))

    def buckets(self, contract: "OpContract") -> tuple[Bucket, ...]:
        """Every place of the dispatch table with its declared workload.

        Raises UserError where the envelope claims more than the contract's workloads examine.
        """
        declared = {(w.axes["tp"], w.axes["rows"]): w.name for w in contract.workloads()}
        result = []
        for hardware, tp, span in self.envelope:
            rows = sorted(size for width, size in declared if width == tp)
            try:
                ranges = dispatch.buckets(rows, span)
            except ValueError as error:
                raise UserError(
                    f"{self._manifest}: envelope {hardware} tp={tp}: {error} at this TP in contract {contract.op}",
                    "narrow the envelope; it may not be wider than the contract examines",
                ) from error
            for low, high in ranges:
                size = next(size for size in rows if size >= high)
                result.append(Bucket(hardware, tp, (low, high), declared[tp, size]))
        return tuple(result)

    @cached_property
    def _manifest(self) -> Path:
        return self.path / MANIFEST

    def _read(self, name: str) -> str:
        path = self.path / name
        try:
            if path.is_symlink():
                raise UserError(f"{path} is a symbolic link", "put a regular file there")
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}", f"{self._manifest} names it; add or correct it") from error


def check_claims(manifest: Manifest, contract: "ModelContract", path: str) -> None:
    """UserError naming `path` where the manifest has an op, or claims an envelope, that the contract does not have."""
    how = "the manifest may claim less than the contract examines, never more"
    for op in manifest.ops:
        contract.op(op)
    for claim in manifest.envelope:
        where = f"{path}: envelope {claim.hardware} tp={claim.tp}"
        limit = contract.envelope.get(claim.hardware)
        if limit is None:
            raise UserError(f"{where}: the contract has no such hardware", f"it has {', '.join(contract.envelope)}")
        if claim.tp not in limit.tp:
            raise UserError(f"{where}: the contract has tp {list(limit.tp)}", how)
        if claim.rows[0] < limit.min_rows or claim.rows[1] > limit.max_rows:
            raise UserError(f"{where}: the contract has rows {[limit.min_rows, limit.max_rows]}", how)
        if claim.verify_width > max(limit.verify_width):
            raise UserError(f"{where}: the contract has verify_width {list(limit.verify_width)}", how)
        beyond = set(claim.dtypes) - {limit.weights, limit.conv_state, limit.recurrent_state}
        if beyond:
            raise UserError(f"{where}: the contract does not examine dtype {sorted(beyond)[0]}", how)


def parse_manifest(text: str, path: Path) -> Manifest:
    """The manifest in `text`. Raises UserError naming `path`, the key and the line."""
    return strict_toml.parse(text, Manifest, path)


def load(model: str, root: Path | None = None, *, need_checkout: bool = False) -> ModelDirectory:
    """The directory of `model`: in the checkout `root` (by default the one around the working directory).

    Without a checkout, the copy that is installed with the package serves the commands that only read; with
    `need_checkout` that is a UserError.
    """
    checkout = find_checkout(root or Path.cwd())
    if checkout is None and (need_checkout or root is not None):
        raise UserError(
            f"no checkout with a models/ directory at or above {root or Path.cwd()}",
            "clone the repository and run this inside it; the installed package can only evaluate and report",
        )
    base = checkout / "models" if checkout else installed_models()
    names = model_names(base)
    if model not in names:
        raise UserError(f"no model {model!r} under {base}", f"models there: {', '.join(names) or 'none'}")
    path = base / model / MANIFEST
    try:
        manifest = parse_manifest(path.read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}", "restore the file from the base branch") from error
    if manifest.model.name != model:
        raise UserError(f"{path}: model.name is {manifest.model.name!r}, the directory {model!r}", "make them equal")
    return ModelDirectory(base / model, manifest, checkout)


def find_checkout(start: Path) -> Path | None:
    """The nearest directory at or above `start` that holds `.git` and `models/*/fasttrack.toml`."""
    start = start.resolve()
    for directory in (start, *start.parents):
        if (directory / ".git").exists() and model_names(directory / "models"):
            return directory
    return None


def model_names(base: Path) -> list[str]:
    """Models under `base`, by name."""
    return sorted(path.parent.name for path in base.glob(f"*/{MANIFEST}"))


def installed_models() -> Path:
    """Where the package keeps its copy of the model directories."""
    return Path(str(resources.files("fasttrack_models")))
