"""The kinds of exams: those that are built without a network, and those that are published."""

from collections.abc import Callable, Sequence

from ..errors import UserError
from . import published, samples, small, synthetic_mrcr
from .frozen import Draft, Source

KINDS: dict[str, Callable[[Source], Draft]] = {
    "sample_integers": samples.integers,
    "sample_choices": samples.choices,
    "mrcr_synthetic": synthetic_mrcr.build,
}


def offline(kind: str) -> Callable[[Source], Draft] | None:
    """What builds `kind` without a network; None where nothing does."""
    return KINDS.get(kind) or (small.build if kind in small.kinds() else None)


def plan(
    kind: str, *, seed: int = 0, needles: Sequence[int] = (2, 4, 8), words: Sequence[int] = (4000,), items_each: int = 8,
    max_tokens: int | None = None, revision: str | None = None,
) -> Source:  # fmt: skip
    """What `build` needs for `kind`. Raises UserError for an unknown kind and for sizes that cannot be."""
    if kind in published.DATASETS:
        return published.plan(kind, seed=seed, needles=needles, max_tokens=max_tokens, revision=revision)
    if offline(kind) is None:
        known = (*published.DATASETS, *KINDS, *small.kinds())
        raise UserError(f"no exam {kind!r} can be built", f"known: {', '.join(known)}")
    if revision is not None or max_tokens is not None:
        raise UserError(f"{kind} is not published: it has no revision", "leave --revision and --max-tokens out")
    if kind in small.kinds():
        return Source(kind=kind, seed=seed, items_each=items_each)
    if kind != "mrcr_synthetic":
        return Source(kind=kind, seed=seed)
    problem = synthetic_mrcr.refuse(needles, words)
    if problem:
        raise UserError(problem, "correct --needles and --words")
    return Source(kind=kind, seed=seed, needles=tuple(needles), words=tuple(words), items_each=items_each)


def build(source: Source) -> Draft:
    """The exam of `source`: the same bytes on every machine. Published kinds are fetched."""
    make = published.build if source.kind in published.DATASETS else offline(source.kind)
    if make is None:
        raise UserError(f"no exam {source.kind!r} can be built", "`fasttrack exam build --help` names the kinds")
    return make(source)
