"""Oracle, plain path and known mistakes of `experts`."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import linear_maths
from ..drawing import bf16, fp8
from ..linear_maths import common_mistakes
from ..step.situ import situ
from ..weights.mxfp4 import GROUP, NAN_SCALE, dequantise
from .inputs import DISTRIBUTIONS

__all__ = ["DISTRIBUTIONS", "MISTAKES", "Oracle", "plain"]


class Oracle(linear_maths.Oracle):
    """The stages of the op in float64, each to be overridden by a mistake."""

    @property
    def constants(self):
        """SiTU's."""
        return self.contract.architecture.situ

    def __call__(self) -> dict[str, Tensor]:
        """routed: [rows, L]."""
        x, ids = self.x(), self.ids()
        outputs = x.new_zeros(*ids.shape, x.shape[1])
        for expert in ids.unique().tolist():
            row, place = self.places(ids, expert)
            w13, w2 = self.matrix("w13", expert), self.matrix("w2", expert)
            gate, up = self.halves(x[row] @ w13.T)
            outputs[row, place] = self.activation(gate, up) @ w2.T
        return {"routed": self.stored(self.weighed(outputs, self.inputs["weights"].double()))}

    def ids(self) -> Tensor:
        """[rows, k]."""
        return self.inputs["ids"]

    def places(self, ids: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        """The rows that chose `expert`, and in which place."""
        return (ids == expert).nonzero(as_tuple=True)

    def matrix(self, name: str, expert: int) -> Tensor:
        """[N, K] of one expert."""
        return self.values(self.inputs[f"{name}_packed"][expert], self.inputs[f"{name}_scale"][expert])

    def values(self, packed: Tensor, scale: Tensor) -> Tensor:
        """Elements times scales."""
        return dequantise(packed, scale)

    def halves(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """gate, up: [n, I]."""
        return both.chunk(2, 1)

    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        """[n, I]."""
        return situ(gate, up, self.constants)

    def weighed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """[rows, k, L] to [rows, L]."""
        return (weights[..., None] * outputs).sum(1)


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Expert by expert, float32; gate, up, activation and each expert's output leave bfloat16, and so does the sum."""
    constants, channels = contract.architecture.situ, workload.axes["channels"]
    x, ids = inputs["x"].float(), inputs["ids"]
    outputs = torch.zeros(*ids.shape, x.shape[1])
    for expert in sorted(set(ids.flatten().tolist())):
        w13 = _decoded(inputs["w13_packed"][expert], inputs["w13_scale"][expert])
        w2 = _decoded(inputs["w2_packed"][expert], inputs["w2_scale"][expert])
        chosen = ids == expert
        rows = chosen.any(1)
        gate = F.linear(x[rows], w13[:channels]).bfloat16().float()
        up = F.linear(x[rows], w13[channels:]).bfloat16().float()
        bounded = constants.beta * (gate / constants.beta).tanh() / (1 + (-gate).exp())
        activation = (bounded * constants.linear_beta * (up / constants.linear_beta).tanh()).bfloat16()
        outputs[chosen] = F.linear(activation.float(), w2).bfloat16().float()
    return {"routed": torch.einsum("rk,rkl->rl", inputs["weights"], outputs).bfloat16()}


def _decoded(packed: Tensor, scale: Tensor) -> Tensor:
    """Exact in float32. Bytes are looked up, for speed: see `_pairs`."""
    values = _PAIRS.to(packed.device).index_select(0, packed.flatten().int()).view(*scale.shape, GROUP)
    factor = torch.where(scale == NAN_SCALE, math.nan, torch.ldexp(torch.ones(scale.shape), scale.int() - 127))
    return (values * factor[..., None]).flatten(1)


def _pairs() -> Tensor:
    """The two elements of every byte [256, 2]: sign, two bits of exponent and one of mantissa, read as the format says."""
    codes = torch.stack([torch.arange(256) % 16, torch.arange(256) // 16], -1)
    exponent, mantissa = codes // 2 % 4, codes % 2
    magnitude = torch.where(exponent == 0, 0.5 * mantissa, (1 + 0.5 * mantissa) * torch.exp2(exponent - 1.0))
    return torch.where(codes >= 8, -magnitude, magnitude)


_PAIRS = _pairs()


MISTAKES = common_mistakes(Oracle, "split", "half", "short")


@MISTAKES("the high nibble is taken for the even element")
class _(Oracle):
    def values(self, packed, scale):
        return super().values(packed >> 4 | packed << 4, scale)


@MISTAKES("a scale serves the neighbouring group")
class _(Oracle):
    def values(self, packed, scale):
        return super().values(packed, scale.roll(1, 1))


@MISTAKES("scales have a bias of 126 instead of 127")
class _(Oracle):
    def values(self, packed, scale):
        return 2 * super().values(packed, scale)


@MISTAKES("scales pass through half precision")
class _(Oracle):
    def values(self, packed, scale):
        exact = torch.ldexp(torch.ones(scale.shape, dtype=torch.float64), scale.int() - 127)
        ratio = (exact.half().double() / exact).repeat_interleave(GROUP, 1)
        return super().values(packed, scale) * ratio


@MISTAKES("E2M1's subnormal 0.5 is flushed to zero")
class _(Oracle):
    def values(self, packed, scale):
        low, high = packed & 0x07, packed & 0x70
        kept = torch.where(low == 0x01, packed & 0xF0, packed)
        return super().values(torch.where(high == 0x10, kept & 0x0F, kept), scale)


@MISTAKES("the elements' signs are ignored")
class _(Oracle):
    def values(self, packed, scale):
        return super().values(packed, scale).abs()


@MISTAKES("gate and up are exchanged")
class _(Oracle):
    def halves(self, both):
        return super().halves(both)[::-1]


@MISTAKES("rows of gate and up are taken as interleaved")
class _(Oracle):
    def halves(self, both):
        return both[:, 0::2], both[:, 1::2]


@MISTAKES("the activation is SwiGLU: SiTU's constants were not found")
class _(Oracle):
    def activation(self, gate, up):
        return gate * gate.sigmoid() * up


@MISTAKES("the up-projection is not bounded")
class _(Oracle):
    def activation(self, gate, up):
        return self.constants.beta * (gate / self.constants.beta).tanh() * gate.sigmoid() * up


@MISTAKES("activations are quantised to FP8 before the second product")
class _(Oracle):
    def activation(self, gate, up):
        return fp8(super().activation(gate, up))


@MISTAKES("routing weights are ignored: experts are averaged")
class _(Oracle):
    def weighed(self, outputs, weights):
        return outputs.mean(1)


@MISTAKES("routing weights scale the experts' inputs instead of their outputs")
class _(Oracle):
    def __call__(self):
        weights = self.inputs["weights"]
        parts = []
        for place in range(weights.shape[1]):
            scaled = self.inputs["x"].double() * weights[:, place, None].double()
            one = torch.zeros_like(weights)
            one[:, place] = 1
            changed = {**self.inputs, "x": scaled, "weights": one}
            variant = object.__new__(Oracle)
            variant.contract, variant.inputs, variant.axes = self.contract, changed, self.axes
            parts.append(variant()["routed"])
        return {"routed": sum(parts)}


@MISTAKES("each weight goes to the expert of the next place")
class _(Oracle):
    def weighed(self, outputs, weights):
        return super().weighed(outputs, weights.roll(1, 1))


@MISTAKES("the last place is left out")
class _(Oracle):
    def weighed(self, outputs, weights):
        return super().weighed(outputs[:, :-1], weights[:, :-1])


@MISTAKES("experts are added one by one in bfloat16")
class _(Oracle):
    def weighed(self, outputs, weights):
        total = torch.zeros_like(outputs[:, 0])
        for place in range(outputs.shape[1]):
            total = bf16(total + bf16(weights[:, place, None] * outputs[:, place]))
        return total


@MISTAKES("expert ids count from one")
class _(Oracle):
    def ids(self):
        return (super().ids() - 1) % self.axes["experts"]


@MISTAKES("an expert that several rows chose serves the first of them only")
class _(Oracle):
    def places(self, ids, expert):
        return tuple(index[:1] for index in super().places(ids, expert))


@MISTAKES("every expert is computed and multiplied by zero where a row did not choose it")
class _(Oracle):
    def __call__(self):
        unchosen = set(range(self.axes["experts"])) - set(self.ids().flatten().tolist())
        leak = sum(0 * self.matrix("w2", expert).sum() for expert in unchosen)
        return {"routed": super().__call__()["routed"] + leak}


