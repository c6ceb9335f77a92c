"""What the commands of the worker take, checked: a request that makes no sense is refused before anything is done."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .slots import ALIGNMENT

MAX_SLOTS = 1024


class CommandError(Exception):
    """A command that makes no sense: nothing has been done."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RegionRequest(_Request):
    """A buffer of an arena, and what a plan may do with it (slots.Kind)."""

    offset: int = Field(ge=0)
    bytes: int = Field(ge=0)
    kind: str = Field(pattern="^(fixed|written|scratch|counter)$")
    shift: int = 0


class SlotRequest(_Request):
    """An arena for the device."""

    slot: int = Field(ge=0, lt=MAX_SLOTS)
    size: int = Field(gt=0)
    regions: dict[str, RegionRequest]
    lead: int = Field(default=0, ge=0, le=1 << 24, description="bytes before the arena; a multiple of 256")
    slack: int = Field(default=ALIGNMENT, ge=0, le=1 << 25, description="bytes around the arena, the lead included")
    whole: bool = Field(default=True, description="keep an image of everything, not of the written regions alone")
    blank: list[str] = Field(default=[], description="regions without contents; nothing around regions has any then")
    seed: int = Field(ge=0, lt=1 << 64)


class RunRequest(_Request):
    """Runs of the plan on slots."""

    slots: list[int] = Field(min_length=1, max_length=MAX_SLOTS)
    repeats: int = Field(default=1, ge=1, le=64)
    graph: bool = False
    roles: list[Literal["compute", "prefetch"]] = ["compute", "prefetch"]
    delays: dict[str, int] = {}


def parsed(kind: type, request: dict):
    """The request as a `kind`. Raises CommandError."""
    try:
        return kind.model_validate(request)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise CommandError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def only(request: dict, *names: str) -> dict:
    """The request, which has just these fields. Raises CommandError."""
    if set(request) != set(names):
        raise CommandError(f"the command takes {sorted(names)}, given {sorted(request)}")
    return request


def number_of(request: dict, name: str) -> int:
    """A field that is a number of 64 bits. Raises CommandError."""
    value = request[name]
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise CommandError(f"{name} is no number of 64 bits")
    return value
