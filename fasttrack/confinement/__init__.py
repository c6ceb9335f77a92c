"""What a change touched, proved from git objects: see `check`."""
