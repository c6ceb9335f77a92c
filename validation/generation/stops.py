"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class Stops:
    """Gives out text as soon as no stop string can begin in it any more."""

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        """`keep`: whether the text keeps the stop string that ended it."""
        self._stops = [stop for stop in stops if stop]
        self._keep = keep
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str | None]:
        """(text that can be given out, stop string that was met). The stop string that begins first wins, the longer
        of two that begin together; what stands behind it is dropped."""
        text = self._held + piece
        found = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            self._held = ""
            return text[: at + (len(stop) if self._keep else 0)], stop
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` with which `stop` begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
