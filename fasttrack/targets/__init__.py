"""Where a model directory may live: target profiles, and putting one into a checkout of a target."""
