"""Which units the ladder consists of. Pure: settings in, units out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ...records import Frozen
from . import scenarios
from .scenario import Actions, RungName, Unit

TPS = (1, 8, 16)
PROMPT = 40
"""Tokens that are read before decode steps begin"""
WIDTH = 8
"""Tokens of a verify step at most"""
TOGETHER = 4
"""The same, where two requests bring as many side by side"""
FAR, FARTHER = 1100, 8300
"""Tokens in front of those that are decoded in the second band of positions, and in the third"""
FARTHER_FROM = 64
"""Tokens of a run that goes so far: on a GPU, for an interpreter looks at each of them"""
SIZES = {"cpu": (2, 3, 4, 5, 8), "cuda": (2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)}
"""Rows of a batch, by where the decode path runs: every size of a graph, and one row beside it. The interpreter stops at eight"""

LongContext = Annotated[int, Field(ge=256)]


class Settings(Frozen):
    """What decides about a run's records, beside checkpoint and paths."""

    candidate: str = Field(default="specialised", description="specialised, or a PyTorch path: plain:NAME")
    rungs: tuple[RungName, ...] = tuple(RungName)
    tps: tuple[int, ...] = TPS
    main_tp: int = Field(default=1, description="the one that all units run at; at others a few do")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where the specialised path runs")
    tokens: int = Field(
        default=64, ge=8, le=1_000_000, description="decoded teacher-forced at the main TP; all else follows"
    )
    replicas: int = Field(default=3, ge=2, le=16, description="runs of the stock path again: the noise")
    seed: int = 0
    steps: int = Field(default=1000, ge=1, description="decode steps of the long state")
    context: LongContext | tuple[LongContext, ...] = Field(default=4096, description="tokens of the long attention, of each")

    @property
    def contexts(self) -> tuple[int, ...]:
        """Lengths of the long attention."""
        return self.context if isinstance(self.context, tuple) else (self.context,)


@dataclass(frozen=True)
class Work:
    """A unit and what it does."""

    unit: Unit
    actions: Callable[[], Actions]


@dataclass(frozen=True)
class Material:
    """What a contract gives: streams of tokens, and a draft head."""

    stream: Callable[[int, int], list[int]]
    """(tokens, seed)"""
    propose: scenarios.Propose
    vocabulary: int


def works(settings: Settings, of: Material) -> list[Work]:
    """All units of the rungs that go over a whole model, the longest first."""
    found: list[Work] = []
    for tp in settings.tps:
        if RungName.TEACHER_FORCED in settings.rungs:
            found += _teacher_forced(settings, of, tp)
        if RungName.BATCH_SWEEP in settings.rungs:
            found += _sweep(settings, of, tp) if tp == settings.main_tp else _short_sweep(settings, of, tp)
        if RungName.GREEDY in settings.rungs and (tp == settings.main_tp or settings.device == "cuda"):
            found.append(_greedy(settings, of, tp))
    return found


def _teacher_forced(settings: Settings, of: Material, tp: int) -> list[Work]:
    """A stream whose prompt is read in prefill steps. At the main TP the same once more, token by token from its first on; and others,
    in which only tokens far from the beginning are decoded."""
    decoded = settings.tokens if tp == settings.main_tp else max(settings.tokens // 8, 8)
    stream = of.stream(PROMPT + decoded + 1, settings.seed)

    def work(name: str, tokens: Sequence[int], prompt: int, *, watched: bool = True) -> Work:
        unit = Unit(RungName.TEACHER_FORCED, name, tp, 1, len(tokens) + 1)
        return Work(unit, lambda: scenarios.teacher_forced(tokens, prompt, watched=watched))

    found = [work("stream", stream, PROMPT)]
    if tp == settings.main_tp:
        found.append(work("decoded", stream, 1))
        distances = {"far": FAR}
        if settings.device == "cuda" and settings.tokens >= FARTHER_FROM:
            distances["farther"] = FARTHER
        for name, prompt in distances.items():
            # Of a median of few tokens nobody can say whether it holds.
            distant = of.stream(prompt + max(settings.tokens // 2, 24) + 1, settings.seed + 50)
            found.append(work(name, distant, prompt, watched=False))
    return found


def _greedy(settings: Settings, of: Material, tp: int) -> Work:
    tokens = settings.tokens if tp == settings.main_tp else max(settings.tokens // 4, 4)
    prompt = of.stream(PROMPT + 1, settings.seed + 100)
    unit = Unit(RungName.GREEDY, "free", tp, 1, PROMPT + tokens + 2)
    return Work(unit, lambda: scenarios.greedy(prompt, tokens))


def _batch(settings: Settings, of: Material, tp: int, rows: int, steps: int, padded: tuple[int, ...] = ()) -> Work:
    # Not shorter: behind a few tokens one that went to other experts is a good part of all that a head remembers.
    prompts = [PROMPT // 2 + (5 * row if rows <= 8 else row % 7) for row in range(rows)]
    streams = [of.stream(prompt + steps + 2, settings.seed + 200 + row) for row, prompt in enumerate(prompts)]
    every = rows + len(padded)
    # The smallest graph that holds the rows: where it is larger, the rest of it is padding.
    bucket = 1 << (every - 1).bit_length()
    name = f"rows{rows}" + ("-padded" if padded else "")
    unit = Unit(RungName.BATCH_SWEEP, name, tp, rows, max(map(len, streams)) + 1, buckets=(bucket,))
    return Work(unit, lambda: scenarios.batch(streams, prompts, steps, padded=padded))


def _short_sweep(settings: Settings, of: Material, tp: int) -> list[Work]:
    """Of another TP than the main one: a batch, and requests that verify side by side; on a GPU batches that fill a graph and accepted
    counts as well."""
    found = [_batch(settings, of, tp, 3, 2), _verified_together(settings, of, tp, 2)]
    if settings.device == "cuda":
        found += [*(_batch(settings, of, tp, rows, 2) for rows in (8, 64)), _verified_every(settings, of, tp, _ENDS)]
    return found


def _verified_together(settings: Settings, of: Material, tp: int, steps: int) -> Work:
    # Every step moves a request on by TOGETHER tokens at most, every other one by one more.
    streams = [of.stream(PROMPT + (TOGETHER + 1) * steps + 2 * WIDTH, settings.seed + 301 + number) for number in range(2)]
    unit = Unit(RungName.BATCH_SWEEP, "verify-together", tp, 2, len(streams[0]) + 2, TOGETHER, (2, 2 * TOGETHER))
    return Work(unit, lambda: scenarios.verify_together(streams, PROMPT, of.propose, TOGETHER, steps))


_EVERY = {width: range(width + 1) for width in range(2, WIDTH + 1)}
"""Widths -> accepted counts: all of them"""
_ENDS = {width: (range(width + 1) if width <= 4 else (0, width // 2, width)) for width in _EVERY}
"""The same of short runs of an interpreter, which takes seconds a row"""


def _verified_every(settings: Settings, of: Material, tp: int, counts: Mapping[int, Sequence[int]]) -> Work:
    moved = sum(sum(kept) + 1 for kept in counts.values())
    stream = of.stream(PROMPT + moved + 2 * WIDTH, settings.seed + 300)
    unit = Unit(RungName.BATCH_SWEEP, "verify-every", tp, 1, len(stream) + 2, WIDTH, (1, WIDTH))
    return Work(unit, lambda: scenarios.verify_every(stream, PROMPT, counts, of.vocabulary))


def _sweep(settings: Settings, of: Material, tp: int) -> list[Work]:
    steps = max(settings.tokens // 16, 2)
    seed, rung = settings.seed, RungName.BATCH_SWEEP
    long = of.stream(PROMPT + 8 * steps + 2 * WIDTH, seed + 300)
    others = [of.stream(PROMPT + 4 * steps + 20, seed + 301 + number) for number in range(3)]
    size = len(long) + 2

    def work(name: str, requests: int, actions: Callable[[], Actions], *, width: int = 1, buckets=(1,)) -> Work:
        return Work(Unit(rung, name, tp, requests, size, width, buckets), actions)

    return [
        # Of many rows few steps: what is looked at is that rows do not meet.
        *(_batch(settings, of, tp, rows, steps if rows <= 8 else 2) for rows in SIZES[settings.device]),
        _batch(settings, of, tp, 2, steps, padded=(1,)),
        work("mixed-prefill", 2, lambda: scenarios.mixed_prefill(others[:2], PROMPT, steps), buckets=(1, 2)),
        work(
            "verify-draft", 1, lambda: scenarios.verify(long, PROMPT, of.propose, WIDTH, 8 * steps),
            width=WIDTH, buckets=(1, WIDTH),
        ),
        _verified_together(settings, of, tp, steps),
        _verified_every(settings, of, tp, _EVERY if settings.device == "cuda" or steps >= 4 else _ENDS),
        work("preempted", 2, lambda: scenarios.preempted(others, PROMPT, steps), buckets=(1, 2)),
    ]  # fmt: skip
