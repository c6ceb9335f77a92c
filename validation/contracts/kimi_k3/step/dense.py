"""The SiTU MLP: layer 0, and the shared expert of every later layer."""

from torch import Tensor

from ..architecture import Situ
from .precision import Precision
from .situ import situ


def partial(x: Tensor, gate_up: Tensor, down: Tensor, constants: Situ, precision: Precision) -> Tensor:
    """This rank's share of down(situ(gate x, up x)): a partial sum over the intermediate size.

    x [rows, K]; gate_up [gate n | up n, K]; down [N, n]. Rounded: both products and the activation.
    """
    gate, up = precision.linear(x, gate_up).chunk(2, -1)
    return precision.linear(precision.round(situ(gate, up, constants)), down)
