"""Result files of benchmark tools, written from their published schemas: every field that the tools write, with figures
that agree with each other."""

from typing import Any

TTFTS = [0.20, 0.22, 0.21, 0.19]
ITLS = [[0.010] * 3, [0.011] * 3, [0.010] * 3, [0.009] * 3]
LATENCIES = [ttft + sum(itl) for ttft, itl in zip(TTFTS, ITLS, strict=True)]
PROSE = " ".join(f"word{n}" for n in range(40))


def vllm(**changes: Any) -> dict[str, Any]:
    """`vllm bench serve --save-result --save-detailed --metadata tp=8`, in the tool's order."""
    result = {
        "date": "20260920-101500", "endpoint_type": "vllm", "backend": "vllm", "label": None,
        "model_id": "moonshotai/Kimi-K3", "tokenizer_id": "moonshotai/Kimi-K3", "num_prompts": 4, "tp": "8",
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 4, "duration": 0.26, "completed": 4, "failed": 0,
        "total_input_tokens": 4096, "total_output_tokens": 16, "request_throughput": 15.38, "request_goodput": None,
        "output_throughput": 61.54, "total_token_throughput": 15815.4, "input_lens": [1024] * 4, "output_lens": [4] * 4,
        "ttfts": TTFTS, "itls": ITLS, "latencies": LATENCIES, "start_times": [1.0, 1.0, 1.0, 1.0],
        "queue_times": [0.0] * 4, "generated_texts": [PROSE] * 4, "errors": [""] * 4, "max_output_tokens_per_s": 16.0,
        "max_concurrent_requests": 4, "rtfx": 0.0, "spec_decode_acceptance_rate": 0.457,
        "spec_decode_acceptance_length": 4.2, "spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 70,
        "spec_decode_accepted_tokens": 32, "spec_decode_per_position_acceptance_rates": [0.9, 0.8, 0.6, 0.4, 0.3, 0.15, 0.05],
        "mean_client_queue_time_ms": 0.0, "median_client_queue_time_ms": 0.0, "std_client_queue_time_ms": 0.0,
        "p99_client_queue_time_ms": 0.0,
    }  # fmt: skip
    for name, mean in (("ttft", 205.0), ("tpot", 10.0), ("itl", 10.0), ("e2el", 235.0)):
        result |= {
            f"mean_{name}_ms": mean,
            f"median_{name}_ms": mean + 0.5,
            f"std_{name}_ms": 1.0,
            f"p99_{name}_ms": mean + 5,
        }
    return result | changes


def sglang(**changes: Any) -> dict[str, Any]:
    """One line of `bench_serving --output-file --output-details --cache-report`."""
    result = {
        "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 4,
        "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 4, "random_range_ratio": 1.0,
        "server_info": {
            "model_path": "moonshotai/Kimi-K3", "version": "0.5.14", "tp_size": 8, "pp_size": 1, "ep_size": 1,
            "enable_dp_attention": False, "disable_radix_cache": False, "speculative_algorithm": None,
            "kv_cache_dtype": "fp8_e4m3", "revision": None, "internal_states": [{"last_gen_throughput": 61.0}],
        },
        "duration": 0.26, "completed": 4, "total_input_tokens": 4096, "total_input_text_tokens": 4096,
        "total_input_vision_tokens": 0, "total_output_tokens": 16, "total_output_tokens_retokenized": 16,
        "request_throughput": 15.38, "input_throughput": 15753.8, "output_throughput": 61.54,
        "total_throughput": 15815.4, "max_itl_ms": 11.0, "concurrency": 3.6, "accept_length": None,
        "max_output_tokens_per_s": 16.0, "max_concurrent_requests": 4,
        "cache_report": {"total_prompt_tokens": 4096, "total_cached_tokens": 1024, "cache_hit_rate_pct": 25.0,
                         "device_cached_tokens": None, "host_cached_tokens": None, "storage_cached_tokens": None,
                         "storage_backend": None},
        "input_lens": [1024] * 4, "output_lens": [4] * 4, "ttfts": TTFTS, "itls": ITLS,
        "generated_texts": [PROSE] * 4, "errors": [""] * 4, "cached_tokens": [256] * 4,
        "cached_tokens_details": [None] * 4,
    }  # fmt: skip
    for name, mean in (("ttft", 205.0), ("tpot", 10.0), ("itl", 10.0), ("e2e_latency", 235.0)):
        result |= {f"mean_{name}_ms": mean, f"median_{name}_ms": mean + 0.5, f"std_{name}_ms": 1.0}
        result |= {f"p{p}_{name}_ms": mean + p / 20 for p in (90, 95, 99)}
    return result | changes


def block(unit: str, avg: float) -> dict[str, Any]:
    """A metric with a distribution."""
    spread = {f"p{p}": avg for p in (1, 5, 10, 25, 50, 75, 90, 95, 99)}
    return {"unit": unit, "avg": avg, "min": avg, "max": avg, "std": 0.0, "count": 4, "sum": 4 * avg, **spread}


def aiperf(**changes: Any) -> dict[str, Any]:
    """`profile_export_aiperf.json` of schema 1.5."""
    gpu = {"gpu_index": 0, "gpu_name": "NVIDIA H200", "gpu_uuid": "GPU-1", "hostname": "n", "platform": "nvidia",
           "metrics": {"nvidia_power_usage": {"unit": "W", "avg": 310.0}}}  # fmt: skip
    result = {
        "schema_version": "1.5", "aiperf_version": "0.9.0", "benchmark_id": "b1",
        "request_throughput": {"unit": "requests/sec", "avg": 15.38}, "request_latency": block("ms", 235.0),
        "request_count": {"unit": "requests", "avg": 4.0}, "time_to_first_token": block("ms", 205.0),
        "time_to_second_token": block("ms", 10.0), "inter_token_latency": block("ms", 10.0),
        "output_token_throughput": {"unit": "tokens/sec", "avg": 61.54},
        "output_token_throughput_per_user": block("tokens/sec/user", 100.0),
        "output_sequence_length": block("tokens", 4.0), "input_sequence_length": block("tokens", 1024.0),
        "benchmark_duration": {"unit": "sec", "avg": 0.26}, "error_request_count": {"unit": "requests", "avg": 1.0},
        "full_decode_duration": block("ms", 30.0),
        "telemetry_data": {
            "summary": {"start_time": "2026-09-20T10:15:00Z", "end_time": "2026-09-20T10:15:01Z"},
            "endpoints": {"localhost:9400": {"gpus": {"gpu_0": gpu, "gpu_1": {**gpu, "gpu_index": 1}}}},
        },
        "input_config": {"endpoint": {"model_names": ["moonshotai/Kimi-K3"]}, "loadgen": {"concurrency": 4}},
        "run_info": {"random_seed": 42, "trial": 0, "run_label": "run_0001"},
        "was_cancelled": False, "error_summary": [], "start_time": "2026-09-20T10:15:00Z",
        "end_time": "2026-09-20T10:15:01Z", "runtime_submission_invalid_reasons": [],
    }  # fmt: skip
    return result | changes


def inferencex(**changes: Any) -> dict[str, Any]:
    """One aggregate of a fixed-sequence benchmark on one node."""
    result = {
        "hw": "h200", "conc": 4, "image": "vllm/vllm-openai:v0.27", "model": "moonshotai/Kimi-K3",
        "infmax_model_prefix": "kimik3", "framework": "vllm", "precision": "fp4", "spec_decoding": "none",
        "disagg": False, "recipe_fingerprint": "f", "isl": 1024, "osl": 1024,
        "benchmark_outcome": {"requested": 40, "completed": 39, "status": "passed"}, "is_multinode": False, "tp": 8,
        "pp": 1, "dcp_size": 1, "pcp_size": 1, "ep": 1, "dp_attention": "false", "tput_per_gpu": 98.0,
        "output_tput_per_gpu": 49.0, "input_tput_per_gpu": 49.0, "power_valid": True, "power_metric_schema_version": 3,
        "avg_power_w": 610.0, "joules_per_output_token": 12.4,
    }  # fmt: skip
    for name, mean in (("ttft", 0.205), ("tpot", 0.010), ("itl", 0.010), ("e2el", 10.4), ("intvty", 100.0)):
        result |= {
            f"mean_{name}": mean,
            f"median_{name}": mean * 1.01,
            f"std_{name}": mean / 10,
            f"p99.9_{name}": mean * 1.2,
        }
    return result | changes


MULTINODE = {
    "disagg": True, "is_multinode": True, "prefill_tp": 4, "prefill_pp": 1, "prefill_ep": 4,
    "prefill_dp_attention": "true", "prefill_num_workers": 2, "decode_tp": 8, "decode_ep": 8,
    "decode_dp_attention": "false", "decode_num_workers": 1, "num_prefill_gpu": 8, "num_decode_gpu": 8,
}  # fmt: skip
FILES = {"vllm": vllm, "sglang": sglang, "aiperf": aiperf, "inferencex": inferencex}
