"""Small grids of servers, and records of their cells without a server."""

from fasttrack_validation.load.answers import Counters
from fasttrack_validation.load.figures import Figures
from fasttrack_validation.load.records import Asking, Measured, Record, Request, Round, Side
from fasttrack_validation.load.servers import Arm
from fasttrack_validation.performance.serving_grid import ServingCell, ServingGrid

SMALL = """
hardware = "cpu"
model = "moonshotai/Kimi-K3"
draft = "none"
osl = 24
source = "a test"
draft_tokens = 7
forced_acceptance = 3.84
forced_source = "a published curve"

[[block]]
load = "decode_only"
tp = [1]
concurrency = [1]
isl = [16]
speculation = ["off", "forced"]

[[block]]
load = "mixed_prefill"
tp = [1]
concurrency = [2]
isl = [16]
speculation = ["off"]

[[block]]
load = "agentic"
tp = [1]
concurrency = [1]
speculation = ["off"]
"""
CONDITIONS = {
    "collectives": [], "identity": {
        "commit": "a1", "build": "image@sha256:1", "released": "2026-08-10", "engine": "vllm", "engine_version": "0.27",
        "candidate_active": "every step counted", "model": "moonshotai/Kimi-K3", "model_revision": "r1",
        "precision": {"weights": "mxfp4", "activations": "bf16", "kv_cache": "fp8", "state": "fp32"},
    },
    "hardware": {
        "gpus": 8, "nodes": 2, "interconnect": "nvlink5", "sm_clock_mhz": 1920, "memory_clock_mhz": 3996,
        "clocks_locked": True, "throttled": False, "driver": "580.95",
    },
    "topology": {"pp": 1, "ep": 1, "dp_attention": False, "dcp": 1, "disaggregated": False},
    "engine": {"options": {}, "graph_mode": "full", "graph_sizes": [1, 2, 4], "prefix_cache": False},
    "validity": {},
}  # fmt: skip
del CONDITIONS["validity"]


def merged(base, changes):
    found = dict(base)
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        found[head] = merged(found.get(head, {}), {rest: value}) if rest else value
    return found


def side(arm, tpots, commit, **conditions):
    def one(number, tpot):
        figure = Figures(ttft=0.2, tpot=tpot, itl=tpot, itl_p99=tpot, latency=0.2 + 1023 * tpot, tok_s_user=1 / tpot,
                         tok_s_system=4 / tpot, decode_share=0.5)  # fmt: skip
        request = Request(sent=0, first=0.2, latency=0.2 + 1023 * tpot, pieces=1024, input_tokens=1024,
                          cached_tokens=None, output_tokens=1024)  # fmt: skip
        return Round(tool="test", seed=number, seconds=1024 * tpot, repeated_ngrams=0.01, counters=Counters(), figures=figure,
                     requests=(request,) * 4)  # fmt: skip

    stated = merged(CONDITIONS, {"identity.commit": commit, **conditions})
    return Side(arm=arm, conditions=stated, model="k3", version="0.27",
                rounds=tuple(one(n, t) for n, t in enumerate(tpots)))  # fmt: skip


def record(stock=0.010, fast=0.006, *, load="mixed_prefill", subject="0" * 64, noise=0.001, hardware="gb300", **conditions):
    """A measured cell of TP 8 at batch 4 with six rounds that wander by `noise`."""
    spread = [1, 1 + noise, 1 - noise, 1, 1 + noise, 1 - noise]
    cell = ServingCell(load=load, tp=8, concurrency=4, isl=1024, speculation="off")
    asking = Asking(data="seeded words", osl=1024, requests=4, warm_up=4, temperature=1.0, rate=None, objective=None,
                    decode_only=load == "decode_only")  # fmt: skip
    return Record(
        cell=cell, hardware=hardware, asking=asking, subject=subject, conditions="1" * 64, draft_tokens=7,
        floor=(8_000_000_000, 0), taken="2026-09-20", outcome=Measured(
            stock=side(Arm.STOCK, [stock * x for x in spread], "a0", **conditions),
            specialised=side(Arm.SPECIALISED, [fast * x for x in spread[::-1]], "a1", **conditions),
            order=(Arm.STOCK, Arm.SPECIALISED),
        ),
    )  # fmt: skip


def small_grid():
    import tomllib

    return ServingGrid.model_validate(tomllib.loads(SMALL), strict=False)
