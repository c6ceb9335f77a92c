"""Machine code from the kernels' allow-listed sources, and what it says about precision and resources."""
