"""Ranks that are lost: stalled, killed, late, or at another batch. Every other rank has to stop, say why, and in time."""

import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from launch import Ranks, start
from worker import Here, context, warm

from fasttrack_models.kimi_k3.exchange import Stopped, agree, connect, exchange

HIDDEN, ROWS = 7168, 4
PATIENCE = 2.0
"""Seconds that a wait lasts here"""
MARGIN = 3.0
"""Beyond it: many processes share the GPUs, and a host looks only behind a step"""
AT = 20
"""The step at which something happens"""
SCENARIOS = ("none", "late", "too late", "stalled", "killed", "other batch")


def worker(here: Here) -> None:
    """Steps of two exchanges until one stops, or to the end; rank 1 is the one that something happens to."""
    group, scenario = here.join(nccl=False), here.options["scenario"]
    kind, box = connect(ROWS, group, tuple(here.options["kinds"]))
    ctx, patience = context(), int(PATIENCE * 1e9)
    outs = [torch.zeros(ROWS, HIDDEN, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    shares = [torch.full((ROWS, HIDDEN), here.rank + 1 + n, dtype=torch.bfloat16, device="cuda") for n in range(2)]
    total = [sum(rank + 1 + n for rank in range(here.ranks)) for n in range(2)]
    warm(ctx, patience_ns=patience)
    dist.barrier(group)
    graphs = {}
    for rows in (1, ROWS):

        def step(rows=rows) -> None:
            for share, out in zip(shares, outs, strict=True):
                exchange(ctx, box, share[:rows], None, out[:rows], patience_ns=patience)

        step()
        torch.cuda.synchronize()
        graphs[rows] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[rows]):
            step()
    here.found(event="ready", memory=kind, at=time.time())
    for number in range(2 * AT):
        rows = ROWS
        if here.rank == 1 and number == AT:
            here.found(event=scenario, at=time.time())
            if scenario in ("late", "too late"):
                time.sleep(PATIENCE / 4 if scenario == "late" else 2 * PATIENCE + MARGIN)
            if scenario in ("stalled", "killed"):
                time.sleep(1 if scenario == "stalled" else 60)  # whoever started us stops or ends us here
            rows = 1 if scenario == "other batch" else ROWS
        began = time.time()
        try:
            graphs[rows].replay()
            box.check()
        except Stopped as error:
            here.found(event="stopped", step=number, seconds=round(time.time() - began, 3), at=time.time(), said=str(error))
            return
        right = all(bool((out[:rows] == value).all()) for out, value in zip(outs, total, strict=True))
        if not right:
            here.found(event="WRONG", step=number, got=[out[:, 0].tolist() for out in outs])
            return
    here.found(event="through", step=number, at=time.time())


def agree_only(here: Here) -> None:
    """One rank objects: all of them have to hear of it."""
    group = here.join(nccl=False)
    found = agree(["its GPU is a slice"] if here.rank == 1 else [], group)
    here.found(event="verdict", agreed=found.agreed, reasons=list(found.reasons))


def run(devices: list[int], kinds: list[str], folder: Path, limit: float) -> list[dict]:
    """All scenarios at once, each with ranks of its own. A finding for each: what was expected, and whether it came."""
    running: list[tuple[str, str, Ranks]] = []
    for kind in kinds:
        for scenario in SCENARIOS:
            options = {"scenario": scenario, "kinds": [kind]}
            place = folder / f"fault-{kind}-{scenario.replace(' ', '-')}"
            running.append((kind, scenario, start("fault", devices, options, limit, place)))
    pending = [(scenario, ranks) for _, scenario, ranks in running if scenario in ("stalled", "killed")]
    end, resume = time.monotonic() + limit, []
    while (pending or resume) and time.monotonic() < end:
        for scenario, ranks in list(pending):
            if any(found.get("event") == scenario for found in ranks.lines(1)):
                ranks.kill(1, signal.SIGKILL if scenario == "killed" else signal.SIGSTOP)
                pending.remove((scenario, ranks))
                if scenario == "stalled":
                    resume.append((time.monotonic() + PATIENCE + MARGIN, ranks))
        for when, ranks in list(resume):
            if time.monotonic() > when:
                ranks.kill(1, signal.SIGCONT)
                resume.remove((when, ranks))
        time.sleep(0.02)
    return [{"memory": kind, "scenario": scenario, **judged(scenario, ranks.wait())} for kind, scenario, ranks in running]


def judged(scenario: str, outcome: dict) -> dict:
    """What came of a scenario, and whether that is what should have."""
    last = {rank["rank"]: (rank["found"] or [{"event": "nothing"}])[-1] for rank in outcome["ranks"]}
    events = {rank: found["event"] for rank, found in last.items()}
    others = [rank for rank in events if rank != 1]
    if scenario in ("none", "late"):
        right = all(event == "through" for event in events.values())
    else:
        in_time = all(last[rank].get("seconds", 99) < PATIENCE + MARGIN for rank in others)
        right = in_time and all(events[rank] == "stopped" for rank in others)
        if scenario in ("too late", "other batch"):
            right = right and events[1] == "stopped"
    return {
        "as expected": right, "bound s": PATIENCE, "events": events,
        "stopped after s": {rank: found["seconds"] for rank, found in last.items() if "seconds" in found},
        "said": {rank: found["said"] for rank, found in last.items() if "said" in found}, "outcome": outcome,
    }  # fmt: skip
