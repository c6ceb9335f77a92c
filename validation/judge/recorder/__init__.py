"""The recorder: runs a candidate's host code once, without a GPU, and writes down what it would launch."""

from importlib.metadata import version

SUPPORTED_TRITON = ("3.8", "3.9")


def triton_is_supported() -> bool:
    """Whether the Triton that is installed is one that the recorder knows."""
    return version("triton").rpartition(".")[0] in SUPPORTED_TRITON
