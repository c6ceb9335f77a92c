"""The contract of `mla_projection`."""

from ..linear import LinearOp


class MlaProjection(LinearOp):
    """projected = x qkv_a_g^T: q_a 1536 | kv_a 512 + 64 (both replicated) | output gate, as the MLA ops read it.

    qkv_a_g [W, d]; x [rows, d]; projected [rows, W].
    """

    op = "mla_projection"
    weight_name = "qkv_a_g"
    out_name = "projected"

    def sizes(self, tp: int) -> tuple[int, int]:
        """W and d."""
        mla = self.architecture.mla
        gate = self.divided("MLA heads", mla.heads, tp) * mla.v_head_dim
        return mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim + gate, self.architecture.hidden_size
