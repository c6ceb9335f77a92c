"""Attention of absorbed queries over paged latent rows, for several tokens of each request."""

from .contract import MlaVerify as Contract

__all__ = ["Contract"]
