"""From attended latents to gated values."""

from .contract import MlaValue as Contract

__all__ = ["Contract"]
