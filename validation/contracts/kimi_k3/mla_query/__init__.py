"""From an MLA layer's projection to absorbed queries and the newest latent row."""

from .contract import MlaQuery as Contract

__all__ = ["Contract"]
