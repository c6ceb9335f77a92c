"""The contract of `head`."""

from ..linear import LinearOp


class Head(LinearOp):
    """logits = x lm_head^T over this rank's part of the vocabulary, rounded to bf16 as the published head leaves them.

    lm_head [V, d]; x [rows, d], behind the final mix and norm (`attn_res_norm`); logits [rows, V].
    """

    op = "head"
    weight_name = "lm_head"
    out_name = "logits"

    def sizes(self, tp: int) -> tuple[int, int]:
        """V and d."""
        return self.divided("rows of the vocabulary", self.architecture.vocab_size, tp), self.architecture.hidden_size
