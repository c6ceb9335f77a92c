"""The tools of an agent: what each takes, written once, and offered to chat models and over MCP alike."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Tool(BaseModel):
    """The arguments of one tool; the docstring is what the agent reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]


class ReadContract(Tool):
    """The exam of the op: tensors, workloads, tolerances, floors, and how a candidate is written."""

    name: ClassVar[str] = "read_contract"


class ListFiles(Tool):
    """Files of the model directory that can be read, and which of them a candidate may replace."""

    name: ClassVar[str] = "list_files"


class ReadFile(Tool):
    """A file of the model directory."""

    name: ClassVar[str] = "read_file"
    path: str = Field(description="relative to the model directory")
    offset: int = Field(default=0, ge=0, description="first character, to read on in a long file")


class History(Tool):
    """Earlier candidates of this run: verdict, reason, time, descent."""

    name: ClassVar[str] = "history"
    last: int = Field(default=20, ge=1, le=200, description="how many of the latest")


class ReadCandidate(Tool):
    """An earlier candidate: its files, configuration and verdict."""

    name: ClassVar[str] = "read_candidate"
    candidate: str = Field(
        description="its digest, or the first eight characters or more; `tree` is what the tree has now"
    )
    offset: int = Field(default=0, ge=0, description="first character, to read on in a long candidate")


class File(BaseModel):
    """One file of a candidate."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str = Field(description="one of the op's kernel files, as list_files names them")
    text: str = Field(description="the whole file")


class WriteCandidate(Tool):
    """Write a candidate. Files that it does not give are those of `base`. Answers with its digest; judges nothing."""

    name: ClassVar[str] = "write_candidate"
    files: tuple[File, ...] = Field(default=(), description="whole files; none for another configuration of `base`")
    config: dict[str, bool | int | float | str] = Field(
        default={}, description="what launch() gets as config; parameters left out have the default of the design space"
    )
    base: str = Field(
        default="tree", description="digest of the candidate to start from; `tree` is what the tree has now"
    )


class Evaluate(Tool):
    """Have a candidate judged: a verdict with reasons. Takes minutes, and one of the run's rounds."""

    name: ClassVar[str] = "evaluate"
    candidate: str = Field(default="", description="digest from write_candidate; left out: the one written last")
    note: str = Field(default="", description="one line: what is new in it and why it should help")


class Time(Tool):
    """What is known of a judged candidate's time at each workload: measured or modelled, beside stock path and floors."""

    name: ClassVar[str] = "time"
    candidate: str = Field(description="digest")


class Profile(Tool):
    """The launch plan of a judged candidate: grids, registers, spills, shared memory, and the op's bytes and floor."""

    name: ClassVar[str] = "profile"
    candidate: str = Field(description="digest")


class Finish(Tool):
    """Say that there is nothing more to try. The best candidates so far are confirmed and put on a branch."""

    name: ClassVar[str] = "finish"
    reason: str = Field(default="", description="one line")


TOOLS: dict[str, type[Tool]] = {
    tool.name: tool
    for tool in (
        ReadContract, ListFiles, ReadFile, History, ReadCandidate, WriteCandidate, Evaluate, Time, Profile, Finish
    )
}  # fmt: skip


class ToolProblem(Exception):
    """A call that cannot be followed; the text says why, to the agent."""


def parse(name: str, arguments: dict[str, object]) -> Tool:
    """The typed call. Raises ToolProblem for an unknown tool or arguments that do not fit."""
    if name not in TOOLS:
        raise ToolProblem(f"there is no tool {name[:60]!r}; the tools are {', '.join(TOOLS)}")
    try:
        return TOOLS[name].model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "arguments"
        raise ToolProblem(
            f"{name}: {where}: {first['msg']}; it takes {', '.join(TOOLS[name].model_fields) or 'nothing'}"
        ) from None


def description(tool: type[Tool]) -> str:
    """What an agent reads of a tool."""
    return " ".join((tool.__doc__ or "").split())


def schema(tool: type[Tool]) -> dict[str, object]:
    """JSON schema of a tool's arguments."""
    found = _plain(tool.model_json_schema())
    return {key: value for key, value in found.items() if key != "description"}


def functions() -> list[dict[str, object]]:
    """The tools as chat endpoints take them."""
    return [
        {"type": "function", "function": {"name": name, "description": description(tool), "parameters": schema(tool)}}
        for name, tool in TOOLS.items()
    ]


def _plain(value: object, *, names: bool = False) -> object:
    """A schema without titles, which cost tokens and say nothing. `names`: keys are names of properties."""
    if isinstance(value, dict):
        return {
            k: _plain(v, names=not names and k in ("properties", "$defs"))
            for k, v in value.items()
            if names or k != "title"
        }
    return [_plain(item) for item in value] if isinstance(value, list) else value
