"""Layers and whole steps at the true shapes with communication included: timed in turns, and one of them traced.

All 93 layers, whose weights are few sets in turn: a layer finds none of its own in the L2. Inputs are random, so experts
are chosen evenly. Paths: the stock path with NCCL's all-reduces; the decode path with NCCL and separate kernels; with
mailboxes; with mailboxes and a prefetch beside the exchange. Which kernels the decode path takes: decoding.directory.
"""

import json
import time
import traceback

import decoding
import k3_weights
import torch
import torch.distributed as dist
from alone import Timer, captured, meet, summary
from worker import Here, context, warm

from fasttrack_models.kimi_k3 import decode
from fasttrack_models.kimi_k3.exchange import Collectives, Mailboxes, RankedStep, connect
from fasttrack_models.kimi_k3.shape import PUBLISHED as SHAPE
from fasttrack_validation.contracts.kimi_k3 import stock
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.step.precision import PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.state import Batch, State

SETS = 2
CACHES = 4
PAGE = 64
SPANS = {"KDA layer": (13, 14, 16, 17), "MLA layer": (15, 19, 23, 27)}
"""Layers that replay one behind the other; a figure is the mean of one"""
PREFETCH = 24 << 20


class Weights:
    """One rank's model: few sets, and each layer's."""

    def __init__(self, whole: Architecture, tp: int) -> None:
        self.of = of = decoding.rank_of(whole, tp)
        rng = torch.Generator("cuda").manual_seed(0)  # the same on all ranks: they choose the same experts
        with torch.device("cuda"):
            moes = [k3_weights.draw_moe(of, rng) for _ in range(SETS)]
            first = decoding.layer(of, "kda", decoding.dense_mlp(of, rng), rng)
            sets = {kind: [decoding.layer(of, kind, moe, rng) for moe in moes] for kind in ("kda", "mla")}
            kinds = ["kda" if number in SHAPE.kda_layers else "mla" for number in range(SHAPE.layers)]
            layers = {number: sets[kind][number % SETS] for number, kind in enumerate(kinds)}
            self.model = decoding.ends(of, rng, layers | {0: first})
        self.places = {number: (kind, number % SETS) for number, kind in enumerate(kinds)} | {0: ("dense", 0)}


def states(of: Architecture, rows: int, tokens: int) -> list[State]:
    """Filled caches, each of one KDA layer (0) and one MLA layer (1)."""
    found = []
    small = of.model_copy(update={"layers": 2, "kda_layers": (0,), "mla_layers": (1,)})
    for _ in range(CACHES):
        state = State.allocate(small, 1, PUBLISHED, rows, tokens + 1, verify_width=1, page_size=PAGE, device="cuda")
        for cache in state.ranks[0].values():
            for tensor in vars(cache).values():
                tensor.normal_(0, 0.1 if tensor.dim() == 4 else 1)
        state.lengths = [tokens] * rows
        found.append(state)
    return found


def cache_of(state: State, number: int):
    """A layer's, of its kind."""
    return state.ranks[0][0 if number in SHAPE.kda_layers else 1]


def times(here: Here) -> None:
    """Every path's graphs of every span, by rows."""
    group, began = here.join(nccl=True), time.monotonic()
    ctx, tp = context(), here.ranks
    warm(ctx)
    memory, box = connect(64, group, tuple(here.options["kinds"]))
    timer = Timer(ctx, box)
    whole = Architecture.from_config()
    weights = Weights(whole, tp)
    tokens = here.options["tokens"]
    here.found(stage="drawn", seconds=round(time.monotonic() - began, 1))

    def reduce(partial: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(partial)
        return partial

    path = stock.path(whole, tp, device=f"cuda:{here.device}", reduce=reduce)
    packed: dict = {}
    prepared = []
    for number in range(SHAPE.layers):
        place = weights.places[number]
        layer = weights.model.layers[number]
        key = ("moe", place[1]) if place[0] != "dense" else place
        if key not in packed:
            packed[key] = path.prepare(number, layer).mlp
        prepared.append(stock_layer(number, layer, packed[key]))
    here.found(stage="stock prepared", seconds=round(time.monotonic() - began, 1))
    for rows in here.options["rows"]:
        one_size(here, box, memory, timer, ctx, group, weights, path, prepared, rows, tokens, began)
        torch.cuda.empty_cache()


def stock_layer(number: int, layer, mlp):
    """A prepared layer that shares its experts."""
    from fasttrack_validation.contracts.kimi_k3.stock.layer import PreparedLayer

    return PreparedLayer(number, layer.attention_mix, layer.attention, layer.mlp_mix, mlp)


def one_size(here, box, memory, timer, ctx, group, weights, path, prepared, rows, tokens, began) -> None:
    """Binds, checks what can be checked here, times and traces."""
    from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream
    from fasttrack_validation.contracts.kimi_k3.stock.step import Tables

    tp, rank, of = here.ranks, here.rank, weights.of
    sets = states(of, rows, tokens)
    caches = {}
    for number in range(SHAPE.layers):
        cache = cache_of(sets[number % CACHES], number)
        names = {"conv": "conv_state", "recurrent": "recurrent_state", "rows": "cache"}
        caches[number] = {names[name]: tensor for name, tensor in vars(cache).items()}
    pages = sets[0].pages.shape[1]
    decoder = decoding.decoder(weights.model, SHAPE, tp, rank, (rows,), caches, pages)
    executor, lane = decoder.executors[rows], decoder.lane(rows)
    batch = Batch(torch.arange(rows), tuple(range(rows)), (1,) * rows)
    embedding = torch.randn(rows, SHAPE.hidden, generator=torch.Generator().manual_seed(5)).bfloat16().cuda()
    lane.take(
        decode.Inputs(
            embedding, sets[0].slots_of(batch)[:, 0].int(), sets[0].pages_of(batch).int(),
            torch.full((rows,), tokens + 1, dtype=torch.int32, device="cuda"),
        ),
        rows,
    )  # fmt: skip
    executor.run()  # compiles
    torch.cuda.synchronize()
    here.found(stage=f"{rows} rows bound", seconds=round(time.monotonic() - began, 1), extra_bytes=decoder.extra_bytes)
    mailboxes, nccl = Mailboxes(ctx, box), Collectives(group)
    paths = {
        "decode path, NCCL and separate kernels": (nccl, 0),
        "decode path, mailboxes": (mailboxes, 0),
        "decode path, mailboxes, prefetch": (mailboxes, PREFETCH),
    }
    meet()
    tables = Tables.of(batch, sets[0], "cuda")
    bank = torch.randn(2, rows, SHAPE.hidden, device="cuda").bfloat16()

    def stock_span(numbers) -> None:
        stream = Stream(embedding.clone(), bank, SHAPE.block_size)
        for number in numbers:
            path.layer(prepared[number], stream, cache_of(sets[number % CACHES], number), tables)

    def stock_step() -> torch.Tensor:
        stream = path.start(embedding)
        for number in range(SHAPE.layers):
            path.layer(prepared[number], stream, cache_of(sets[number % CACHES], number), tables)
        return path.head(stream, weights.model.final_mix, weights.model.lm_head)

    for span, numbers in SPANS.items():
        bounds = [bound for bound in executor.bound if bound.call.members[0].place.layer in numbers]
        graphs = stock_graph(here, lambda numbers=numbers: stock_span(numbers))
        counts = {}
        for name, (transport, size) in paths.items():
            step = RankedStep(executor, lane, transport, bounds=bounds, prefetch_bytes=size)
            graphs[name] = captured(step.run)
            counts[name] = step.exchanges / len(numbers)
        found = timer.interleaved(graphs, here.options["rounds"], len(numbers))
        if rank == 0:
            here.found(
                stage="time", span=span, rows=rows, tp=tp, context=tokens, memory=memory, layers=numbers,
                exchanges=counts, microseconds={name: summary(one) for name, one in found.items()},
            )  # fmt: skip
        if span == "KDA layer":
            traced(here, graphs["decode path, mailboxes, prefetch"], rows)
        del graphs
    if rows in here.options["steps"]:
        graphs = stock_graph(here, stock_step)
        for name, (transport, size) in paths.items():
            graphs[name] = captured(RankedStep(executor, lane, transport, prefetch_bytes=size).run)
        found = timer.interleaved(graphs, here.options["step_rounds"], 1)
        if rank == 0:
            here.found(
                stage="time", span="step", rows=rows, tp=tp, context=tokens, memory=memory,
                microseconds={name: summary(one) for name, one in found.items()},
            )  # fmt: skip


def stock_graph(here: Here, body) -> dict[str, torch.cuda.CUDAGraph]:
    """The stock path's graph; none, and why, where it cannot be captured: the same on all ranks."""
    try:
        return {"stock path, NCCL": captured(body)}
    except Exception:
        here.found(stage="stock path failed", why=traceback.format_exc()[-1500:])
        return {}


def traced(here: Here, graph: torch.cuda.CUDAGraph, rows: int) -> None:
    """Every kernel of one replay: name, stream, start and duration in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        meet()  # a profiler takes its time to start
        graph.replay()
        torch.cuda.synchronize()
    path = here.folder / f"trace-{here.rank}.json"
    profiler.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "kernel"]
    path.unlink()
    first = min((event["ts"] for event in events), default=0)
    kernels = [
        [event["name"][:60], event["args"].get("stream"), round(event["ts"] - first, 2), round(event["dur"], 2)]
        for event in sorted(events, key=lambda event: event["ts"])
    ]
    here.found(stage="trace", rows=rows, kernels=kernels, together=together(kernels))


def together(kernels: list[list]) -> dict[str, float]:
    """Microseconds in which two kernels ran at once, by their names."""
    found: dict[str, float] = {}
    for place, (name, _, start, took) in enumerate(kernels):
        for other, _, begins, takes in kernels[place + 1 :]:
            if begins >= start + took:
                break
            shared = min(start + took, begins + takes) - max(start, begins)
            key = " | ".join(sorted((name, other)))
            found[key] = round(found.get(key, 0.0) + shared, 2)
    return found
