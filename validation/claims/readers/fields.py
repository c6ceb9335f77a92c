"""A result file's fields, taken one by one: what is missing, of the wrong kind, or left over is named."""

import math
import re
from typing import Any, NoReturn

from ...errors import UserError

_MISSING = object()


class Fields:
    """The fields of one result. What is not taken, known or passed over is of another schema."""

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self._data, self._where = data, where
        self._taken: set[str] = set()
        self._other: dict[str, Any] = {}
        self.left_out: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All fields, in the file's order."""
        return tuple(self._data)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._data.get(name) is not None

    def peek(self, name: str) -> Any:
        """The field as it stands, without taking it; None where absent."""
        return self._data.get(name)

    def refuse(self, name: str, what: str, how: str) -> NoReturn:
        """Raises UserError about a field."""
        raise UserError(f"{self._where}: {name}: {what}", how)

    def require(self, *names: str) -> None:
        """Raises UserError for the first field that is not there: the file is of an older schema, or of another tool."""
        for name in names:
            if name not in self._data:
                self.refuse(
                    name, "is missing", "the file is of an older schema, or of another tool; run the tool again"
                )

    def number(self, name: str, *, positive: bool = False) -> float | None:
        """A finite number, None where it is absent, null, or (of a benchmark without such a figure) not finite."""
        value = self._take(name)
        if value is _MISSING or value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(name, f"is {value!r}, not a number", "the file is of another schema")
        if not math.isfinite(value) or (positive and value <= 0):
            self._other[name] = str(value)
            return None
        return value

    def integer(self, name: str) -> int | None:
        """A whole number, None where absent or null."""
        value = self.number(name)
        if value is not None and value != int(value):
            self.refuse(name, f"is {value!r}, not a whole number", "the file is of another schema")
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """A text, None where absent, null or empty."""
        value = self._take(name)
        if value is _MISSING or value is None or value == "":
            return None
        if not isinstance(value, str):
            self.refuse(name, f"is {value!r}, not a text", "the file is of another schema")
        return value

    def flag(self, name: str) -> bool | None:
        """true or false, also as the texts that shells pass on."""
        value = self._take(name)
        if value is _MISSING or value is None:
            return None
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            self.refuse(name, f"is {value!r}, not true or false", "the file is of another schema")
        return value

    def array(self, name: str) -> list[Any] | None:
        """A list, None where absent or null."""
        value = self._take(name)
        if value is _MISSING or value is None:
            return None
        if not isinstance(value, list):
            self.refuse(name, "is not a list", "the file is of another schema")
        return value

    def table(self, name: str) -> dict[str, Any] | None:
        """An object, None where absent or null. It is kept among the rest as well."""
        value = self._take(name)
        if value is _MISSING or value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "is not an object", "the file is of another schema")
        self._other[name] = value
        return value

    def keep(self, *names: str) -> None:
        """Fields that are known, and have no place in a record."""
        for name in names:
            value = self._take(name)
            if value is not _MISSING:
                self._other[name] = _plain(value)

    def keep_like(self, pattern: str) -> None:
        """As `keep`, for every field whose whole name matches."""
        self.keep(*(name for name in self._data if name not in self._taken and re.fullmatch(pattern, name)))

    def leave_out(self, name: str) -> Any:
        """A field that only the file keeps: its value, None where absent."""
        value = self._take(name)
        if value is _MISSING or value is None:
            return None
        self.left_out = (*self.left_out, name)
        return value

    def rest(self) -> dict[str, Any]:
        """What was kept. Raises UserError for the first field that nobody knows: the file is of a newer schema."""
        for name in self._data:
            if name not in self._taken:
                self.refuse(name, "is not a field that this reader knows",
                            "the file is of a newer schema, or of another tool; a guess would drop it")  # fmt: skip
        return self._other

    def _take(self, name: str) -> Any:
        self._taken.add(name)
        return self._data.get(name, _MISSING)


def _plain(value: Any) -> Any:
    """JSON has no infinity: such numbers are kept as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def milliseconds(value: float | None) -> dict[str, Any] | None:
    """A quantity."""
    return None if value is None else {"value": value, "unit": "ms"}


def seconds(value: float | None) -> dict[str, Any] | None:
    """A quantity."""
    return None if value is None else {"value": value, "unit": "s"}


def rate(value: float | None) -> dict[str, Any] | None:
    """A quantity."""
    return None if value is None else {"value": value, "unit": "tok/s"}


def series(values: list[Any] | None, unit: str = "s") -> dict[str, Any] | None:
    """Figures of all requests; None where one of them has none (a request that failed)."""
    if not values or any(isinstance(one, bool) or not isinstance(one, (int, float)) or one <= 0 for one in values):
        return None
    return {"unit": unit, "values": values}
