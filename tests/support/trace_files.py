"""A plain op by hand in the public format: RMSNorm over rows of 256, and a product with a weight."""

import json
from pathlib import Path

RMSNORM = {
    "name": "rmsnorm_h256",
    "op_type": "rmsnorm",
    "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 256}},
    "inputs": {
        "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"},
    },
    "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}},
    "constraints": ["batch_size <= 64"],
    "reference": (
        "import torch\n\n\n@torch.no_grad()\ndef run(hidden_states, weight):\n"
        "    x = hidden_states.to(torch.float32)\n"
        "    inverse = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)\n"
        "    return ((x * inverse) * weight.float()).to(hidden_states.dtype)\n"
    ),
}
RMSNORM_SIDE = 'static = ["weight"]\nbatch_axis = "batch_size"\nflops = "4 * batch_size * hidden_size"\n'
RMSNORM_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def norm(x, w, out, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, N)
    v = tl.load(x + row * N + at).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v) / N + 1e-6)
    tl.store(out + row * N + at, (v * scale * tl.load(w + at).to(tl.float32)).to(tl.bfloat16))


def launch(ctx, buffers, axes, config):
    grid = (axes["batch_size"],)
    norm[grid](buffers.hidden_states, buffers.weight, buffers.output, N=axes["hidden_size"], num_warps=4)
"""

# C = A B^T scaled, with a scalar, and no axis that is said to be a batch.
GEMM = {
    "name": "gemm_n32_k64",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 32}, "K": {"type": "const", "value": 64}},
    "inputs": {
        "A": {"shape": ["M", "K"], "dtype": "float16"},
        "B": {"shape": ["N", "K"], "dtype": "float16"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
    "reference": "import torch\n\ndef run(A, B, scale):\n    return (A.float() @ B.float().T * scale).half()\n",
}
GEMM_SIDE = 'static = ["B"]\nflops = "2 * M * N * K"\nleave_out = ["wide_range"]\n'
GEMM_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gemm(a, b, scale, c, M, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, k = tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
    y = tl.load(b + n[None, :] * K + k[:, None])
    out = tl.dot(x, y) * tl.load(scale)
    tl.store(c + m[:, None] * N + n[None, :], out.to(tl.float16), mask=m[:, None] < M)


def launch(ctx, buffers, axes, config):
    gemm[((axes["M"] + 15) // 16,)](buffers.A, buffers.B, buffers.scale, buffers.C, axes["M"], N=32, K=64, BLOCK=16)
"""


def random_inputs(definition: dict) -> dict:
    """Unit normals for tensors, two and a half for scalars."""
    return {
        name: {"type": "random"} if tensor["shape"] else {"type": "scalar", "value": 2.5}
        for name, tensor in definition["inputs"].items()
    }


def trace(definition: dict, uuid: str, axes: dict, inputs: dict | None = None) -> dict:
    """A line of a workload file."""
    workload = {"axes": axes, "inputs": inputs or random_inputs(definition), "uuid": uuid}
    return {"definition": definition["name"], "workload": workload, "solution": None, "evaluation": None}


def write(directory: Path, definition: dict, traces: list[dict], side: str) -> tuple[Path, Path, Path]:
    """The three files of an exam."""
    paths = (directory / "definition.json", directory / "workloads.jsonl", directory / "judging.toml")
    texts = (json.dumps(definition, indent=2), "".join(json.dumps(line) + "\n" for line in traces), side)
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def rmsnorm(directory: Path) -> tuple[Path, Path, Path]:
    """The exam of RMSNorm at 7 and 16 rows."""
    traces = [trace(RMSNORM, f"rows{rows}", {"batch_size": rows}) for rows in (7, 16)]
    return write(directory, RMSNORM, traces, RMSNORM_SIDE)


def gemm(directory: Path) -> tuple[Path, Path, Path]:
    """The exam of the product at one size."""
    return write(directory, GEMM, [trace(GEMM, "m5", {"M": 5})], GEMM_SIDE)
