"""Fused ops: which places of the step one kernel can take over, and what its tensors and axes are called.

A kernel for `a+b+c` is judged as a part of the contract's op graph and finds here what it found there: values that only
members read are inside and never come to be; a name that means one thing is kept; others carry their op's name
(`front_x`), numbered where the part has the op twice (`attn_res_norm_2_x`). A test holds the names to the contract's.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .dispatch import PART
from .graph import LOGITS, Place, Via
from .tensors import STATIC

# What a rank reads without waiting for another.
_LOCAL = (Via.HERE, Via.COLUMNS)
STATES = ("conv_state", "recurrent_state", "cache")
# Tensors that a place may lack.
_OPTIONAL = {"attn_res_norm": ("blocks",), "o_proj_residual": ("residual",), "dense_down": ("residual",)}


@dataclass(frozen=True)
class Member:
    """One place of a part."""

    place: Place
    alias: str
    inside: Mapping[str, str]
    """Tensor that it reads -> value that another member leaves"""
    outer: Mapping[str, str]
    """Every other tensor that it has here -> name in the part"""

    @property
    def takes_columns(self) -> bool:
        """Whether it reads this rank's columns of what another member leaves: then the part has an axis `rank`."""
        return any(self.place.reads[tensor][0].via is Via.COLUMNS for tensor in self.inside)


class Parts:
    """Parts of the step `places`."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._readers: dict[str, list[tuple[str, Via]]] = defaultdict(list)
        for place in places:
            for source in place.sources:
                self._readers[source.value].append((place.name, source.via))

    def found(self, op: str) -> tuple[tuple[Place, ...], ...]:
        """Where consecutive places have the ops of `op`, wired in the way that most such places are."""
        ops, places = tuple(op.split(PART)), self._places
        runs = [
            tuple(places[start : start + len(ops)])
            for start in range(len(places) - len(ops) + 1)
            if all(place.op == of for place, of in zip(places[start : start + len(ops)], ops, strict=True))
        ]
        if not runs:
            return ()
        kinds = [self._kind(run) for run in runs]
        ((usual, _),) = Counter(kinds).most_common(1)
        return tuple(run for run, kind in zip(runs, kinds, strict=True) if kind == usual)

    def members(self, part: Sequence[Place]) -> tuple[Member, ...]:
        """The members of a part made of `part`, consecutive places."""
        counts, numbers = Counter(place.op for place in part), Counter()
        aliases = []
        for place in part:
            numbers[place.op] += 1
            aliases.append(place.op if counts[place.op] == 1 else f"{place.op}_{numbers[place.op]}")
        keys = [dict(self._keys(part, place)) for place in part]
        meanings: dict[str, set] = {}
        for found in keys:
            for tensor, key in found.items():
                meanings.setdefault(tensor, set()).add(key)
        named: dict[tuple, str] = {}
        for alias, found in zip(aliases, keys, strict=True):
            for tensor, key in found.items():
                named.setdefault(key, tensor if len(meanings[tensor]) == 1 else f"{alias}_{tensor}")
        return tuple(
            Member(
                place, alias, {tensor: place.reads[tensor][0].value for tensor in _inside(part, place)},
                {tensor: named[key] for tensor, key in found.items() if key[0] != "absent"},
            )
            for place, alias, found in zip(part, aliases, keys, strict=True)
        )  # fmt: skip

    def _leaving(self, part: Sequence[Place], place: Place) -> Iterator[str]:
        names = {other.name for other in part}
        for tensor, value in place.writes.items():
            read = any(name not in names or via not in _LOCAL for name, via in self._readers.get(value, ()))
            if read or value == LOGITS or tensor in STATES:
                yield tensor

    def _keys(self, part: Sequence[Place], place: Place) -> Iterator[tuple[str, tuple]]:
        """(tensor, what it is in the step) for every tensor of the place that is not inside."""
        inside, leaving = set(_inside(part, place)), set(self._leaving(part, place))
        for tensor in STATIC[place.op]:
            yield tensor, ("weight", place.weights, tensor)
        for tensor, sources in place.reads.items():
            if tensor not in inside:
                shape = "stack" if tensor == "blocks" else "value"
                yield tensor, (shape, *((source.value, source.via) for source in sources))
        for tensor in _OPTIONAL.get(place.op, ()):
            if tensor not in place.reads:
                yield tensor, ("absent", place.name, tensor)
        for tensor, value in place.writes.items():
            if tensor in leaving and tensor not in place.reads:
                yield tensor, ("value", value)

    def _kind(self, part: Sequence[Place]) -> tuple:
        """What tells parts apart that a kernel may not confuse: what is inside, shared, and left."""
        given = list(dict.fromkeys(sources for place in part for sources in place.reads.values()))
        return tuple(
            (
                tuple(sorted(_inside(part, place))),
                tuple((tensor, given.index(sources)) for tensor, sources in sorted(place.reads.items())),
                tuple(sorted(self._leaving(part, place))),
            )
            for place in part
        )


def fused_axes(each: Sequence[tuple[str, Mapping[str, int]]]) -> dict[str, int]:
    """The axes of a part from those of its members, (alias, axes): what only one has keeps its name."""
    shared = Counter(name for _, axes in each for name in axes)
    result: dict[str, int] = {}
    for alias, axes in each:
        for name, value in axes.items():
            alone = name in ("tp", "rows") or shared[name] == 1
            result[name if alone else f"{alias}_{name}"] = value
    return result


def _inside(part: Sequence[Place], place: Place) -> Iterator[str]:
    written = {value for other in part if other is not place for value in other.writes.values()}
    for tensor, sources in place.reads.items():
        if len(sources) == 1 and sources[0].via in _LOCAL and sources[0].value in written:
            yield tensor
