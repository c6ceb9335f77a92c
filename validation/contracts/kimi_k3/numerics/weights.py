"""Whose weights a run is about: a checkpoint's, or drawn ones of a few layers at the published widths."""

from pathlib import Path
from typing import Protocol

from pydantic import Field

from ....records import Frozen
from ..architecture import Architecture
from ..layer_weights import ModelWeights
from ..step.precision import PUBLISHED, Precision
from .observed import Observed
from .paths import Paths, TorchPath


class WeightsOf(Frozen):
    """Names weights; equal names are equal weights, on equal devices."""

    checkpoint: Path | None = None
    layers: tuple[int, ...] = Field(default=(), description="of the published model, where there is no checkpoint")
    seed: int = Field(default=0, description="of drawn weights")


class Weighed(Protocol):
    """The paths over some weights."""

    architecture: Architecture

    def shards(self, tp: int) -> tuple[ModelWeights, ...]:
        """Every rank's weights, as the decode path is given them."""

    def oracle(self) -> TorchPath:
        """float64, nothing rounded."""

    def stock(self, tp: int) -> TorchPath:
        """The plain path."""

    def again(self, tp: int, seed: int) -> TorchPath:
        """The plain path in another order of sums and another cut of the prefill."""

    def variant(self, tp: int, model: type[Observed], precision: Precision = PUBLISHED) -> Observed:
        """Another model over the plain path's weights."""


def paths_of(weights: WeightsOf, device: str = "cpu") -> Weighed:
    """The paths over `weights`, on `device`."""
    if weights.checkpoint:
        return Paths(weights.checkpoint, device)
    from .published import Published

    return Published(weights.layers, weights.seed, device)
