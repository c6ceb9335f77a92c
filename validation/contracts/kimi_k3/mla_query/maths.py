"""Oracle, plain path and known mistakes of `mla_query`."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..drawing import Mistakes, fp8, read_densely, split_sum
from ..step.norm import rms_norm
from ..step.precision import EXACT
from .inputs import DISTRIBUTIONS

__all__ = ["DISTRIBUTIONS", "MISTAKES", "Oracle", "plain"]


class Oracle:
    """The stages of the op in float64, each to be overridden by a mistake."""

    def __init__(self, contract, inputs, workload) -> None:
        self.sizes = contract.architecture.mla
        self.eps = contract.architecture.eps
        self.inputs = inputs
        self.axes = workload.axes

    def __call__(self) -> dict[str, Tensor]:
        """query [rows, h, 576] and cache."""
        sizes = [self.sizes.q_lora_rank, self.sizes.kv_lora_rank, self.sizes.qk_rope_head_dim]
        q_a, kv_a, shared = self.projected()[:, : sum(sizes)].split(sizes, 1)
        latent = self.norm(kv_a, "kv_a_norm", self.eps.mla_kv_a)
        queries = self.product(self.norm(q_a, "q_a_norm", self.eps.mla_q_a), self.inputs["q_b"].double())
        nope, rope = self.parts(queries.unflatten(1, (self.axes["heads"], -1)))
        query = torch.cat([self.absorbed(nope, self.inputs["up_key"].double()), rope], 2)
        live = self.inputs["lengths"] > 0
        query[~live] = 0
        cache = self.inputs["cache"].double()
        rows = torch.cat([latent, self.shared(shared)], 1)
        for row in live.nonzero().flatten().tolist():
            self.insert(cache, row, self.stored(rows[row]))
        return {"query": self.stored(query), "cache": cache}

    def projected(self) -> Tensor:
        """[rows, W]."""
        return self.inputs["projected"].double()

    def norm(self, x: Tensor, weight: str, eps: float) -> Tensor:
        """RMSNorm of a low-rank latent."""
        return rms_norm(x, self.inputs[weight].double(), eps, EXACT)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """[rows, h * 192]."""
        return x @ weight.T

    def parts(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """nope and rope of each head."""
        return queries.split([self.sizes.qk_nope_head_dim, self.sizes.qk_rope_head_dim], 2)

    def absorbed(self, nope: Tensor, up_key: Tensor) -> Tensor:
        """[rows, h, 512]."""
        return torch.einsum("rhe,hel->rhl", nope, up_key)

    def shared(self, key: Tensor) -> Tensor:
        """The key part that all heads share, as it is cached."""
        return key

    def position(self, row: int) -> int:
        """Of the newest token."""
        return int(self.inputs["lengths"][row]) - 1

    def insert(self, cache: Tensor, row: int, value: Tensor) -> None:
        """Writes the newest row."""
        size, position = self.axes["page_size"], self.position(row)
        cache[int(self.inputs["page_table"][row, position // size]), position % size] = value

    def stored(self, out: Tensor) -> Tensor:
        """What is written in bfloat16."""
        return out


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Row by row and head by head, float32; bfloat16 after norms, q_b, the absorption and in the cache."""
    mla, eps, heads = contract.architecture.mla, contract.architecture.eps, workload.axes["heads"]
    cache = inputs["cache"].clone()
    query = torch.zeros(workload.axes["rows"], heads, contract.latent_width, dtype=torch.bfloat16)

    def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        return (wide / torch.sqrt(wide.pow(2).mean() + epsilon)).bfloat16() * weight

    for row, length in enumerate(inputs["lengths"].tolist()):
        if length == 0:
            continue
        q_a, rest = inputs["projected"][row].tensor_split([mla.q_lora_rank])
        kv_a, rest = rest.tensor_split([mla.kv_lora_rank])
        latent = normed(kv_a, inputs["kv_a_norm"], eps.mla_kv_a)
        page, offset = divmod(length - 1, cache.shape[1])
        cache[inputs["page_table"][row, page], offset] = torch.cat([latent, rest[: mla.qk_rope_head_dim]])
        q = F.linear(normed(q_a, inputs["q_a_norm"], eps.mla_q_a).float(), inputs["q_b"].float()).bfloat16()
        for head, own in enumerate(q.view(heads, -1)):
            nope = own[: mla.qk_nope_head_dim].float() @ inputs["up_key"][head].float()
            query[row, head] = torch.cat([nope.bfloat16(), own[mla.qk_nope_head_dim :]])
    return {"query": query, "cache": cache}


MISTAKES = Mistakes()


@MISTAKES("the query latent is not normalised")
class _(Oracle):
    def norm(self, x, weight, eps):
        return x * self.inputs[weight].double() if weight == "q_a_norm" else super().norm(x, weight, eps)


@MISTAKES("the cached latent is not normalised")
class _(Oracle):
    def norm(self, x, weight, eps):
        return x * self.inputs[weight].double() if weight == "kv_a_norm" else super().norm(x, weight, eps)


@MISTAKES("the norms' weights are left out")
class _(Oracle):
    def norm(self, x, weight, eps):
        return super().norm(x, weight, eps) / self.inputs[weight].double()


@MISTAKES("the low-rank norms use the backbone's epsilon")
class _(Oracle):
    def norm(self, x, weight, eps):
        return super().norm(x, weight, self.eps.backbone)


@MISTAKES("the low-rank norms have no epsilon")
class _(Oracle):
    def norm(self, x, weight, eps):
        return x / x.square().mean(1, keepdim=True).sqrt() * self.inputs[weight].double()


@MISTAKES("the shared key part is normalised as the latent is")
class _(Oracle):
    def shared(self, key):
        return key / (key.square().mean(1, keepdim=True) + self.eps.mla_kv_a).sqrt()


@MISTAKES("the shared key part is rotated by position")
class _(Oracle):
    def shared(self, key):
        even, odd = key[:, 0::2], key[:, 1::2]
        angle = self.inputs["lengths"].double()[:, None]
        angle = angle * 50000.0 ** -torch.linspace(0, 1, even.shape[1], dtype=torch.float64)
        rotated = [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()]
        return torch.stack(rotated, 2).flatten(1)


@MISTAKES("the two parts of a head's query are taken in the wrong order")
class _(Oracle):
    def parts(self, queries):
        rope, nope = queries.split([self.sizes.qk_rope_head_dim, self.sizes.qk_nope_head_dim], 2)
        return nope, rope


@MISTAKES("all heads' unshared rows are taken to come before all shared ones")
class _(Oracle):
    def parts(self, queries):
        flat, heads = queries.flatten(1), self.axes["heads"]
        nope, rope = flat.split([heads * self.sizes.qk_nope_head_dim, heads * self.sizes.qk_rope_head_dim], 1)
        return nope.unflatten(1, (heads, -1)), rope.unflatten(1, (heads, -1))


@MISTAKES("the key weight of the neighbouring head is absorbed")
class _(Oracle):
    def absorbed(self, nope, up_key):
        return super().absorbed(nope, up_key.roll(1, 0))


@MISTAKES("the softmax scale is folded into the query, which the core scales again")
class _(Oracle):
    def product(self, x, weight):
        scale = (self.sizes.qk_nope_head_dim + self.sizes.qk_rope_head_dim) ** -0.5
        return scale * super().product(x, weight)


@MISTAKES("the newest row is written one position too far, over nobody's row or into the next page")
class _(Oracle):
    def position(self, row):
        return min(super().position(row) + 1, self.axes["page_size"] * self.axes["table_width"] - 1)

    def insert(self, cache, row, value):
        size, position = self.axes["page_size"], self.position(row)
        cache[int(self.inputs["page_table"][row, position // size]) % len(cache), position % size] = value


@MISTAKES("the newest row always goes to the first page of the table")
class _(Oracle):
    def insert(self, cache, row, value):
        cache[int(self.inputs["page_table"][row, 0]), self.position(row) % self.axes["page_size"]] = value


@MISTAKES("the newest row is not cached")
class _(Oracle):
    def insert(self, cache, row, value):
        pass


@MISTAKES("the cached row is rounded to FP8")
class _(Oracle):
    def insert(self, cache, row, value):
        super().insert(cache, row, fp8(value))


@MISTAKES("rows of length 0 write into the null page")
class _(Oracle):
    def __call__(self):
        result = super().__call__()
        if bool((self.inputs["lengths"] == 0).any()):
            result["cache"][0, 0] = 0
        return result


@MISTAKES("rows of length 0 are let through to the query")
class _(Oracle):
    def __call__(self):
        result = super().__call__()
        result["query"][self.inputs["lengths"] == 0] = math.nan
        return result


@MISTAKES("partial sums over slices of the query latent are rounded to bfloat16 before they are added")
class _(Oracle):
    def product(self, x, weight):
        return split_sum(x, weight)


@MISTAKES("the normed query latent is quantised to FP8")
class _(Oracle):
    def product(self, x, weight):
        return super().product(fp8(x), weight)


@MISTAKES("the projection passes through half precision")
class _(Oracle):
    def projected(self):
        return super().projected().half().double()


@MISTAKES("rows of the projection are addressed by their width, not by the row stride")
class _(Oracle):
    def projected(self):
        return read_densely(self.inputs["projected"], self.axes["projected_stride"]).double()
