"""The recorder: runs a candidate's host code once, without a GPU, and writes down what it would launch."""

SUPPORTED_TRITON = ("3.8", "3.9")
