"""A small trained Kimi K3: data that it generates itself, differentiable model, training, evaluation."""

from pathlib import Path

CONFIG = Path(__file__).parent / "config.json"
"""The architecture that is trained."""
