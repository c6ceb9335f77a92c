"""What must be known before a model can be onboarded: facts of it, and choices of people. Nothing has a default."""

import datetime
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.hardware import profiles
from fasttrack_validation.records import Frozen

from ..confinement.names import invisible

MOST_ROWS = 1024
HARDWARE = tuple(sorted(profiles()))
_FROM_CONFIG = ("hidden_size", "rms_norm_eps")


class Answers(Frozen):
    """Everything that the scaffold of a model is made from."""

    title: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+()/-]{0,79}$", description="what texts call the model")
    sources: tuple[str, ...] = Field(min_length=1, description="where the facts below are published")
    hidden_size: int = Field(ge=64, le=1 << 16, multiple_of=8, description="channels of a row of the backbone")
    rms_norm_eps: float = Field(ge=1e-30, le=0.1, description="added to the mean square of a row, inside of the root")
    rounding: Literal["once", "twice"] = Field(
        description="where the published RMSNorm rounds: once, behind the weight; twice, in front of it as well"
    )
    hardware: tuple[str, ...] = Field(min_length=1, description=f"what kernels are for: {', '.join(HARDWARE)}")
    tp: tuple[int, ...] = Field(min_length=1, description="tensor parallelism: ranks that a layer is split over")
    max_rows: int = Field(ge=1, le=MOST_ROWS, description="most rows of one decode step")
    owner: str = Field(min_length=1, max_length=120, description="a person or team who answers for the model directory")
    review_by: datetime.date = Field(description="date by which a person looks whether the kernels are still wanted")
    remove_by: datetime.date = Field(description="date after which they go, unless a person has moved it")

    @field_validator("sources", "owner")
    @classmethod
    def _printable(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for text in (value,) if isinstance(value, str) else value:
            if not text.strip() or len(text) > 400 or not text.isprintable() or any(map(invisible, text)):
                raise ValueError(f"{text!r} is not one line of printable text")
        return value

    @field_validator("hardware")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in HARDWARE:
                raise ValueError(f"{name!r} is no hardware that the judge compiles for: {', '.join(HARDWARE)}")
        return tuple(sorted(set(value)))

    @field_validator("tp")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= width <= 1024 for width in value):
            raise ValueError("each is a number of ranks, from 1 on")
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _in_order(self) -> "Answers":
        if self.remove_by <= self.review_by:
            raise ValueError("remove_by must come after review_by")
        return self

    @property
    def cards(self) -> tuple[dict[str, Any], ...]:
        """What a contract says of each kind of hardware."""
        found = profiles()
        return tuple(
            {"name": name, "device": found[name].cuda_name, "capability": divmod(found[name].target, 10)}
            for name in self.hardware
        )

    @property
    def buckets(self) -> tuple[int, ...]:
        """Row counts that are judged: powers of two, and the most."""
        return tuple(sorted({min(1 << power, self.max_rows) for power in range(self.max_rows.bit_length() + 1)}))

    @property
    def held_out(self) -> tuple[int, ...]:
        """Row counts that no search sees: one in each bucket, odd where there is one, and never all the same."""
        last, chosen = 0, set()
        for bucket in self.buckets:
            odd = [rows for rows in range(last + 1, bucket + 1) if rows % 2]
            chosen.add(odd[len(odd) // 2] if odd else bucket)
            last = bucket
        return tuple(sorted(chosen))


def gather(file: Path | None, config: Path | None, ask: Callable[[str, str], str] | None) -> Answers:
    """The answers from a file, from a published `config.json`, and from whoever `ask` asks for the rest.

    Raises UserError for what contradicts itself or does not fit, and for everything that stays unknown, all at once.
    """
    known: dict[str, Any] = {}
    for path, read in ((file, _read), (config, _published)):
        for name, value in (read(path) if path else {}).items():
            if name in known and known[name] != value:
                both = f"{name} is {known[name]!r} in {file}, and {value!r} in {path}"
                raise UserError(both, "find out which is right")
            known[name] = value
    missing = [name for name in Answers.model_fields if name not in known]
    if missing and ask is None:
        lines = "\n".join(f"  {name}: {Answers.model_fields[name].description}" for name in missing)
        raise UserError(
            f"not known, and not to be guessed:\n{lines}",
            "answer on a terminal, or in a file: `fasttrack new-model --questions` prints one to fill in, --answers reads it",
        )
    for name in missing:
        known[name] = _asked(name, ask)
    return _checked(known)


def questions() -> str:
    """A file of answers to fill in."""
    blocks = [f"# {field.description}\n{name} = {_HINTS[name]}\n" for name, field in Answers.model_fields.items()]
    return "# Answers to `fasttrack new-model NAME --answers FILE`.\n\n" + "\n".join(blocks)


_HINTS = {
    "title": '""', "sources": '[""]', "hidden_size": "0", "rms_norm_eps": "0.0", "rounding": '""', "hardware": "[]",
    "tp": "[]", "max_rows": "0", "owner": '""', "review_by": '""', "remove_by": '""',
}  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    """The answers in a TOML file, each checked when all are there."""
    try:
        known = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}", "give a file of answers") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}", "correct the file at that place") from error
    for name in known:
        if name not in Answers.model_fields:
            raise UserError(f"{path}: {name!r} is no question", f"the questions are {', '.join(Answers.model_fields)}")
    return known


def _published(path: Path) -> dict[str, Any]:
    """What a published `config.json` says, at its top or, for models of text and images, under `text_config`."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}", "give the config.json of a published checkpoint") from error
    if not isinstance(document, dict):
        raise UserError(f"{path} is no JSON object", "give the config.json of a published checkpoint")
    inner = document.get("text_config")
    places = (inner, document) if isinstance(inner, dict) else (document,)
    return {name: next(place[name] for place in places if name in place)
            for name in _FROM_CONFIG if any(name in place for place in places)}  # fmt: skip


def _asked(name: str, ask: Callable[[str, str], str]) -> Any:
    text = ask(name, Answers.model_fields[name].description or name).strip()
    if name in ("sources", "hardware", "tp"):
        parts = [part.strip() for part in text.split(";" if name == "sources" else ",") if part.strip()]
        return [int(part) if name == "tp" and part.isdecimal() else part for part in parts]
    if name in ("hidden_size", "max_rows") and text.isdecimal():
        return int(text)
    if name == "rms_norm_eps":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _checked(known: dict[str, Any]) -> Answers:
    try:
        return Answers.model_validate(known)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, what = next(iter(first["loc"]), None), first["msg"].removeprefix("Value error, ")
        if name is None:
            raise UserError(what, "correct one of the two") from error
        how = f"{name}: {Answers.model_fields[name].description}"
        raise UserError(f"{name} = {known[name]!r}: {what}", how) from error
