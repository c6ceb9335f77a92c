"""Ranks of one part in processes of their own: started together, given a time limit, and ended by their own ids.

A rank appends what it finds to a file, a JSON object a line, so that whatever it found before it was stopped is kept.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
# NVLink multicast stays off: the exchange is for hosts that have none.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


@dataclass
class Ranks:
    """Processes of one part; `wait` is called once."""

    part: str
    processes: list[subprocess.Popen]
    folder: Path
    limit: float
    started: float = field(default_factory=time.monotonic)

    def kill(self, rank: int, sign: int = signal.SIGKILL) -> None:
        """Sends one rank a signal."""
        self.processes[rank].send_signal(sign)

    def wait(self) -> dict:
        """What all ranks found: "rank", "ended" (exit status, or "stopped at its limit"), "found", "said" for each."""
        found = []
        for rank, process in enumerate(self.processes):
            left = max(0.0, self.limit - (time.monotonic() - self.started))
            try:
                ended: int | str = process.wait(left)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
                ended = f"stopped at its limit of {self.limit:.0f} s"
            found.append({"rank": rank, "ended": ended, "found": self.lines(rank), "said": self.said(rank)})
        return {"part": self.part, "seconds": round(time.monotonic() - self.started, 1), "ranks": found}

    def lines(self, rank: int) -> list[dict]:
        """What a rank has found so far."""
        path = self.folder / f"{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def said(self, rank: int) -> str:
        """The end of a rank's output, where it has any."""
        path = self.folder / f"{rank}.log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""


def start(part: str, devices: Sequence[int], options: dict, limit: float, folder: Path) -> Ranks:
    """Starts a rank on each of `devices` (several may share one) for `part` of worker.py, with `options`."""
    folder.mkdir(parents=True)
    processes = []
    for rank, device in enumerate(devices):
        environment = os.environ | NO_MULTICAST | {
            "RANK": str(rank), "WORLD_SIZE": str(len(devices)), "DEVICE": str(device), "FOLDER": str(folder),
            "OPTIONS": json.dumps(options), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        with (folder / f"{rank}.log").open("w") as log:
            processes.append(subprocess.Popen([sys.executable, str(WORKER), part], env=environment, stdout=log, stderr=log))
    return Ranks(part, processes, folder, limit)
