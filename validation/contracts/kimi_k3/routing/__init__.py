"""Which experts a token goes to, and with what weight."""

from .contract import Routing as Contract

__all__ = ["Contract"]
