"""Kernels, one file an op. Each file imports only torch and triton, so that it can be lifted into a serving tree."""
