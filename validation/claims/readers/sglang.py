"""SGLang's `bench_serving --output-file` (JSON Lines, one benchmark a line; `--output-details` adds arrays).

Fields as of SGLang 0.5.14 (python/sglang/benchmark/serving.py). `server_info` is the server's own account of its
arguments: what it says of topology and model is taken, what takes interpreting is left with the source."""

from typing import Any

from . import serving
from .fields import Fields, rate

_REQUIRED = (
    "backend", "dataset_name", "request_rate", "max_concurrency", "duration", "completed", "total_input_tokens",
    "total_output_tokens", "output_throughput", "total_throughput", "concurrency", "accept_length",
)  # fmt: skip
_KEPT = (
    "tag", "sharegpt_output_len", "random_range_ratio", "duration", "total_input_text_tokens",
    "total_input_vision_tokens", "total_output_tokens_retokenized", "request_throughput", "input_throughput",
    "total_throughput", "concurrency", "max_output_tokens_per_s", "max_concurrent_requests", "errors",
    "cached_tokens", "cached_tokens_details",
)  # fmt: skip


def recognises(data: dict[str, Any]) -> bool:
    """Whether a line is of this tool."""
    return {"dataset_name", "total_throughput", "accept_length"} <= set(data)


def record(fields: Fields) -> dict[str, Any]:
    """A record's fields. Raises UserError naming a field of another schema."""
    fields.require(*_REQUIRED)
    completed = fields.integer("completed")
    dataset, rate_asked = fields.text("dataset_name"), fields.peek("request_rate")
    is_random = (dataset or "").startswith("random")
    asked = {name: fields.integer(f"random_{name}_len") for name in ("input", "output")}
    limit = _limit(fields, rate_asked)
    cache = fields.table("cache_report") or {}
    server = fields.table("server_info") or {}
    errors = fields.peek("errors")
    requests, repeated = serving.per_request(fields), serving.repeated(fields)
    fields.keep(*_KEPT)
    hits = cache.get("cache_hit_rate_pct")
    return {
        "scope": "server",
        "identity": {
            "engine": fields.text("backend"), "engine_version": _of(server, "version", str),
            "model": _of(server, "model_path", str), "model_revision": _of(server, "revision", str),
            "precision": {"kv_cache": _of(server, "kv_cache_dtype", str)},
        },
        "topology": {
            "tp": _of(server, "tp_size", int), "pp": _of(server, "pp_size", int), "ep": _of(server, "ep_size", int),
            "dp_attention": _of(server, "enable_dp_attention", bool),
        },
        "engine": {
            "prefix_cache": {True: False, False: True, None: None}[_of(server, "disable_radix_cache", bool)],
            "prefix_cache_hit_rate": hits / 100 if isinstance(hits, (int, float)) else None,
        },
        "workload": {
            "data": dataset,
            "isl_asked": asked["input"] if is_random else None, "osl_asked": asked["output"] if is_random else None,
            "isl_achieved": serving.mean_length(fields.integer("total_input_tokens"), completed),
            "osl_achieved": serving.mean_length(fields.integer("total_output_tokens"), completed),
            "concurrency": fields.integer("max_concurrency"), "request_rate": limit,
        },
        "speculation": {
            # A server that says that it has no algorithm has none; one that says nothing is unknown.
            "method": (server["speculative_algorithm"] or "off") if "speculative_algorithm" in server else None,
            "acceptance_length": fields.number("accept_length", positive=True),
        },
        "timed": {"phase": "end_to_end", "prefill_in_window": True},
        "result": {
            **serving.latencies(fields, "median", "e2e_latency"), "completed": completed,
            "failed": sum(bool(one) for one in errors) if isinstance(errors, list) else None,
            "tok_s_system": rate(fields.number("output_throughput", positive=True)), "per_request": requests,
        },
        "validity": {"repeated_ngrams": repeated},
    }  # fmt: skip


def _limit(fields: Fields, asked: Any) -> float | str | None:
    if asked == "trace":
        fields.keep("request_rate")
        return None
    if asked == float("inf"):
        fields.keep("request_rate")
        return "unlimited"
    return fields.number("request_rate", positive=True)


def _of(server: dict[str, Any], name: str, kind: type) -> Any:
    """An argument of the server, None where it says nothing of that kind."""
    value = server.get(name)
    return value if type(value) is kind and value != "" else None
