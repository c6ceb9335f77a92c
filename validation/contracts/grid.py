"""The performance grid of a model: which cells there are, and what one rank's shard of a cell consists of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field

from ..records import Frozen
from .base import Comparison, Cost

if TYPE_CHECKING:
    from torch import Tensor

    from .stock import StockRun


class Span(StrEnum):
    """How much of a step a cell runs."""

    LAYER = "layer"
    STEP = "step"


class CellSpec(Frozen):
    """One cell of the grid."""

    span: Span
    kind: str = Field(description="of the layer, or of the whole step: kda_moe, mla_moe, step")
    tp: int = Field(ge=1)
    rows: int = Field(ge=1, description="rows of the step: requests times tokens of each")
    width: int = Field(default=1, ge=1, description="tokens that each request brings: above one a verify step")
    context: int | None = Field(default=None, description="cached tokens of each request; None where nothing is cached")

    @property
    def key(self) -> str:
        """A name of letters, digits, dashes and underscores, unique in a grid."""
        context = "" if self.context is None else f"-c{self.context}"
        verify = "" if self.width == 1 else f"-v{self.width}"
        return f"tp{self.tp}-{self.kind}-r{self.rows}{verify}{context}"

    @property
    def title(self) -> str:
        """For people."""
        verify = "" if self.width == 1 else f" ({self.rows // self.width} x {self.width})"
        context = "" if self.context is None else f", {self.context} tokens cached"
        return f"{self.kind} TP{self.tp} rows {self.rows}{verify}{context}"


class Ambiguous(ValueError):
    """Of no examined row any honest arithmetic would decide alike: draw others."""


class Shard(ABC):
    """One rank's part of a cell: the tensors that it reads, and what must come out. Ranks' exchange is given memory."""

    spec: CellSpec
    scope: str
    """What the figures of this shard are about, as it stands beside them"""
    names: tuple[str, ...]
    """Places of the step, in order"""

    @abstractmethod
    def draw(self, seed: int, device: str) -> "dict[str, Tensor]":
        """"place.tensor" -> weights, states and inputs, laid out as contracts say. Equal arguments on one kind of
        device give equal bits, whichever process draws."""

    @abstractmethod
    def volatile(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(inputs, states) among the names of `draw`; all else is weights."""

    @abstractmethod
    def stock(self, tensors: "Mapping[str, Tensor]") -> "StockRun":
        """The stock path on tensors of a GPU."""

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """What the shard must move and compute at least, in the arrangement of the specialised path."""

    @property
    @abstractmethod
    def stock_cost(self) -> Cost:
        """The same in the arrangement of the stock path, which may read more."""

    @property
    @abstractmethod
    def slot_bytes(self) -> int:
        """Memory of one set of `draw`'s tensors."""

    @property
    @abstractmethod
    def path_bytes(self) -> tuple[int, int]:
        """Memory of one copy on the specialised and on the stock path, repacked weights included."""

    @property
    @abstractmethod
    def copies(self) -> int | None:
        """How many copies take turns, where one call leaves nothing of itself in L2; None where that is to be worked
        out."""

    @abstractmethod
    def examined(self, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Examined]":
        """The right results for some rows of `tensors` (as drawn, before anything ran), by path: specialised, stock.

        Worked out on the CPU, wherever they lie. Raises Ambiguous."""


class Examined(ABC):
    """What a path's results are held against: oracle and plain path of a sample of rows."""

    rows: tuple[int, ...]
    """Those examined, as indices of the batch"""
    comparisons: tuple[Comparison, ...]

    @property
    @abstractmethod
    def selection(self) -> "dict[str, Tensor]":
        """Value of the step -> those of its leading indices that examined rows own."""

    @abstractmethod
    def results(self, produced: "Mapping[str, Tensor]") -> "dict[str, tuple[Tensor, Tensor, Tensor]]":
        """Tensor of the comparisons -> (oracle, plain path, what was produced), all of the selected indices.

        `produced`: value -> its selected indices, on the CPU."""


class Grid(ABC):
    """All cells of a model, and their shards."""

    @abstractmethod
    def cells(self, hardware: str) -> tuple[CellSpec, ...]:
        """Every cell that there is for this hardware, in the order in which they are shown."""

    @abstractmethod
    def excluded(self, spec: CellSpec, verify_width: int) -> str | None:
        """Why a cell can't be run whatever the machine, or None. `verify_width` is what the kernels are claimed for."""

    @property
    @abstractmethod
    def layers(self) -> Mapping[str, int]:
        """Kind of a layer's cell -> how many layers of a step are of that kind."""

    @abstractmethod
    def ops(self, spec: CellSpec) -> tuple[str, ...]:
        """The ops that a cell runs, by name."""

    @abstractmethod
    def shard(self, spec: CellSpec, hardware: str) -> Shard:
        """One rank's part of a cell."""
