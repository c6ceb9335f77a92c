"""The proof: judges kernels, times them, and keeps claims honest. Knows nothing of agents or git."""
