"""Shapes, strides and workloads of `kda_verify`. Knows no values and imports no tensor library."""

import random

from ....tensors import DType
from ...base import TensorRole, TensorSpec, Workload
from ..architecture import KdaShard
from ..kda_decode import layout as single

WIDTH = 8
"""Tokens of a request at most"""

# Pages that belong to nobody in this step, beside the null page.
_SPARE_SLOTS = 4


def workload(
    shard: KdaShard, name: str, requests: int, tokens: int, *, spare: int = _SPARE_SLOTS, slots_gap: int | None = None,
    held_out: bool = False, **gaps: int,
) -> Workload:  # fmt: skip
    """A workload of `requests` requests of `tokens` rows. `gaps` as in kda_decode's layout; `slots_gap`: entries between
    what is used of the tables of two requests, by default those that a table for the widest step has left."""
    slots_gap = WIDTH - tokens if slots_gap is None else slots_gap
    pool = 1 + requests * (1 + tokens) + spare
    base = single.workload(shard, name, requests * tokens, slots=pool, held_out=held_out, **gaps)
    return base.model_copy(
        update={"axes": base.axes | {"tokens": tokens, "slots_stride": 1 + tokens + slots_gap}}
    )


def declared(rows: int) -> tuple[int, int]:
    """(requests, tokens) of a declared batch: widths of 8 where there is room, of 2 below, one row as it is."""
    tokens = WIDTH if rows % WIDTH == 0 else min(rows, 2)
    return rows // tokens, tokens


def varied_to(shard: KdaShard, name: str, rows: int, random: random.Random) -> Workload:
    """`rows` rows of requests as wide as divides them, in a layout that `random` draws."""
    tokens = _widths(rows)[-1]
    return workload(
        shard, name, rows // tokens, tokens, spare=random.randrange(3), slots_gap=random.randrange(3),
        projected_gap=8 * random.randrange(9), conv_gap=8 * random.randrange(1, 9), state_gap=4 * random.randrange(1, 9),
    )  # fmt: skip


def held_out(shard: KdaShard, rows: int) -> Workload:
    """`rows` rows of requests as wide as divides them, with gaps in every row, table and page."""
    tokens = _widths(rows)[-1]
    return workload(
        shard, f"tp{shard.tp}-r{rows}", rows // tokens, tokens, spare=1, slots_gap=rows % 4,
        projected_gap=8 * (rows % 5), conv_gap=8 * (1 + rows), state_gap=4 * (3 + rows), held_out=True,
    )  # fmt: skip


def varied(shard: KdaShard, base: Workload, buckets: tuple[int, ...], seed: int) -> Workload:
    """Another workload of the bucket that `base` falls into: requests, width, pool size and every stride redrawn."""
    rng = random.Random(f"kda_verify {base.name} {seed}")
    bucket = next(bucket for bucket in buckets if base.axes["rows"] <= bucket)
    below = max((other for other in buckets if other < bucket), default=0)
    # Any row count of the bucket but the declared one, in any width; where there is none, other widths of it.
    pairs = [(rows // tokens, tokens) for rows in range(below + 1, bucket) for tokens in _widths(rows)]
    requests, tokens = rng.choice(pairs or [(bucket // tokens, tokens) for tokens in _widths(bucket)])
    return workload(
        shard, f"{base.name}-v{seed}", requests, tokens, spare=rng.randrange(0, 9), slots_gap=rng.choice((0, 0, 1, 8)),
        projected_gap=8 * rng.randrange(0, 65), conv_gap=8 * rng.randrange(1, 257), state_gap=4 * rng.randrange(1, 257),
        held_out=base.held_out,
    )  # fmt: skip


def one_token(at: Workload) -> Workload:
    """The workload of `kda_decode` that one token of each request is."""
    axes = {name: value for name, value in at.axes.items() if name != "tokens"}
    return at.model_copy(update={"axes": axes | {"rows": at.axes["rows"] // at.axes["tokens"], "slots_stride": 1}})


def tensors(shard: KdaShard, at: Workload) -> tuple[TensorSpec, ...]:
    """Those of `kda_decode`, with a table of slots."""
    axes = at.axes
    shape, strides = (axes["rows"] // axes["tokens"], 1 + axes["tokens"]), (axes["slots_stride"], 1)
    table = TensorSpec(name="slots", dtype=DType.I32, role=TensorRole.INPUT, shape=shape, strides=strides)
    return tuple(table if spec.name == "slots" else spec for spec in single.tensors(shard, at))


def _widths(rows: int) -> list[int]:
    """Tokens that requests of `rows` rows in all can have, ascending."""
    return [tokens for tokens in range(1, WIDTH + 1) if rows % tokens == 0]
