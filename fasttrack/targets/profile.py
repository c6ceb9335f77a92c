"""A target: the repository that kernels are proposed to, where a model directory lives there, and what it asks for.

The profiles that come along are TOML files beside this one; another target is a file of the same form.
"""

import re
from enum import StrEnum
from importlib import resources
from pathlib import Path, PurePosixPath

from pydantic import Field, field_validator, model_validator

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from .. import strict_toml

_FIELDS = re.compile(r"\{(\w+)\}")


class Part(StrEnum):
    """What a pull request's body can hold; a profile says under which headings."""

    PURPOSE = "purpose"
    OWNER = "owner"
    RESULTS = "results"
    EVALUATION = "evaluation"
    COMMANDS = "commands"
    DUPLICATES = "duplicates"
    AI = "ai"
    OPEN = "open"


class Check(Frozen):
    """One of the target's own checks, run in a worktree of the target after the export. Static tools only."""

    name: str = Field(min_length=1)
    command: tuple[str, ...] = Field(min_length=1, description="{python}, {directory} and {root} are filled in")
    needs: str | None = Field(default=None, description="a module that has to be importable by this Python")
    where: str | None = Field(default=None, description="a file of the target without which the check says nothing")


class Section(Frozen):
    """One heading of the body."""

    heading: str = Field(min_length=1)
    parts: tuple[Part, ...]


class Profile(Frozen):
    """One target."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    title: str
    repository: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name on the forge")
    base: str = "main"
    directory: str = Field(description="where the model directory goes; {model} and {vendor} are filled in")
    vendor: str = "nvidia"
    marks: tuple[str, ...] = Field(default=(), description="files that only a checkout of this target has")
    labels: tuple[str, ...] = ()
    check: tuple[Check, ...] = ()
    section: tuple[Section, ...] = Field(min_length=1)

    @field_validator("directory")
    @classmethod
    def _plain(cls, value: str) -> str:
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts or str(path) != value:
            raise ValueError(f"{value!r} is not a plain relative path")
        if unknown := set(_FIELDS.findall(value)) - {"model", "vendor"}:
            raise ValueError(f"{{{sorted(unknown)[0]}}} is not known; {{model}} and {{vendor}} are")
        if "{model}" not in value:
            raise ValueError("{model} is missing: two models would share a directory")
        return value

    @model_validator(mode="after")
    def _complete(self) -> "Profile":
        parts = [part for section in self.section for part in section.parts]
        twice = [part for part in parts if parts.count(part) > 1]
        missing = [part for part in Part if part not in parts]
        if twice or missing:
            raise ValueError(f"part {(twice or missing)[0].value!r} is {'there twice' if twice else 'under no heading'}")
        return self

    def place(self, model: str) -> str:
        """The model directory in the target, relative to its top."""
        return self.directory.format(model=model, vendor=self.vendor)


def names() -> list[str]:
    """The targets that come along."""
    return sorted(path.name.removesuffix(".toml") for path in resources.files(__package__).iterdir()
                  if path.name.endswith(".toml"))  # fmt: skip


def load(target: str) -> Profile:
    """The profile called `target`, or in the file of that path. UserError names file, key and fault."""
    if target.endswith(".toml"):
        path = Path(target)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}", "name a file, or one of " + ", ".join(names())) from error
        return strict_toml.parse(text, Profile, path)
    if target not in names():
        raise UserError(f"no target {target!r}", f"there are {', '.join(names())}; or name a file that ends in .toml")
    path = resources.files(__package__) / f"{target}.toml"
    return strict_toml.parse(path.read_text("utf-8"), Profile, Path(str(path)))
