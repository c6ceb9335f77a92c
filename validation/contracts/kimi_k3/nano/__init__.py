"""A small trained Kimi K3: data that it generates itself, differentiable model, training, evaluation."""
