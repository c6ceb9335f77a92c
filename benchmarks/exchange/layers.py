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
    ctx, tp, rank = context(), here.ranks, here.rank
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
    try:
        prepared = stock_layers(path, weights)
    except Exception:
        prepared = None
        here.found(stage="stock path failed", why=traceback.format_exc()[-1500:])
    here.found(stage="stock prepared", seconds=round(time.monotonic() - began, 1))
    sizes = here.options["rows"]
    sets = states(weights.of, max(sizes), tokens)
    caches = {}
    names = {"conv": "conv_state", "recurrent": "recurrent_state", "rows": "cache"}
    for number in range(SHAPE.layers):
        cache = cache_of(sets[number % CACHES], number)
        caches[number] = {names[name]: tensor for name, tensor in vars(cache).items()}
    pages = sets[0].pages.shape[1]
    decoder = decoding.decoder(weights.model, SHAPE, tp, rank, tuple(sizes), caches, pages)
    here.found(stage="repacked", seconds=round(time.monotonic() - began, 1), extra_bytes=decoder.extra_bytes)
    decoding.compile_all(decoder, tp + rank, 2 * tp)
    here.found(stage="bound", seconds=round(time.monotonic() - began, 1))
    here.wait_for_others()
    meet()
    paths = {
        "decode path, NCCL and separate kernels": (Collectives(group), 0),
        "decode path, mailboxes": (Mailboxes(ctx, box), 0),
        "decode path, mailboxes, prefetch": (Mailboxes(ctx, box), PREFETCH),
    }
    traces = {}
    for rows in sizes:
        one = Size(here, timer, weights, path, prepared, decoder, paths, sets, rows, tokens, memory)
        traces[rows] = one.layers()
        if rows in here.options["steps"]:
            one.steps()
        here.found(stage=f"{rows} rows timed", seconds=round(time.monotonic() - began, 1))
    for rows, graph in traces.items():
        traced(here, graph, rows)


def stock_layers(path, weights: Weights) -> list:
    """The stock path's layers, those of a set with the same repacked experts."""
    from fasttrack_validation.contracts.kimi_k3.stock.layer import PreparedLayer

    packed, made = {}, []
    for number, layer in sorted(weights.model.layers.items()):
        kind, place = weights.places[number]
        key = (kind if kind == "dense" else "moe", place)
        if key not in packed:
            packed[key] = path.prepare(number, layer).mlp
        made.append(PreparedLayer(number, layer.attention_mix, layer.attention, layer.mlp_mix, packed[key]))
    return made


class Size:
    """Everything of one row count."""

    def __init__(self, here, timer, weights, path, prepared, decoder, paths, sets, rows, tokens, memory) -> None:
        from fasttrack_validation.contracts.kimi_k3.stock.step import Tables

        self.here, self.timer, self.weights, self.path, self.prepared = here, timer, weights, path, prepared
        self.paths, self.sets, self.rows = paths, sets, rows
        self.executor, self.lane = decoder.executors[rows], decoder.lane(rows)
        self.about = {"stage": "time", "rows": rows, "tp": here.ranks, "context": tokens, "memory": memory}
        batch = Batch(torch.arange(rows), tuple(range(rows)), (1,) * rows)
        self.tables = Tables.of(batch, sets[0], "cuda")
        self.embedding = torch.randn(rows, SHAPE.hidden, generator=torch.Generator().manual_seed(5)).bfloat16().cuda()
        self.bank = torch.randn(2, rows, SHAPE.hidden, generator=torch.Generator().manual_seed(6)).bfloat16().cuda()
        inputs = decode.Inputs(
            self.embedding, sets[0].slots_of(batch)[:, 0].int(), sets[0].pages_of(batch).int(),
            torch.full((rows,), tokens + 1, dtype=torch.int32, device="cuda"),
        )  # fmt: skip
        self.lane.take(inputs, rows)

    def layers(self) -> torch.cuda.CUDAGraph:
        """Times every span; the graph to be traced."""
        from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream

        def stock_span(numbers) -> None:
            stream = Stream(self.embedding.clone(), self.bank, SHAPE.block_size)
            for number in numbers:
                self._stock_layer(number, stream)

        kept = None
        for span, numbers in SPANS.items():
            bounds = [bound for bound in self.executor.bound if bound.call.members[0].place.layer in numbers]
            graphs, exchanges = stock_graph(self.here, lambda numbers=numbers: stock_span(numbers)), {}
            for name, (transport, size) in self.paths.items():
                step = RankedStep(self.executor, self.lane, transport, bounds=bounds, prefetch_bytes=size)
                graphs[name] = captured(step.run)
                exchanges[name] = step.exchanges / len(numbers)
            kept = kept or graphs["decode path, mailboxes, prefetch"]
            self._time(graphs, len(numbers), self.here.options["rounds"], span=span, layers=numbers, exchanges=exchanges)
        return kept

    def steps(self) -> None:
        """Times the whole step."""

        def stock_step() -> torch.Tensor:
            stream = self.path.start(self.embedding)
            for number in range(SHAPE.layers):
                self._stock_layer(number, stream)
            return self.path.head(stream, self.weights.model.final_mix, self.weights.model.lm_head)

        graphs = stock_graph(self.here, stock_step)
        for name, (transport, size) in self.paths.items():
            graphs[name] = captured(RankedStep(self.executor, self.lane, transport, prefetch_bytes=size).run)
        self._time(graphs, 1, self.here.options["step_rounds"], span="step")

    def _stock_layer(self, number: int, stream) -> None:
        cache = cache_of(self.sets[number % CACHES], number)
        self.path.layer(self.prepared[number], stream, cache, self.tables)

    def _time(self, graphs, each: int, rounds: int, **about) -> None:
        found = self.timer.interleaved(graphs, rounds, each)
        if self.here.rank == 0:
            figures = {name: summary(one) for name, one in found.items()}
            self.here.found(**self.about, **about, microseconds=figures)


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
