"""The hand-written part of a model's contract: envelopes, workloads and tolerances (`contract.toml`)."""

from pydantic import ConfigDict, Field, PositiveInt, field_validator

from ..records import Frozen
from ..tensors import DType
from .base import Comparison


class _Strict(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Envelope(_Strict):
    """The conditions on one kind of hardware that an implementation is validated for, or claims to be."""

    device: str = Field(min_length=1, description="the name that the driver reports begins with this")
    compute_capability: tuple[int, int]
    tp: tuple[PositiveInt, ...] = Field(min_length=1)
    min_rows: PositiveInt
    max_rows: PositiveInt
    verify_width: tuple[PositiveInt, ...] = Field(min_length=1, description="tokens a request brings to one step")
    weights: DType
    conv_state: DType
    recurrent_state: DType

    @field_validator("max_rows")
    @classmethod
    def _rows(cls, max_rows: int, info) -> int:
        if max_rows < info.data.get("min_rows", 1):
            raise ValueError(f"max_rows must be at least min_rows = {info.data['min_rows']}")
        return max_rows

    def excess(self, claim: "Envelope") -> tuple[str, ...]:
        """What `claim` covers and this envelope does not, one line each; empty when the claim fits."""
        same = ("device", "compute_capability", "weights", "conv_state", "recurrent_state")
        lines = [
            f"{name} = {getattr(claim, name)!s}, validated is {getattr(self, name)!s}"
            for name in same
            if getattr(claim, name) != getattr(self, name)
        ]
        for name in ("tp", "verify_width"):
            beyond = sorted(set(getattr(claim, name)) - set(getattr(self, name)))
            if beyond:
                lines.append(f"{name} = {beyond}, validated are {list(getattr(self, name))}")
        if claim.min_rows < self.min_rows or claim.max_rows > self.max_rows:
            lines.append(f"rows {claim.min_rows} to {claim.max_rows}, validated are {self.min_rows} to {self.max_rows}")
        return tuple(lines)


class OpPolicy(_Strict):
    """Where one op is judged and how closely."""

    tp: tuple[PositiveInt, ...] = Field(min_length=1)
    batch_buckets: tuple[PositiveInt, ...] = Field(min_length=1, description="rows; ascending")
    held_out_rows: tuple[PositiveInt, ...] = Field(min_length=1)
    comparisons: tuple[Comparison, ...] = Field(min_length=1)

    @field_validator("batch_buckets")
    @classmethod
    def _ascending(cls, buckets: tuple[int, ...]) -> tuple[int, ...]:
        if list(buckets) != sorted(set(buckets)):
            raise ValueError("batch buckets must ascend without repeats")
        return buckets

    @field_validator("held_out_rows")
    @classmethod
    def _covered(cls, rows: tuple[int, ...], info) -> tuple[int, ...]:
        buckets = info.data.get("batch_buckets")
        if buckets and max(rows) > buckets[-1]:
            raise ValueError(f"held-out rows must not pass the largest batch bucket, {buckets[-1]}")
        return rows

    @field_validator("comparisons")
    @classmethod
    def _one_each(cls, comparisons: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
        names = [comparison.tensor for comparison in comparisons]
        if len(names) != len(set(names)):
            raise ValueError("a tensor may have one comparison only")
        return comparisons


class ContractPolicy(_Strict):
    """All of `contract.toml`."""

    envelope: dict[str, Envelope] = Field(min_length=1)
    ops: dict[str, OpPolicy] = Field(min_length=1)
