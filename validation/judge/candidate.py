"""A candidate: one implementation of an op, as text. Never imported by the judge."""

import posixpath
import tomllib
from pathlib import Path

from pydantic import field_validator, model_validator

from ..errors import UserError
from ..records import Frozen

MAX_FILES = 64
MAX_TOTAL_CHARACTERS = 2_000_000

ConfigValue = bool | int | float | str


class Candidate(Frozen):
    """Sources and configuration of one implementation of `op`.

    `files` maps POSIX paths, relative to the candidate's root, to UTF-8 text; `entry` names the one that defines
    `launch(ctx, buffers, axes, config)` and, where needed, `scratch(axes, config)` and
    `prepare(ctx, static, axes, config)`. `config` is handed to each of them. Files import each other relatively.
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
            if posixpath.normpath(name) != name or name.startswith("/") or ".." in parts or not name.endswith(".py"):
                raise ValueError(f"{name!r} is not a relative .py path")
            if not all(part.removesuffix(".py").isidentifier() for part in parts):
                raise ValueError(f"{name!r} is not importable: every part must be an identifier")
        return files

    @model_validator(mode="after")
    def _entry(self) -> "Candidate":
        if self.entry not in self.files:
            raise ValueError(f"entry {self.entry!r} is not among the files {sorted(self.files)}")
        return self

    @classmethod
    def from_path(cls, path: Path, op: str, config: dict[str, ConfigValue] | None = None) -> "Candidate":
        """Reads a candidate: a single `.py` file, or a directory with `candidate.toml` (op, entry, files, config).

        Raises UserError when the path, the manifest or a file is not usable.
        """
        how = "give a .py file, or a directory whose candidate.toml has op, entry, files and config"
        try:
            if path.is_dir():
                manifest = tomllib.loads((path / "candidate.toml").read_text("utf-8"))
                unknown = set(manifest) - {"op", "entry", "files", "config"}
                if unknown:
                    raise UserError(f"{path / 'candidate.toml'}: unknown key {sorted(unknown)[0]!r}", how)
                if manifest.get("op", op) != op:
                    raise UserError(f"{path / 'candidate.toml'} is for op {manifest['op']!r}, not {op!r}", how)
                names = manifest.get("files") or [manifest["entry"]]
                files = {name: (path / name).read_text("utf-8") for name in names}
                return cls(
                    op=op, entry=manifest["entry"], files=files, config={**manifest.get("config", {}), **(config or {})}
                )
            return cls(op=op, entry=path.name, files={path.name: path.read_text("utf-8")}, config=config or {})
        except KeyError as error:
            raise UserError(f"{path / 'candidate.toml'}: key {error} is missing", how) from error
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValueError) as error:
            raise UserError(f"cannot read the candidate {path}: {error}", how) from error
