"""What a server counts itself: vLLM's Prometheus metrics, where it has them, and what it says of itself."""

import json
import re
import urllib.request
from typing import Any

from ..records import Frozen
from .answers import Counters

# Counters of vllm/v1/spec_decode/metrics.py and vllm/v1/metrics/loggers.py; summed over engines and models.
_NAMES = {
    "drafts": "vllm:spec_decode_num_drafts_total", "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "cache_queries": "vllm:prefix_cache_queries_total", "cache_hits": "vllm:prefix_cache_hits_total",
}  # fmt: skip
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>[-+.\deE]+)", re.MULTILINE)
_SECONDS = 30
# No proxy of the environment stands between this machine and the server that it measures.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Totals(Frozen):
    """Counters as they stand."""

    values: dict[str, float] = {}

    def since(self, before: "Totals") -> Counters:
        """What was counted in between; None for a counter that is not there, or that a restart put back."""
        found = {}
        for name in _NAMES:
            now, then = self.values.get(name), before.values.get(name)
            found[name] = round(now - then) if now is not None and then is not None and now >= then else None
        return Counters(**found)


def read(url: str) -> Totals:
    """The counters of the server whose interface is at `url`; none where it has no metrics."""
    try:
        with _open(f"{_root(url)}/metrics", timeout=_SECONDS) as response:
            text = response.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        return Totals()
    found: dict[str, float] = {}
    for sample in _SAMPLE.finditer(text):
        for name, metric in _NAMES.items():
            if sample["name"] == metric:
                found[name] = found.get(name, 0.0) + float(sample["value"])
    return Totals(values=found)


class Seen(Frozen):
    """What a server says of itself."""

    models: tuple[str, ...]
    version: str | None = None


def look(url: str) -> Seen:
    """Models and version of the server at `url`. Raises OSError or ValueError where it does not answer as one."""
    with _open(f"{url.rstrip('/')}/models", timeout=_SECONDS) as response:
        listed = json.loads(response.read())
    names = tuple(str(one["id"]) for one in _entries(listed))
    if not names:
        raise ValueError("it lists no model")
    return Seen(models=names, version=_version(url))


def _version(url: str) -> str | None:
    try:
        with _open(f"{_root(url)}/version", timeout=_SECONDS) as response:
            found = json.loads(response.read())
    except (OSError, ValueError):
        return None
    version = found.get("version") if isinstance(found, dict) else None
    return version if isinstance(version, str) and version else None


def _entries(listed: Any) -> list[dict[str, Any]]:
    data = listed.get("data") if isinstance(listed, dict) else None
    return [one for one in data or () if isinstance(one, dict) and "id" in one]


def _root(url: str) -> str:
    return re.sub(r"/v1/?$", "", url.rstrip("/"))
