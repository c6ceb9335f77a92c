"""What every token sends into the MoE layer: router logits, latent row, shared-expert activation."""

from .contract import Front as Contract

__all__ = ["Contract"]
