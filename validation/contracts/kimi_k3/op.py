"""What the ops of a layer share: workloads of one rank, layouts that vary, and a lazy way to their mathematics.

An op is a package of two modules: `contract.py` (shapes, bytes and flops; imports no tensor library) and `maths.py`
(inputs, oracle, plain path, known mistakes).
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from ...errors import UserError
from ...tensors import DType
from ..base import Comparison, OpContract, TensorRole, TensorSpec, Workload
from ..policy import OpPolicy
from .architecture import Architecture

if TYPE_CHECKING:
    from torch import Tensor

    from ..stock import StockPath

    Tensors = Mapping[str, Tensor]
    Path = Callable[[Tensors, Workload], dict[str, Tensor]]

# Rows and pages begin on 16 bytes: eight bf16 elements.
ALIGNED = 8


class Layout:
    """How a workload lies in memory: as declared (no generator), or drawn."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng

    def gap(self) -> int:
        """Elements between rows: none as declared, else 0 to 512 in steps of 16 bytes of bf16."""
        return ALIGNED * self.rng.randrange(0, 65) if self.rng else 0

    def choice(self, declared: int, *others: int) -> int:
        """`declared`, or any of the values where the layout is drawn."""
        return self.rng.choice((declared, *others)) if self.rng else declared


class RankOp(OpContract):
    """One op on one rank of a tensor-parallel group, for one decode step of `rows` tokens."""

    model = "kimi_k3"
    row_axes: Mapping[str, int]
    """Input -> the axis that counts batch rows. Inputs that are not named belong to no single row."""

    def __init__(self, architecture: Architecture, policy: OpPolicy) -> None:
        self.architecture = architecture
        self.policy = policy

    @abstractmethod
    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """The axes of a workload besides `tp` and `rows`."""

    def at(self, tp: int, rows: int, layout: Layout, name: str, *, held_out: bool = False) -> Workload:
        """A workload of `rows` rows on one rank of `tp`."""
        return Workload(
            name=name, axes={"tp": tp, "rows": rows, **self.axes(tp, rows, layout)}, held_out=held_out
        )

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """One workload for each TP and batch bucket; held out: other row counts in other layouts."""
        if not held_out:
            return tuple(
                self.at(tp, rows, Layout(), f"tp{tp}-b{rows}")
                for tp in self.policy.tp
                for rows in self.policy.batch_buckets
            )
        return tuple(
            self.at(tp, rows, self._drawn(f"held out {tp} {rows}"), f"tp{tp}-r{rows}", held_out=True)
            for tp in self.policy.tp
            for rows in self.policy.held_out_rows
        )

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Same TP and bucket; row count (odd where the bucket has one) and layout redrawn."""
        layout = self._drawn(f"{workload.name} {seed}")
        buckets = self.policy.batch_buckets
        bucket = next(bucket for bucket in buckets if workload.axes["rows"] <= bucket)
        below = max((other for other in buckets if other < bucket), default=0)
        odd = [rows for rows in range(below + 1, bucket + 1) if rows % 2]
        rows = layout.rng.choice(odd or [bucket])
        return self.at(workload.axes["tp"], rows, layout, f"{workload.name}-v{seed}", held_out=workload.held_out)

    def _drawn(self, what: str) -> Layout:
        return Layout(random.Random(f"{self.op} {what}"))

    def divided(self, what: str, size: int, tp: int) -> int:
        """One rank's part of `size`. Raises UserError where `tp` does not divide it."""
        if tp < 1 or size % tp:
            raise UserError(f"{size} {what} cannot be split over TP {tp}", f"use a divisor of {size}")
        return size // tp

    @cached_property
    def maths(self) -> ModuleType:
        """The module that draws inputs and computes (imports torch)."""
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.maths")

    @property
    def distributions(self) -> Mapping[str, str]:
        """See `maths`."""
        return self.maths.DISTRIBUTIONS.lines

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> "dict[str, Tensor]":
        """Contiguous CPU tensors: static, inputs and initial state. Equal arguments give equal bits."""
        return self.maths.DISTRIBUTIONS.draw(self, workload, distribution, seed)

    def oracle(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """float64, nothing rounded; exact types where the comparison is exact."""
        return self.maths.Oracle(self, inputs, workload)()

    def plain(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """Unfused float32 with the published rounding points."""
        return self.maths.plain(self, inputs, workload)

    def stock(self, device: str) -> "StockPath":
        """See stock/ops.py, which is no part of the exam: what decides is the oracle."""
        return import_module(f"{__package__}.stock").op(self, device)

    def experts(self, workload: Workload) -> int:
        """Experts that a router chooses among: all of the model's but where a part is judged with fewer."""
        return workload.axes.get("experts", self.architecture.moe.experts)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """As `contract.toml` sets them."""
        return self.policy.comparisons

    @cached_property
    def hypotheses(self) -> "Mapping[str, Path]":
        """Variants of the oracle, one known mistake each."""

        def bound(variant: type) -> "Path":
            return lambda inputs, workload: variant(self, inputs, workload)()

        return {description: bound(variant) for description, variant in self.maths.MISTAKES.items()}

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """Produced tensors lead with the batch row, and every row is live."""
        if tensor not in self.produced:
            raise UserError(f"{self.op} does not produce {tensor!r}", f"it produces {', '.join(self.produced)}")
        return index[0]

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws the row in every input that has rows."""
        fresh = self.maths.DISTRIBUTIONS.typical_inputs(self, workload, seed)
        # Weights are shared: all experts of a rank are two gigabytes.
        changed = dict(inputs)
        for name, axis in self.row_axes.items():
            if name in changed:
                changed[name] = inputs[name].clone()
                changed[name].select(axis, row).copy_(fresh[name].select(axis, row))
        return changed


def tensor(
    name: str, dtype: DType, role: TensorRole, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> TensorSpec:
    """A tensor of an op; dense unless strides are given."""
    if strides is None:
        dense, step = [], 1
        for size in reversed(shape):
            dense.append(step)
            step *= size
        strides = tuple(reversed(dense))
    return TensorSpec(name=name, dtype=dtype, role=role, shape=shape, strides=strides)


def static(name: str, *shape: int, dtype: DType = DType.BF16) -> TensorSpec:
    """A dense weight."""
    return tensor(name, dtype, TensorRole.STATIC, shape)


def rows_of(name: str, rows: int, width: int, stride: int, dtype: DType = DType.BF16) -> TensorSpec:
    """An input [rows, width] whose rows lie `stride` elements apart."""
    return tensor(name, dtype, TensorRole.INPUT, (rows, width), (stride, 1))


def output(name: str, *shape: int, dtype: DType = DType.BF16) -> TensorSpec:
    """A dense output."""
    return tensor(name, dtype, TensorRole.OUTPUT, shape)
