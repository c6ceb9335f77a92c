"""A report with measured layers in it, on top of the one with something in every section."""

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType

from fasttrack.report import data as d
from fasttrack.report import exchange
from fasttrack.report import layers as grid
from fasttrack.report.kernels import Kernel

# Text that would act wherever it is not escaped.
HOSTILE = (
    " <script>alert(1)</script> <img src=x onerror=x> | ` `` *b* _i_ [x](javascript:x) @everyone \u202e\u200b\x1b[2K "
    "https://evil.example \n\n# heading\n| a | b |\n```\n::error::x --> </p></section></svg>"
)
STOCK = ("_mix_norm_kernel", "nvjet_sm90_tst_64x8", "_ZN8cublasLt19splitKreduce_kernelILi32EEvPf", "route", "route")


@cache
def reports() -> ModuleType:
    """tests/fasttrack/report/conftest.py, whose `make` builds the report."""
    path = Path(__file__).parent.parent / "fasttrack" / "report" / "conftest.py"
    spec = importlib.util.spec_from_file_location("report_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _summary(scale: float) -> grid.Summary:
    return grid.Summary(values=7168, median=1e-3 * scale, p999=1e-2 * scale, maximum=3e-2 * scale)


def _path(microseconds: float, kernels: tuple[str, ...], scale: float) -> grid.Path:
    ruling = grid.Ruling(tensor="state", decision="pass", candidate=_summary(scale), plain=_summary(1.0))
    interval = grid.Interval(median=microseconds, low=microseconds * 0.99, high=microseconds * 1.01)
    return grid.Path(microseconds=interval, kernels=kernels, rulings=(ruling,))


def layer(tp: int, rows: int, stock: float, mine: float) -> grid.Layer:
    """A measured cell on an H200."""
    ratio = stock / mine
    outcome = grid.Measured(
        kind="measured", specialised=_path(mine, ("front", "experts"), 0.5), stock=_path(stock, STOCK, 1.5),
        comparison=grid.Comparison(standing="faster", ratio=ratio, low=ratio * 0.99, high=ratio * 1.01),
        target_floor_us=mine / 2, physical_floor_us=mine / 3, bytes=1 << 28, stock_bytes=5 << 26,
        calls=(grid.Call(op="kda_decode", kernel="kernels/kda_decode.py"),),
        conditions=grid.Conditions(sm_mhz_lowest=1980),
    )  # fmt: skip
    spec = grid.Spec(span="layer", kind="kda_moe", tp=tp, rows=rows)
    return grid.Layer(source=f"evidence/grid/h200/tp{tp}-kda_moe-r{rows}.json", spec=spec, hardware="h200",
                      scope="one rank, exchange bytes local, no communication", outcome=outcome,
                      machine={"device": "NVIDIA H200", "torch": "2.11.0"})  # fmt: skip


def ranks(message: str = "", subject: dict[str, str] = {}) -> bytes:
    """A record of two ranks: a step that is slower than stock, a layer that failed, latencies, a check, cells not run."""
    def figure(median: float) -> dict:
        return {"median": median, "quarter": median * 0.99, "three quarters": median * 1.01, "samples": [median]}

    step = {"what": "step", "span": "step", "tp": 2, "rows": 1, "context": 1024, "outcome": "measured"}
    layer = step | {"what": "layer", "span": "KDA layer"}
    cells = [
        step | {"path": "stock path, NCCL", "microseconds": figure(26000.0)},
        step | {"path": "decode path, mailboxes", "microseconds": figure(39000.0)},
        layer | {"path": "stock path, NCCL", "microseconds": figure(300.0)},
        layer | {"path": "decode path, mailboxes", "outcome": "failed", "reason": "states are off" + message},
        {"what": "latency", "tp": 2, "rows": 8, "outcome": "measured", "microseconds": {
            "sum: mailbox (symmetric)": figure(3.5), "sum: mailbox (ipc)": figure(3.6), "sum: NCCL, add": figure(8.8)}},
        {"what": "lost rank", "tp": 2, "memory": "ipc", "scenario": "killed", "outcome": "passed", "bound_seconds": 2.0},
        {"what": "lost rank", "tp": 2, "memory": "ipc", "scenario": "late", "outcome": "failed", "reason": "no reason" + message},
        *({"what": what, "tp": tp, "outcome": "not_run", "reason": f"no machine of {tp} GPUs was at hand"}
          for tp in (4, 8) for what in ("latency", "step")),
    ]  # fmt: skip
    conditions = {"gpus": ["NVIDIA H200"] * 2, "nccl": "2.28.9", "peer access": [[True, True]]}
    return json.dumps({"hardware": "h200", "scope": "two ranks", "method": "replays", "conditions": conditions,
                       "subject": subject, "cells": cells}).encode()  # fmt: skip


def with_layers(message: str = "") -> d.ReportData:
    """The full report with four layers, one of them without a figure, and an envelope."""
    missing = layer(16, 8, 1, 1).model_copy(
        update={"outcome": grid.Unmeasured(kind="failed", reason="another process used the card" + message)}
    )
    return reports().make(message, measured_cells=True).model_copy(update={
        "title": "Kimi K3", "layers": (layer(8, 1, 130.0, 104.0), layer(8, 8, 190.0, 180.0), layer(16, 1, 112.0, 84.0), missing),
        "places": tuple(d.Place(hardware=h, tp=tp, rows=(1, 64)) for h in ("h200", "gb300") for tp in (8, 16)),
        "standings": (d.Standing(op="front_gemm", status=None),),
        "exchanges": exchange.exchanges({"evidence/exchange/h200-tp2.json": ranks(message)}, "models/kimi_k3"),
        "kernels": (Kernel(path="kernels/kda_decode.py", ops=("kda_decode",), words="One decode step." + message, layers=3),),
    })  # fmt: skip
