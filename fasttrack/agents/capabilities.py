"""What an endpoint accepts, learned from its answers and kept for each (base URL, model). Never from a model's name."""

import re
from pathlib import Path

from pydantic import Field, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, canonical_json, sha256

from ..storage import write_file

CAPS = ("max_completion_tokens", "max_tokens")
# What can be left out, most dispensable first: the order in which an error that names nothing is answered.
OPTIONAL = (
    "stream_options", "parallel_tool_calls", "reasoning_effort", "seed", "temperature", "cap", "tools", "stream"
)  # fmt: skip
_LIMIT = re.compile(
    r"(?:at most|maximum(?: value)?(?: of| is|:)?|<=?|less than(?: or equal to)?|up to)\D{0,20}(\d{2,7})", re.I
)
_LENGTH = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum context|prompt is too long|too many tokens|input.{0,20}too long", re.I
)


class Capabilities(Frozen):
    """`refused` names what must not be sent; `cap_name` is how the cap of an answer is said, None: not at all."""

    cap_name: str | None = CAPS[0]
    caps_tried: tuple[str, ...] = ()
    output_limit: int | None = Field(default=None, description="completion tokens that the endpoint allows at most")
    refused: tuple[str, ...] = ()
    usage_in_streams: bool = True
    served_model: str | None = Field(default=None, description="the id to ask for, where it had to be looked up")

    def allows(self, name: str) -> bool:
        """Whether a parameter may be sent."""
        return name not in self.refused

    def without(self, name: str) -> "Capabilities":
        """The same without a parameter. The cap is said in its other name before it is not said at all."""
        if name == "cap" or name in CAPS:
            tried = (*self.caps_tried, *([self.cap_name] if self.cap_name else []))
            left = next((cap for cap in CAPS if cap not in tried), None)
            return self.model_copy(update={"cap_name": left, "caps_tried": tried})
        return self.model_copy(update={"refused": (*self.refused, name)})


def too_long(message: str) -> bool:
    """Whether an error says that the prompt does not fit into the model's context."""
    return bool(_LENGTH.search(message))


def learn(known: Capabilities, sent: dict[str, object], message: str, parameter: str | None) -> Capabilities | None:
    """What to try after `message` refused the request `sent`; None when nothing is left that could be changed.

    An error that names a parameter which was sent is taken at its word; one that names none costs one parameter after
    the other, in the order of `OPTIONAL`.
    """
    named = parameter if parameter in sent else None
    if named is None:
        # The first one mentioned: "'max_tokens' is not supported, use 'max_completion_tokens'".
        places = {name: message.find(name) for name in sent if name not in ("messages", "model") and name in message}
        places = {
            n: at for n, at in places.items() if re.search(rf"(?<![A-Za-z_]){re.escape(n)}(?![A-Za-z_])", message)
        }
        named = min(places, key=lambda name: places[name], default=None)
    if named is None and ("tool" in message.lower() and "tools" in sent):
        named = "tools"
    if named in CAPS:
        limit = _LIMIT.search(message)
        if limit and 0 < int(limit[1]) < int(sent[named]):
            return known.model_copy(update={"output_limit": int(limit[1])})
        return known.without("cap")
    if named in OPTIONAL:
        return known.without(named)
    for name in OPTIONAL:
        present = known.cap_name is not None if name == "cap" else name in sent
        if present:
            return known.without(name)
    return None


class Memory:
    """Where capabilities are kept between runs."""

    def __init__(self, folder: Path, base_url: str, model: str | None) -> None:
        self._path = folder / f"{sha256(canonical_json([base_url, model]).encode())[:24]}.json"

    def read(self) -> Capabilities:
        """What is known; nothing where a file is damaged or of another form."""
        try:
            return Capabilities.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return Capabilities()

    def write(self, known: Capabilities) -> None:
        """Keeps what a successful request has confirmed. Without it the next run learns again."""
        try:
            write_file(self._path, known.canonical_json().encode())
        except UserError:
            return
