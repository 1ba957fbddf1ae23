"""Numbers as the report prints them."""

from __future__ import annotations

from collections.abc import Sequence

from compoclip.evaluation import tables

MINUS = "\u2212"


def percent(value: float) -> str:
    """A fraction as percent with one decimal: 0.731 -> "73.1"."""
    return tables.percent(value).replace("-", MINUS)


def points(difference: float) -> str:
    """A difference of fractions in percentage points with its sign: "+12.3", "−0.4", "0.0"."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def interval(low: float | None, high: float | None) -> str:
    """An interval of fractions: "70.1 to 75.9"; "–" without one."""
    return "–" if low is None or high is None else tables.span(low, high).replace("-", MINUS)


def signed_interval(low: float | None, high: float | None) -> str:
    """An interval of differences: "−1.2 to +3.4"; "–" without one."""
    return "–" if low is None or high is None else f"{points(low)} to {points(high)}"


def count(n: int) -> str:
    """A whole number with separated thousands."""
    return f"{n:,}"


def listed(words: Sequence[str]) -> str:
    """Words as prose: "a", "a and b", "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def short(name: str, longest: int = 24) -> str:
    """A name that fits next to an axis, without control characters, which end an SVG."""
    name = "".join(c if c.isprintable() else "?" for c in name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
