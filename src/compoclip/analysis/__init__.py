"""Explaining models: what a tuned one gained and lost with each share, and how one computes."""
