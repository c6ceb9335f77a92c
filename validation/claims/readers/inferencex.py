"""InferenceX's aggregate of a fixed-sequence benchmark (`agg_*.json`, or a list of them).

Fields as of infx/results/fixed_sequence.py and topology.py. Latencies are in seconds; `intvty` is 1 / TPOT; acceptance
lengths are not in the file, and with speculation they are simulated or not as the recipe says."""

from typing import Any

from .fields import Fields, rate, seconds

_REQUIRED = (
    "hw",
    "conc",
    "model",
    "framework",
    "precision",
    "spec_decoding",
    "disagg",
    "isl",
    "osl",
    "output_tput_per_gpu",
)
_KEPT = (
    "infmax_model_prefix", "recipe_fingerprint", "router", "kv_p2p_transfer", "is_multinode", "tput_per_gpu",
    "input_tput_per_gpu", "pcp_size", "prefill_num_workers", "decode_num_workers", "prefill_hw", "decode_hw",
    "num_aggregate_gpu",
)  # fmt: skip
_LATENCY = r"(mean|median|std|p\d+(\.\d+)?)_(ttft|tpot|itl|e2el|intvty)"
_SIDE = r"(prefill|decode)_(tp|pp|ep|dcp_size|pcp_size|dp_attention)"
_POWER = r"\w*(power|joules|energy|watts)\w*"


def recognises(data: dict[str, Any]) -> bool:
    """Whether a result is of this suite."""
    return {"hw", "conc", "framework", "precision"} <= set(data)


def record(fields: Fields) -> dict[str, Any]:
    """A record's fields. Raises UserError naming a field of another schema."""
    if fields.has("mtp"):
        fields.refuse("mtp", "is of the schema before spec_decoding", "run the suite again")
    if fields.has("request_metrics"):
        fields.refuse("request_metrics", "is of an agentic benchmark's aggregate", "only fixed sequences are read")
    fields.require(*_REQUIRED)
    outcome = fields.table("benchmark_outcome") or {}
    disaggregated = fields.flag("disagg")
    prefill, decode = fields.integer("num_prefill_gpu"), fields.integer("num_decode_gpu")
    tp, pp, pcp = fields.integer("tp"), fields.integer("pp"), fields.peek("pcp_size") or 1
    # One worker's GPUs are TP x PP x PCP, as the suite itself divides; the roles of several nodes are counted apart.
    gpus = prefill + decode if None not in (prefill, decode) else tp * pp * pcp if None not in (tp, pp) else None
    method = fields.text("spec_decoding")
    statistic = "median"
    found = {
        "statistic": statistic, "completed": _whole(outcome, "completed"),
        "failed": _difference(outcome), "ttft": seconds(fields.number(f"{statistic}_ttft", positive=True)),
        "tpot": seconds(fields.number(f"{statistic}_tpot", positive=True)),
        "itl": seconds(fields.number(f"{statistic}_itl", positive=True)),
        "request_latency": seconds(fields.number(f"{statistic}_e2el", positive=True)),
        "tok_s_user": rate(fields.number(f"{statistic}_intvty", positive=True)),
        "tok_s_user_definition": "1/tpot" if fields.has(f"{statistic}_intvty") else None,
        # Of disaggregated systems the file divides by decode GPUs alone, which is not what a record's tok/s/GPU means.
        "tok_s_gpu": None if disaggregated else rate(fields.number("output_tput_per_gpu", positive=True)),
    }  # fmt: skip
    fields.keep("output_tput_per_gpu", *_KEPT)
    for pattern in (_LATENCY, _SIDE, _POWER):
        fields.keep_like(pattern)
    return {
        "scope": "server",
        "identity": {
            "engine": fields.text("framework"), "build": fields.text("image"), "model": fields.text("model"),
            "precision": {"weights": fields.text("precision")},
        },
        "hardware": {"sku": fields.text("hw"), "gpus": gpus or None, "gpus_prefill": prefill, "gpus_decode": decode},
        "topology": {
            "tp": tp, "pp": pp, "ep": fields.integer("ep"), "dcp": fields.integer("dcp_size"),
            "dp_attention": fields.flag("dp_attention"), "disaggregated": disaggregated,
        },
        "workload": {
            "isl_asked": fields.integer("isl"), "osl_asked": fields.integer("osl"),
            "concurrency": fields.integer("conc"),
        },
        "speculation": {"method": "off" if method == "none" else method},
        "timed": {"phase": "end_to_end", "prefill_in_window": True},
        "result": found,
    }  # fmt: skip


def _whole(outcome: dict[str, Any], name: str) -> int | None:
    return outcome[name] if isinstance(outcome.get(name), int) else None


def _difference(outcome: dict[str, Any]) -> int | None:
    asked, done = _whole(outcome, "requested"), _whole(outcome, "completed")
    return None if asked is None or done is None else asked - done
