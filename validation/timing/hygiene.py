"""C20: the switches that could slow or speed the stock path, and what each must be. A stock path that was slowed is no rival.

They are PyTorch's own defaults, on one thread: what a user runs who has set nothing. `read` looks at the process that it
runs in, before a session and after it; what is otherwise is the judge's fault, never the candidate's.
"""

import os
from collections.abc import Mapping

import torch

from .plausibility import Fault

REASON = "stock.switches"

EXPECTED: Mapping[str, str] = {
    "default_dtype": "torch.float32",
    "float32_matmul_precision": "highest",
    "cuda_matmul_tf32": "False",
    "cudnn_tf32": "True",
    "cudnn_enabled": "True",
    "cudnn_benchmark": "False",
    "cudnn_deterministic": "False",
    "deterministic_algorithms": "False",
    "bf16_reduced_precision_reduction": "True",
    "fp16_reduced_precision_reduction": "True",
    "scaled_dot_product_attention": "flash, mem_efficient, math, cudnn",
    "autocast": "False",
    "anomaly_detection": "False",
    "threads": "1",
    "variables": "none",
}
"""switch -> its value in a clean process."""

# Beginnings of names of environment variables by which PyTorch, its allocator and NVIDIA's libraries are tuned.
_TUNING = (
    "PYTORCH_", "TORCH_", "NVIDIA_TF32_OVERRIDE", "CUBLAS", "CUDNN", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_", "CUDA_CACHE_",
    "OMP_", "MKL_", "TRITON_INTERPRET", "TRITON_DEBUG",
)  # fmt: skip


def read() -> dict[str, str]:
    """Every switch of EXPECTED as it stands in this process. Needs no GPU."""
    kernels = ("flash", "mem_efficient", "math", "cudnn")
    attention = [name for name in kernels if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]
    found = {
        "default_dtype": torch.get_default_dtype(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda_matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_enabled": torch.backends.cudnn.enabled,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "bf16_reduced_precision_reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fp16_reduced_precision_reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "scaled_dot_product_attention": ", ".join(attention),
        "autocast": torch.is_autocast_enabled("cuda"),
        "anomaly_detection": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
        "variables": ", ".join(sorted(name for name in os.environ if name.startswith(_TUNING))) or "none",
    }
    return {name: str(value) for name, value in found.items()}


def fault(before: Mapping[str, str], after: Mapping[str, str]) -> Fault | None:
    """The first switch that was not as it must be, before or after a session; None for a clean stock path."""
    for when, found in (("before", before), ("after", after)):
        for name, expected in EXPECTED.items():
            if found.get(name) != expected:
                message = f"{name} of the stock path's process was {found.get(name)} {when} the session, must be {expected}"
                return Fault(reason=REASON, message=message)
    return None
