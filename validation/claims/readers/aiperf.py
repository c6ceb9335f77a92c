"""AIPerf's `profile_export_aiperf.json`, schemas 1.0 to 1.5 (docs/reference/json-export-schema.md of ai-dynamo/aiperf).

Metrics are blocks with a unit, which is authoritative. The schema lets metrics be added at any time, so blocks that
have no place in a record stay with the source; what is no block, and not known, is of another schema."""

from typing import Any

from .fields import Fields

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")
_KEPT = (
    "aiperf_version", "benchmark_id", "start_time", "end_time", "error_summary", "runtime_submission_invalid_reasons",
    "warmup_metrics",
)  # fmt: skip
_TIMES = {"ns", "us", "ms", "s", "sec"}
_RATES = {"tokens/sec", "tokens/sec/user", "tok/s"}


def recognises(data: dict[str, Any]) -> bool:
    """Whether a file is of this tool."""
    return "aiperf_version" in data or {"schema_version", "request_throughput", "input_config"} <= set(data)


def record(fields: Fields) -> dict[str, Any]:
    """A record's fields. Raises UserError naming a field of another schema."""
    fields.require("schema_version")
    version = fields.text("schema_version")
    if version not in SCHEMAS:
        fields.refuse("schema_version", f"is {version!r}", f"this reader knows {SCHEMAS[0]} to {SCHEMAS[-1]}")
    if fields.flag("was_cancelled"):
        fields.refuse("was_cancelled", "the run was interrupted", "a part of a run is no measurement: run it again")
    config = fields.table("input_config") or {}
    info = fields.table("run_info") or {}
    cards = _cards(fields.table("telemetry_data") or {})
    completed = _plain(fields, "request_count")
    failed = _plain(fields, "error_request_count")
    result = {
        "statistic": "mean",
        "completed": None if completed is None else int(completed),
        # Errors are counted in a metric of their own, which is there only where there were some.
        "failed": int(failed) if failed is not None else 0 if completed is not None else None,
        "ttft": _quantity(fields, "time_to_first_token", _TIMES),
        # This tool's inter-token latency is (latency - TTFT) / (tokens - 1) of a request: TPOT, by its usual name.
        "tpot": _quantity(fields, "inter_token_latency", _TIMES),
        "request_latency": _quantity(fields, "request_latency", _TIMES),
        "tok_s_user": _quantity(fields, "output_token_throughput_per_user", _RATES),
        "tok_s_user_definition": "1/tpot" if fields.has("output_token_throughput_per_user") else None,
        "tok_s_system": _quantity(fields, "output_token_throughput", _RATES),
    }
    workload = {
        "isl_achieved": _plain(fields, "input_sequence_length"),
        "osl_achieved": _plain(fields, "output_sequence_length"), "concurrency": _concurrency(config),
        "seeds": None if info.get("random_seed") is None else [info["random_seed"]],
    }  # fmt: skip
    models = (config.get("endpoint") or {}).get("model_names")
    fields.keep(*_KEPT)
    for name in fields.names:
        if isinstance(fields.peek(name), dict) and "unit" in fields.peek(name):
            fields.keep(name)
    return {
        "scope": "server",
        "taken": (fields.peek("start_time") or "")[:10] or None,
        "identity": {"model": models[0] if isinstance(models, list) and len(models) == 1 else None},
        "hardware": {"sku": cards[0] if len(set(cards)) == 1 else None},
        "workload": workload,
        "timed": {"phase": "end_to_end", "prefill_in_window": True},
        "result": result,
    }  # fmt: skip


def _block(fields: Fields, name: str) -> dict[str, Any] | None:
    block = fields.table(name)
    if block is not None and ("unit" not in block or "avg" not in block):
        lacking = "unit" if "unit" not in block else "avg"
        fields.refuse(f"{name}.{lacking}", "is missing", "the file is of another schema")
    return block


def _quantity(fields: Fields, name: str, units: set[str]) -> dict[str, Any] | None:
    block = _block(fields, name)
    if block is None:
        return None
    if block["unit"] not in units:
        fields.refuse(f"{name}.unit", f"is {block['unit']!r}", f"this reader knows {', '.join(sorted(units))}")
    unit = "tok/s" if units is _RATES else {"sec": "s"}.get(block["unit"], block["unit"])
    return {"value": block["avg"], "unit": unit} if block["avg"] > 0 else None


def _plain(fields: Fields, name: str) -> float | None:
    block = _block(fields, name)
    return None if block is None else block["avg"]


def _concurrency(config: dict[str, Any]) -> int | None:
    """Where either of the tool's two configurations says it."""
    generator = (config.get("loadgen") or {}).get("concurrency")
    phases = config.get("phases")
    profiling = (phases.get("profiling") or {}).get("concurrency") if isinstance(phases, dict) else None
    return next((one for one in (generator, profiling) if type(one) is int), None)


def _cards(telemetry: dict[str, Any]) -> list[str]:
    """Names of the GPUs that were watched. They need not be all that served."""
    return [
        gpu["gpu_name"]
        for endpoint in (telemetry.get("endpoints") or {}).values()
        for gpu in (endpoint.get("gpus") or {}).values() if "gpu_name" in gpu
    ]  # fmt: skip
