"""Loss terms: pure functions of features and batch layout, one family a file."""
