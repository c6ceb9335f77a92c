"""One verify step of Kimi Delta Attention: several tokens a request, and the state behind each of them."""

from .contract import KdaVerify as Contract

__all__ = ["Contract"]
