"""Do captured steps always give what launches one by one give? Thousands of replays of a grid's cells, bit for bit.

    python benchmarks/replays.py --cell tp8-kda_moe-r8 [--cell tp16-kda_moe-r1] [--seconds 30] [--neighbour] [--json FILE]

Two copies of a cell, each with weights and states of its own, are captured into one graph. Every replay starts from states
as drawn and from inputs whose lowest bits a new seed has flipped; every output and state is compared with that of the same
launches made one by one, and a new graph is captured now and then. With `--neighbour` another process keeps the GPU busy,
so that it switches between the two in the midst of kernels: an order that only timing kept shows then. What differs is
named with its first place. Ends with 1 when anything differed, or when a health word says that somebody gave up waiting.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import fasttrack_models.kimi_k3 as package
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.stock.graph import capture
from fasttrack_validation.performance.arm_worker import Copy, Worker

SEEDS = (11, 12)
SEED_EVERY = 8  # replays; a new graph as often
NEIGHBOUR = """
import torch
a, b = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16), torch.zeros(200_000_000, dtype=torch.uint8, device="cuda")
while True:
    for _ in range(3):
        a @ a
        b.add_(1)
    torch.cuda.synchronize()
"""


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """Another process with a context of its own, always at work."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        time.sleep(8)  # until it has loaded
        if process.poll() is not None:
            raise SystemExit("the neighbour ended: is there memory for it?")
        yield
    finally:
        process.kill()
        process.wait()


def results(copies: list[Copy]) -> dict[str, torch.Tensor]:
    """Copies of all outputs, states among them."""
    return {f"{number}:{name}": tensor.clone() for number, copy in enumerate(copies) for name, tensor in copy.outputs.items()}


def unequal(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of what is not the same to the bit; one wait for all."""
    bits = lambda tensor: tensor.contiguous().view(torch.uint8)
    flags = torch.stack([(bits(left[name]) != bits(right[name])).any() for name in left]).tolist()
    return [name for name, flag in zip(left, flags, strict=True) if flag]


def place(want: torch.Tensor, got: torch.Tensor) -> dict[str, object]:
    """How many values differ, and the first with both."""
    where = (want != got).nonzero()
    if not len(where):
        return {"values": 0}
    first = tuple(where[0].tolist())
    return {"values": len(where), "first": first, "one by one": want[first].item(), "replayed": got[first].item()}


def unhealthy(copies: list[Copy]) -> list[str]:
    """Persistent scratch whose second word, where kernels keep their health, is not zero."""
    return [
        f"{number}:{key[1]}.{key[2]}"
        for number, copy in enumerate(copies)
        for key, tensor in copy.run.__self__._tensors.memory._kept.items()
        if isinstance(key, tuple) and key[0] == "persistent" and tensor.numel() > 1 and tensor.flatten()[1].item()
    ]


def examine(worker: Worker, spec: Mapping[str, object], hardware: str, seconds: float) -> dict[str, object]:
    """Replays of one cell for so long."""
    worker.do_lay_out(spec, hardware, SEEDS)
    copies, replays, differing = worker.copies, 0, []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        seed = 1000 + 2 * (replays // SEED_EVERY)
        if replays % SEED_EVERY == 0:
            worker.do_refresh(seed)
            for copy in copies:
                copy.run()
            torch.cuda.synchronize()
            want = results(copies)
            worker.captured = None
            worker.captured = capture(lambda: [copy.run() for copy in copies])
        worker.do_refresh(seed)
        worker.do_replay()
        replays += 1
        got = results(copies)
        if wrong := unequal(want, got):
            differing.append({"replay": replays, "what": {name: place(want[name], got[name]) for name in wrong}})
    return {"replays": replays, "differing": len(differing), "first": differing[:3], "unhealthy": unhealthy(copies)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", action="append", required=True, help="of the contract's grid; may be repeated")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each cell")
    parser.add_argument("--neighbour", action="store_true", help="with another process on the same GPU")
    parser.add_argument("--json", type=Path, help="write what was found here as well")
    asked = parser.parse_args()
    specs = {cell.key: cell.model_dump(mode="json") for cell in contracts.load("kimi_k3").grid.cells(asked.hardware)}
    if unknown := set(asked.cell) - set(specs):
        parser.error(f"no such cell: {', '.join(sorted(unknown))}")
    worker, found = Worker("specialised", "kimi_k3", Path(package.__file__).parent), {}
    with neighbour(asked.neighbour):
        for key in asked.cell:
            found[key] = examine(worker, specs[key], asked.hardware, asked.seconds)
            print(json.dumps({key: found[key]}), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    sys.exit(any(one["differing"] or one["unhealthy"] for one in found.values()))


if __name__ == "__main__":
    main()
