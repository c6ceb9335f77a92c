"""What a model answered, as a record, put together from whatever shape its server gave it."""

import json
from collections.abc import Mapping

from pydantic import Field

from fasttrack_validation.records import Frozen


class ToolCall(Frozen):
    """A call of a function tool. `arguments` is the text that the model wrote; it may be anything."""

    id: str
    name: str
    arguments: str


class Usage(Frozen):
    """Tokens of one request. `cached` of the prompt's came from a cache."""

    prompt: int = Field(ge=0)
    completion: int = Field(ge=0)
    cached: int = Field(default=0, ge=0)

    @property
    def total(self) -> int:
        """Tokens in and out."""
        return self.prompt + self.completion


class Answer(Frozen):
    """One answer. `finish` and `usage` are None where the server did not say."""

    text: str = ""
    reasoning: str = Field(default="", description="logged; nothing is ever taken from it")
    calls: tuple[ToolCall, ...] = ()
    refusal: str = ""
    finish: str | None = None
    usage: Usage | None = None
    model: str = Field(default="", description="as the server names it")
    cap: int = Field(default=0, description="completion tokens that were asked for at most")

    @property
    def cut(self) -> bool:
        """Whether the answer ends where its cap does, whatever its finish reason says."""
        full = self.usage is not None and 0 < self.cap <= self.usage.completion
        return full or self.finish in ("length", "max_tokens")

    @property
    def empty(self) -> bool:
        """Nothing to read: no text, no call, no refusal."""
        return not (self.text.strip() or self.calls or self.refusal)


class Assembly:
    """Collects the parts of an answer: chunks of a stream, or one whole completion."""

    def __init__(self) -> None:
        self.parts = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[dict[str, str]] = []
        self._places: dict[object, dict[str, str]] = {}
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._model = ""

    def add(self, part: object) -> None:
        """One chunk or one completion, as JSON data. Anything in it that is not as it should be is passed over."""
        if not isinstance(part, Mapping):
            return
        self._model = _text(part.get("model")) or self._model
        self._usage = _usage(part.get("usage")) or self._usage
        choices = part.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return
        self.parts += 1
        self._usage = _usage(choice.get("usage")) or self._usage
        self._finish = _text(choice.get("finish_reason")) or self._finish
        message = next((m for m in (choice.get("delta"), choice.get("message")) if isinstance(m, Mapping)), {})
        self._text.append(_text(message.get("content")) or _text(choice.get("text")))
        reasoning = next((message[n] for n in ("reasoning_content", "reasoning", "thinking") if message.get(n)), None)
        self._reasoning.append(_text(reasoning))
        self._refusal.append(_text(message.get("refusal")))
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, Mapping):
                index = call.get("index")
                self._call(index if isinstance(index, int) else place, _text(call.get("id")), call.get("function"))
        if isinstance(message.get("function_call"), Mapping):
            self._call("legacy", "", message["function_call"])

    def answer(self, cap: int) -> Answer:
        """What was collected so far."""
        calls = tuple(
            ToolCall(id=c["id"] or f"call_{number}", name=c["name"], arguments=c["arguments"])
            for number, c in enumerate(self._calls)
        )
        return Answer(
            text="".join(self._text), reasoning="".join(self._reasoning), calls=calls, refusal="".join(self._refusal),
            finish=self._finish, usage=self._usage, model=self._model, cap=cap,
        )  # fmt: skip

    def _call(self, place: object, name_of_call: str, function: object) -> None:
        function = function if isinstance(function, Mapping) else {}
        arguments = function.get("arguments")
        # Some servers hand arguments over as data, not as text.
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
        current = self._places.get(place)
        # Some give every call the same index and tell them apart by id alone.
        if current is None or (name_of_call and current["id"] and name_of_call != current["id"]):
            current = {"id": "", "name": "", "arguments": ""}
            self._places[place] = current
            self._calls.append(current)
        current["id"] = current["id"] or name_of_call
        name = _text(function.get("name"))
        if name and not current["name"].endswith(name):
            current["name"] += name
        current["arguments"] += text


def _text(value: object) -> str:
    """Text, or the text parts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(item.get("text")) if isinstance(item, Mapping) else _text(item) for item in value)
    return ""


def _usage(value: object) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    prompt, completion, total = (_count(value.get(n)) for n in ("prompt_tokens", "completion_tokens", "total_tokens"))
    if prompt is None or completion is None:
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    # Where reasoning is counted outside of the completion, the total tells.
    return Usage(prompt=prompt, completion=max(completion, (total or 0) - prompt), cached=min(cached or 0, prompt))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
