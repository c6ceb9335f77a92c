"""Inputs, oracle, plain path and known mistakes of `attn_res_norm`."""

import math

import torch
from torch import Tensor

from ..drawing import Distributions, Inputs, Mistakes, around_one, bf16, every_other, normal, read_densely, scales
from ..layer_weights import MixWeights
from ..step.attn_res import mix
from ..step.norm import rms_norm
from ..step.precision import EXACT


def _weights(contract, workload, random) -> Inputs:
    width = contract.architecture.hidden_size
    return {
        "res_norm": around_one(random, width),
        "res_proj": (2 * normal(random, width) * width**-0.5).bfloat16(),
        "out_norm": around_one(random, width),
    }


def _inputs(contract, workload, random) -> Inputs:
    width, rows = contract.architecture.hidden_size, workload.axes["rows"]
    # The newest source arrives last and banks grow with depth: no two sources of a row have one scale.
    count = workload.axes["blocks"]
    inputs = {"stream": (3 * normal(random, rows, width) + 0.5).bfloat16()}
    if count:
        size = 1 + torch.arange(count)[:, None, None]
        inputs["blocks"] = (size * normal(random, count, rows, width)).bfloat16()
    return inputs


def _banks(inputs) -> Tensor:
    """[n, rows, d], also where no bank is given."""
    return inputs.get("blocks", inputs["stream"].new_empty(0, *inputs["stream"].shape))


DISTRIBUTIONS = Distributions(
    _weights, _inputs, "sources of different scales, mixed by logits of a few units; the stream has a mean"
)


@DISTRIBUTIONS("logits of hundreds: one source takes all, and exp overflows unless the largest logit is subtracted")
def sharp(inputs, contract, workload, random) -> None:
    # The query is 300 at one channel in which every source holds something else.
    channel = int(torch.randint(contract.architecture.hidden_size, (), generator=random))
    inputs["res_proj"][channel] = 300
    inputs["res_norm"][channel] = 1
    inputs["stream"][:, channel] = 2 + inputs["stream"][:, channel].abs()


@DISTRIBUTIONS("logits near 64 that differ by a few units: catches logits narrower than float32")
def close(inputs, contract, workload, random) -> None:
    channel = int(torch.randint(contract.architecture.hidden_size, (), generator=random))
    inputs["res_proj"][channel] = 256
    inputs["res_norm"][channel] = 1
    for sources in (inputs["stream"], _banks(inputs)):
        sources[..., channel] = 0.25 * sources.float().square().mean(-1).sqrt()


@DISTRIBUTIONS("rows near the root of the epsilon, of zeros, zeros among others: catches an epsilon left out or moved")
def near_zero(inputs, contract, workload, random) -> None:
    rows, blocks = workload.axes["rows"], workload.axes["blocks"]
    turn = torch.arange(rows) % 3
    small = torch.tensor([2.0**-10, 0, 1])[turn]
    source = torch.where((turn == 2) & (torch.arange(blocks) % 2 == 0)[:, None], 0, small)
    inputs["stream"] *= small[:, None].bfloat16()
    _banks(inputs).mul_(source[..., None].bfloat16())


@DISTRIBUTIONS("every source of every row scaled by its own power of two: catches half-precision intermediates")
def wide_range(inputs, contract, workload, random) -> None:
    rows = workload.axes["rows"]
    # Beyond 2^16 whatever is drawn, so that a square leaves half precision and a value does.
    inputs["stream"] *= scales(random, 10, rows, 1) * 2**20
    _banks(inputs).mul_(scales(random, 10, workload.axes["blocks"], rows, 1) * 2**20)


@DISTRIBUTIONS("a few channels a thousand times larger than the rest: catches statistics kept in bf16")
def outliers(inputs, contract, workload, random) -> None:
    channels = torch.randint(contract.architecture.hidden_size, (4,), generator=random)
    inputs["stream"][:, channels] *= 1024
    _banks(inputs)[:, :, channels] *= 1024


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    rows = every_other(workload.axes["rows"], random)
    inputs["stream"][rows] = math.nan
    _banks(inputs)[:, rows] = math.nan


class Oracle:
    """The stages of the op in float64, each to be overridden by a mistake."""

    def __init__(self, contract, inputs, workload) -> None:
        self.eps = contract.architecture.eps.backbone
        self.inputs = inputs
        self.axes = workload.axes
        self.weights = MixWeights(*(inputs[name].double() for name in ("res_norm", "res_proj", "out_norm")))

    def __call__(self) -> dict[str, Tensor]:
        """x: [rows, d]."""
        return {"x": self.normed(self.mixed(self.sources()))}

    def sources(self) -> list[Tensor]:
        """[rows, d] each, oldest first."""
        return [*_banks(self.inputs).double(), self.inputs["stream"].double()]

    def mixed(self, sources: list[Tensor]) -> Tensor:
        """The mix as the whole step computes it."""
        return mix(sources, self.weights, self.eps, EXACT)

    def normed(self, mixed: Tensor) -> Tensor:
        """RMSNorm."""
        return rms_norm(mixed, self.weights.out_norm, self.eps, EXACT)


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Row by row and source by source, float32; bfloat16 where the published modules leave one."""
    eps = contract.architecture.eps.backbone
    query = inputs["res_norm"].float() * inputs["res_proj"].float()
    out = torch.empty_like(inputs["stream"])
    for row, stream in enumerate(inputs["stream"]):
        sources = torch.cat([_banks(inputs)[:, row], stream[None]]).float()
        logits = torch.stack([torch.dot(source, query) / (source.pow(2).mean() + eps).sqrt() for source in sources])
        exponentials = torch.exp(logits - logits.max())
        mixed = (exponentials / exponentials.sum()) @ sources
        mixed = mixed.bfloat16().float()
        normalised = (mixed * torch.rsqrt(mixed.pow(2).mean() + eps)).bfloat16()
        out[row] = normalised * inputs["out_norm"]
    return {"x": out}


MISTAKES = Mistakes()


class _ByHand(Oracle):
    """The mix in the open, where a mistake sits inside it."""

    def mixed(self, sources):
        values = torch.stack(sources)
        return (self.attention(self.logits(values))[..., None] * self.values(values)).sum(0)

    def logits(self, values):
        return self.dots(values) / (values.square().mean(-1) + self.eps).sqrt()

    def dots(self, values):
        return values @ (self.weights.res_norm * self.weights.res_proj)

    def attention(self, logits):
        return logits.softmax(0)

    def values(self, values):
        return values


@MISTAKES("the normalised sources are mixed instead of the raw ones")
class _(_ByHand):
    def values(self, values):
        return values / (values.square().mean(-1, keepdim=True) + self.eps).sqrt()


@MISTAKES("the keys are not normalised")
class _(_ByHand):
    def logits(self, values):
        return self.dots(values)


@MISTAKES("the key norm's weight is left out of the logits")
class _(_ByHand):
    def dots(self, values):
        return values @ self.weights.res_proj


@MISTAKES("the logits are scaled by 1/sqrt(hidden size), as attention scores are")
class _(_ByHand):
    def logits(self, values):
        return super().logits(values) * values.shape[-1] ** -0.5


@MISTAKES("the sources are averaged with equal weights")
class _(_ByHand):
    def attention(self, logits):
        return torch.full_like(logits, 1 / len(logits))


@MISTAKES("the largest logit is not subtracted: exp overflows float32 and the mix becomes NaN")
class _(_ByHand):
    def attention(self, logits):
        exponentials = logits.float().exp()
        return (exponentials / exponentials.sum(0)).double()


@MISTAKES("the logits are rounded to bfloat16")
class _(_ByHand):
    def attention(self, logits):
        return bf16(logits).softmax(0)


@MISTAKES("the epsilon of the key norm is left out: a source of zeros becomes NaN")
class _(_ByHand):
    def logits(self, values):
        return self.dots(values) / values.square().mean(-1).sqrt()


@MISTAKES("the stream itself is left out of the mix")
class _(Oracle):
    def sources(self):
        return super().sources()[:-1] or super().sources()


@MISTAKES("the newest bank is left out of the mix")
class _(Oracle):
    def sources(self):
        *blocks, stream = super().sources()
        return [*blocks[:-1], stream]


@MISTAKES("the stream enters the mix twice, as if it were banked before its own mix")
class _(Oracle):
    def sources(self):
        return [*super().sources(), super().sources()[-1]]


@MISTAKES("the mix passes through half precision")
class _(Oracle):
    def mixed(self, sources):
        return super().mixed(sources).half().double()


@MISTAKES("squares are summed one by one in bfloat16")
class _(Oracle):
    def normed(self, mixed):
        total = torch.zeros(len(mixed), dtype=torch.float64)
        for part in mixed.square().unbind(-1):
            total = bf16(total + part)
        mean = total[..., None] / mixed.shape[-1]
        return mixed / (mean + self.eps).sqrt() * self.weights.out_norm


@MISTAKES("the mix is not normalised")
class _(Oracle):
    def normed(self, mixed):
        return mixed * self.weights.out_norm


@MISTAKES("the norm's weight is left out")
class _(Oracle):
    def normed(self, mixed):
        return super().normed(mixed) / self.weights.out_norm


@MISTAKES("the norm's epsilon is left out")
class _(Oracle):
    def normed(self, mixed):
        return mixed / mixed.square().mean(-1, keepdim=True).sqrt() * self.weights.out_norm


@MISTAKES("the mean is subtracted, as LayerNorm does")
class _(Oracle):
    def normed(self, mixed):
        return super().normed(mixed - mixed.mean(-1, keepdim=True))


@MISTAKES("rows of the stream are addressed by their width, not by the row stride")
class _(Oracle):
    def sources(self):
        dense = read_densely(self.inputs["stream"], self.axes["stream_stride"])
        return [*super().sources()[:-1], dense.double()]


@MISTAKES("rows of the banks are addressed as if they lay side by side")
class _(Oracle):
    def sources(self):
        blocks, axes = self.inputs.get("blocks"), self.axes
        if blocks is None:
            return super().sources()
        strides = (axes["block_stride"], axes["block_row_stride"], 1)
        size = 1 + sum((count - 1) * stride for count, stride in zip(blocks.shape, strides, strict=True))
        storage = torch.full((max(size, blocks.numel()),), math.nan, dtype=blocks.dtype)
        storage.as_strided(blocks.shape, strides).copy_(blocks)
        return [*storage[: blocks.numel()].view(blocks.shape).double(), super().sources()[-1]]
