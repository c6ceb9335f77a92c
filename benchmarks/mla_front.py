"""The eight ops of an MLA layer's first half as one launch, on a GPU: held against their contract, then timed.

How: `half_layer.py`. Every row has a context of so many tokens, the newest one included.

    python benchmarks/mla_front.py --out figures.json [--context 1024 131072] [--rows 1 4 8] [--tp 8 16] [--check 8:1 ...]
"""

from importlib import import_module

import half_layer
import torch


def sized(axes, rows):
    """Tables and pools for the context, pages in any order."""
    page = axes["mla_query_page_size"]
    width = -(-axes["context"] // page)
    found = {"table_width": width, "table_stride": width, "pages": 1 + rows * width + 4}
    return {f"{op}_{name}": value for op in ("mla_query", "mla_core") for name, value in found.items()}


def drawn(spec, axes):
    """Whole contexts, whose pages lie in no order; everything else by its scale."""
    rows, width = axes["rows"], axes["mla_query_table_width"]
    if spec.name == "lengths":
        return torch.full((rows,), axes["context"], dtype=torch.int32)
    if spec.name == "page_table":
        return (1 + torch.randperm(rows * width)).view(rows, width).int()
    return None


def arguments(parser):
    """The contexts."""
    parser.add_argument("--context", type=int, nargs="+", default=[1024, 32768], help="tokens that every row sees")


SUBJECT = half_layer.Subject(
    part="attn_res_norm+mla_projection+mla_query+mla_core+mla_value+o_proj_residual+attn_res_norm+front",
    kernel=import_module("fasttrack_models.kimi_k3.kernels.mla_front"),
    stages=(
        "first mix", "barrier", "latents", "gate", "query latent", "queries", "absorption", "absorbed queries",
        "attention", "values", "attended", "o_proj", "banks", "second mix", "front",
    ),
    states=("cache",),
    most_rows=8,
    sized=sized,
    drawn=drawn,
    cases=lambda options: [(f" {context} tokens", {"context": context}) for context in options.context],
    arguments=arguments,
)  # fmt: skip

if __name__ == "__main__":
    half_layer.main(SUBJECT, __doc__.splitlines()[0])
