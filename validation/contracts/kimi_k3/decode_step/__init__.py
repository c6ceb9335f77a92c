"""A whole decode step as one exam."""

from .contract import DecodeStep as Contract

__all__ = ["Contract"]
