"""What an arm answered, as recorded: one JSON line about the arm, then one line for each answer.

Everything that a guard needs is kept: the whole text, the reasoning apart from it, why the server stopped, seeds and
token counts. Unknown is null, and a guard refuses it where it matters.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from ..errors import UserError
from ..records import Frozen


class Sampling(Frozen):
    """What was asked of the server for every answer."""

    temperature: float = Field(ge=0, allow_inf_nan=False)
    top_p: float = Field(gt=0, le=1)
    max_tokens: int = Field(ge=1)
    stop: tuple[str, ...] = ()


class Arm(Frozen):
    """One arm of an exam: which server, with what, and by which plan."""

    format: Literal["fasttrack.answers/1"] = "fasttrack.answers/1"
    arm: Literal["baseline", "candidate"]
    exam_sha256: str
    plan_sha256: str
    """Digest of the plan, so that a plan made after the fact is another one."""
    model: str
    sampling: Sampling
    stop_sent: tuple[str, ...]
    """Stop strings that reached the server; a client may drop some."""
    kernels: dict[str, int] | None = None
    """Launches of each specialised kernel while the arm ran; {} where none is installed, null where nobody counted."""
    acceptance_forced: bool | None = None
    """Whether speculative tokens were accepted by force; false without speculation, null where unknown."""


class Answer(Frozen):
    """One generation."""

    item: str
    prompt_sha256: str
    repeat: int = Field(ge=0)
    seed: int | None = None
    model: str
    text: str | None
    reasoning: str = ""
    finish_reason: str | None
    tokens: int | None = Field(default=None, ge=0)
    """Output tokens, reasoning included."""
    prompt_tokens: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """From the first attempt to the last byte, waiting between attempts included."""
    attempts: int | None = Field(default=None, ge=1)
    error: str = ""
    """What went wrong on the way, once retries were used up."""
    score: float | str | None = None
    """What the engine scored, "N/A" included; null where it scored nothing."""

    @property
    def generation(self) -> str:
        """The whole text."""
        return f"{self.reasoning}\0{self.text or ''}"

    @property
    def truncated(self) -> bool:
        """Whether the token limit ended it."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Answers:
    """An arm with all that it answered."""

    arm: Arm
    answers: tuple[Answer, ...]

    def dump(self) -> str:
        """The file's text."""
        return "".join(record.model_dump_json() + "\n" for record in (self.arm, *self.answers))


def read(path: Path) -> Answers:
    """The answers recorded in `path`. Raises UserError with file and line, without quoting what stands there."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}", "give a file of recorded answers") from error
    if lines.pop() != "" or not lines:
        raise UserError(f"{path}: is cut off", "the run did not finish writing it: resume the run")
    first, *rest = [_record(Answer if number > 1 else Arm, line, path, number) for number, line in enumerate(lines, 1)]
    return Answers(first, tuple(rest))


def _record(kind: type[Frozen], line: str, path: Path, number: int):
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, wrong["loc"])) or "(the whole line)"
        raise UserError(f"{path}:{number}: {where}: {wrong['msg']}", "record the answers again") from error
