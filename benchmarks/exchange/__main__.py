"""The exchange between GPUs: right or wrong, what happens to lost ranks, and how long it takes.

    python benchmarks/exchange --out results                     # all parts, on all GPUs of this host
    python benchmarks/exchange --out results --parts alone faults --devices 0 0     # two processes on one GPU, by CUDA IPC
    python benchmarks/exchange --out results --parts latency layers --rows 1 8

Each part runs in processes of its own, a rank each, and is stopped at its limit; what was found until then is kept in
results/exchange.json. Parts: alone (sums against the CPU, also with several ranks a GPU), faults, latency, model (a step
of a small model of true widths against the unsharded oracle), layers (layers and steps timed, one traced).
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import faults  # noqa: E402
import torch  # noqa: E402
from launch import Ranks, start  # noqa: E402

LIMITS = {"alone": 80, "agree": 80, "faults": 80, "latency": 60, "model": 100, "layers": 160}
"""Seconds"""
PARTS = [part for part in LIMITS if part != "agree"]


def conditions() -> dict:
    """The machine."""
    count = torch.cuda.device_count()
    return {
        "gpus": [torch.cuda.get_device_name(number) for number in range(count)], "torch": torch.__version__,
        "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version())), "multicast": "off",
        "peer access": [[a == b or torch.cuda.can_device_access_peer(a, b) for b in range(count)] for a in range(count)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for results and the ranks' output")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--devices", type=int, nargs="+", help="a rank on each; by default one on every GPU")
    parser.add_argument("--kinds", nargs="+", default=["symmetric", "ipc"], help="memory of the mailboxes")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="of `latency`")
    parser.add_argument("--layer-rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 8], help="rows for which whole steps are timed")
    parser.add_argument("--tokens", type=int, default=1024, help="of the context")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--scale", type=float, default=1.0, help="of all limits")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(3, "not run: this machine has no CUDA GPU\n")
    devices = chosen.devices or list(range(torch.cuda.device_count()))
    if len(devices) < 2:
        parser.exit(3, f"not run: {len(devices)} GPU; --devices 0 0 puts two ranks on one\n")
    shared = len(set(devices)) < len(devices)
    kinds = ["ipc"] if shared else chosen.kinds
    chosen.out.mkdir(parents=True, exist_ok=True)
    folder = chosen.out / f"ranks-{int(time.time())}"
    results = {"conditions": conditions(), "devices": devices, "parts": []}

    def keep(found: dict) -> None:
        results["parts"].append(found)
        part = chosen.out / "exchange.json.part"
        part.write_text(json.dumps(results))
        part.replace(chosen.out / "exchange.json")
        print(json.dumps(brief(found)), flush=True)

    common = {"rounds": chosen.rounds, "rows": chosen.rows, "tokens": chosen.tokens, "kinds": kinds}
    def begin(part: str, where: list[int], options: dict, name: str = "") -> Ranks:
        return start(part, where, common | options, LIMITS[part] * chosen.scale, folder / (name or part))

    # What is not timed runs at once, and beside it `layers` draws, repacks and compiles.
    running: list[Ranks] = []
    if "model" in chosen.parts:
        running.append(begin("model", devices, {"kinds": kinds[:1]}))
    if "alone" in chosen.parts:
        running += [begin("alone", devices, {"kinds": [kind]}, f"alone-{kind}") for kind in kinds]
        if not shared:
            running += [begin("alone", devices * more, {"kinds": ["ipc"]}, f"alone-ipc-{more}-a-gpu") for more in (2, 4)]
        running.append(begin("agree", devices, {}))
    last: list[Ranks] = []
    if "layers" in chosen.parts:
        options = {"rows": chosen.layer_rows, "steps": chosen.steps, "step_rounds": max(8, chosen.rounds // 3)}
        after = [str(ranks.folder / f"{rank}.done") for ranks in running for rank in range(len(ranks.processes))]
        last.append(begin("layers", devices, options | {"kinds": kinds[:1], "after": after}))
    if "faults" in chosen.parts:
        for found in faults.run(devices, kinds, folder, LIMITS["faults"] * chosen.scale):
            keep({"part": "fault", **found})
    for ranks in [*reversed(running), *last]:
        keep(ranks.wait())
    if "latency" in chosen.parts:
        keep(begin("latency", devices, {}).wait())


def brief(found: dict) -> dict:
    """A part's outcome in a line."""
    if found["part"] == "fault":
        return {key: found[key] for key in ("part", "memory", "scenario", "as expected", "stopped after s", "events")}
    shown: dict = {"part": found["part"], "seconds": found["seconds"], "ended": [rank["ended"] for rank in found["ranks"]]}
    lines = [line for rank in found["ranks"] for line in rank["found"]]
    if rights := [line["right"] for line in lines if "right" in line]:
        shown["right"] = f"{sum(rights)} of {len(rights)}"
    for line in lines:
        if "microseconds" in line:
            key = f"{line.get('span', 'exchange')}, {line['rows']} rows"
            shown[key] = {name: one["median"] for name, one in line["microseconds"].items()}
    if any(rank["ended"] != 0 for rank in found["ranks"]):
        shown["said"] = [rank["said"][-600:] for rank in found["ranks"]]
    return shown


if __name__ == "__main__":
    main()
