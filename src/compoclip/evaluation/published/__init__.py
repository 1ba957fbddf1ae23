"""Numbers that papers printed, and results put beside them in the same columns."""
