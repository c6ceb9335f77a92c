"""What a model asks for: tool calls, wherever it put them, and files in fenced blocks.

All of it is data to be checked: a call may have a problem, which is told to the model and costs nothing else.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .answer import Answer

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(.*?)\s*$")
_PATH = re.compile(r"[\w./-]*\w\.(?:py|cuh|cu)\b")
_FIRST_LINE = re.compile(r"^\s*(?:#|//)\s*(?:file(?:name)?|path)?\s*:?\s*([\w./-]*\w\.(?:py|cuh|cu))\s*$", re.I)
_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.S | re.I)
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.S)
_CALL_LANGUAGES = ("tool", "tool_call", "json", "")


@dataclass(frozen=True)
class Call:
    """One call of a tool. `id` is set where it came as a function call; `problem` says why it cannot be followed."""

    name: str
    arguments: dict[str, object] = field(default_factory=dict)
    id: str | None = None
    problem: str = ""


@dataclass(frozen=True)
class Block:
    """A fenced block: the words after the fence, its text with line ends of one kind, and whether it was closed."""

    info: str
    text: str
    closed: bool

    @property
    def language(self) -> str:
        """The first word of the info string, where it is one."""
        found = re.match(r"\{?\.?([A-Za-z_+#]+)", self.info)
        return found[1].lower() if found and not _PATH.match(self.info) else ""

    @property
    def path(self) -> str | None:
        """The file that the block is said to be: in the info string, or in a comment on its first line."""
        found = _PATH.search(self.info) or _FIRST_LINE.match(self.text.split("\n", 1)[0])
        return found and (found[1] if found.re is _FIRST_LINE else found[0])


@dataclass(frozen=True)
class Reading:
    """Calls in order, and files by path; None is the path of the op's entry file. `open`: a block without its end."""

    calls: tuple[Call, ...]
    files: dict[str | None, str]
    open: bool


def read(answer: Answer) -> Reading:
    """Everything that an answer asks for. Reasoning is never read."""
    native = [call for made in answer.calls for call in _native(made.id, made.name, made.arguments)]
    text = _THOUGHT.sub("", answer.text)
    found = list(blocks(text))
    if native:
        return Reading(tuple(native), {}, False)
    calls = [
        call for block in found if block.closed and block.language in _CALL_LANGUAGES for call in _written(block.text)
    ]
    for tagged in _TAGGED.findall(text):
        calls += _written(tagged)
    if not found and not calls:
        calls += _written(text)
    return Reading(tuple(calls), _files(found), any(not block.closed for block in found))


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a text, with backticks or tildes.

    A Python block whose text only parses with a later closing fence has that one: fences may stand in docstrings.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if not opened:
            at += 1
            continue
        fence, info = opened[1], opened[2]
        ends = [number for number in range(at + 1, len(lines)) if _closes(lines[number], fence)]
        if not ends:
            yield Block(info, "\n".join(lines[at + 1 :]), closed=False)
            return
        end = ends[0]
        if re.match(r"\{?\.?(?:python|py)\b", info) or _PATH.search(info):
            end = next((e for e in ends[:8] if _parses("\n".join(lines[at + 1 : e]))), end)
        yield Block(info, "\n".join(lines[at + 1 : end]) + "\n", closed=True)
        at = end + 1


def _closes(line: str, fence: str) -> bool:
    found = _FENCE.match(line)
    return bool(found) and not found[2] and found[1][0] == fence[0] and len(found[1]) >= len(fence)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _files(found: list[Block]) -> dict[str | None, str]:
    files: dict[str | None, str] = {}
    for block in found:
        if not block.closed:
            continue
        if block.path:
            files[block.path] = block.text
        elif "def launch(" in block.text:
            files[None] = block.text
    return files


def _native(id: str, name: str, arguments: str) -> list[Call]:
    """The call that was made; several where one call holds several objects."""
    values, problem = _objects(arguments or "{}")
    if problem:
        return [Call(name, id=id, problem=problem)]
    result = []
    for number, value in enumerate(values or [{}]):
        result.append(Call(name, value, id=id if number == 0 else f"{id}+{number}"))
    return result


def _written(text: str) -> list[Call]:
    """Calls written as JSON: {"name": ..., "arguments": {...}}. Text that is something else holds none."""
    if not text.lstrip().startswith(("{", "[")):
        return []
    values, problem = _objects(text)
    if problem:
        return [Call("", problem=problem)] if re.search(r'"(?:name|tool)"\s*:', text) else []
    calls = []
    for value in values:
        name = value.get("name", value.get("tool"))
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            inner, problem = _objects(arguments or "{}")
            arguments = inner[0] if inner and not problem else None
        if isinstance(name, str):
            bad = "" if isinstance(arguments, dict) else "the arguments are no JSON object"
            calls.append(Call(name, arguments if not bad else {}, problem=bad))
    return calls


def _objects(text: str) -> tuple[list[dict], str]:
    """The JSON objects in `text`, one after another, in a list, or in a string; or what is wrong."""
    # Line ends inside strings are not JSON, and clear enough.
    decoder = json.JSONDecoder(strict=False)
    rest, found = text.strip(), []
    try:
        while rest:
            value, end = decoder.raw_decode(rest)
            rest = rest[end:].lstrip().lstrip(",;").lstrip()
            if isinstance(value, str):
                value = decoder.decode(value)
            found += value if isinstance(value, list) else [value]
    except (ValueError, RecursionError) as error:
        return [], f"the arguments are no JSON: {getattr(error, 'msg', 'nested too deeply')}"
    if not all(isinstance(value, dict) for value in found):
        return [], "the arguments are no JSON object"
    return found, ""
