"""Complete records and claims to change one thing of, and the published figures as claims."""

from fasttrack_validation.claims.claim import Claim
from fasttrack_validation.claims.measurement import Measurement

# Five repetitions around a figure whose geometric mean is the figure: the factors multiply to one.
SPREAD = (1.0, 1.004, 1 / 1.004, 1.002, 1 / 1.002)
UNITS = {"tok_s_user": "tok/s", "tok_s_system": "tok/s", "tok_s_gpu": "tok/s"}


def merged(base: dict, changes: dict) -> dict:
    """`base` with dotted paths set; a path set to None is taken away, so that it is unknown."""
    result = {name: dict(value) if isinstance(value, dict) else value for name, value in base.items()}
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = result
        for name in parents:
            place[name] = dict(place.get(name) or {})
            place = place[name]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return result


def server(value: float, metric: str = "tok_s_user", unit: str | None = None, **changes: object) -> dict:
    """A complete record of a server: everything stated, nothing wrong. `changes`: dotted paths, with __ for a dot."""
    unit = unit or UNITS.get(metric, "ms")
    base = {
        "schema_version": "fasttrack.measurement/1",
        "scope": "server",
        "taken": "2026-09-20",
        "collectives": ["all_reduce"],
        "identity": {
            "commit": "a1", "build": "image@sha256:1", "released": "2026-08-10", "engine": "vllm",
            "engine_version": "0.27", "candidate_active": "every step counted", "model": "moonshotai/Kimi-K3",
            "model_revision": "r1",
            "precision": {"weights": "mxfp4", "activations": "bf16", "kv_cache": "fp8", "state": "fp32"},
        },
        "hardware": {
            "sku": "gb300", "gpus": 8, "nodes": 2, "interconnect": "nvlink5", "sm_clock_mhz": 1920,
            "memory_clock_mhz": 3996, "clocks_locked": True, "throttled": False, "driver": "580.95",
        },
        "topology": {"tp": 8, "pp": 1, "ep": 1, "dp_attention": False, "dcp": 1, "disaggregated": False},
        "engine": {"options": {}, "graph_mode": "full", "graph_sizes": [1, 2, 4], "prefix_cache": False},
        "workload": {
            "data": "speed-bench coding", "isl_asked": 1024, "osl_asked": 1024, "isl_achieved": 1024.0,
            "osl_achieved": 1024.0, "sampling": {"temperature": 1.0}, "ignore_eos": True, "concurrency": 4,
            "request_rate": "unlimited", "warmup_requests": 8, "seeds": [1, 2, 3, 4, 5],
            "warm_between_repetitions": True,
        },
        "speculation": {"method": "off"},
        "timed": {"phase": "end_to_end", "prefill_in_window": True},
        "result": {
            "completed": 4, "failed": 0, "statistic": "mean", "ttft": {"value": 200, "unit": "ms"},
            "tpot": {"value": 1000 / value if metric == "tok_s_user" else 9.0, "unit": "ms"}, "tok_s_user_definition": "1/tpot",
            metric: {"value": value, "unit": unit},
            "repetitions": {
                "metric": metric, "interleaved": True,
                "series": {"unit": unit, "values": [value * factor for factor in SPREAD]},
            },
            "per_request": {"output_tokens": [1024, 1024, 1024, 1024]},
        },
        "validity": {
            "sane": True, "repeated_ngrams": 0.02, "accuracy": {"commit": "a1", "sha256": "0" * 64, "passed": True},
            "floor": {"moved_bytes": 8_000_000_000},
        },
    }  # fmt: skip
    return merged(base, {path.replace("__", "."): change for path, change in changes.items()})


DRAFT = {
    "speculation__method": "dspark", "speculation__draft_tokens": 7, "identity__draft": "Inferact/Kimi-K3-DSpark",
    "identity__draft_revision": "d1", "identity__precision__draft": "bf16",
}  # fmt: skip
NATURAL = {**DRAFT, "speculation__forced": False, "speculation__acceptance_length": 4.2}
FORCED = {**DRAFT, "speculation__forced": True, "speculation__forced_source": "chosen",
          "speculation__acceptance_length": 6.0}  # fmt: skip


def pair(candidate: dict, baseline: dict, cell: str = "b4") -> dict:
    """A cell whose harness favours no place."""
    swap = {"first": {"value": 100.0, "unit": "tok/s"}, "second": {"value": 100.1, "unit": "tok/s"}}
    return {"cell": cell, "candidate": candidate, "baseline": baseline, "swap": swap}


def claim(*pairs: dict, **changes: object) -> dict:
    """A claim about code, by tok/s/user."""
    base = {
        "schema_version": "fasttrack.claim/1", "id": "decode", "title": "Specialised decode of Kimi K3",
        "metric": "tok_s_user", "under_test": {"subject": "code"}, "pairs": list(pairs),
    }  # fmt: skip
    return merged(base, {path.replace("__", "."): change for path, change in changes.items()})


def simple(ratio: float = 1.5, *, candidate: dict | None = None, baseline: dict | None = None, **both: object) -> dict:
    """A complete claim of one cell that passes: 150 against 100 tok/s/user at batch 4. Changes: dotted paths by __."""
    return claim(pair(
        server(100.0 * ratio, **{**both, **(candidate or {})}),
        server(100.0, identity__commit="a0", **{**both, **(baseline or {})}),
    ))  # fmt: skip


def parsed(data: dict) -> Claim:
    """As the reader parses it."""
    return Claim.model_validate(data)


def record(data: dict) -> Measurement:
    """As the reader parses it."""
    return Measurement.model_validate(data)


# The published figures, with everything else that a record needs: as the texts have them, most of it is unknown.


def forced_single_stream() -> dict:
    """842 against 488 tok/s at batch 1, acceptance forced to 6."""
    changes = {**FORCED, "workload__concurrency": 1}
    return claim(pair(server(842.0, **changes), server(488.0, identity__commit="a0", **changes), "b1"))


def twice_the_gpus() -> dict:
    """403.2 against 223.7 tok/s/user, 16 GPUs against 8."""
    candidate = server(403.2, hardware__gpus=16, hardware__nodes=4, topology__tp=16, **NATURAL)
    return claim(pair(candidate, server(223.7, **NATURAL)), under_test={"subject": "topology"})


def decode_only() -> dict:
    """1.36x to 1.75x in decode with prompts of 32K and prefill left out, which takes half of the time."""
    timed = {
        "timed__phase": "decode", "timed__prefill_in_window": False, "timed__share": 0.5, "workload__isl_asked": 32768,
        "workload__isl_achieved": 32768.0,
    }  # fmt: skip
    cells = {8: 1.36, 16: 1.52, 32: 1.75}
    return claim(*(
        pair(server(60.0 * ratio, workload__concurrency=batch, **timed),
             server(60.0, identity__commit="a0", workload__concurrency=batch, **timed), f"b{batch}")
        for batch, ratio in cells.items()
    ), headline="range")  # fmt: skip


def release_against_release() -> dict:
    """423 tok/s/user, 1.68x, old against new release on the same hardware, end to end."""
    new, old = "2026-09-13", "2026-08-02"
    return claim(pair(
        server(423.0, identity__released=new, **NATURAL),
        server(423.0 / 1.68, identity__commit="a0", identity__released=old, **NATURAL),
    ))  # fmt: skip


def whole_range() -> dict:
    """TP16, speculation off, batch 16 to 64, 1.62x to 1.71x, same machine, all cells shown."""
    sixteen = {"topology__tp": 16, "hardware__gpus": 16, "hardware__nodes": 4}
    cells = {16: 1.62, 32: 1.66, 64: 1.71}
    return claim(*(
        pair(server(50.0 * ratio, workload__concurrency=batch, **sixteen),
             server(50.0, identity__commit="a0", workload__concurrency=batch, **sixteen), f"b{batch}")
        for batch, ratio in cells.items()
    ), cells=["b16", "b32", "b64"])  # fmt: skip


PUBLISHED = {
    "forced_single_stream": forced_single_stream, "twice_the_gpus": twice_the_gpus, "decode_only": decode_only,
    "release_against_release": release_against_release, "whole_range": whole_range,
}  # fmt: skip
