"""Published numbers, and results in the same columns."""
