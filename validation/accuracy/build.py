"""The kinds of exams that are built without a network."""

from collections.abc import Callable, Sequence

from ..errors import UserError
from . import samples, synthetic_mrcr
from .frozen import Draft, Source

KINDS: dict[str, Callable[[Source], Draft]] = {
    "sample_integers": samples.integers,
    "sample_choices": samples.choices,
    "mrcr_synthetic": synthetic_mrcr.build,
}


def plan(kind: str, *, seed: int, needles: Sequence[int], words: Sequence[int], items_each: int) -> Source:
    """What `build` needs for `kind`. Raises UserError for an unknown kind and for sizes that cannot be."""
    if kind not in KINDS:
        raise UserError(f"no exam {kind!r} can be built here", f"known: {', '.join(KINDS)}")
    if kind != "mrcr_synthetic":
        return Source(kind=kind, seed=seed)
    problem = synthetic_mrcr.refuse(needles, words)
    if problem:
        raise UserError(problem, "correct --needles and --words")
    return Source(kind=kind, seed=seed, needles=tuple(needles), words=tuple(words), items_each=items_each)


def build(source: Source) -> Draft:
    """The exam of `source`: the same bytes on every machine."""
    return KINDS[source.kind](source)
