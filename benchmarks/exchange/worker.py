"""One rank of one part: `worker.py PART`, started by launch.py with its place in the environment."""

import importlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import fasttrack_models.kimi_k3 as package
from fasttrack_models.kimi_k3 import launcher
from fasttrack_models.kimi_k3.exchange import Mix, Parcel, exchange, gather, local, prefetch

PARTS = {
    "alone": ("alone", "correct"), "latency": ("alone", "latency"), "fault": ("faults", "worker"),
    "model": ("model", "against_oracle"),
    "layers": ("layers", "times"), "agree": ("faults", "agree_only"),
}  # fmt: skip


class Here:
    """A rank's place, and where its findings go."""

    def __init__(self) -> None:
        self.rank, self.ranks, self.device = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "DEVICE"))
        self.folder, self.options = Path(os.environ["FOLDER"]), json.loads(os.environ["OPTIONS"])

    def found(self, **what) -> None:
        """Keeps a finding."""
        with (self.folder / f"{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def wait_for_others(self, most: float = 45) -> None:
        """Until the parts that were named as running beside this one have ended: what is timed is timed alone."""
        end, others = time.monotonic() + most, [Path(done) for done in self.options.get("after", ())]
        while not all(done.exists() for done in others):
            if time.monotonic() > end:
                raise RuntimeError("other parts are running still: nothing was timed")
            time.sleep(0.1)

    def join(self, *, nccl: bool) -> dist.ProcessGroup:
        """The group of all ranks, with a CPU side, and with NCCL where asked for."""
        backend = "cuda:nccl,cpu:gloo" if nccl else "gloo"
        dist.init_process_group(
            backend, init_method=f"file://{self.folder}/meet", rank=self.rank, world_size=self.ranks,
            timeout=timedelta(seconds=60),
        )  # fmt: skip
        return dist.group.WORLD


def context() -> launcher.ServingContext:
    """Launches the model directory's CUDA C++ on the current device."""
    root = Path(package.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.cu*")}
    return launcher.ServingContext(launcher.hardware("h200"), sources)


def warm(ctx: launcher.ServingContext, *, patience_ns: int | None = None) -> None:
    """Compiles the exchange's kernels, for which a peer would have to wait in the middle of its first exchange."""
    box = local(1, 1, "cuda")[0]
    row, norm = torch.zeros(1, 7168, device="cuda").bfloat16(), torch.zeros(7168, device="cuda").bfloat16()
    out, one = torch.empty_like(row), torch.zeros(1, 1, 7, device="cuda").bfloat16()
    for mix in (None, Mix(None, norm, norm, norm, torch.empty_like(row))):
        exchange(ctx, box, row, None, out, mix=mix, patience_ns=patience_ns)
    gather(ctx, box, Parcel(one, torch.empty_like(one), True), patience_ns=patience_ns)
    prefetch(ctx, row, row.nbytes)
    torch.cuda.synchronize()


if __name__ == "__main__":
    sys.modules["worker"] = sys.modules["__main__"]
    here = Here()
    if torch.cuda.is_available():
        torch.cuda.set_device(here.device)
    file, name = PARTS[sys.argv[1]]
    try:
        getattr(importlib.import_module(file), name)(here)
    finally:
        (here.folder / f"{here.rank}.done").touch()
    # No tear-down of groups: peers may be gone, and everything found is kept.
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(0)
