"""One arm behind an OpenAI-compatible server: answers are streamed, and count only when they came whole.

Every stop string is sent, however many; the seed is the caller's; reasoning (`reasoning_content`, or `reasoning`) is
kept apart from the answer. Whether the server's own kernels ran is read from `GET URL/fasttrack/counters`, an extension
that a server of specialised kernels offers: `{"kernels": {"kda_decode": 690}, "acceptance_forced": false}`.
"""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from ..errors import UserError
from .answers import Sampling
from .frozen import Message
from .generation import Counters, Generation, Unanswered

COUNTERS = "/fasttrack/counters"
_BUSY = frozenset({408, 409, 425, 429})
_SHOWN = 200
_COUNTING = 10.0
"""Seconds that a server has to say what it counted"""


class Server:
    """An OpenAI-compatible server at `url` (as a rule it ends in /v1)."""

    def __init__(
        self, url: str, model: str | None = None, *, key: str | None = None, silence: float = 3600.0,
        connect: float = 10.0,
    ) -> None:  # fmt: skip
        """`silence`: seconds without a byte before an answer is given up. UserError where it cannot be reached at all,
        or lists several models and none is named.
        """
        try:
            import httpx
            import openai
        except ImportError:
            raise UserError("the package openai is not installed", "pip install 'fasttrack[exams]'") from None
        if urlsplit(url).scheme not in ("http", "https"):
            raise UserError(f"{url} is not an address", "give it as http://host:8000/v1")
        self._url, self._openai, self._httpx = url.rstrip("/"), openai, httpx
        self._client = openai.OpenAI(
            base_url=self._url, api_key=key or "none", max_retries=0, timeout=httpx.Timeout(silence, connect=connect),
        )  # fmt: skip
        self.name = self._only(model)

    def generate(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> Generation:
        """One streamed answer. Raises Unanswered for whatever may pass, UserError for what will not."""
        body = request_body(self.name, messages, sampling, seed)
        try:
            return _assemble(self._client.chat.completions.create(**body))
        except self._openai.APIStatusError as error:
            raise self._refused(error) from None
        except (self._openai.APIError, self._httpx.HTTPError) as error:
            raise Unanswered(f"{self._url}: {_short(error)}") from None
        except (json.JSONDecodeError, UnicodeDecodeError, ValidationError, AttributeError, TypeError, KeyError):
            raise Unanswered(f"{self._url}: what came is no answer of a chat server") from None

    def counters(self) -> Counters:
        """What the server counts of itself; all unknown where it offers no such thing."""
        try:
            return Counters.model_validate(self._client.get(COUNTERS, cast_to=object, options={"timeout": _COUNTING}))
        except (self._openai.APIError, self._httpx.HTTPError, ValueError):
            return Counters()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _only(self, wanted: str | None) -> str:
        try:
            listed = [str(model.id) for model in self._client.models.list()]
        except (self._openai.APIError, self._httpx.HTTPError, ValueError, AttributeError, TypeError) as error:
            if wanted is not None:
                return wanted
            raise UserError(
                f"{self._url} does not list its models: {_short(error)}", "start the server, or name the model"
            ) from None
        if wanted is None and len(listed) != 1:
            raise UserError(f"{self._url} serves {len(listed)} models", "name the one that is meant")
        if wanted is not None and wanted not in listed:
            raise UserError(f"{self._url} serves no {wanted!r}", f"it lists {', '.join(listed) or 'none'}")
        return wanted or listed[0]

    def _refused(self, error: Any) -> Exception:
        status = error.status_code
        if status in _BUSY or status >= 500:
            return Unanswered(f"{self._url} answers {status}", _wait(error.response.headers))
        return UserError(
            f"{self._url} refuses the request ({status}): {_short(error)}",
            "correct the sampling, the key or the server, then run the same command again: no answer is lost",
        )


def request_body(model: str, messages: Sequence[Message], sampling: Sampling, seed: int) -> dict[str, Any]:
    """What is sent for one answer: all stop strings, this very seed, and a count of tokens asked for."""
    body: dict[str, Any] = {
        "model": model, "messages": [message.model_dump() for message in messages], "seed": seed,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return body | ({"stop": list(sampling.stop)} if sampling.stop else {})


def _assemble(stream: Any) -> Generation:
    """The answer of a stream. Raises Unanswered where it is not whole: a cut connection looks like an end."""
    text: list[str] = []
    reasoning: list[str] = []
    said, models, finish, usage = False, set(), None, None
    with stream:
        for chunk in stream:
            models.add(chunk.model)
            usage = chunk.usage or usage
            for choice in chunk.choices or ():
                finish = choice.finish_reason or finish
                delta = choice.delta
                if delta.content is not None:
                    said = True
                    text.append(delta.content)
                more = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
                if more:
                    reasoning.append(more)
    if finish is None:
        raise Unanswered("the answer broke off, or there was none")
    if len(models) != 1:
        raise Unanswered(f"one answer came from {len(models)} models")
    return Generation(
        model=models.pop(), text="".join(text) if said else None, reasoning="".join(reasoning), finish_reason=finish,
        tokens=usage.completion_tokens if usage else None, prompt_tokens=usage.prompt_tokens if usage else None,
    )  # fmt: skip


def _wait(headers: Any) -> float | None:
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."
