"""Web playground: a picture, a caption, and what the models make of its rewrites."""
