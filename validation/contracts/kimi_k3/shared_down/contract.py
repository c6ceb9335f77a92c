"""The contract of `shared_down`."""

from ..linear import LinearOp


class SharedDown(LinearOp):
    """partial = x shared_down^T, from the activation that `front` leaves: this rank's share of the shared expert.

    shared_down [d, S]; x [rows, S]; partial [rows, d], what the rank sends.
    """

    op = "shared_down"
    weight_name = "shared_down"
    out_name = "partial"

    def sizes(self, tp: int) -> tuple[int, int]:
        """d and S."""
        moe = self.architecture.moe
        channels = moe.shared_experts * moe.expert_intermediate_size
        return self.architecture.hidden_size, self.divided("shared-expert channels", channels, tp)
