"""`vllm bench serve --save-result` (one JSON object; `--save-detailed` adds arrays over requests).

Fields as of vLLM 0.27 (vllm/benchmarks/serve.py). Latencies are in milliseconds, arrays in seconds. What `--metadata`
adds stands between `num_prompts` and `request_rate`, under names that its user chose."""

from typing import Any

from . import serving
from .fields import Fields, rate, series

_REQUIRED = (
    "backend", "model_id", "num_prompts", "request_rate", "max_concurrency", "duration", "completed", "failed",
    "total_input_tokens", "total_output_tokens", "output_throughput", "total_token_throughput",
)  # fmt: skip
_KEPT = (
    "date", "endpoint_type", "label", "tokenizer_id", "burstiness", "duration", "request_throughput",
    "request_goodput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
    "start_times", "queue_times", "errors", "rps_change_events", "ramp_up_strategy", "ramp_up_start_rps",
    "ramp_up_end_rps", "spec_decode_acceptance_rate", "spec_decode_num_drafts", "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens", "spec_decode_per_position_acceptance_rates",
)  # fmt: skip


def recognises(data: dict[str, Any]) -> bool:
    """Whether a file is of this tool."""
    return {"endpoint_type", "num_prompts", "total_token_throughput"} <= set(data)


def record(fields: Fields) -> dict[str, Any]:
    """A record's fields. Raises UserError naming a field of another schema."""
    fields.require(*_REQUIRED)
    _metadata(fields)
    completed, sent = fields.integer("completed"), fields.integer("num_prompts")
    # Without a limit the tool writes the text "inf".
    limited = fields.peek("request_rate") != "inf"
    limit = fields.number("request_rate", positive=True) if limited else fields.text("request_rate") and "unlimited"
    requests = serving.per_request(fields)
    requests["latency"] = series(fields.array("latencies"))
    if requests["latency"] is None:
        fields.keep("latencies")
    positions = fields.array("spec_decode_per_position_acceptance_rates")
    acceptance = fields.number("spec_decode_acceptance_length", positive=True)
    repeated = serving.repeated(fields)
    fields.keep(*_KEPT)
    fields.keep_like(r"(probe|diffusion)_\w+")
    failed = fields.integer("failed")
    return {
        "scope": "server",
        "identity": {"engine": fields.text("backend"), "model": fields.text("model_id")},
        "workload": {
            "isl_achieved": serving.mean_length(fields.integer("total_input_tokens"), completed),
            "osl_achieved": serving.mean_length(fields.integer("total_output_tokens"), completed),
            "concurrency": fields.integer("max_concurrency"),
            "request_rate": limit,
        },
        "speculation": {"acceptance_length": acceptance, "draft_tokens": len(positions) if positions else None},
        "timed": {"phase": "end_to_end", "prefill_in_window": True},
        "result": {
            **serving.latencies(fields, "median", "e2el"), "completed": completed,
            "failed": max(failed, sent - completed) if None not in (failed, sent, completed) else failed,
            "tok_s_system": rate(fields.number("output_throughput", positive=True)), "per_request": requests,
        },
        "validity": {"repeated_ngrams": repeated},
    }  # fmt: skip


def _metadata(fields: Fields) -> None:
    names = fields.names
    first, last = names.index("num_prompts") + 1, names.index("request_rate")
    fields.keep(*names[first:last])
