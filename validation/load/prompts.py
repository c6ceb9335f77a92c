"""What is asked of a server in a cell: prompts of a length, or sessions of many turns. Equal seeds ask for equal things."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from ..errors import UserError
from ..records import Frozen, sha256
from .servers import Load

SYNTHETIC_SESSIONS = "sessions of seeded words/1: 8 turns of 64 words and 64 output tokens upon 1024 words"
LENGTH_CORRIDOR = 0.1
_TURNS, _FIRST_WORDS, _TURN_WORDS, _OUTPUT = 8, 1024, 64, 64
_LETTERS = "bcdfghjklmnpqrstvwz"
_VOWELS = "aeiou"


class Prompt(Frozen):
    """One request: text, or token ids."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
    output_tokens: int = Field(ge=1)

    @property
    def body(self) -> str | list[int]:
        """As the completions interface takes it."""
        return self.text if self.ids is None else list(self.ids)


class Turn(Frozen):
    """One turn of a session: what the user says, and how long the answer is."""

    text: str = Field(min_length=1)
    output_tokens: int = Field(ge=1)
    pause_s: float = Field(0.0, ge=0, description="after the answer before it: tools running, a person reading")


class Session(Frozen):
    """Turns upon each other: each request holds all that was said before it, and hits the prefix cache."""

    turns: tuple[Turn, ...] = Field(min_length=1)


class _Line(Frozen):
    prompt: str = Field(min_length=1)
    tokens: int | None = Field(None, ge=1, description="its length; without one it serves any cell")

    def fits(self, isl: int) -> bool:
        return self.tokens is None or abs(self.tokens / isl - 1) <= LENGTH_CORRIDOR


def prompts(load: Load, *, count: int, isl: int, osl: int, seed: int, folder: Path) -> tuple[Prompt, ...]:
    """`count` prompts of `isl` tokens: natural text where the file names some, else token ids, else seeded words.

    Words are asked for by their number, and tokens are not words: what was achieved is in the server's count. Raises
    UserError where a file of prompts has too few.
    """
    source = random.Random(f"{seed} prompts")
    if load.prompts is not None:
        known = [line for line in _lines(folder / load.prompts, _Line) if line.fits(isl)]
        if len(known) < count:
            raise UserError(
                f"{load.prompts} has {len(known)} prompts of about {isl} tokens, a load takes {count}",
                "add some: lines with `prompt` and its length `tokens`",
            )
        return tuple(Prompt(text=line.prompt, output_tokens=osl) for line in source.sample(known, count))
    if load.token_ids is not None:
        low, high = load.token_ids
        return tuple(
            Prompt(ids=tuple(source.randint(low, high) for _ in range(isl)), output_tokens=osl) for _ in range(count)
        )
    return tuple(Prompt(text=_words(source, isl), output_tokens=osl) for _ in range(count))


def sessions(load: Load, *, count: int, seed: int, folder: Path) -> tuple[Session, ...]:
    """`count` sessions of the trace, from a place that `seed` chooses; without a trace, of seeded words."""
    source = random.Random(f"{seed} sessions")
    if load.sessions is not None:
        known = _lines(folder / load.sessions, Session)
        start = source.randrange(len(known))
        return tuple(known[(start + n) % len(known)] for n in range(count))
    common = _words(random.Random("what every session begins with"), _FIRST_WORDS // 2)
    return tuple(
        Session(turns=tuple(
            Turn(
                text=f"{common} {_words(source, _FIRST_WORDS // 2)}" if number == 0 else _words(source, _TURN_WORDS),
                output_tokens=_OUTPUT,
            )
            for number in range(_TURNS)
        ))
        for _ in range(count)
    )  # fmt: skip


def data_name(load: Load, folder: Path, *, agentic: bool) -> str:
    """What a record calls this data: a file by its digest."""
    named = load.sessions if agentic else load.prompts
    if named is not None:
        return f"{named} sha256:{sha256((folder / named).read_bytes())[:16]}"
    if agentic:
        return SYNTHETIC_SESSIONS
    if load.token_ids is not None:
        return f"random token ids {load.token_ids[0]} to {load.token_ids[1]}"
    return "seeded words"


def _words(source: random.Random, count: int) -> str:
    """Words of two syllables that no prompt repeats in the same order."""
    return " ".join(
        "".join(source.choice(_LETTERS) + source.choice(_VOWELS) for _ in range(2)) for _ in range(max(count, 1))
    )


def _lines(path: Path, kind: type[Frozen]) -> Sequence:
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(kind.model_validate_json(json.dumps(json.loads(line))))
        except (ValidationError, ValueError) as error:
            what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise UserError(f"{path}:{number}: {what}", "give one JSON object a line") from error
    if not found:
        raise UserError(f"{path}: holds nothing", "give one JSON object a line")
    return found
