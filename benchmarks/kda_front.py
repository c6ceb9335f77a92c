"""The six ops of a KDA layer's first half as one launch, on a GPU: held against their contract, then timed.

How: `half_layer.py`.

    python benchmarks/kda_front.py --out figures.json [--rows 1 4 8 16] [--tp 8 16] [--check 8:1 16:16 ...]
"""

from importlib import import_module

import half_layer
import torch


def drawn(spec, axes):
    """Slots in order; everything else by its scale."""
    return torch.arange(1, spec.shape[0] + 1, dtype=torch.int32) if spec.name == "slots" else None


SUBJECT = half_layer.Subject(
    part="attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm+front",
    kernel=import_module("fasttrack_models.kimi_k3.kernels.kda_front"),
    stages=(
        "first mix", "barrier", "in_projection", "state", "kda step", "barrier", "o_proj", "banks", "second mix",
        "front",
    ),
    states=("conv_state", "recurrent_state"),
    most_rows=16,
    sized=lambda axes, rows: {"slots": rows + 5},
    drawn=drawn,
    cases=lambda options: [("", {})],
)  # fmt: skip

if __name__ == "__main__":
    half_layer.main(SUBJECT, __doc__.splitlines()[0])
