"""What may be judged as a whole: layers, as parts of the op graph, and the step. Imports nothing.

A file of its own: exams of single ops do not depend on it.
"""

_MIXTURE = ("front", "routing", "experts", "shared_down", "latent_up")
_KDA = ("in_projection", "kda_decode", "o_proj_residual")
_MLA = ("mla_projection", "mla_query", "mla_core", "mla_value", "o_proj_residual")
_DENSE = ("dense_up", "dense_down")

LAYERS: dict[str, tuple[str, ...]] = {
    "layer:kda": ("attn_res_norm", *_KDA, "attn_res_norm", *_MIXTURE),
    "layer:mla": ("attn_res_norm", *_MLA, "attn_res_norm", *_MIXTURE),
    "layer:dense": ("attn_res_norm", *_KDA, "attn_res_norm", *_DENSE),
}
"""A whole layer of one rank -> its ops: KDA or MLA before the mixture, and layer 0 with its dense MLP."""

STEP = "step"
STEP_FILES = (
    "__init__.py", "architecture.py", "config.json", "contract.toml", "nano.json", "drawing.py", "op.py",
    "layers.py", "layer_weights.py", "weights/__init__.py", "weights/mxfp4.py",
    *(f"decode_step/{name}.py" for name in ("__init__", "contract", "maths")),
    *(f"kda_decode/{name}.py" for name in ("__init__", "contract", "hypotheses", "inputs", "layout", "oracle", "plain")),
    *(
        f"step/{name}.py"
        for name in (
            "__init__", "attn_res", "dense", "head", "kda", "mla", "model", "moe", "norm", "precision", "router",
            "situ", "state", "unpack",
        )
    ),
)  # fmt: skip
"""The files of the exam of a whole step"""
