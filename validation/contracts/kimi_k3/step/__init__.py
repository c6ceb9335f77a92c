"""The whole decode step of Kimi K3 in readable PyTorch: oracle and plain path are one graph, see `precision`."""
