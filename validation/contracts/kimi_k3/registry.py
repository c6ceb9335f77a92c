"""The ops of Kimi K3 and the files of this directory that each exam consists of.

No exam covers this file: the names of its files are part of an exam's digest, and the class is the `Contract` of the
package called like the op. So adding an op leaves every other exam as it is.
"""

_SHARED = ("__init__.py", "architecture.py", "config.json", "contract.toml")

_PARTS = (*_SHARED, "op.py", "drawing.py")
_MODULES = ("__init__", "contract", "maths")
_STEP = ("step/__init__.py", "step/precision.py")
_LINEAR = ("linear.py", "linear_maths.py")
_PAGED = ("paged.py", "paged_maths.py")
_SITU = ("step/__init__.py", "step/situ.py")
_MXFP4 = ("weights/__init__.py", "weights/mxfp4.py")


def _own(op: str, *shared: str) -> tuple[str, ...]:
    return (*_PARTS, *shared, *(f"{op}/{name}.py" for name in _MODULES))


_KDA = (
    *_SHARED,
    *(f"kda_decode/{name}.py" for name in ("__init__", "contract", "hypotheses", "inputs", "layout", "oracle", "plain")),
)


FILES: dict[str, tuple[str, ...]] = {
    "kda_decode": _KDA,
    "kda_verify": (
        *_KDA, *(f"kda_verify/{name}.py" for name in ("__init__", "contract", "hypotheses", "inputs", "layout", "steps")),
    ),
    "attn_res_norm": _own("attn_res_norm", *_STEP, "layer_weights.py", "step/attn_res.py", "step/norm.py"),
    "in_projection": _own("in_projection", *_LINEAR),
    "o_proj_residual": _own("o_proj_residual", "linear_maths.py"),
    "front": _own("front", "linear_maths.py", *_SITU),
    "routing": _own("routing", *_STEP, "step/router.py"),
    "experts": _own("experts", "experts/inputs.py", "linear_maths.py", *_SITU, *_MXFP4),
    "shared_down": _own("shared_down", *_LINEAR),
    "latent_up": _own("latent_up", "linear_maths.py", *_STEP, "step/norm.py"),
    "mla_projection": _own("mla_projection", *_LINEAR),
    "mla_query": _own("mla_query", "mla_query/inputs.py", *_PAGED, *_STEP, "step/norm.py"),
    "mla_core": _own("mla_core", "mla_core/inputs.py", *_PAGED),
    "mla_verify": _own(
        "mla_verify", "mla_verify/inputs.py", *_PAGED, *(f"mla_core/{name}.py" for name in (*_MODULES, "inputs"))
    ),
    "mla_value": _own("mla_value", "linear_maths.py"),
    "dense_up": _own("dense_up", "linear_maths.py", *_SITU, *(f"front/{name}.py" for name in _MODULES)),
    "dense_down": _own("dense_down", "linear_maths.py", *(f"o_proj_residual/{name}.py" for name in _MODULES)),
    "head": _own("head", *_LINEAR),
}
