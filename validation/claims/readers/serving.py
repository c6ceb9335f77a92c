"""What `vllm bench serve` and SGLang's bench_serving have in common: one grew out of the other."""

from typing import Any

from ..repetition import repeated_ngrams
from .fields import Fields, milliseconds, series

KEPT = r"(std|p\d+(\.\d+)?|max)_\w+_ms"


def latencies(fields: Fields, statistic: str, latency: str) -> dict[str, Any]:
    """Mean or median of each latency. The other statistic and all percentiles stay with the source."""
    other = "median" if statistic == "mean" else "mean"
    found = {
        "statistic": statistic,
        "ttft": milliseconds(fields.number(f"{statistic}_ttft_ms", positive=True)),
        "tpot": milliseconds(fields.number(f"{statistic}_tpot_ms", positive=True)),
        "itl": milliseconds(fields.number(f"{statistic}_itl_ms", positive=True)),
        "request_latency": milliseconds(fields.number(f"{statistic}_{latency}_ms", positive=True)),
    }
    fields.keep_like(rf"{other}_\w+_ms|{KEPT}|{statistic}_(client_queue_time|e2el_including_client_queue)_ms")
    return found


def per_request(fields: Fields) -> dict[str, Any]:
    """Arrays over requests. A request that failed has no latency: its array stays with the source."""
    ttfts, itls = fields.array("ttfts"), fields.array("itls")
    means = [sum(one) / len(one) if isinstance(one, list) and one else None for one in itls or ()]
    found = {
        "ttft": series(ttfts), "mean_itl": series(means),
        "input_tokens": fields.array("input_lens"), "output_tokens": fields.array("output_lens"),
    }  # fmt: skip
    # The inter-token latencies themselves are kept whole; and what could not become a series.
    fields.keep("itls")
    if ttfts and found["ttft"] is None:
        fields.keep("ttfts")
    return found


def repeated(fields: Fields) -> float | None:
    """From the generated texts, which only the file keeps."""
    texts = fields.leave_out("generated_texts")
    return repeated_ngrams(one for one in texts if isinstance(one, str)) if isinstance(texts, list) else None


def mean_length(total: int | None, completed: int | None) -> float | None:
    """Tokens a request."""
    return total / completed if total and completed else None
