"""Foreign reference code in float64: every narrower float type that it names becomes float64.

Types change on the way through torch's own functions, so code that calls `.float()` or `.to(torch.bfloat16)` keeps its
meaning but for its roundings. Code that reads the bits of a float cannot be widened, and says so.
"""

from collections.abc import Mapping

import torch
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


class ReadsBits(Exception):
    """The reference looks at the representation of a float."""


class Widened(TorchFunctionMode):
    """Inside of it torch knows one float type."""

    def __torch_function__(self, func, types, args=(), kwargs: Mapping | None = None):
        """Calls `func` with every narrow float type replaced."""
        given = (*args, *(kwargs or {}).values())
        if func is torch.Tensor.view and any(isinstance(value, torch.dtype) for value in given):
            raise ReadsBits("view(dtype) reads bits, which differ in float64")
        if func in _CASTS:
            func = torch.Tensor.double
        args = tuple(_wide(value) for value in args)
        return func(*args, **{name: _wide(value) for name, value in (kwargs or {}).items()})

    def __enter__(self):
        """Factories without a type make float64 as well."""
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        """As before."""
        torch.set_default_dtype(self._default)
        return super().__exit__(*error)


def _wide(value):
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
