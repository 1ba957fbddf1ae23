"""Encode once, score blocks, metrics, aggregation, statistics."""
