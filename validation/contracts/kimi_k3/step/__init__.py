"""The whole decode step of Kimi K3 in readable PyTorch: float64 oracle and plain path are one graph, see `precision`."""
