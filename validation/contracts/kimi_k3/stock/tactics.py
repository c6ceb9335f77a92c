"""How the expert kernels are cut for a size: host arithmetic alone, shared by packing, compilation and launches."""

from dataclasses import dataclass

CHUNK = 64
"""Columns that one 16-byte load of every lane of a warp covers, 16 rows high"""
GROUP_TOKENS = 8
"""Tokens of a unit: the columns of one MMA"""
_MAX_SLICE = 16
"""Chunks of k that a warp of the first projection takes"""
_WALKS = (6, 24)
"""Chunks that a warp of the second projection walks where units are few and many, if its rows are shorter"""
_FEW = 32
"""Units up to which they are few"""
_QUEUE = 4
"""Chunks that a warp has in flight: more of them would take the activations' share of L1"""


@dataclass(frozen=True)
class First:
    """The first projection: k is split over the warps of a block."""

    warps: int
    depth: int
    """Chunks in flight"""


@dataclass(frozen=True)
class Second:
    """The second projection: a warp walks row blocks that lie behind each other."""

    few: int
    """Row blocks of a warp where units are few"""
    many: int
    depth: int

    def each(self, units: int) -> int:
        """Row blocks of a warp for this many units."""
        return self.few if units <= _FEW else self.many


def chunks(k: int) -> int:
    """Chunks that k columns take, padding included."""
    return -(-k // CHUNK)


def vector(count: int) -> int:
    """Scale words that a lane loads at once, of `count` chunks."""
    return next(width for width in (2, 1) if count % width == 0)


def first(count: int) -> First:
    """For `count` chunks of k: few warps with long slices, whole scale vectors each."""
    width = vector(count)
    share = max(n for n in range(width, _MAX_SLICE + 1, width) if count % n == 0)
    return First(count // share, _depth(share, width))


def second(count: int, blocks: int) -> Second:
    """For `blocks` row blocks of `count` chunks: short rows are walked several at a time."""
    few, many = (
        max(n for n in range(1, max(1, walk // count) + 1) if blocks % n == 0) for walk in _WALKS
    )
    return Second(few, many, _depth(few * count, vector(count)))


def max_units(rows: int, top_k: int, experts: int) -> int:
    """The most units that a step can have: the sum over experts of ceil(tokens / 8)."""
    pairs = rows * top_k
    return min(pairs, experts + pairs // GROUP_TOKENS)


def expected_units(rows: int, top_k: int, experts: int) -> int:
    """About as many as uniform routing fills. Blocks loop over units, so that more of them cost time only."""
    distinct = experts * (1 - (1 - top_k / experts) ** rows)
    return min(max_units(rows, top_k, experts), round(distinct) + 1)


def _depth(total: int, width: int) -> int:
    return min(total, _QUEUE) // width * width
