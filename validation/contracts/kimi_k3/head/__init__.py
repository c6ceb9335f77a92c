"""The logits of this rank's part of the vocabulary."""

from .contract import Head as Contract

__all__ = ["Contract"]
