"""The reference of each op as plain PyTorch that stands alone: what a definition carries.

A module defines `exact(*tensors, *, constants)` in float64. Tests hold each to the contract's oracle, from which they
are written apart. An op that is not listed here has no definition yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, resources
from types import ModuleType
from typing import TYPE_CHECKING

from ....errors import UserError
from ...base import OpContract

if TYPE_CHECKING:
    from ...kimi_k3.architecture import Architecture

Constants = Callable[["Architecture"], Mapping[str, float | int]]


@dataclass(frozen=True)
class Reference:
    """A module of this package, the constants that it is told, and what the op calls the tensors it is given."""

    module: str
    constants: Constants = field(default=lambda architecture: {})
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Parameter of `exact` -> tensor of the op, where they differ."""
    output: str | None = None
    """The op's one output, where `exact` returns just that."""

    @property
    def source(self) -> str:
        """The text of the module."""
        return (resources.files(__package__) / f"{self.module}.py").read_text("utf-8")

    def load(self) -> ModuleType:
        """The module itself (imports torch)."""
        return import_module(f".{self.module}", __package__)


def _situ(architecture: "Architecture") -> Mapping[str, float]:
    return {"beta": architecture.situ.beta, "linear_beta": architecture.situ.linear_beta}


def _backbone(architecture: "Architecture") -> Mapping[str, float]:
    return {"eps": architecture.eps.backbone}


def _linear(weight: str, output: str) -> Reference:
    return Reference("linear", renamed={"weight": weight}, output=output)


REFERENCES: Mapping[str, Reference] = {
    "kda_decode": Reference("kda_decode", lambda architecture: {
        "l2_eps": architecture.eps.kda_l2, "norm_eps": architecture.eps.kda_output,
        "gate_lower_bound": architecture.kda.gate_lower_bound,
    }),
    "attn_res_norm": Reference("attn_res_norm", _backbone),
    "in_projection": _linear("in_proj", "projected"),
    "mla_projection": _linear("qkv_a_g", "projected"),
    "shared_down": _linear("shared_down", "partial"),
    "head": _linear("lm_head", "logits"),
    "o_proj_residual": Reference("output_projection", renamed={"weight": "o_proj"}),
    "dense_down": Reference("output_projection", renamed={"weight": "down"}),
    "front": Reference("front", _situ),
    "dense_up": Reference("dense_up", _situ),
    "latent_up": Reference("latent_up", _backbone),
    "routing": Reference("routing", lambda architecture: {
        "top_k": architecture.moe.top_k, "scaling": architecture.moe.routed_scaling_factor, "eps": 1e-20,
    }),
}  # fmt: skip


def reference(contract: OpContract) -> Reference:
    """The reference of an op. Raises UserError where none is written."""
    if contract.op not in REFERENCES:
        raise UserError(
            f"{contract.op} has no reference that stands alone, so it cannot be exported",
            f"export one of {', '.join(REFERENCES)}; or write validation/contracts/trace/references/{contract.op}.py",
        )
    return REFERENCES[contract.op]
