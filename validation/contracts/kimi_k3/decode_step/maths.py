"""Inputs, oracle, plain path and known mistakes of `step`: tensors by name in, the step model's own objects inside."""

import math

import torch
from torch import Generator, Tensor

from ....tensors import torch_dtype
from ...base import TensorRole
from ..drawing import Inputs, Mistakes, around_one, matrix, normal, uniform
from ..layer_weights import (
    DenseWeights, KdaWeights, LayerWeights, MixWeights, MlaWeights, ModelWeights, MoeWeights, Mxfp4,
)  # fmt: skip
from ..step.model import Model
from ..step.precision import EXACT, PUBLISHED, Precision
from ..step.state import Batch, KdaCache, LatentCache, State

DISTRIBUTIONS = {
    "typical": "unit-scale embeddings, histories from one token to full tables, decays from one token to hundreds",
    "first_token": "empty states and histories of one token: catches states that are read before they are right",
    "loud": "embeddings 64 times larger: the first source outweighs the others, catches banks left out of the mixes",
    "full": "every table full: the newest token is the last of its page",
}
# Scores lie between zero and one: biases four apart decide alone.
_APART = 4.0


def draw(contract, workload, distribution: str, seed: int) -> Inputs:
    """See `DISTRIBUTIONS`."""
    random = Generator().manual_seed(seed)
    axes = workload.axes
    rows, width, size = axes["rows"], axes["table_width"], axes["page_size"]
    found = {spec.name: _weight(spec, random) for spec in contract.weights}
    for name, weight in found.items():
        if name.endswith("_in_proj"):
            weight[contract.architecture.kda_shard(1).columns["pad"]] = 0
    lengths = torch.randint(1, width * size + 1, (rows,), generator=random)
    if distribution == "first_token":
        lengths.fill_(1)
    if distribution == "full":
        lengths.fill_(width * size)
    found |= {
        "embedding": normal(random, rows, contract.architecture.hidden_size).bfloat16(),
        "slots": (1 + torch.randperm(axes["slots"] - 1, generator=random)[:rows]).int(),
        "page_table": (1 + torch.randperm(axes["pages"] - 1, generator=random)[: rows * width]).view(rows, width).int(),
        "lengths": lengths.int(),
    }
    if distribution == "loud":
        found["embedding"] *= 64
    for spec in contract.tensors(workload):
        if spec.role is TensorRole.STATE:
            found[spec.name] = _state(spec.name, spec.shape, random)
            if distribution == "first_token":
                found[spec.name].zero_()
    return found


def _weight(spec, random: Generator) -> Tensor:
    name, shape = spec.name, spec.shape
    if name.endswith("_norm"):
        return around_one(random, *shape)
    if name.endswith("correction_bias"):
        return _APART * torch.randperm(*shape, generator=random).float()
    if name.endswith("_packed"):
        return torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
    if name.endswith("_scale"):
        exponent = 127 - round(math.log2(3 * (32 * shape[-1]) ** 0.5))
        return torch.randint(exponent - 1, exponent + 2, shape, generator=random, dtype=torch.uint8)
    if name.endswith("conv_weight"):
        return 0.5 * normal(random, *shape)
    if name.endswith("a_log"):
        return uniform(random, 1, 16, *shape).log()
    if name.endswith("dt_bias"):
        return uniform(random, -4, 0, *shape)
    return matrix(random, *shape)


def _state(name: str, shape: tuple[int, ...], random: Generator) -> Tensor:
    values = normal(random, *shape)
    return 0.2 * values if name.endswith("recurrent_state") else values.bfloat16()


def redrawn(contract, inputs, workload, row: int, seed: int) -> Inputs:
    """The same inputs with all that the row alone reads redrawn."""
    random = Generator().manual_seed(seed)
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    changed["embedding"][row] = normal(random, inputs["embedding"].shape[1]).bfloat16()
    slot, length = int(inputs["slots"][row]), int(inputs["lengths"][row])
    for name in contract.produced:
        if name.endswith("_cache"):
            size = inputs[name].shape[1]
            for page in inputs["page_table"][row, : -(-length // size)].tolist():
                changed[name][page] = _state(name, inputs[name][page].shape, random)
        elif name != "logits":
            changed[name][slot] = _state(name, inputs[name][slot].shape, random)
    return changed


class Walk(Model):
    """The step model over the exam's tensors; a mistake overrides a part of the walk."""

    def __init__(self, contract, inputs, precision: Precision) -> None:
        super().__init__(contract.architecture, [_weights(contract, inputs)], precision)
        self.contract, self.inputs = contract, inputs

    def __call__(self) -> dict[str, Tensor]:
        """logits, and every state: in the arithmetic type."""
        inputs, rows = self.inputs, len(self.inputs["embedding"])
        state = self.state()
        batch = Batch(torch.arange(rows), tuple(range(rows)), (1,) * rows)
        found = {"logits": self.precision.round(self.decode(batch, state))}
        slots = inputs["slots"].long()
        for layer, cache in state.ranks[0].items():
            if isinstance(cache, LatentCache):
                found[f"l{layer}_cache"] = cache.rows
                continue
            for name, pool in (("conv_state", cache.conv), ("recurrent_state", cache.recurrent)):
                kept = pool[: len(inputs[f"l{layer}_{name}"])].clone()
                kept[slots] = pool[state.slots[:, 1]]
                found[f"l{layer}_{name}"] = kept
        return found

    def state(self) -> State:
        """Pools with a slot behind them for what each row leaves: the step model keeps the state that it read."""
        inputs, rows = self.inputs, len(self.inputs["embedding"])

        def pool(name: str, dtype: torch.dtype) -> Tensor:
            held = inputs[name].to(dtype)
            return torch.cat([held, held.new_zeros(rows, *held.shape[1:])])

        caches = {
            layer: LatentCache(inputs[f"l{layer}_cache"].to(self.precision.storage, copy=True))
            if layer in self.architecture.mla_layers
            else KdaCache(
                pool(f"l{layer}_conv_state", self.precision.storage),
                pool(f"l{layer}_recurrent_state", self.precision.recurrent_state),
            )
            for layer in range(self.architecture.layers)
        }
        first = len(next(cache.conv for cache in caches.values() if isinstance(cache, KdaCache))) - rows
        slots = torch.stack([inputs["slots"].long(), first + torch.arange(rows)], 1)
        return State([caches], slots, inputs["page_table"].long(), (inputs["lengths"] - 1).tolist())


def oracle(contract, inputs, workload) -> dict[str, Tensor]:
    """float64."""
    return Walk(contract, inputs, EXACT)()


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """float32, rounded as published; every tensor in its own type."""
    specs = {spec.name: spec for spec in contract.tensors(workload)}
    found = Walk(contract, inputs, PUBLISHED)()
    return {name: value.to(torch_dtype(specs[name].dtype)) for name, value in found.items()}


def bound(contract, variant: type[Walk]):
    """A mistake as a path."""
    return lambda inputs, workload: variant(contract, inputs, EXACT)()


def _weights(contract, inputs) -> ModelWeights:
    a = contract.architecture
    return ModelWeights(
        embedding=inputs["embedding"],
        layers={layer: _layer(a, layer, inputs) for layer in range(a.layers)},
        final_mix=_mix(inputs, "final_mix"),
        lm_head=inputs["lm_head"],
    )


def _layer(a, layer: int, inputs) -> LayerWeights:
    own = {name.removeprefix(f"l{layer}_"): value for name, value in inputs.items() if name.startswith(f"l{layer}_")}

    def of(kind: type, **more):
        return kind(**{name: own[name] for name in kind.__dataclass_fields__ if name in own}, **more)

    mxfp4 = lambda name: Mxfp4(own[f"{name}_packed"], own[f"{name}_scale"])  # noqa: E731
    dense = layer < a.moe.first_layer
    return LayerWeights(
        attention_mix=_mix(own, "attention_mix"),
        attention=of(KdaWeights if layer in a.kda_layers else MlaWeights),
        mlp_mix=_mix(own, "mlp_mix"),
        mlp=of(DenseWeights) if dense else of(MoeWeights, w13=mxfp4("w13"), w2=mxfp4("w2")),
    )


def _mix(tensors, prefix: str) -> MixWeights:
    out = tensors[f"{prefix}_out_norm"]
    # A mix of one source is that source, whatever its weights are.
    return MixWeights(
        res_norm=tensors.get(f"{prefix}_res_norm", torch.ones_like(out)),
        res_proj=tensors.get(f"{prefix}_res_proj", torch.zeros_like(out)),
        out_norm=out,
    )


MISTAKES = Mistakes()


@MISTAKES("the last layer is left out")
class _(Walk):
    def layer(self, number, stream, ranks, attention):
        if number + 1 < self.architecture.layers:
            super().layer(number, stream, ranks, attention)


@MISTAKES("banked streams are left out of every mix")
class _(Walk):
    def _mix_norm(self, sources, weights, *, final=False):
        return super()._mix_norm(sources[-1:], weights, final=final)


@MISTAKES("the stream does not restart where a block begins")
class _(Walk):
    def layer(self, number, stream, ranks, attention):
        before = stream.prefix

        def kept(x, layer, rank, weights):
            out = attention(x, layer, rank, weights)
            begins = number and number % self.architecture.attn_res_block_size == 0
            return out + before if begins else out

        super().layer(number, stream, ranks, kept)


@MISTAKES("every token is taken for the first of its request")
class _(Walk):
    def state(self):
        found = super().state()
        found.lengths = [0] * len(found.lengths)
        return found


@MISTAKES("KDA states of one layer serve the next one too")
class _(Walk):
    def state(self):
        found = super().state()
        first, second = self.architecture.kda_layers[:2]
        found.ranks[0][second] = found.ranks[0][first]
        return found
