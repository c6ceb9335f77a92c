"""The exchange of attention outputs between GPUs: mailboxes beside NCCL's all-reduce with a residual add behind it.

    torchrun --nproc-per-node 2 benchmarks/exchange.py [--rows 1,8,64] [--repeats 200] [--out exchange.json]
    python benchmarks/exchange.py --simulated 2     # several ranks on one GPU: right or wrong, no times

Both sum bf16 rows of 7168 over the ranks and add a residual. Each is captured as a CUDA graph of 20 exchanges; medians of
the replays of the slowest rank, in turns. Results are held against sums on the CPU before anything is timed.
"""

import argparse
import json
import os
import statistics
from pathlib import Path

import torch
import torch.distributed as dist

import fasttrack_models.kimi_k3 as package
from fasttrack_models.kimi_k3 import launcher
from fasttrack_models.kimi_k3.exchange import agree, exchange, local, symmetric

HIDDEN, IN_A_GRAPH, WARM_UP = 7168, 20, 20


def context() -> launcher.ServingContext:
    root = Path(package.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.cu*")}
    return launcher.ServingContext(launcher.hardware("h200"), sources)


def share(rank: int, rows: int) -> torch.Tensor:
    """What a rank brings along; every rank can work out every other's."""
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(1000 * rows + rank))


def expected(ranks: int, rows: int, residual: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(rows, HIDDEN)
    for rank in range(ranks):
        total += share(rank, rows).bfloat16().float()
    return (total + residual.cpu().float()).bfloat16()


def captured(body) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            body()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1000 * start.elapsed_time(end) / IN_A_GRAPH


def measure(ctx, box, rows: int, repeats: int) -> dict:
    rank, ranks = box.rank, box.ranks
    mine, residual = share(rank, rows).cuda(), torch.ones(rows, HIDDEN, dtype=torch.bfloat16).cuda()
    out, reduced = torch.empty_like(residual), mine.bfloat16()
    exchange(ctx, box, mine, residual, out)
    torch.cuda.synchronize()
    box.check()
    right = torch.equal(out.cpu(), expected(ranks, rows, residual))

    def nccl():
        dist.all_reduce(reduced)
        torch.add(reduced, residual, out=out)

    graphs = {"mailbox": captured(lambda: exchange(ctx, box, mine, residual, out)), "nccl": captured(nccl)}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(repeats + WARM_UP):
        for name, graph in graphs.items() if number % 2 else reversed(graphs.items()):
            dist.barrier()
            slowest = torch.tensor([microseconds(graph)], device="cuda")
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if number >= WARM_UP:
                times[name].append(slowest.item())
    box.check()
    medians = {name: round(statistics.median(found), 2) for name, found in times.items()}
    return {"ranks": ranks, "rows": rows, "right": right, **medians, "ratio": round(medians["nccl"] / medians["mailbox"], 2)}


def simulated(ranks: int, rows: list[int]) -> None:
    ctx, boxes = context(), local(ranks, max(rows), "cuda")
    streams = [torch.cuda.Stream() for _ in boxes]
    for count in rows:
        residual = torch.ones(count, HIDDEN, dtype=torch.bfloat16).cuda()
        outs = [torch.empty_like(residual) for _ in boxes]
        given = [share(rank, count).cuda() for rank in range(ranks)]
        torch.cuda.synchronize()
        for box, stream, mine, out in zip(boxes, streams, given, outs, strict=True):
            with torch.cuda.stream(stream):
                exchange(ctx, box, mine, residual, out)
        torch.cuda.synchronize()
        for box in boxes:
            box.check()
        right = all(torch.equal(out.cpu(), expected(ranks, count, residual)) for out in outs)
        print(f"{ranks} simulated ranks, {count} rows: {'right' if right else 'WRONG'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,2,4,8,16,32,64")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--simulated", type=int, help="ranks on one GPU")
    parser.add_argument("--out")
    chosen = parser.parse_args()
    rows = [int(one) for one in chosen.rows.split(",")]
    if chosen.simulated:
        return simulated(chosen.simulated, rows)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cuda:nccl,cpu:gloo")
    reasons = [] if torch.cuda.get_device_capability() >= (9, 0) else ["needs compute capability 9.0"]
    if not (verdict := agree(reasons)).agreed:
        raise SystemExit("\n".join(verdict.reasons))
    ctx, box = context(), symmetric(max(rows), dist.group.WORLD)
    found = [measure(ctx, box, count, chosen.repeats) for count in rows]
    if box.rank == 0:
        for one in found:
            print(f"{one['ranks']} ranks, {one['rows']:2} rows: mailbox {one['mailbox']:6.2f} us, NCCL and add {one['nccl']:6.2f} us, "
                  f"ratio {one['ratio']:.2f}, {'right' if one['right'] else 'WRONG'}")  # fmt: skip
        if chosen.out:
            Path(chosen.out).write_text(json.dumps(found, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
