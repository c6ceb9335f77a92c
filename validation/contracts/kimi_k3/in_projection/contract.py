"""The contract of `in_projection`."""

from ..linear import LinearOp


class InProjection(LinearOp):
    """projected = x in_proj^T: q | k | v | g | f_a (replicated) | beta | padding to 16 rows, as `kda_decode` reads it.

    in_proj [W, d]; x [rows, d]; projected [rows, W], the padding columns included (zero where the rows are zero).
    """

    op = "in_projection"
    weight_name = "in_proj"
    out_name = "projected"

    def sizes(self, tp: int) -> tuple[int, int]:
        """W and d."""
        return self.architecture.kda_shard(tp).projection_rows, self.architecture.hidden_size
