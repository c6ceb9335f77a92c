"""Attention of absorbed queries over paged latent rows."""

from .contract import MlaCore as Contract

__all__ = ["Contract"]
