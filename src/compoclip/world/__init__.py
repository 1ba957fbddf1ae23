"""Procedural scenes with full ground truth, and the bundled base model."""
