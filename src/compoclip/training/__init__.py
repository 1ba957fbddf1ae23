"""One training loop for every recipe."""
