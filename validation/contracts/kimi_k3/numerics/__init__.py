"""Kimi K3 token by token: its paths with what they leave at every layer, streams of tokens, planted faults."""
