"""Where training and evaluation run."""

from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from ....errors import UserError


def require(device: str) -> None:
    """Raises UserError unless this process can compute on `device`; makes float32 products exact float32."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"{device}: no such device", "name cpu or cuda")
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"{device}: this process sees no CUDA GPU", "run on a GPU machine, or with --device cpu")
    torch.set_float32_matmul_precision("highest")


def moved(weights, device: str):
    """Weights in dataclasses and dictionaries, on `device`."""
    if isinstance(weights, Tensor):
        return weights.to(device)
    if isinstance(weights, dict):
        return {key: moved(value, device) for key, value in weights.items()}
    if is_dataclass(weights):
        return type(weights)(**{field.name: moved(getattr(weights, field.name), device) for field in fields(weights)})
    return weights
