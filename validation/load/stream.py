"""One request over HTTP: sent, and read as it streams. Times are taken when a piece arrives."""

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .answers import Answer

if TYPE_CHECKING:
    from httpx import AsyncClient

_TOLD = 300


class Told(NamedTuple):
    """An answer, and its text: what the next turn and the check of outputs need."""

    answer: Answer
    text: str


class _Broken(Exception):
    """Why a stream is no answer."""


async def ask(client: "AsyncClient", url: str, body: Mapping[str, Any], began: float) -> Told:
    """Posts `body` with streaming on, and reads its answer to the end. Whatever goes wrong is the answer's error.

    `began`: when the load did, by time.perf_counter(). Token counts are the server's own (`usage`): pieces of a stream
    are not tokens.
    """
    import httpx

    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    sent = time.perf_counter()
    reading = _Reading()
    try:
        async with client.stream("POST", url, json=asked) as response:
            if response.status_code != 200:
                said = (await response.aread()).decode("utf-8", "replace")[:_TOLD]
                raise _Broken(f"HTTP {response.status_code}: {said.strip() or 'no more was said'}")
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                if (data := line[5:].strip()) == "[DONE]":
                    reading.ended = True
                    break
                reading.take(data, time.perf_counter())
        return Told(reading.answer(sent, began), "".join(reading.pieces))
    except _Broken as error:
        why = str(error)
    except httpx.TimeoutException as error:
        why = f"no answer in time ({type(error).__name__})"
    except httpx.HTTPError as error:
        why = f"{type(error).__name__}: {error}"
    return Told(Answer(sent=max(sent - began, 0.0), error=why[:_TOLD]), "".join(reading.pieces))


class _Reading:
    """A stream so far."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.times: list[float] = []
        self.usage: dict[str, Any] = {}
        self.ended = False

    def take(self, data: str, now: float) -> None:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise _Broken(f"a piece of the stream is no JSON: {data[:80]!r}") from error
        if not isinstance(value, dict) or value.get("error"):
            raise _Broken(f"the stream holds an error: {data[:_TOLD]}")
        if isinstance(value.get("usage"), dict):
            self.usage = value["usage"]
        for choice in value.get("choices") or ():
            text = _text(choice)
            # A piece without text may still hold a token (half a character), unless it only opens or closes the stream.
            opens = "role" in (choice.get("delta") or {}) and not text
            if text or not (opens or choice.get("finish_reason")):
                self.times.append(now)
                self.pieces.append(text)

    def answer(self, sent: float, began: float) -> Answer:
        if not self.ended:
            raise _Broken(f"the stream broke off after {len(self.times)} pieces")
        tokens = self.usage.get("completion_tokens")
        if not self.times or not tokens:
            why = "the server gave no usage: tokens are not counted by guess" if self.times else "no token came"
            raise _Broken(why)
        details = self.usage.get("prompt_tokens_details") or {}
        return Answer(
            sent=sent - began, first=self.times[0] - sent,
            gaps=tuple(after - before for before, after in zip(self.times, self.times[1:], strict=False)),
            input_tokens=self.usage.get("prompt_tokens"), cached_tokens=details.get("cached_tokens"),
            output_tokens=tokens,
        )  # fmt: skip


def _text(choice: dict[str, Any]) -> str:
    """Of a completion or of a chat, reasoning included: it is decoded like any other token."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    return "".join(delta.get(name) or "" for name in ("reasoning_content", "reasoning", "content"))
