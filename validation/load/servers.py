"""Which servers there are to be loaded: a TOML file with one `[[server]]` for each, and what its HTTP cannot say of it."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from .. import strict
from ..claims.measurement import Measurement
from ..errors import UserError
from ..performance.serving_grid import Drafting
from ..records import Frozen
from .figures import Objective

Text = Annotated[str, Field(min_length=1)]
_OURS = ("schema_version", "scope", "workload", "timed", "result", "source")
"""Parts of a record that whoever measures fills in"""


class Arm(StrEnum):
    """Which of the two paths a server runs."""

    STOCK = "stock"
    SPECIALISED = "specialised"


class Server(Frozen):
    """One running server: where it is, which cells it serves, and the conditions that a measurement record asks for."""

    arm: Arm
    url: Text = Field(description="of its OpenAI-compatible interface, such as http://127.0.0.1:8000/v1")
    model: Text = Field(description="as the server calls it")
    tp: int = Field(ge=1)
    speculation: Drafting
    tokenizer: str | None = Field(None, description="for tools that count tokens themselves; by default the model")
    conditions: dict[str, Any] = Field(
        {}, description="identity, hardware, topology, engine, speculation, ... of a measurement record; absent is unknown"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Server":
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not an address: http://HOST:PORT/v1")
        for name in _OURS:
            if name in self.conditions:
                raise ValueError(f"conditions.{name}: is measured, not stated")
        record = self.record()
        if record.topology.tp not in (None, self.tp):
            raise ValueError(f"conditions.topology.tp is {record.topology.tp}, tp is {self.tp}")
        spec = record.speculation
        forced = self.speculation is Drafting.FORCED
        if spec.method is not None and (spec.method == "off") != (self.speculation is Drafting.OFF):
            raise ValueError(f"conditions.speculation.method is {spec.method!r}, speculation is {self.speculation}")
        if spec.forced not in (None, forced):
            raise ValueError(f"conditions.speculation.forced is {spec.forced}, speculation is {self.speculation}")
        return self

    def record(self, **parts: Any) -> Measurement:
        """The conditions as a measurement record, with `parts` of it added. Raises ValueError for what does not fit."""
        given = {"schema_version": "fasttrack.measurement/1", "scope": "server", **self.conditions}
        given["topology"] = {"tp": self.tp, **given.get("topology", {})}
        spec = dict(given.get("speculation", {}))
        if self.speculation is Drafting.OFF:
            spec.setdefault("method", "off")
        else:
            spec.setdefault("forced", self.speculation is Drafting.FORCED)
        given["speculation"] = spec
        for name, value in parts.items():
            given[name] = {**given.get(name, {}), **value} if isinstance(value, dict) else value
        try:
            return Measurement.model_validate(_json(given), strict=False)
        except ValidationError as error:
            one = error.errors()[0]
            raise ValueError(f"conditions.{'.'.join(map(str, one['loc']))}: {one['msg']}") from error


class Load(Frozen):
    """What is asked of all of them."""

    prompts: str | None = Field(None, description="JSON Lines with `prompt`: natural text, which drafts can guess at")
    sessions: str | None = Field(None, description="JSON Lines with `turns`: the trace of agentic load")
    token_ids: tuple[int, int] | None = Field(
        None, description="[lowest, highest] of ordinary tokens: prompts are then ids, of exact length; else seeded words"
    )
    temperature: float = Field(1.0, ge=0)
    rounds: int = Field(6, ge=5, le=100, description="loads of each arm in a cell, in turns")
    requests_each: int = Field(4, ge=1, le=1000, description="requests for each place of a mixed load")
    osl: int | None = Field(None, ge=2, description="output tokens; by default the grid's")
    objective: Objective | None = None
    timeout_s: float = Field(3600.0, gt=0)

    @model_validator(mode="after")
    def _ids(self) -> "Load":
        if self.token_ids is not None and not 0 <= self.token_ids[0] < self.token_ids[1]:
            raise ValueError("token_ids: give the lowest and the highest, such as [1000, 160000]")
        return self


class Servers(Frozen):
    """The file."""

    hardware: Text = Field(description="a hardware profile: what all of them run on")
    load: Load = Load()
    server: tuple[Server, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _once(self) -> "Servers":
        places = [(one.arm, one.tp, one.speculation) for one in self.server]
        for place in places:
            if places.count(place) > 1:
                raise ValueError(f"server: two are {place[0]}, TP {place[1]}, speculation {place[2]}")
        for one in self.server:
            if one.conditions.get("hardware", {}).get("sku", self.hardware) != self.hardware:
                raise ValueError(f"server: {one.url} says another card than hardware = {self.hardware!r}")
        return self

    def at(self, tp: int, speculation: Drafting) -> Iterator[Server]:
        """The servers of such cells: at most one of each arm."""
        return (one for one in self.server if (one.tp, one.speculation) == (tp, speculation))


def read(path: Path) -> Servers:
    """The file at `path`. Raises UserError "file:line: key: what", and for a named file that is not beside it."""
    found = strict.read(path, Servers)
    for name in ("prompts", "sessions"):
        named = getattr(found.load, name)
        if named is not None and not (path.parent / named).is_file():
            raise UserError(f"{path}: load.{name}: there is no {path.parent / named}", "name a file beside this one")
    return found


def _json(value: Any) -> Any:
    """Dates as text, lists as tuples: what a record's validation in Python takes."""
    if isinstance(value, dict):
        return {name: _json(one) for name, one in value.items()}
    return tuple(map(_json, value)) if isinstance(value, list) else value
