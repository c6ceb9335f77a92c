"""What the stock path needs of a machine."""

from importlib.util import find_spec

import torch

from ....errors import UserError

_HOW = "run on a machine with a CUDA GPU after: pip install 'fasttrack[gpu]'"
_MINIMUM = (8, 0)
"""bfloat16 tensor cores, and warp-wide integer reductions"""


def gpu(device: str | torch.device) -> torch.device:
    """`device`, if it is a CUDA GPU on which the stock path runs. Raises UserError naming what is missing."""
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        raise UserError(f"the stock path needs a CUDA GPU, not {str(device)!r}", _HOW)
    capability = torch.cuda.get_device_capability(device)
    if capability < _MINIMUM:
        has = ".".join(map(str, capability))
        raise UserError(f"the stock path needs compute capability 8.0, this GPU has {has}", _HOW)
    for module, package in (("fla", "fla-core"), ("triton", "triton"), ("cuda.bindings", "cuda-bindings")):
        if not _installed(module):
            raise UserError(f"the stock path needs {package}, which is not installed", _HOW)
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # The package around it is missing.
        return False
