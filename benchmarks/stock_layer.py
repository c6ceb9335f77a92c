"""The stock path on one GPU: checked against the oracle, then timed, at the real shapes of one rank.

python benchmarks/stock_layer.py --tp 8 16 --rows 1 4 16 64        everything, as a table and with --out as JSON

Layers replay as one CUDA graph of several layers with weights of their own, which is several times the L2 cache, so
that each layer finds its weights in memory; launches are counted from the graph of one layer. Medians of replays. One
rank alone: communication is neither done nor timed. Experts and shared expert read what random routing chooses.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fasttrack_validation.contracts.kimi_k3 import stock
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.layer_weights import (
    KdaWeights,
    LayerWeights,
    MixWeights,
    MlaWeights,
    ModelWeights,
    MoeWeights,
    Mxfp4,
)
from fasttrack_validation.contracts.kimi_k3.step.attn_res import Stream as PlainStream
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.moe import experts as plain_experts
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.router import choose, router_logits
from fasttrack_validation.contracts.kimi_k3.step.state import Batch, State
from fasttrack_validation.contracts.kimi_k3.stock.step import Tables

CONTEXT = 4096
"""Cached tokens of each request"""
LAYERS = 5
"""Layers of one kind in a chain, each with its own weights"""
NUMBER = 13
"""The number whose AttnRes bookkeeping the layers of a chain have: two banked blocks and the stream"""
REPLAYS = 15
COLD = 1 << 28
"""Bytes of weights that a timed piece rotates over"""
CALLS = 12
"""Calls of a piece in a graph, at least"""
GPU = {"device": "cuda"}


def rank_of(whole: Architecture, tp: int) -> Architecture:
    """The architecture whose whole has the shapes that one rank of `whole` has."""
    return whole.model_copy(
        update={
            "vocab_size": whole.vocab_size // tp,
            "kda": whole.kda.model_copy(update={"heads": whole.kda.heads // tp}),
            "mla": whole.mla.model_copy(update={"heads": whole.mla.heads // tp}),
            "moe": whole.moe.model_copy(update={"expert_intermediate_size": whole.moe.expert_intermediate_size // tp}),
        }
    )


def matrix(*shape: int) -> Tensor:
    return (torch.randn(shape, **GPU) * shape[-1] ** -0.5).bfloat16()


def around_one(*shape: int) -> Tensor:
    return (0.5 + torch.rand(shape, **GPU)).bfloat16()


def mxfp4(*shape: int) -> Mxfp4:
    *rows, k = shape
    # An element has a root mean square near 3; scales spread over three octaves.
    exponent = 127 - round(torch.tensor(3 * k**0.5).log2().item())
    return Mxfp4(
        torch.randint(0, 256, (*rows, k // 2), dtype=torch.uint8, **GPU),
        (exponent + torch.randint(-1, 2, (*rows, k // 32), **GPU)).to(torch.uint8),
    )


def draw_mix(of: Architecture) -> MixWeights:
    return MixWeights(around_one(of.hidden_size), matrix(of.hidden_size), around_one(of.hidden_size))


def draw_kda(of: Architecture) -> KdaWeights:
    shard, d = of.kda_shard(1), of.hidden_size
    in_proj = matrix(shard.projection_rows, d)
    in_proj[shard.columns["pad"]] = 0
    return KdaWeights(
        in_proj=in_proj,
        f_b=matrix(shard.channels, shard.gate_rank),
        conv_weight=0.5 * torch.randn(3 * shard.channels, shard.conv_width, **GPU),
        a_log=(1 + 15 * torch.rand(shard.heads, **GPU)).log(),
        dt_bias=torch.rand(shard.channels, **GPU) * 1.25 - 0.75,
        o_norm=around_one(shard.head_dim),
        o_proj=matrix(d, shard.channels),
    )


def draw_mla(of: Architecture) -> MlaWeights:
    mla, d = of.mla, of.hidden_size
    p = mla.heads * mla.v_head_dim
    return MlaWeights(
        qkv_a_g=matrix(mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim + p, d),
        q_a_norm=around_one(mla.q_lora_rank),
        kv_a_norm=around_one(mla.kv_lora_rank),
        q_b=matrix(mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank),
        kv_b=matrix(mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        o_proj=matrix(d, p),
    )


def draw_moe(of: Architecture) -> MoeWeights:
    moe, d = of.moe, of.hidden_size
    shared = moe.shared_experts * moe.expert_intermediate_size
    return MoeWeights(
        router=matrix(moe.experts, d),
        correction_bias=0.1 * torch.randn(moe.experts, **GPU),
        latent_down=matrix(moe.latent_size, d),
        latent_norm=around_one(moe.latent_size),
        latent_up=matrix(d, moe.latent_size),
        w13=mxfp4(moe.experts, 2 * moe.expert_intermediate_size, moe.latent_size),
        w2=mxfp4(moe.experts, moe.latent_size, moe.expert_intermediate_size),
        shared_gate_up=matrix(2 * shared, d),
        shared_down=matrix(d, shared),
    )


def error(out: Tensor, reference: Tensor) -> float:
    return ((out.double() - reference.double()).norm() / reference.double().norm()).item()


def replay_us(run: Callable[[], object], calls: int = 1) -> float:
    """Median time of one of the `calls` in a captured `run`, microseconds."""
    from fasttrack_validation.contracts.kimi_k3.stock.graph import capture

    return timed_us(capture(run).replay, calls)


def timed_us(replay: Callable[[], None], calls: int = 1) -> float:
    times = []
    for _ in range(REPLAYS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / calls)
    return statistics.median(times[2:])


def read_ceiling() -> float:
    """TB/s of a reduction over 2 GB."""
    big = torch.empty(1 << 30, dtype=torch.bfloat16, **GPU).normal_()
    return big.nbytes / timed_us(lambda: big.view(torch.int64).amax()) / 1e6


def filled_state(of: Architecture, requests: int, width: int) -> State:
    """Caches of two layers only: NUMBER holds a KDA layer, NUMBER + 1 an MLA layer."""
    empty = of.model_copy(update={"layers": 0})
    state = State.allocate(empty, 1, PUBLISHED, requests, CONTEXT + width, verify_width=width, page_size=64, **GPU)
    for layer in (NUMBER, NUMBER + 1):
        fresh = State.allocate(
            of.model_copy(update={"layers": 1, "mla_layers": (0,) if layer > NUMBER else (), "kda_layers": (0,)}),
            1, PUBLISHED, requests, CONTEXT + width, verify_width=width, page_size=64, **GPU,
        ).ranks[0][0]  # fmt: skip
        for tensor in vars(fresh).values():
            tensor.normal_(0, 0.1 if tensor.ndim == 4 else 1)
        state.ranks[0][layer] = fresh
    state.lengths = [CONTEXT - 37 * request % 1000 for request in range(requests)]
    return state


def batch_of(requests: int, width: int) -> Batch:
    return Batch(torch.zeros(requests * width, dtype=torch.long, **GPU), tuple(range(requests)), (width,) * requests)


def clone(state: State) -> State:
    caches = {
        layer: type(cache)(**{name: tensor.clone() for name, tensor in vars(cache).items()})
        for layer, cache in state.ranks[0].items()
    }
    return State([caches], state.slots.clone(), state.pages.clone(), list(state.lengths))


def check_layer(of: Architecture, path, kind: str, moe: MoeWeights, requests: int, width: int) -> Iterator[dict]:
    """One layer against the oracle and, as a yardstick, the plain path's distance from it."""
    number = NUMBER + (kind == "MLA")
    attention = draw_mla(of) if kind == "MLA" else draw_kda(of)
    # The bias alone decides which experts are chosen: roundings before the router would change the last of them. The
    # choice itself is checked by `check_experts`.
    moe = replace(moe, correction_bias=2.0 * torch.randperm(of.moe.experts, **GPU))
    weights = LayerWeights(draw_mix(of), attention, draw_mix(of), moe)
    state, batch = filled_state(of, requests, width), batch_of(requests, width)
    rows = len(batch.tokens)
    prefix, bank = (torch.randn(*shape, rows, of.hidden_size, **GPU).bfloat16() for shape in ((), (2,)))

    found = {}
    for precision in (EXACT, PUBLISHED):
        model = Model(of, [ModelWeights(prefix, {}, weights.mlp_mix, prefix)], precision)
        stream = PlainStream(precision.wide(prefix), of.attn_res_block_size, precision)
        stream.blocks = [precision.wide(block) for block in bank]
        after = clone(state)
        with torch.no_grad():
            model.layer(number, stream, [weights], model.decoding(batch, after))
        found[precision] = (stream.prefix, after.ranks[0][number])

    from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream

    after = clone(state)
    prepared = path.prepare(number, weights)
    stream = Stream(prefix.clone(), bank.clone(), of.attn_res_block_size)
    path.layer(prepared, stream, after.ranks[0][number], Tables.of(batch, after, "cuda"))
    stream.mlp_input(number, weights.mlp_mix, of.eps.backbone)  # Takes up what the MLP left.
    found["stock"] = (stream.prefix, after.ranks[0][number])

    name = f"{kind} + MoE, {requests} x {width} tokens"
    exact, exact_cache = found[EXACT]
    for who, key in (("plain", PUBLISHED), ("stock", "stock")):
        out, cache = found[key]
        per_row = [error(out[row].double() - prefix[row], exact[row] - prefix[row]) for row in range(rows)]
        yield {"check": f"{name}: {who} output, worst row", "error": max(per_row)}
        for cache_name, tensor in vars(cache).items():
            exact_tensor = vars(exact_cache)[cache_name]
            yield {"check": f"{name}: {who} {cache_name}", "error": error(tensor[1:], exact_tensor[1:])}


def check_experts(of: Architecture, path, moe: MoeWeights, packed, rows: int) -> Iterator[dict]:
    """Choice and routed experts alone, from the same logits."""
    run = path.moe(of.moe.expert_intermediate_size)
    y = torch.randn(rows, of.hidden_size, **GPU).bfloat16()
    logits = run.logits(y, moe)
    yield {
        "check": f"router logits, {rows} rows",
        "error": error(logits, router_logits(y.double(), moe.router, EXACT)),
    }
    logits[:, 1::2] = logits[:, ::2]  # Ties everywhere, up to the bias.
    bias = moe.correction_bias.clone()
    bias[1::2] = bias[::2]
    routes = run.experts.route(logits, bias)
    ids, weights = choose(logits, bias, of.moe, PUBLISHED)
    yield {
        "check": f"top-k with ties, {rows} rows: share of differing ids",
        "error": (ids != routes.ids).double().mean().item(),
    }
    yield {"check": f"routing weights, {rows} rows", "error": error(routes.weights.sort(1)[0], weights.sort(1)[0])}
    pairs = routes.unit_pairs[routes.unit_pairs >= 0]
    assert torch.equal(pairs.sort()[0], torch.arange(rows * of.moe.top_k, **GPU, dtype=torch.int32))
    z = run.latent(y, moe)
    out = run.experts(z, routes, packed.w13, packed.w2)
    latent = (y.float() @ moe.latent_down.float().T).bfloat16()
    yield {
        "check": f"scaled latents, {rows} rows",
        "error": error(z.double() * 2.0**-96, y.double() @ moe.latent_down.double().T),
    }
    exact = plain_experts(latent.double(), routes.ids.long(), routes.weights.double(), moe, of.situ, EXACT)
    plain = plain_experts(latent.float(), routes.ids.long(), routes.weights, moe, of.situ, PUBLISHED)
    yield {"check": f"experts, {rows} rows: plain", "error": error(plain, exact)}
    yield {"check": f"experts, {rows} rows: stock", "error": error(out, exact)}


def time_experts(of: Architecture, path, packed, rows: int) -> Iterator[dict]:
    """Each launch of the routed experts: several choices of experts a replay, none of them in the cache."""
    run = path.moe(of.moe.expert_intermediate_size).experts
    calls = max(3, min(12, 96 // rows))
    routes = [
        run.route(torch.randn(rows, of.moe.experts, **GPU), torch.zeros(of.moe.experts, **GPU)) for _ in range(calls)
    ]
    z = torch.randn(rows, of.moe.latent_size, **GPU).bfloat16() * 2.0**96
    activated = [run.first(z, route, packed.w13) for route in routes]
    outputs = [run.second(a, route, packed.w2) for a, route in zip(activated, routes, strict=True)]
    experts = statistics.mean(route.ids.unique().numel() for route in routes)
    elements = of.moe.latent_size * of.moe.expert_intermediate_size * experts
    for name, call, weights in (
        ("first", lambda i: run.first(z, routes[i], packed.w13), 2),
        ("second", lambda i: run.second(activated[i], routes[i], packed.w2), 1),
        ("combine", lambda i: run.combine(outputs[i], routes[i]), 0),
        ("all three", lambda i: run(z, routes[i], packed.w13, packed.w2), 3),
    ):
        us = replay_us(lambda call=call: [call(i) for i in range(calls)], calls)
        nbytes = weights * elements * (1 / 2 + 1 / 32)
        yield {"piece": f"experts {name}", "rows": rows, "experts": experts, "us": us, "MB": nbytes / 1e6}


def time_layers(of: Architecture, path, kind: str, moes, requests: int, width: int) -> Iterator[dict]:
    """A chain of LAYERS layers of one kind, and each piece of one, as graphs."""
    from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream
    from fasttrack_validation.contracts.kimi_k3.stock.graph import capture
    from fasttrack_validation.contracts.kimi_k3.stock.layer import PreparedLayer

    number = NUMBER + (kind == "MLA")
    draw = draw_mla if kind == "MLA" else draw_kda
    layers = [PreparedLayer(number, draw_mix(of), draw(of), draw_mix(of), moe) for moe in moes]
    states = [filled_state(of, requests, width) for _ in layers]
    tables = Tables.of(batch_of(requests, width), states[0], "cuda")
    rows = requests * width
    prefix, bank, delta = (torch.randn(*n, rows, of.hidden_size, **GPU).bfloat16() for n in ((), (2,), ()))

    def chain(count: int):
        stream = Stream(prefix, bank, of.attn_res_block_size)
        stream.after_mlp(delta)
        for layer, state in zip(layers[:count], states, strict=False):
            path.layer(layer, stream, state.ranks[0][number], tables)

    one, several = capture(lambda: chain(1)), capture(lambda: chain(LAYERS))
    yield {
        "piece": f"{kind} + MoE layer", "rows": rows, "requests": requests,
        "us": timed_us(several.replay, LAYERS), "launches": len(one.kernels),
        "kernels": one.kernels, "other nodes": one.others,
        "launches in chain": len(several.kernels),
    }  # fmt: skip
    x = [torch.randn_like(prefix) for _ in layers]
    attend = range(LAYERS)
    yield {
        "piece": f"{kind} attention", "rows": rows, "requests": requests,
        "us": replay_us(
            lambda: [path.attention(x[i], layers[i].attention, states[i].ranks[0][number], tables) for i in attend],
            LAYERS,
        ),
    }  # fmt: skip
    if kind == "KDA":
        us = replay_us(lambda: [path.mlp(x[i], layers[i].mlp) for i in attend], LAYERS)
        yield {"piece": "MoE", "rows": rows, "us": us}
    if width == 1:
        pieces = time_pieces if kind == "KDA" else time_mla
        yield from pieces(of, path, layers[0], states[0], tables, x[0], number)


def piece_us(call: Callable[..., object], *weights: Tensor) -> float:
    """Time of one call, in a graph of many, each with a copy of `weights` of its own."""
    nbytes = sum(tensor.nbytes for tensor in weights)
    calls = max(CALLS, -(-COLD // nbytes)) if weights else CALLS
    copies = [[tensor.clone() for tensor in weights] for _ in range(calls)]
    return replay_us(lambda: [call(*each) for each in copies], calls)


def time_pieces(of: Architecture, path, layer, state: State, tables: Tables, x: Tensor, number: int) -> Iterator[dict]:
    """The launches of a KDA layer one by one. The recurrent state may be in the cache, weights are not."""
    from fasttrack_validation.contracts.kimi_k3.stock import pointwise
    from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream

    attention, mlp, cache = layer.attention, layer.mlp, state.ranks[0][number]
    moe = path.moe(of.moe.expert_intermediate_size)
    projected = x @ attention.in_proj.T
    core = path.kda.core(projected, attention, cache, tables)
    logits = moe.logits(x, mlp)
    latent = torch.randn(len(x), of.moe.latent_size, **GPU).bfloat16()
    bank = torch.randn(8, *x.shape, **GPU).bfloat16()

    def mix(blocks: int) -> None:
        Stream(x, bank[:blocks], of.attn_res_block_size).head_input(layer.mlp_mix, of.eps.backbone)

    for name, call, weights in (
        ("AttnRes of 3 sources", lambda: mix(2), ()),
        ("AttnRes of 9 sources", lambda: mix(8), ()),
        ("KDA in-projection", lambda w: x @ w.T, (attention.in_proj,)),
        ("KDA core (4)", lambda: path.kda.core(projected, attention, cache, tables), ()),
        ("o_proj", lambda w: core @ w.T, (attention.o_proj,)),
        ("router", lambda w: torch.mm(x, w.T, out_dtype=torch.float32), (mlp.router,)),
        ("top-16 and grouping", lambda: moe.experts.route(logits, mlp.correction_bias), ()),
        ("latent down", lambda w: x @ w.T, (mlp.latent_down,)),
        (
            "shared expert",
            lambda up, down: pointwise.situ(x @ up.T, of.situ) @ down.T,
            (mlp.shared_gate_up, mlp.shared_down),
        ),
        ("latent norm", lambda: pointwise.rms_norm(latent, mlp.latent_norm, of.eps.backbone), ()),
        ("latent up with sum", lambda w: torch.addmm(x, latent, w.T), (mlp.latent_up,)),
    ):
        yield {"piece": name, "rows": len(x), "us": piece_us(call, *weights)}


def time_mla(of: Architecture, path, layer, state: State, tables: Tables, x: Tensor, number: int) -> Iterator[dict]:
    """The launches of an MLA layer that a KDA layer does not have."""
    attention, cache = layer.attention, state.ranks[0][number]
    heads = of.mla.heads
    queries = torch.randn(len(x), heads, of.mla.qk_nope_head_dim + of.mla.qk_rope_head_dim, **GPU).bfloat16()
    absorbed = torch.randn(heads, len(x), of.mla.kv_lora_rank, **GPU).bfloat16()
    low = torch.randn(len(x), of.mla.q_lora_rank, **GPU).bfloat16()
    for name, call, weights in (
        ("MLA in-projection", lambda w: x @ w.T, (attention.qkv_a_g,)),
        ("MLA q_b", lambda w: low @ w.T, (attention.q_b,)),
        ("MLA core (2)", lambda: path.mla.attend(absorbed, queries, cache, tables), ()),
    ):
        yield {"piece": name, "rows": len(x), "us": piece_us(call, *weights)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 64])
    parser.add_argument("--out", type=Path, help="writes all results as JSON")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    results: list[dict] = []
    try:
        for result in measure(arguments):
            results.append(result)
            print(json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in result.items()}), flush=True)
    finally:
        if arguments.out:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def measure(arguments: argparse.Namespace) -> Iterator[dict]:
    whole = Architecture.from_config()
    yield {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "read TB/s": read_ceiling()}
    for tp in arguments.tp:
        of = rank_of(whole, tp)
        path = stock.path(of, 1)
        moes = [draw_moe(of) for _ in range(LAYERS)]
        packed = [path.moe(of.moe.expert_intermediate_size).pack(moe) for moe in moes]
        for rows in (1, 8, 37):
            yield from ({"tp": tp} | result for result in check_experts(of, path, moes[0], packed[0], rows))
        for kind in ("KDA", "MLA"):
            for requests, width in ((1, 1), (5, 1), (2, 4)):
                yield from ({"tp": tp} | r for r in check_layer(of, path, kind, moes[1], requests, width))
        for rows in (1, 8, 16, 64):
            yield from ({"tp": tp} | result for result in time_experts(of, path, packed[0], rows))
        for rows in arguments.rows:
            for kind in ("KDA", "MLA"):
                yield from ({"tp": tp} | result for result in time_layers(of, path, kind, packed, rows, 1))
        for kind in ("KDA", "MLA"):
            yield from ({"tp": tp} | result for result in time_layers(of, path, kind, packed, 1, 8))
        del moes, packed, path
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
