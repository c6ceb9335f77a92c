"""The contract of `dense_down`."""

from ..o_proj_residual.contract import OProjResidual


class DenseDown(OProjResidual):
    """As `o_proj_residual`, with the dense layer's `down` [d, n] and its activation [rows, n]."""

    op = "dense_down"
    weight_name = "down"

    def inner(self, tp: int) -> int:
        """n."""
        return self.divided("dense intermediate channels", self.architecture.dense_intermediate_size, tp)
