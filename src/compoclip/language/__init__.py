"""Captions written by language models: asked for, checked, kept with where they come from."""
