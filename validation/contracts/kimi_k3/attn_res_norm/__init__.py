"""An AttnRes mix and the norm behind it: what a sublayer, or the head, reads."""

from .contract import AttnResNorm as Contract

__all__ = ["Contract"]
