"""Benchmarks: official files on disk -> cases. No torch here."""
