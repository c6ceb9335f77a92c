"""What every op contract offers to the judge. A contract never sees a candidate."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field

from ..records import Frozen
from ..tensors import DType

if TYPE_CHECKING:
    import torch

    from .stock import StockPath

    Tensors = Mapping[str, "torch.Tensor"]


class TensorRole(StrEnum):
    """How a tensor takes part in an op.

    static: weights; `prepare` may repack them. input: changes with every call; read only. state: read and updated in
    place. output: written in full; what it held before is poison.
    """

    STATIC = "static"
    INPUT = "input"
    STATE = "state"
    OUTPUT = "output"


class TensorSpec(Frozen):
    """One tensor of an op for one workload. Strides count elements; storage may have gaps (page stride)."""

    name: str
    dtype: DType
    role: TensorRole
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def storage_elements(self) -> int:
        """Elements from the first to the last one addressed, gaps included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


class Workload(Frozen):
    """One point at which an op is judged. `axes` is what a candidate sees; equal axes, equal plan."""

    name: str
    axes: dict[str, int] = Field(description="tp, heads, rows, slots, strides: all that launch() may depend on")
    held_out: bool = False


class Cost(Frozen):
    """What an op must move and compute at least: the floor's numerator."""

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written


class Comparison(Frozen):
    """How one produced tensor is held against the oracle.

    exact: bit for bit. calibrated: the candidate's error against the float64 oracle may be `ratio` times the plain
    path's own error, at the median and at p99.9, or `floor` relative to the tensor's scale, whichever is larger.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tensor: str
    kind: str = Field(pattern="^(exact|calibrated)$")
    ratio: float = Field(default=1.25, ge=1)
    floor: float = Field(default=0.0, ge=0, description="relative to the root mean square of the expected row")
    max_ratio: float = Field(default=4.0, ge=1, description="the same factor for the largest error")
    row_axes: int = Field(default=1, ge=1, description="leading axes that count as rows when errors are scaled")


class Far(Frozen):
    """A workload whose pools are too large to exist: page numbers shifted until offsets pass 32 bits.

    The judge runs an ordinary workload's memory with every live page number raised by `shift` and the pools' base
    addresses lowered by as many pages: what a kernel with 64-bit offsets touches is the same memory, and a kernel whose
    offsets wrap lands outside of it.
    """

    workload: Workload = Field(description="what the plan is recorded for: the axes of the large pool")
    shift: int = Field(gt=0, description="pages")
    pages: str = Field(description="the input that holds page numbers; those above zero are raised")
    pools: tuple[str, ...]


class OpContract(ABC):
    """The exam of one op. Tensors are logical (contiguous, CPU) here; the judge lays them out with the strides."""

    model: str
    op: str
    layout_axes: Mapping[str, tuple[str, ...]] = {}
    """Tensor -> the axes that say its shape and how it lies, where layouts vary its shape: ops that share it share them"""
    optional_axes: tuple[str, ...] = ()
    """Axes that a workload may have, and lacks where the op is judged alone"""
    unheld: frozenset[str] = frozenset()
    """Produced tensors that are not compared in the row that `perturb_row` redrew: they follow a choice (of experts)
    that may hang on a rounding there. What other rows leave in them is compared bit for bit all the same"""

    @abstractmethod
    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """The declared workloads (one for each TP and batch bucket), or the held-out ones."""

    def small(self) -> tuple[Workload, ...]:
        """Workloads that stand in for the declared ones on a CPU and wherever many draws are made.

        None where the declared ones are small enough, which most are.
        """
        return ()

    @abstractmethod
    def vary(self, workload: Workload, seed: int) -> Workload:
        """A workload of the same bucket with an unpredictable layout: other row count, slot pool, page strides."""

    @abstractmethod
    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Every tensor of the op at `workload`, in the order of the contract."""

    @property
    @abstractmethod
    def distributions(self) -> Mapping[str, str]:
        """Name -> one line on what the values look like and what they are there to catch."""

    @abstractmethod
    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> dict[str, "torch.Tensor"]:
        """Static tensors, inputs and initial state, drawn from `distribution` with `seed`."""

    @abstractmethod
    def oracle(self, inputs: "Tensors", workload: Workload) -> dict[str, "torch.Tensor"]:
        """Expected outputs and updated state: float64, or the exact dtype where the comparison is exact."""

    @abstractmethod
    def plain(self, inputs: "Tensors", workload: Workload) -> dict[str, "torch.Tensor"]:
        """The same in unfused PyTorch with the published rounding points: the yardstick of the tolerance."""

    @abstractmethod
    def stock(self, device: str) -> "StockPath":
        """The best public pieces that a user runs today, on a GPU. Raises UserError naming what is missing."""

    @property
    @abstractmethod
    def comparisons(self) -> tuple[Comparison, ...]:
        """One comparison for each produced tensor (outputs and states)."""

    @property
    @abstractmethod
    def hypotheses(self) -> "Mapping[str, Callable[[Tensors, Workload], dict[str, torch.Tensor]]]":
        """Known mistakes as variants of the oracle: description -> what a kernel with that mistake would produce.

        A rejected candidate is compared with each, so that the verdict can say which one explains the error.
        """

    def far(self, workload: Workload) -> Far | None:
        """`workload` with pools so large that page offsets need 64 bits; None for an op without pools."""
        return None

    def localise(self, wrong: frozenset[str]) -> str | None:
        """Where a fault must lie when exactly these produced tensors are wrong; None where that tells nothing.

        Said when no hypothesis explains the error.
        """
        return None

    @abstractmethod
    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """The batch row that element `index` of a produced tensor belongs to; None if it belongs to no live row."""

    def redrawable(self, workload: Workload) -> int:
        """How many numbers `perturb_row` redraws something for: rows, or requests where rows of one depend on each other."""
        return workload.axes["rows"]

    @abstractmethod
    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> dict[str, "torch.Tensor"]:
        """The same inputs with everything that row `row` alone reads redrawn: other rows must not change a bit."""

    @abstractmethod
    def cost(self, workload: Workload) -> Cost:
        """The bytes and flops that the op cannot do without at `workload`."""

    @cached_property
    def produced(self) -> tuple[str, ...]:
        """Names of the tensors that a launch writes: outputs and states."""
        return tuple(comparison.tensor for comparison in self.comparisons)
