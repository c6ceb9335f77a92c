"""The end of a MoE layer: sum over ranks, latent norm, up-projection, shared expert, residual."""

from .contract import LatentUp as Contract

__all__ = ["Contract"]
