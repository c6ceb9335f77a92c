"""The exchange by itself: right or wrong against sums on the CPU, and its latency beside NCCL and separate kernels."""

import statistics

import torch
import torch.distributed as dist
from worker import Here, context, warm

from fasttrack_models.kimi_k3.exchange import Mix, Parcel, connect, exchange, gather

HIDDEN, LATENT, EPS = 7168, 3584, 1e-5
BANKS = 2
IN_A_GRAPH, WARM_UP = 20, 5
BATCHES = (1, 4, 1, 1, 3, 8, 64, 2, 8, 33, 64, 1)
MIX_ERROR = 4e-3
"""Relative, in the norm: x is rounded to bfloat16 once"""


def random(seed: int, *shape: int) -> torch.Tensor:
    """bf16 on the CPU, the same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def share(rank: int, rows: int, seed: int) -> torch.Tensor:
    """What a rank brings along."""
    return random(1000 * seed + 10 * rows + rank, rows, HIDDEN)


def expected(ranks: int, rows: int, seed: int, residual: torch.Tensor) -> torch.Tensor:
    """residual + the shares in rank order, in float32, rounded once."""
    total = torch.zeros(rows, HIDDEN)
    for rank in range(ranks):
        total += share(rank, rows, seed).float()
    return (total + residual.float()).bfloat16()


def mixed(stream: torch.Tensor, banks: torch.Tensor, norms: list[torch.Tensor]) -> torch.Tensor:
    """The mix and its norm in float64."""
    res_norm, res_proj, out_norm = (norm.double() for norm in norms)
    sources = torch.cat([banks.double(), stream.double()[None]])
    logits = (sources @ (res_norm * res_proj)) * (sources.square().mean(-1) + EPS).rsqrt()
    found = (logits.softmax(0)[..., None] * sources).sum(0)
    return found * (found.square().mean(-1, keepdim=True) + EPS).rsqrt() * out_norm


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, in the norm."""
    return ((got.double().cpu() - exact.double()).norm() / exact.double().norm()).item()


def correct(here: Here) -> None:
    """Sums, mixes, columns and parcels of many batches, one after the other through one mailbox."""
    group = here.join(nccl=False)
    kind, box = connect(max(BATCHES), group, tuple(here.options["kinds"]))
    ctx, ranks, rank = context(), here.ranks, here.rank
    warm(ctx)
    dist.barrier(group)
    columns = HIDDEN // ranks
    norms = [random(seed, HIDDEN) for seed in (1, 2, 3)]
    on_gpu = [norm.cuda() for norm in norms]
    for number, rows in enumerate(BATCHES):
        residual, banks = random(number, rows, HIDDEN), random(100 + number, BANKS, rows, HIDDEN)
        exact = expected(ranks, rows, number, residual)
        mine, on = share(rank, rows, number).cuda(), residual.cuda()
        out, x = (torch.full((rows, HIDDEN), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(2))
        found = {}
        exchange(ctx, box, mine, on, out)
        found["sum"] = torch.equal(out.cpu(), exact)
        out.fill_(float("nan"))
        exchange(ctx, box, mine, on, out, mix=Mix(banks.cuda(), *on_gpu, x))
        found["sum before a mix"] = torch.equal(out.cpu(), exact)
        found["mix error"] = error(x, mixed(exact, banks, norms))
        whole = share(0, rows, 50 + number)
        out.fill_(float("nan"))
        exchange(ctx, box, whole[:, rank * columns : (rank + 1) * columns].cuda(), None, out)
        found["columns"] = torch.equal(out.cpu(), whole)
        sent = random(7000 + 10 * number + rank, ranks, rows, columns)
        received = torch.full((ranks, rows, columns), float("nan"), dtype=torch.bfloat16, device="cuda")
        latents = torch.full((ranks, rows, LATENT), float("nan"), dtype=torch.bfloat16, device="cuda")
        own = random(8000 + 10 * number + rank, rows, LATENT).cuda()
        gather(ctx, box, Parcel(own.expand_as(latents), latents, True), Parcel(sent.cuda(), received, True))
        found["latents of all"] = all(
            torch.equal(latents[peer].cpu(), random(8000 + 10 * number + peer, rows, LATENT)) for peer in range(ranks)
        )
        found["columns for me"] = all(
            torch.equal(received[peer].cpu(), random(7000 + 10 * number + peer, ranks, rows, columns)[rank])
            for peer in range(ranks)
        )
        logits = torch.randn(rows, 896 // ranks, generator=torch.Generator().manual_seed(number))
        wide = torch.full((ranks, rows, 896 // ranks), float("nan"), device="cuda")
        gather(ctx, box, Parcel(logits.cuda().add(rank).expand_as(wide), wide, True))
        found["float32"] = all(torch.equal(wide[peer].cpu(), logits + peer) for peer in range(ranks))
        box.check()
        right = all(value for value in found.values() if isinstance(value, bool)) and found["mix error"] < MIX_ERROR
        here.found(ranks=ranks, memory=kind, batch=number, rows=rows, right=right, **found)


class Timer:
    """Replays of several ranks' graphs: they begin together, behind an exchange and a pause that hides their launches."""

    PAUSE = 500_000
    """Cycles: a quarter of a millisecond"""

    def __init__(self, ctx, box) -> None:
        self._box = box
        row = torch.zeros(1, HIDDEN, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(row)
        self._meet = captured(lambda: exchange(ctx, box, row, None, out))

    def microseconds(self, graph: torch.cuda.CUDAGraph) -> float:
        """Of one replay, by this rank's events."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        meet()
        torch.cuda._sleep(self.PAUSE)
        self._meet.replay()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return 1000 * start.elapsed_time(end)

    def interleaved(self, graphs: dict, rounds: int, each: int) -> dict[str, list[float]]:
        """Microseconds a call, `each` calls a replay: of every round the slowest rank's, graphs in turns."""
        names = list(graphs)
        times = {name: [] for name in names}
        for number in range(rounds + WARM_UP):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                took = self.microseconds(graphs[name]) / each
                if number >= WARM_UP:
                    times[name].append(took)
        table = torch.tensor([times[name] for name in names], dtype=torch.float64)
        dist.all_reduce(table, op=dist.ReduceOp.MAX)
        self._box.check()
        return {name: [round(value, 3) for value in row] for name, row in zip(names, table.tolist(), strict=True)}


def meet() -> None:
    """Waits for all ranks, on the CPU: a group's own barrier would take its GPU side."""
    dist.all_reduce(torch.zeros(1))


def captured(body, times: int = 1) -> torch.cuda.CUDAGraph:
    """`body`, `times` over, as a graph, after two calls of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body(), body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            body()
    return graph


def summary(times: list[float]) -> dict:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median": round(middle, 2), "quarter": round(low, 2), "three quarters": round(high, 2), "samples": times}


def latency(here: Here) -> None:
    """Fused launches beside NCCL and separate kernels, by rows."""
    from fasttrack_validation.contracts.kimi_k3.layer_weights import MixWeights
    from fasttrack_validation.contracts.kimi_k3.stock.attn_res import mix_norm

    group, ctx = here.join(nccl=True), context()
    warm(ctx)
    dist.barrier()
    boxes = {kind: connect(64, group, (kind,))[1] for kind in here.options["kinds"]}
    timer = Timer(ctx, next(iter(boxes.values())))
    ranks, rank = here.ranks, here.rank
    columns = HIDDEN // ranks
    norms = [random(seed, HIDDEN).cuda() for seed in (1, 2, 3)]
    for rows in here.options["rows"]:
        mine, residual = share(rank, rows, 0).cuda(), random(1, rows, HIDDEN).cuda()
        banks = random(2, BANKS, rows, HIDDEN).cuda()
        out, x, reduced = torch.empty_like(residual), torch.empty_like(residual), torch.zeros_like(mine)
        latents = torch.zeros(ranks, rows, LATENT, dtype=torch.bfloat16, device="cuda")
        partial = torch.zeros(ranks, rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
        mine_of = partial[:, :, rank * columns : (rank + 1) * columns]
        theirs = partial[rank].unflatten(1, (ranks, columns)).transpose(0, 1)
        weights = MixWeights(*norms)
        bodies = {}
        for kind, box in boxes.items():
            mix = Mix(banks, *norms, x)
            bodies[f"sum: mailbox ({kind})"] = lambda box=box: exchange(ctx, box, mine, residual, out)
            bodies[f"sum and mix: mailbox ({kind})"] = lambda box=box, mix=mix: exchange(ctx, box, mine, residual, out, mix=mix)
            bodies[f"expert sums: mailbox ({kind})"] = lambda box=box: gather(
                ctx, box, Parcel(latents[rank].expand_as(latents), latents, False), Parcel(theirs, mine_of, False)
            )

        def nccl_sum() -> None:
            dist.all_reduce(reduced)
            torch.add(reduced, residual, out=out)

        def nccl_mix() -> None:
            nccl_sum()
            mix_norm(out, banks, weights, EPS, x)

        def nccl_experts() -> None:
            dist.all_gather_into_tensor(latents, latents[rank])
            dist.all_gather_into_tensor(partial, partial[rank])

        bodies |= {
            "sum: NCCL, add": nccl_sum, "sum and mix: NCCL, add, mix": nccl_mix,
            "expert sums: NCCL, two gathers": nccl_experts,
        }  # fmt: skip
        graphs = {name: captured(body, IN_A_GRAPH) for name, body in bodies.items()}
        times = timer.interleaved(graphs, here.options["rounds"], IN_A_GRAPH)
        if rank == 0:
            here.found(ranks=ranks, rows=rows, microseconds={name: summary(found) for name, found in times.items()})
    for box in boxes.values():
        box.check()
