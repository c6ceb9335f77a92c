"""Weights of Kimi K3: published checkpoints, MXFP4, per-rank tensors, synthetic checkpoints."""
