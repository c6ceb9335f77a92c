"""One candidate in, one verdict out. See README.md."""
