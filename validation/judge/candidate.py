"""A candidate: one implementation of an op, as text. Never imported by the judge."""

import math
import posixpath
import tomllib
from pathlib import Path

from pydantic import ValidationError, field_validator, model_validator

from ..errors import UserError
from ..records import Frozen

MAX_FILES = 64
MAX_TOTAL_CHARACTERS = 2_000_000
MAX_FILE_BYTES = 4_000_000
SUFFIXES = (".py", ".cu", ".cuh")

ConfigValue = bool | int | float | str


class Candidate(Frozen):
    """Sources and configuration of one implementation of `op`.

    `files` maps POSIX paths, relative to the candidate's root, to UTF-8 text; `entry` names the one that defines
    `launch(ctx, buffers, axes, config)` and, where needed, `scratch(axes, config)`, `persistent(axes, config)` and
    `prepare(ctx, static, axes, config)`. `config` is handed to each of them. Python files import each other relatively;
    `.cu` files hold CUDA C++ kernels and include `.cuh` files of the candidate and the toolkit's headers.
    """

    op: str
    entry: str
    files: dict[str, str]
    config: dict[str, ConfigValue] = {}

    @field_validator("files")
    @classmethod
    def _names(cls, files: dict[str, str]) -> dict[str, str]:
        if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_TOTAL_CHARACTERS:
            raise ValueError(f"more than {MAX_FILES} files or {MAX_TOTAL_CHARACTERS} characters")
        for name in files:
            parts = name.split("/")
            suffix = posixpath.splitext(name)[1]
            if posixpath.normpath(name) != name or name.startswith("/") or ".." in parts or suffix not in SUFFIXES:
                raise ValueError(f"{name!r} is not a relative path to a {', '.join(SUFFIXES)} file")
            if not all(part.removesuffix(suffix).isidentifier() for part in parts):
                raise ValueError(f"{name!r} is not importable: every part must be an identifier")
        return files

    @field_validator("config")
    @classmethod
    def _finite(cls, config: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        for name, value in config.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"config value {name!r} is not finite")
            for text in (name, value):
                if isinstance(text, str) and not text.isprintable():
                    raise ValueError(f"config entry {name!r} is not printable text")
        return config

    @model_validator(mode="after")
    def _entry(self) -> "Candidate":
        if self.entry not in self.files:
            raise ValueError(f"entry {self.entry!r} is not among the files {sorted(self.files)}")
        if not self.entry.endswith(".py"):
            raise ValueError(f"entry {self.entry!r} is no Python file")
        return self

    @classmethod
    def from_path(cls, path: Path, op: str, config: dict[str, ConfigValue] | None = None) -> "Candidate":
        """Reads a candidate: a single `.py` file, or a directory with `candidate.toml` (op, entry, files, config).

        Raises UserError when the path, the manifest or a file is not usable.
        """
        how = "give a .py file, or a directory whose candidate.toml has op, entry, files and config"
        try:
            if path.is_dir():
                manifest = tomllib.loads(_read(path / "candidate.toml"))
                unknown = set(manifest) - {"op", "entry", "files", "config"}
                if unknown:
                    raise UserError(f"{path / 'candidate.toml'}: unknown key {sorted(unknown)[0]!r}", how)
                if manifest.get("op", op) != op:
                    raise UserError(f"{path / 'candidate.toml'} is for op {manifest['op']!r}, not {op!r}", how)
                names = manifest.get("files") or [manifest["entry"]]
                cls._names({name: "" for name in names})  # before anything outside could be read
                files = {name: _read(path / name) for name in names}
                return cls(
                    op=op, entry=manifest["entry"], files=files, config={**manifest.get("config", {}), **(config or {})}
                )
            return cls(op=op, entry=path.name, files={path.name: _read(path)}, config=config or {})
        except KeyError as error:
            raise UserError(f"{path / 'candidate.toml'}: key {error} is missing", how) from error
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UserError(f"cannot read the candidate {path}: {where}: {first['msg']}", how) from error
        except (OSError, UnicodeDecodeError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"cannot read the candidate {path}: {str(error).splitlines()[0][:300]}", how) from error


def _read(path: Path) -> str:
    """A regular file's text. ValueError for anything else, or for one that is too large."""
    if not path.is_file():
        raise ValueError(f"{path.name} is not a regular file")
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_FILE_BYTES} bytes")
    return data.decode("utf-8")
