"""Small checkpoints, and real `fasttrack serve` processes over them."""

import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.nano import CONFIG
from fasttrack_validation.contracts.kimi_k3.nano.parameters import export, initial

ROOT = Path(__file__).parents[2]
START_SECONDS = 120


def tiny() -> Architecture:
    """The nano model cut down to 5 layers (KDA, KDA, KDA, MLA, MLA) in three blocks; its tokenizer still fits."""
    of = Architecture.from_config(CONFIG)
    return of.model_copy(
        update={
            "hidden_size": 64, "layers": 5, "vocab_size": 336, "dense_intermediate_size": 64, "attn_res_block_size": 2,
            "max_positions": 2048, "kda_layers": (0, 1, 2), "mla_layers": (3, 4),
            "kda": of.kda.model_copy(update={"head_dim": 8, "gate_rank": 8}),
            "mla": of.mla.model_copy(
                update={
                    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
                    "v_head_dim": 8,
                }
            ),
            "moe": of.moe.model_copy(
                update={"experts": 8, "top_k": 2, "latent_size": 32, "expert_intermediate_size": 64}
            ),
        }
    )  # fmt: skip


def checkpoint(directory: Path, *, seed: int = 0, sharpen: float = 8.0) -> Path:
    """Writes a random tiny checkpoint whose answers are far from uniform."""
    of = tiny()
    parameters = initial(of, seed)
    for name, tensor in parameters.items():
        if name.endswith("lm_head.weight"):
            tensor.mul_(sharpen)
    export(parameters, of, directory)
    return directory


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen, facts: dict) -> None:
        self.process = process
        self.url: str = facts["url"]
        self.root = self.url.removesuffix("/v1")
        self.fingerprint: str = facts["fingerprint"]
        self.build: dict = facts["build"]


@contextmanager
def serving(*arguments: str, tree: Path = ROOT, device: str = "cpu", **environment: str):
    """`fasttrack serve kimi_k3 ARGUMENTS` on a free port, from the packages of `tree`."""
    command = [sys.executable, "-m", "fasttrack", "serve", "kimi_k3", "--json", "--port", "0", "--device", device]
    command += arguments
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if tree != ROOT:
        env["PYTHONPATH"] = str(tree)
    process = subprocess.Popen(command, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if not select.select([process.stdout], [], [], START_SECONDS)[0]:
            raise AssertionError(f"no server after {START_SECONDS} s")
        facts = json.loads(process.stdout.readline() or "{}")
        if "url" not in facts:
            raise AssertionError(f"no server: {facts} {process.stderr.read()}")
        yield Served(process, facts)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
