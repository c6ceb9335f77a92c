"""Oracle, plain path and known mistakes of `mla_core`."""

import math

import torch
from torch import Tensor

from ..drawing import Mistakes, bf16, fp8, read_densely, truncated
from ..paged_maths import history
from .inputs import DISTRIBUTIONS

__all__ = ["DISTRIBUTIONS", "MISTAKES", "Oracle", "plain"]


class Oracle:
    """The stages of the op in float64, each to be overridden by a mistake."""

    def __init__(self, contract, inputs, workload) -> None:
        self.sizes = contract.architecture.mla
        self.inputs = inputs
        self.axes = workload.axes

    def __call__(self) -> dict[str, Tensor]:
        """context: [rows, h, latent]."""
        rows, heads = self.axes["rows"], self.axes["heads"]
        out = torch.zeros(rows, heads, self.sizes.kv_lora_rank, dtype=torch.float64)
        for row in range(rows):
            if self.live(row):
                seen = self.history(row)
                out[row] = self.mixed(self.attention(self.scores(self.query(row), seen)), self.values(seen))
        return {"context": self.stored(out)}

    def live(self, row: int) -> bool:
        """Whether the row is no padding."""
        return int(self.inputs["lengths"][row]) > 0

    def query(self, row: int) -> Tensor:
        """[h, 576]."""
        return self.inputs["query"][row].double()

    def history(self, row: int) -> Tensor:
        """[length, 576]."""
        return history(self.inputs, row).double()

    def scale(self) -> float:
        """Of the scores: the width of an unabsorbed query."""
        return (self.sizes.qk_nope_head_dim + self.sizes.qk_rope_head_dim) ** -0.5

    def scores(self, query: Tensor, seen: Tensor) -> Tensor:
        """[h, length]."""
        return self.scale() * (query @ seen.T)

    def attention(self, scores: Tensor) -> Tensor:
        """[h, length]."""
        return scores.softmax(1)

    def values(self, seen: Tensor) -> Tensor:
        """[length, latent]."""
        return seen[:, : self.sizes.kv_lora_rank]

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """[h, latent]."""
        return weights @ values

    def stored(self, out: Tensor) -> Tensor:
        """What is written."""
        return out


_AT_ONCE = 1024
"""Tokens that the plain path takes in one go"""


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """A thousand tokens after the other with a running maximum and sum, float32; the context leaves bfloat16."""
    mla, size = contract.architecture.mla, workload.axes["page_size"]
    scale = 1 / math.sqrt(mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    pages = max(1, _AT_ONCE // size)
    out = torch.zeros(workload.axes["rows"], workload.axes["heads"], mla.kv_lora_rank, dtype=torch.bfloat16)
    for row, length in enumerate(inputs["lengths"].tolist()):
        query = inputs["query"][row].float()
        largest = torch.full((len(query), 1), -math.inf)
        total, context = torch.zeros(len(query), 1), torch.zeros(len(query), mla.kv_lora_rank)
        table = inputs["page_table"][row, : -(-length // size)].long()
        for first in range(0, len(table), pages):
            tokens = inputs["cache"][table[first : first + pages]].flatten(0, 1)[: length - first * size].float()
            scores = query @ tokens.T * scale
            new = torch.maximum(largest, scores.amax(1, keepdim=True))
            weights, kept = torch.exp(scores - new), torch.exp(largest - new)
            total = total * kept + weights.sum(1, keepdim=True)
            context = context * kept + weights @ tokens[:, : mla.kv_lora_rank]
            largest = new
        if length:
            out[row] = context / total
    return {"context": out}


def with_bf16_probabilities(contract, inputs, workload) -> dict[str, Tensor]:
    """What tensor cores do: unnormalised probabilities rounded to bfloat16 before they meet the values. Honest."""

    class Rounded(Oracle):
        def mixed(self, weights, values):
            relative = weights / weights.amax(1, keepdim=True)
            return (bf16(relative) @ values) / relative.sum(1, keepdim=True)

    return Rounded(contract, inputs, workload)()


MISTAKES = Mistakes()


@MISTAKES("scores are scaled by the absorbed width, 576^-0.5")
class _(Oracle):
    def scale(self):
        return (self.sizes.kv_lora_rank + self.sizes.qk_rope_head_dim) ** -0.5


@MISTAKES("scores are scaled by 128^-0.5, without the shared key part")
class _(Oracle):
    def scale(self):
        return self.sizes.qk_nope_head_dim**-0.5


@MISTAKES("scores are not scaled")
class _(Oracle):
    def scale(self):
        return 1.0


@MISTAKES("the shared key part is left out of the scores")
class _(Oracle):
    def scores(self, query, seen):
        latent = self.sizes.kv_lora_rank
        return super().scores(query[:, :latent], seen[:, :latent])


@MISTAKES("the shared key part is rotated by position")
class _(Oracle):
    def history(self, row):
        seen = super().history(row)
        key = seen[:, self.sizes.kv_lora_rank :]
        even, odd = key[:, 0::2], key[:, 1::2]
        angle = torch.arange(len(seen), dtype=torch.float64)[:, None]
        angle = angle * 50000.0 ** -torch.linspace(0, 1, even.shape[1], dtype=torch.float64)
        rotated = torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], 2)
        return torch.cat([seen[:, : self.sizes.kv_lora_rank], rotated.flatten(1)], 1)


@MISTAKES("values are taken from the last 512 columns of a row")
class _(Oracle):
    def values(self, seen):
        return seen[:, -self.sizes.kv_lora_rank :]


@MISTAKES("the newest token is not seen")
class _(Oracle):
    def history(self, row):
        return super().history(row)[: max(1, int(self.inputs["lengths"][row]) - 1)]


@MISTAKES("the first token is not seen")
class _(Oracle):
    def history(self, row):
        seen = super().history(row)
        return seen[1:] if len(seen) > 1 else seen


@MISTAKES("the last page is read to its end")
class _(Oracle):
    def history(self, row):
        cache = self.inputs["cache"]
        used = -(-int(self.inputs["lengths"][row]) // cache.shape[1])
        return cache[self.inputs["page_table"][row, :used].long()].flatten(0, 1).double()


@MISTAKES("tokens of a partly filled last page are left out")
class _(Oracle):
    def history(self, row):
        seen, size = super().history(row), self.axes["page_size"]
        return seen[: max(len(seen) // size * size, 1)]


@MISTAKES("pages are read in the order of the pool, not of the table")
class _(Oracle):
    def history(self, row):
        cache, length = self.inputs["cache"], int(self.inputs["lengths"][row])
        first = int(self.inputs["page_table"][row, 0])
        pages = [(first + place) % len(cache) for place in range(-(-length // cache.shape[1]))]
        return cache[pages].flatten(0, 1)[:length].double()


@MISTAKES("every row reads the first row's table")
class _(Oracle):
    def history(self, row):
        length = min(int(self.inputs["lengths"][row]), int(self.inputs["lengths"][0]))
        return super().history(0)[:length] if length else super().history(row)


@MISTAKES("every row has the first row's length")
class _(Oracle):
    def history(self, row):
        cache, length = self.inputs["cache"], max(1, int(self.inputs["lengths"][0]))
        pages = self.inputs["page_table"][row, : -(-length // cache.shape[1])].long() % len(cache)
        return cache[pages].flatten(0, 1)[:length].double()


@MISTAKES("the largest score is not subtracted: exp overflows float32")
class _(Oracle):
    def attention(self, scores):
        exponentials = scores.float().exp()
        return (exponentials / exponentials.sum(1, keepdim=True)).double()


@MISTAKES("scores are rounded to bfloat16")
class _(Oracle):
    def scores(self, query, seen):
        return bf16(super().scores(query, seen))


@MISTAKES("probabilities are quantised to FP8")
class _(Oracle):
    def attention(self, scores):
        return fp8(super().attention(scores))


@MISTAKES("probabilities are not normalised")
class _(Oracle):
    def attention(self, scores):
        return (scores - scores.amax(1, keepdim=True)).exp()


@MISTAKES("splits of the history are averaged instead of merged by their sums")
class _(Oracle):
    def mixed(self, weights, values):
        halves = zip(weights.chunk(2, 1), values.chunk(2), strict=True)
        parts = [w @ v / w.sum(1, keepdim=True).clamp(min=1e-300) for w, v in halves]
        return sum(parts) / len(parts)


@MISTAKES("the context is accumulated in bfloat16 from page to page")
class _(Oracle):
    def mixed(self, weights, values):
        size = self.axes["page_size"]
        total = torch.zeros(len(weights), values.shape[1], dtype=torch.float64)
        for w, v in zip(weights.split(size, 1), values.split(size), strict=True):
            total = bf16(total + w @ v)
        return total


@MISTAKES("cached rows pass through half precision")
class _(Oracle):
    def history(self, row):
        return super().history(row).half().double()


@MISTAKES("heads are exchanged with their neighbours")
class _(Oracle):
    def query(self, row):
        return super().query(row).roll(1, 0)


@MISTAKES("rows of length 0 give NaN")
class _(Oracle):
    def stored(self, out):
        return out.masked_fill((self.inputs["lengths"] == 0)[:, None, None], math.nan)


@MISTAKES("the result is truncated to bfloat16 instead of rounded to nearest even")
class _(Oracle):
    def stored(self, out):
        return truncated(out)


@MISTAKES("pages are addressed as if they lay side by side")
class _(Oracle):
    def history(self, row):
        cache = read_densely(self.inputs["cache"], self.axes["page_stride"])
        return history({**self.inputs, "cache": cache}, row).double()
