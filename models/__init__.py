"""What is proved: one directory a model."""
