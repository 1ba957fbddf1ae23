"""Training recipes: one file per published method, each a function that returns a `Method`."""
