"""What a run of this benchmark leaves as evidence: one file, with conditions, scope, method, and an outcome for each cell.

    python benchmarks/exchange/record.py results/exchange.json --out models/kimi_k3/evidence/exchange/h200-tp2.json

An outcome is `measured`, `passed`, `failed` (with a reason) or `not_run`. A path's time counts only where the same run
found its results right: a KDA layer's by the states and the stream that the next layer cached, everything else by logits.
`--tree` names the checkout that ran, if it is another one; figures are about its sources.
"""

import argparse
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUBJECT = {"exchange": "models/kimi_k3/exchange", "kernels": "models/kimi_k3/kernels", "benchmark": "benchmarks/exchange"}
STATE_ERROR = 0.1
SCOPE = "ranks of one host in processes of their own, a GPU each, communication included; self-reported"
METHOD = (
    "CUDA graphs replayed in turns, all ranks' at once behind an exchange; the slowest rank's events; medians and quartiles "
    "of the rounds. Latency: 20 calls a graph. Layers: four of one kind a graph, weights of two sets in turn, random inputs"
)
TPS = (2, 4, 8)


def digests(tree: Path) -> dict[str, str]:
    """SHA-256 of each subject's files, names included."""
    found = {}
    for name, folder in SUBJECT.items():
        digest = hashlib.sha256()
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh"):
                digest.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes() + b"\0")
        found[name] = digest.hexdigest()
    return found


def record(results: dict, tree: Path) -> dict:
    """The whole file."""
    rights = judged(results)
    cells = [cell for part in results["parts"] for cell in cells_of(part, rights, len(results["devices"]))]
    ran = {cell["tp"] for cell in cells if cell["what"] in ("layer", "step")}
    cells += [
        {"what": what, "tp": tp, "outcome": "not_run", "reason": f"no machine of {tp} GPUs was at hand"}
        for tp in TPS if tp not in ran and tp > len(set(results["devices"])) for what in ("latency", "layer", "step")
    ]  # fmt: skip
    return {
        "hardware": "h200", "scope": SCOPE, "method": METHOD, "conditions": results["conditions"], "subject": digests(tree),
        "cells": cells,
    }  # fmt: skip


def judged(results: dict) -> dict[str, tuple[str | None, str | None]]:
    """Path -> what speaks against its KDA layers, and against everything else; None where nothing does."""
    found: dict[str, tuple[str | None, str | None]] = {}
    names = {"Mailboxes": "decode path, mailboxes", "Collectives": "decode path, NCCL", "stock path with NCCL": "stock path"}
    for line in (line for part in results["parts"] if part["part"] == "model" for line in lines_of(part)):
        if line["stage"] != "step":
            continue
        name = names[line["transport"]]
        layers, rest = found.get(name, (None, None))
        if not line["right"]:
            rest = f"logits of a step against the float64 oracle: errors {[own for own, _ in line['errors']]}"
        worst = max(line.get("states", {"logits": 0.0 if line["right"] else math.inf}).values())
        if not worst < STATE_ERROR:
            layers = f"states against the float64 oracle: error {worst}"
        found[name] = (layers, rest)
    return found


def lines_of(part: dict) -> list[dict]:
    """All ranks' findings."""
    return [line for rank in part["ranks"] for line in rank["found"]]


def cells_of(part: dict, rights: dict, ranks: int) -> Iterator[dict]:
    """The cells of one part of a run."""
    if part["part"] == "fault":
        yield {
            "what": "lost rank", "tp": ranks, "memory": part["memory"], "scenario": part["scenario"],
            "outcome": "passed" if part["as expected"] else "failed", "bound_seconds": part["bound s"],
            "stopped_after_seconds": part["stopped after s"], "events": part["events"], "said": part["said"],
        }  # fmt: skip
        return
    lines, ended = lines_of(part), [rank["ended"] for rank in part["ranks"]]
    if any(one != 0 for one in ended):
        yield {"what": part["part"], "tp": len(ended), "outcome": "failed", "reason": f"ranks ended with {ended}"}
    if part["part"] == "alone" and lines:
        right = [line["right"] for line in lines]
        yield {
            "what": "sums, mixes and gathers against the CPU", "tp": len(ended), "gpus": ranks, "memory": lines[0]["memory"],
            "batches": sorted({line["rows"] for line in lines}), "outcome": "passed" if all(right) else "failed",
            "checks": len(right), "largest_mix_error": max(line["mix error"] for line in lines),
        }  # fmt: skip
    for line in lines if part["part"] == "agree" else ():
        yield {"what": "verdict", "tp": len(ended), "outcome": "passed" if not line["agreed"] else "failed", **line}
    for line in lines:
        if part["part"] == "latency":
            yield {
                "what": "latency", "tp": line["ranks"], "rows": line["rows"], "outcome": "measured",
                "microseconds": line["microseconds"],
            }  # fmt: skip
        elif part["part"] == "model" and line["stage"] == "step":
            kept = {key: value for key, value in line.items() if key not in ("stage", "right")}
            kept["errors"] = [[own if own == own else "nan", plain] for own, plain in line["errors"]]
            yield {"what": "step against the oracle", "tp": len(ended), "outcome": "passed" if line["right"] else "failed", **kept}
        elif part["part"] == "layers" and line["stage"] == "time":
            yield from timed(line, rights)
    for line in part["ranks"][0]["found"] if part["part"] == "layers" else ():
        if line["stage"] == "trace":
            yield {
                "what": "trace", "tp": len(ended), "rows": line["rows"], "outcome": "measured", "of": "decode path, mailboxes, "
                "prefetch; four KDA layers, rank 0", "columns": ["kernel", "stream", "start us", "duration us"],
                "kernels": line["kernels"], "together_us": line["together"],
            }  # fmt: skip


def timed(line: dict, rights: dict) -> Iterator[dict]:
    """A span's paths, each measured or failed."""
    what = "step" if line["span"] == "step" else "layer"
    for path, figures in line["microseconds"].items():
        cell = {"what": what, "path": path, **{key: line[key] for key in ("span", "tp", "rows", "context", "memory")}}
        known = next((why for name, why in rights.items() if path.startswith(name)), ("not examined in this run",) * 2)
        why = known[0] if line["span"] == "KDA layer" else known[1]
        if why:
            yield {**cell, "outcome": "failed", "reason": why}
        else:
            yield {**cell, "outcome": "measured", "microseconds": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout that ran")
    chosen = parser.parse_args()
    made = record(json.loads(chosen.results.read_text()), chosen.tree)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(made, indent=1, allow_nan=False) + "\n")
    for cell in made["cells"]:
        about = (str(cell[key]) for key in ("tp", "rows", "span", "path", "scenario", "memory") if key in cell)
        print(cell["outcome"], cell["what"], *about)


if __name__ == "__main__":
    main()
