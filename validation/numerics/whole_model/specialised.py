"""The handle on the specialised path's process: a path like any other, whose kernels run elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ...contracts.base import Workload
from ...contracts.kimi_k3.numerics.weights import WeightsOf
from ...performance.arm import Arm, packed, unpacked
from .cards import CPU


@dataclass(frozen=True)
class Seen:
    """What a step left, and who ran it: "specialised", or "stock" outside of the envelope."""

    logits: Tensor
    streams: Tensor
    chosen: dict[int, Tensor]
    scores: dict[int, Tensor]
    ran: str


class Specialised(Arm):
    """The decode path of the model directory `directory`, on all `tp` ranks, over some weights. A context manager."""

    def __init__(self, model: str, directory: Path, weights: WeightsOf, tp: int, device: str = CPU) -> None:
        super().__init__(
            "specialised", model, directory, worker=f"{__package__}.specialised_worker",
            environment={"TRITON_INTERPRET": "1"} if device == CPU else {},
        )  # fmt: skip
        self._weights, self._tp, self._device = weights, tp, device
        self.buckets: Sequence[int] = (1,)
        """Row counts to be prepared at the next `begin`"""

    def __enter__(self) -> "Specialised":
        super().__enter__()
        self._ask("open", weights=self._weights.model_dump(mode="json"), tp=self._tp, device=self._device)
        return self

    def begin(self, requests: int, max_tokens: int, width: int) -> None:
        """Empty caches, and every bucket prepared on them."""
        self._ask("begin", requests=requests, max_tokens=max_tokens, width=width, buckets=list(self.buckets))

    def prefill(self, batch: Any) -> Seen:
        """See the worker."""
        return _seen(self._ask("prefill", **_plain(batch)))

    def decode(self, batch: Any) -> Seen:
        """See the worker."""
        return _seen(self._ask("decode", **_plain(batch)))

    def commit(self, batch: Any, accepted: Sequence[int]) -> None:
        """See the worker."""
        self._ask("commit", accepted=list(accepted), **_plain(batch))

    def release(self, request: int) -> None:
        """The request's pages are somebody else's."""
        self._ask("release", request=request)

    def committed(self, request: int) -> dict[str, Tensor]:
        """What later steps can see of a request."""
        return {name: received(tensor) for name, tensor in self._ask("committed", request=request).items()}

    def null_pages(self) -> tuple[str, ...]:
        """Pools whose null page was written."""
        return self._ask("null_pages")

    def save(self, file: Path) -> None:
        """Writes the state."""
        self._ask("save", file=str(file))

    def load(self, file: Path) -> None:
        """Takes up what `save` wrote."""
        self._ask("load", file=str(file))

    def op(self, op: str, at: Workload, inputs: Mapping[str, Tensor], *, true_widths: bool = False) -> dict[str, Tensor]:
        """What one op's kernel writes, at the checkpoint's widths or at the published ones."""
        sent = {name: packed(tensor) for name, tensor in inputs.items()}
        command = "true_op" if true_widths else "op"
        found = self._ask(command, op=op, at=at.model_dump(mode="json"), inputs=sent)
        return {name: received(tensor) for name, tensor in found.items()}

    def long_state(
        self, seed: int, tp: int, steps: int, decades: Sequence[int], kept: Path | None = None
    ) -> dict[int, tuple[Tensor, Tensor]]:  # fmt: skip
        """See the worker."""
        file = str(kept.absolute()) if kept else None
        found = self._ask("long_state", seed=seed, tp=tp, steps=steps, decades=list(decades), kept=file)
        return {step: tuple(received(tensor) for tensor in pair) for step, pair in found.items()}

    def launches(self) -> list[str]:
        """Names of the kernels that ran."""
        return self._ask("launches")


def received(data: Any) -> Tensor:
    """The tensor that `packed` was given; empty ones (what no other rank sent) among them."""
    import torch

    dtype, shape, contents = data
    return unpacked(data) if contents else torch.empty(shape, dtype=getattr(torch, dtype))


def _plain(batch: Any) -> dict[str, Any]:
    return {"tokens": batch.tokens.tolist(), "requests": list(batch.requests), "counts": list(batch.counts)}


def _seen(sent: dict[str, Any]) -> Seen:
    return Seen(
        received(sent["logits"]), received(sent["streams"]),
        *({layer: received(tensor) for layer, tensor in sent[name].items()} for name in ("chosen", "scores")),
        sent["ran"],
    )  # fmt: skip
