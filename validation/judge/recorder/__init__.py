"""The recorder: runs a candidate's host code once, without a GPU, and writes down what it would launch."""
