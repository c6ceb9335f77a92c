"""The stock path of every op, from the pieces of the layers: tensors of the op's contract in, tensors out.

A binder gets the op's tensors on the GPU and buffers for its outputs, prepares what is static and returns what
launches. Imports triton, fla and cuda-bindings: reach it through `stock.op`, which says what is missing.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

from ....tensors import torch_dtype
from ...base import OpContract, TensorRole, Workload
from ...stock import StockRun
from ..architecture import Architecture
from ..layer_weights import MixWeights, Mxfp4
from ..step.state import KdaCache
from . import attn_res, exchange, pointwise
from .experts import Experts
from .kda import Kda
from .mla import Mla
from .mla_core import Paging, attend

Tensors = Mapping[str, Tensor]
Axes = Mapping[str, int]
Outputs = dict[str, Tensor]
"""A binder may put a view of a buffer of its own in place of one that it was given"""
Binder = Callable[[OpContract, Tensors, Axes, Outputs], Callable[[], None]]

_BINDERS: dict[str, Binder] = {}


def prepare(contract: OpContract, tensors: Tensors, workload: Workload) -> StockRun:
    """A run of `contract`'s op at `workload` on `tensors`."""
    device = next(iter(tensors.values())).device
    specs = contract.tensors(workload)
    outputs = {
        spec.name: torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=device)
        for spec in specs
        if spec.role is TensorRole.OUTPUT
    }
    run = _BINDERS[contract.op](contract, tensors, workload.axes, outputs)
    return StockRun(run, outputs | {spec.name: tensors[spec.name] for spec in specs if spec.role is TensorRole.STATE})


def _binds(*ops: str) -> Callable[[Binder], Binder]:
    def register(binder: Binder) -> Binder:
        _BINDERS.update(dict.fromkeys(ops, binder))
        return binder

    return register


@cache
def _experts(architecture: Architecture, experts: int, channels: int) -> Experts:
    """Compiled once for a size."""
    moe = architecture.moe.model_copy(update={"experts": experts})
    return Experts(architecture.model_copy(update={"moe": moe}), channels)


@cache
def _kda(architecture: Architecture, tp: int) -> Kda:
    return Kda(architecture, tp)


@cache
def mla(architecture: Architecture, tp: int) -> Mla:
    """The MLA pieces of one rank of `tp`."""
    return Mla(architecture, tp)


def paging(t: Tensors, tokens: int = 1) -> Paging:
    """Of an op over pages: requests of `tokens` rows, whose lengths count their own tokens."""
    return Paging(t["page_table"], t["lengths"], width=tokens)


@_binds("in_projection", "mla_projection", "shared_down", "head")
def _linear(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    x, weight, target = t["x"], t[contract.weight_name].T, out[contract.out_name]
    return lambda: torch.mm(x, weight, out=target)


@_binds("attn_res_norm")
def _attn_res_norm(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    weights = MixWeights(t["res_norm"], t["res_proj"], t["out_norm"])
    eps = contract.architecture.eps.backbone
    return lambda: attn_res.mix_norm(t["stream"], t.get("blocks"), weights, eps, out["x"])


@_binds("o_proj_residual", "dense_down")
def _reduced(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    project = _linear(SimpleNamespace(weight_name=contract.weight_name, out_name="partial"), t, axes, out)

    def run() -> None:
        project()
        exchange.sum_residual(out["partial"], t["peers"], t.get("residual"), out["stream"])

    return run


@_binds("kda_decode")
def _kda_decode(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    kda = _kda(contract.architecture, axes["tp"])
    weights = SimpleNamespace(**{name: t[name] for name in ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")})
    cache = KdaCache(t["conv_state"], t["recurrent_state"])
    return lambda: kda.single(t["projected"], weights, cache, t["slots"], out["out"])


@_binds("kda_verify")
def _kda_verify(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    kda, slots, device = _kda(contract.architecture, axes["tp"]), t["slots"], t["slots"].device
    weights = SimpleNamespace(**{name: t[name] for name in ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")})
    cache = KdaCache(t["conv_state"], t["recurrent_state"])
    starts = torch.arange(0, axes["rows"] + 1, axes["tokens"], dtype=torch.int32, device=device)
    unaccepted = torch.zeros(len(slots), dtype=torch.int32, device=device)
    return lambda: kda.several(t["projected"], weights, cache, slots, starts, unaccepted, out["out"])


@_binds("mla_query")
def _mla_query(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    pieces, pages = mla(contract.architecture, axes["tp"]), paging(t)

    def run() -> None:
        low = pieces.norm_insert(t["projected"], t["q_a_norm"], t["kv_a_norm"], t["cache"], pages)
        pieces.joined_query(low, t["q_b"], t["up_key"], t["lengths"], out["query"])

    return run


@_binds("mla_core", "mla_verify")
def _mla_core(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    sizes, pages = contract.architecture.mla, paging(t, axes.get("tokens", 1))
    absorbed, unrotated = t["query"].split([sizes.kv_lora_rank, sizes.qk_rope_head_dim], 2)
    processors = mla(contract.architecture, axes["tp"]).processors
    return lambda: attend(absorbed, unrotated, t["cache"], pages, sizes, out["context"], processors)


@_binds("mla_value")
def _mla_value(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    pieces = mla(contract.architecture, axes["tp"])
    return lambda: pieces.value(t["context"], t["projected"], t["up_value"], out=out["out"])


@_binds("dense_up")
def _dense_up(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    x, weight, constants = t["x"], t["gate_up"].T, contract.architecture.situ
    return lambda: pointwise.situ(torch.mm(x, weight), constants, out=out["activation"])


@_binds("front")
def _front(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    x, router, constants = t["x"], t["router"].T, contract.architecture.situ
    packed = torch.cat([t["latent_down"], t["shared_gate_up"]])
    both = x.new_empty(len(x), len(packed))
    out["latent"], gate_up = both.split([len(t["latent_down"]), len(t["shared_gate_up"])], 1)
    side = torch.cuda.Stream()

    def run() -> None:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.mm(x, router, out_dtype=torch.float32, out=out["logits"])
        torch.mm(x, packed.T, out=both)
        pointwise.situ(gate_up, constants, out=out["shared"])
        main.wait_stream(side)

    return run


@_binds("routing")
def _routing(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    # Choice does not depend on the experts' width: the least that compiles.
    run = _experts(contract.architecture, len(t["correction_bias"]), 64)
    return lambda: run.choose(t["logits"], t["correction_bias"], out["ids"], out["weights"])


@_binds("experts")
def _routed(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    experts = _experts(contract.architecture, axes["experts"], axes["channels"])
    w13, w2 = experts.pack(
        Mxfp4(t["w13_packed"], t["w13_scale"]), Mxfp4(t["w2_packed"], t["w2_scale"]), unused_nan=True
    )

    def run() -> None:
        latent, routes = experts.group(t["x"], t["ids"], t["weights"])
        experts(latent, routes, w13, w2, out["routed"])

    return run


@_binds("latent_up")
def _latent_up(contract, t: Tensors, axes: Axes, out: Outputs) -> Callable[[], None]:
    routed, weight, eps = t["routed"], t["latent_up"].T, contract.architecture.eps.backbone
    normed = routed.new_empty(routed.shape[1:])

    def run() -> None:
        exchange.sum_norm(routed, t["latent_norm"], eps, normed)
        exchange.sum_add(torch.mm(normed, weight), t["shared"], t["residual"], out["stream"])

    return run
