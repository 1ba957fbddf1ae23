"""Numbers in words: percent and intervals."""

from __future__ import annotations


def percent(value: float, sign: str = "") -> str:
    """Return a fraction as percent with one decimal; sign: "+" for differences."""
    return f"{100 * value:{sign}.1f}"


def span(low: float | None, high: float | None, sign: str = "") -> str:
    """Return an interval of fractions in percent, "70.1 to 75.9", or "-" without one.

    sign: as of `percent`.
    """
    if low is None or high is None:
        return "-"
    return f"{percent(low, sign)} to {percent(high, sign)}"


SATURATED = 0.995
"""A score from which on there is nothing left to gain."""
SIGNS = {"higher": "+", "lower": "-"}
"""Verdict on a difference -> the mark of its cell."""


def bracketed(low: float | None, high: float | None, sign: str = "") -> str:
    """Return an interval in percent as "[70.1, 75.9]"; sign: as of `percent`."""
    return f"[{span(low, high, sign).replace(' to ', ', ')}]"


def with_interval(value: float, low: float | None, high: float | None, sign: str = "") -> str:
    """Return a number and its interval in percent, "71.2 [70.1, 75.9]"; sign: as of `percent`."""
    return f"{percent(value, sign)} {bracketed(low, high, sign)}"
