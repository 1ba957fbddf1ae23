"""A short way to write a set of words."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The blank-separated words of `text`."""
    return frozenset(text.split())
