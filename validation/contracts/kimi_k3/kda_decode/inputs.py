"""What the inputs of `kda_decode` look like: one function a distribution, each there to catch something.

The gate projection is rounded to bfloat16 inside the op. Were the exact sum to fall next to a rounding boundary, two
right kernels that add in different orders would round to different neighbours and differ by half a percent in a whole
column of the state. So f_a and f_b are drawn such that no order matters: their products and every partial sum are
integers times one power of two and fit float32 exactly; or, with full mantissas, each sum keeps a proven distance
from every boundary (`_clear_of_ties`). The comparison needs no exception for ties, and a tie may be tested on purpose.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ...base import Workload
from ..architecture import KdaShard
from .oracle import Oracle, to_bfloat16

Inputs = dict[str, Tensor]

_STATE_SCALE = 0.3


def draw(oracle: Oracle, workload: Workload, distribution: str, seed: int) -> Inputs:
    """Static tensors, inputs and initial state, contiguous on the CPU; equal arguments, equal bits."""
    shard, random = oracle.shard, Generator().manual_seed(seed)
    inputs = _typical(shard, workload, random)
    _SHAPERS[distribution][1](inputs, oracle, random)
    # Nobody may look at the padding columns.
    inputs["projected"][:, shard.columns["pad"]] = math.nan
    return inputs


def redraw_row(inputs: Inputs, shard: KdaShard, row: int, seed: int) -> Inputs:
    """A copy in which all that only `row` reads is drawn anew: its projection and, if it owns one, its page."""
    random = Generator().manual_seed(seed)
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    slot = int(inputs["slots"][row])
    projected = changed["projected"]
    projected[row] = 3 * _normal(random, projected.shape[1:])
    projected[row, shard.columns["f_a"]] = _grid(random, (shard.gate_rank,), 15, 8)
    if slot > 0:
        changed["conv_state"][slot] = 3 * _normal(random, changed["conv_state"].shape[1:])
        changed["recurrent_state"][slot] = _normal(random, changed["recurrent_state"].shape[1:])
    return changed


def _typical(shard: KdaShard, workload: Workload, random: Generator) -> Inputs:
    rows, slots = workload.axes["rows"], workload.axes["slots"]
    channels, heads, dim, rank = shard.channels, shard.heads, shard.head_dim, shard.gate_rank
    projected = _normal(random, (rows, shard.projection_rows)).bfloat16()
    projected[:, shard.columns["f_a"]] = _grid(random, (rows, rank), 15, 8).bfloat16()
    return {
        "f_b": _grid(random, (channels, rank), 7, 64).bfloat16(),
        "conv_weight": 0.5 * _normal(random, (3 * channels, shard.conv_width)),
        # The layer's initialisation: exp(A_log) uniform in (1, 16).
        "a_log": _uniform(random, (heads,), 1, 16).log(),
        "dt_bias": _uniform(random, (channels,), -0.75, 0.5),
        "o_norm": _uniform(random, (dim,), 0.5, 1.5).bfloat16(),
        "projected": projected,
        "slots": (torch.randperm(slots - 1, generator=random)[:rows] + 1).int(),
        "conv_state": _normal(random, (slots, shard.conv_width - 1, 3 * channels)).bfloat16(),
        "recurrent_state": _normal(random, (slots, heads, dim, dim)).mul_(_STATE_SCALE),
    }


def _as_typical(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    pass  # the other distributions start from these


def _gate_ties(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    # Sums of about 900 in units of 1/512 need ten bits: about a quarter lie exactly between two bfloat16 values.
    # Small rates keep the sigmoid where it is steep.
    inputs["a_log"] = _uniform(random, inputs["a_log"].shape, 0.5, 2).log()
    inputs["f_b"] = _grid(random, inputs["f_b"].shape, 15, 64).bfloat16()
    inputs["dt_bias"] = _uniform(random, inputs["dt_bias"].shape, -0.25, 0.25)


def _gate_mantissas(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    f_a = _normal(random, (len(inputs["projected"]), oracle.shard.gate_rank)).bfloat16()
    inputs["projected"][:, oracle.shard.columns["f_a"]] = f_a
    inputs["f_b"] = _clear_of_ties(f_a, inputs["f_b"].shape, 0.2, random)
    inputs["a_log"] = _uniform(random, inputs["a_log"].shape, 0.5, 2).log()


def _wide_range(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    rows, heads, dim = len(inputs["projected"]), oracle.shard.heads, oracle.shard.head_dim
    for number, name in enumerate("qkv"):
        scale = 2 ** _uniform(random, (rows, heads, 1), -12, 12).expand(-1, -1, dim).flatten(1)
        inputs["projected"][:, oracle.shard.columns[name]] *= scale.bfloat16()
        page = slice(number * oracle.shard.channels, (number + 1) * oracle.shard.channels)
        live = inputs["slots"].long()
        inputs["conv_state"][live, :, page] *= scale[:, None].bfloat16()
    pool = inputs["recurrent_state"]
    pool *= 2 ** _uniform(random, (*pool.shape[:3], 1), -10, 10)


def _decay_extremes(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    # Even heads: 5 sigmoid(x) in 5 e^-8 to 5 e^-12, decays of 0.9983 to 0.99997. Odd heads: within 1e-3 of e^-5.
    even = (torch.arange(oracle.shard.heads) % 2 == 0).repeat_interleave(oracle.shard.head_dim)
    inputs["a_log"] = torch.zeros_like(inputs["a_log"])
    inputs["f_b"] = _grid(random, inputs["f_b"].shape, 1, 256).bfloat16()
    bias = _uniform(random, even.shape, 8, 12)
    inputs["dt_bias"] = torch.where(even, -bias, bias)
    inputs["recurrent_state"] += 1


def _beta_extremes(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    columns = oracle.shard.columns["beta"]
    shape = (len(inputs["projected"]), oracle.shard.heads)
    kind = torch.randint(3, shape, generator=random)
    size = _uniform(random, shape, 9, 20)
    logits = torch.where(kind == 0, -size, torch.where(kind == 1, size, _uniform(random, shape, -3, 3)))
    inputs["projected"][:, columns] = logits.bfloat16()


def _near_zero(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    # By (row + head) in turn: zero q; zero k; zero v; all zero; q and k near the epsilon; subnormal v.
    heads, dim, live = oracle.shard.heads, oracle.shard.head_dim, inputs["slots"].long()
    turn = (torch.arange(len(live))[:, None] + torch.arange(heads) + int(torch.randint(6, (), generator=random))) % 6
    factors = {
        "q": torch.tensor([0, 1, 1, 0, 2**-11, 1.0]),
        "k": torch.tensor([1, 0, 1, 0, 2**-11, 1.0]),
        "v": torch.tensor([1, 1, 0, 0, 1.0, 2.0**-130]),
    }
    for number, (name, factor) in enumerate(factors.items()):
        scale = factor[turn].repeat_interleave(dim, 1)
        columns = slice(number * oracle.shard.channels, (number + 1) * oracle.shard.channels)
        inputs["projected"][:, oracle.shard.columns[name]] *= scale
        inputs["conv_state"][live, :, columns] *= scale[:, None]
    inputs["recurrent_state"][live] *= (turn < 3)[..., None, None]
    inputs["projected"][::2, oracle.shard.columns["f_a"]] = 0


def _pad(inputs: Inputs, first: int, negative: torch.Tensor) -> torch.Tensor:
    """Makes every other row from `first` on padding: the null page, then `negative`, in turn. Returns those rows."""
    padding = torch.arange(first, len(inputs["slots"]), 2)
    marks = torch.cat([torch.zeros(1, dtype=torch.int32), negative])
    inputs["slots"][padding] = marks[torch.arange(len(padding)) % len(marks)]
    return padding


def _negative(random: Generator) -> torch.Tensor:
    """Three negative page numbers, each of another kind: one that is nobody's convention, the least, and -1."""
    other = int(torch.randint(-(2**31) + 1, -1, (), generator=random))
    return torch.tensor([other, -(2**31), -1], dtype=torch.int32)


def _padded(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    # Finite values in the null page, so that writing it changes something. From the first row on, so that three rows
    # hold the null page and a negative number.
    _pad(inputs, 0, _negative(random))


def _padded_nan(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    # A single row always is padding.
    first = 0 if len(inputs["slots"]) == 1 else int(torch.randint(2, (), generator=random))
    inputs["projected"][_pad(inputs, first, _negative(random)[torch.randperm(3, generator=random)])] = math.nan
    owned = torch.zeros(len(inputs["conv_state"]), dtype=torch.bool)
    owned[inputs["slots"][inputs["slots"] > 0].long()] = True
    inputs["conv_state"][~owned] = math.nan
    inputs["recurrent_state"][~owned] = math.nan


def _accumulated(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    # Sums of like-signed numbers: nothing cancels, and a narrow accumulator loses the low end.
    inputs["recurrent_state"].add_(1).mul_(64)
    for name in "qkv":
        inputs["projected"][:, oracle.shard.columns[name]] += 1
    inputs["conv_state"] += 1
    inputs["conv_weight"] = inputs["conv_weight"].abs()


def _converged(inputs: Inputs, oracle: Oracle, random: Generator) -> None:
    # A state of rank one with S diag(a) k = v up to float32 rounding: the prediction error v - S k cancels.
    step = oracle.step(inputs)
    _, key, value = oracle.convolved(step)
    reader = oracle.normalised(key) / oracle.decay(step)
    inputs["recurrent_state"][inputs["slots"].long()] = (value[..., None] * reader[..., None, :]).float()


def _clear_of_ties(f_a: Tensor, shape: tuple[int, ...], scale: float, random: Generator) -> Tensor:
    """f_b [p, rank] in bfloat16 such that any float32 summation of f_b f_a rounds to the same bfloat16 value.

    Products of two bfloat16 numbers are exact in float32. Adding n of them in any order errs by at most
    (n - 1) 2^-24 / (1 - (n - 1) 2^-24) times the sum of their magnitudes (Higham, section 4.2); rows whose interval
    holds a rounding boundary are drawn again.
    """
    rank = shape[1]
    exact_a = f_a.double()
    f_b = torch.empty(shape, dtype=torch.bfloat16)
    todo = torch.arange(shape[0])
    while len(todo):
        f_b[todo] = (scale * _normal(random, (len(todo), rank))).bfloat16()
        rows = f_b[todo].double()
        total = exact_a @ rows.T
        bound = rank * 2.0**-24 * (exact_a.abs() @ rows.abs().T)
        unsafe = to_bfloat16(total - bound) != to_bfloat16(total + bound)
        todo = todo[unsafe.any(0)]
    return f_b


def _grid(random: Generator, shape: tuple[int, ...], limit: int, per_unit: int) -> Tensor:
    """Integers from -limit to limit, divided by a power of two."""
    return torch.randint(-limit, limit + 1, shape, generator=random).float() / per_unit


def _normal(random: Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=random)


def _uniform(random: Generator, shape: tuple[int, ...], low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=random)


# Name -> what the values look like and what they are there to catch; how the typical inputs are reshaped.
_SHAPERS: dict[str, tuple[str, Callable[[Inputs, Oracle, Generator], None]]] = {
    "typical": ("unit-scale activations, decays over their whole range, beta around one half", _as_typical),
    "gate_ties": (
        "gate sums of ten bits, a quarter exactly between two bfloat16 values, on the steep part of the sigmoid: "
        "catches a gate that is not rounded, truncated, or rounded half away",
        _gate_ties,
    ),
    "gate_mantissas": (
        "gate factors with full bfloat16 mantissas, each sum proven clear of rounding boundaries: "
        "catches a gate computed from narrower factors or accumulated in less than float32",
        _gate_mantissas,
    ),
    "wide_range": (
        "q, k, v and state rows scaled by powers of two from 2^-12 to 2^12: catches half-precision intermediates",
        _wide_range,
    ),
    "decay_extremes": (
        "decays of 0.998 to 0.99997 in even heads and next to e^-5 in odd ones over a state of mean one: "
        "catches a decay narrower than float32",
        _decay_extremes,
    ),
    "beta_extremes": ("beta next to 0, next to 1 and between: catches a beta narrower than float32", _beta_extremes),
    "near_zero": (
        "rows of zeros, rows near the L2 epsilon, subnormal values, zero gate factors: catches epsilons left out, "
        "moved, or divisions of zero by zero",
        _near_zero,
    ),
    "padded": (
        "every other row padded (slot 0 or any negative number), with values that would pass for real ones in its "
        "projection and in the null page: catches padding that is written or let through",
        _padded,
    ),
    "padded_nan": (
        "the same with NaN in the padded projections, in the null page and in pages nobody owns: catches padding that "
        "is read",
        _padded_nan,
    ),
    "accumulated": (
        "a large state of non-zero mean and positive activations, as after a long context: "
        "catches a state or an accumulator narrower than float32",
        _accumulated,
    ),
    "converged": (
        "a state that already predicts v, so that the prediction error cancels: catches TF32 or bfloat16 products",
        _converged,
    ),
}

DISTRIBUTIONS: dict[str, str] = {name: line for name, (line, _) in _SHAPERS.items()}
