"""Whole steps of a Kimi K3 of three layers at its true widths, on a rank each, against the unsharded oracle in float64.

Layers: KDA before the dense MLP, KDA before the mixture of 896 experts, and MLA before it where a block of residuals
begins. The bias alone chooses experts: a choice that hangs on a rounding is nobody's fault.
"""

import gc
import time
from dataclasses import replace

import decoding
import k3_weights
import torch
import torch.distributed as dist
from alone import error, meet
from worker import Here, context, warm

from fasttrack_models.kimi_k3 import decode
from fasttrack_models.kimi_k3.exchange import Collectives, Mailboxes, RankedStep, connect
from fasttrack_models.kimi_k3.graph import LOGITS
from fasttrack_validation.contracts.kimi_k3 import stock
from fasttrack_validation.contracts.kimi_k3.layer_weights import ModelWeights, Shard
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch, KdaCache, State
from fasttrack_validation.contracts.kimi_k3.stock.layer import to_device
from fasttrack_validation.contracts.kimi_k3.stock.step import Tables

LAYERS, KDA, BLOCK = 3, (0, 1), 2
LENGTHS = (37, 5, 90)
PAGE, TOKENS = 16, 128
RATIO, FLOOR = 2.0, 0.02
"""A logit row may be so many times as wrong as the plain path's, or so wrong in the norm"""
BATCHES = ((0, 1, 2, PADDING), (1,))


def whole_model(of) -> ModelWeights:
    """All ranks draw the same."""
    rng = torch.Generator("cuda").manual_seed(7)
    layers = {}
    with torch.device("cuda"):
        for number in range(LAYERS):
            if number < of.moe.first_layer:
                mlp = decoding.dense_mlp(of, rng)
            else:
                bias = 2.0 * torch.randperm(of.moe.experts, generator=rng).float()
                mlp = replace(k3_weights.draw_moe(of, rng), correction_bias=bias)
            layers[number] = decoding.layer(of, "kda" if number in KDA else "mla", mlp, rng)
        made = decoding.ends(of, rng, layers)
    return ModelWeights(made.embedding, layers, made.final_mix, made.lm_head)


def random_state(of) -> State:
    """What requests have left behind: random, the same on every rank."""
    state = State.allocate(
        of, 1, PUBLISHED, len(LENGTHS), TOKENS, verify_width=1, page_size=PAGE, device="cuda"
    )  # fmt: skip
    rng = torch.Generator("cuda").manual_seed(8)
    for cache in state.ranks[0].values():
        for tensor in vars(cache).values():
            tensor.normal_(0, 0.1 if tensor.dim() == 4 else 1, generator=rng)
    state.lengths = list(LENGTHS)
    return state


def in_float64(of, state: State) -> State:
    """The same values for the oracle."""
    exact = State.allocate(of, 1, EXACT, len(LENGTHS), TOKENS, verify_width=1, page_size=PAGE, device="cuda")
    for layer, cache in state.ranks[0].items():
        for name, tensor in vars(cache).items():
            getattr(exact.ranks[0][layer], name).copy_(tensor)
    exact.lengths = list(LENGTHS)
    return exact


def own_caches(state: State, shard: Shard) -> dict[int, dict[str, torch.Tensor]]:
    """This rank's heads of every cache."""
    found = {}
    for layer, cache in state.ranks[0].items():
        if isinstance(cache, KdaCache):
            conv = torch.cat([part.chunk(shard.tp, -1)[shard.rank] for part in cache.conv.chunk(3, -1)], -1)
            heads = cache.recurrent.chunk(shard.tp, 1)[shard.rank]
            found[layer] = {"conv_state": conv.contiguous(), "recurrent_state": heads.contiguous()}
        else:
            found[layer] = {"cache": cache.rows.clone()}
    return found


def restore(caches, pristine) -> None:
    """Puts every cache back."""
    for layer, cache in pristine.items():
        for name, tensor in cache.items():
            caches[layer][name].copy_(tensor)


def gathered(logits: torch.Tensor) -> torch.Tensor:
    """All ranks' columns."""
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits.contiguous())
    return torch.cat(parts, 1)


def against_oracle(here: Here) -> None:
    """Logits and states after a step, by mailboxes and by NCCL, and the stock path's with NCCL."""
    group, began = here.join(nccl=True), time.monotonic()
    ctx = context()
    warm(ctx)
    of, shape = decoding.cut_down(LAYERS, KDA, BLOCK)
    tp, rank = here.ranks, here.rank
    shard = Shard(tp, rank)
    weights = whole_model(of)
    state = random_state(of)
    steps, plain, exact = {}, {}, {}
    after = {}
    for requests in BATCHES:
        tokens = torch.arange(len(requests), device="cuda") * 1009 + 11
        steps[requests] = batch = Batch(tokens, requests, (1,) * len(requests))
        for precision, into, of_state in ((PUBLISHED, plain, random_state(of)), (EXACT, exact, in_float64(of, state))):
            into[requests] = Model(of, [weights], precision).decode(batch, of_state)
            after[requests, precision] = of_state
            torch.cuda.empty_cache()
    here.found(stage="oracle", seconds=round(time.monotonic() - began, 1))
    layers = {number: to_device(k3_weights.shard_layer(one, of, shard), "cuda") for number, one in weights.layers.items()}
    mine = decoding.SimpleNamespace(
        layers=layers, final_mix=weights.final_mix, lm_head=k3_weights._cut(weights.lm_head, shard).contiguous(),
    )  # fmt: skip
    embedding = weights.embedding
    del weights
    gc.collect(), torch.cuda.empty_cache()
    pristine = own_caches(state, shard)
    caches = {layer: {name: tensor.clone() for name, tensor in cache.items()} for layer, cache in pristine.items()}
    decoder = decoding.decoder(mine, shape, tp, rank, tuple(len(requests) for requests in BATCHES), caches, state.pages.shape[1])
    here.found(stage="repacked", seconds=round(time.monotonic() - began, 1))
    decoding.compile_all(decoder, rank, 2 * tp)
    here.found(stage="bound", seconds=round(time.monotonic() - began, 1), extra_bytes=decoder.extra_bytes)
    memory, box = connect(max(len(requests) for requests in BATCHES), group, tuple(here.options["kinds"]))
    meet()
    for transport in (Mailboxes(ctx, box), Collectives(group)):
        for requests, batch in steps.items():
            restore(caches, pristine)
            bucket = len(requests)
            inputs = decode.Inputs(
                embedding[batch.tokens], state.slots_of(batch)[:, 0].int(), state.pages_of(batch).int(),
                torch.tensor([0 if r == PADDING else LENGTHS[r] + 1 for r in requests], dtype=torch.int32, device="cuda"),
            )  # fmt: skip
            lane = decoder.lane(bucket)
            lane.take(inputs, bucket)
            step = RankedStep(decoder.executors[bucket], lane, transport, prefetch_bytes=1 << 22)
            torch.cuda.synchronize(), meet()
            step.run()
            torch.cuda.synchronize()
            box.check()
            logits = gathered(lane.memory.written(LOGITS)[:bucket])
            stream = lane.memory.whole(f"{LAYERS - 1}.latent_up.stream")
            streams = [torch.empty_like(stream) for _ in range(tp)]
            dist.all_gather(streams, stream.contiguous())
            errors = errors_of(logits, plain[requests], exact[requests], requests)
            states = state_errors(caches, after[requests, EXACT], requests, shard)
            same = all(torch.equal(streams[0], one) for one in streams)
            right = all(own <= max(RATIO * other, FLOOR) for own, other in errors) and max(states.values()) < 0.1
            here.found(
                stage="step", transport=type(transport).__name__, memory=memory, requests=requests, errors=errors,
                states=states, exchanges=step.exchanges, same_stream_on_all_ranks=same, right=right and same,
            )  # fmt: skip
    stock_step(here, of, mine, embedding, steps, plain, exact, pristine, state)


def errors_of(logits, plain, exact, requests) -> list[tuple[float, float]]:
    """(own error, the plain path's) of every live row."""
    return [
        (error(logits[row], exact[row].cpu()), error(plain[row], exact[row].cpu()))
        for row, request in enumerate(requests) if request != PADDING
    ]  # fmt: skip


def state_errors(caches, exact: State, requests, shard: Shard) -> dict[str, float]:
    """The largest error of each kind of state, of live requests: the oracle leaves a step's in the next slot."""
    wanted = own_caches(exact, shard)
    found: dict[str, float] = {}
    for layer, cache in caches.items():
        for request in requests:
            if request == PADDING:
                continue
            for name, tensor in cache.items():
                if name == "cache":
                    page, offset = exact.pages[request][LENGTHS[request] // PAGE], LENGTHS[request] % PAGE
                    own, other = tensor[page, offset], wanted[layer][name][page, offset]
                else:
                    own, other = tensor[exact.slots[request, 0]], wanted[layer][name][exact.slots[request, 1]]
                found[name] = max(found.get(name, 0.0), error(own, other.cpu()))
    return found


def stock_step(here: Here, of, mine, embedding, steps, plain, exact, pristine, state: State) -> None:
    """The same steps by the stock path, its partial sums by NCCL."""

    def reduce(partial: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(partial)
        return partial

    path = stock.path(of, here.ranks, device=f"cuda:{here.device}", reduce=reduce)
    prepared = [path.prepare(number, weights) for number, weights in mine.layers.items()]
    for requests, batch in steps.items():
        caches = {
            layer: KdaCache(cache["conv_state"].clone(), cache["recurrent_state"].clone())
            if "conv_state" in cache else type(state.ranks[0][layer])(cache["cache"].clone())
            for layer, cache in pristine.items()
        }  # fmt: skip
        tables, stream = Tables.of(batch, state, "cuda"), path.start(embedding[batch.tokens])
        for one in prepared:
            path.layer(one, stream, caches[one.number], tables)
        logits = gathered(path.head(stream, mine.final_mix, mine.lm_head))
        errors = errors_of(logits, plain[requests], exact[requests], requests)
        right = all(own <= max(RATIO * other, FLOOR) for own, other in errors)
        here.found(stage="step", transport="stock path with NCCL", requests=requests, errors=errors, right=right)
