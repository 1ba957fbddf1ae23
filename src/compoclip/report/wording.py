"""Numbers as the report prints them: those of `evaluation.numerals`, in the signs of a page."""

from __future__ import annotations

from collections.abc import Sequence

from compoclip.evaluation import numerals

MINUS = "\u2212"


def typeset(text: str) -> str:
    """Return numbers with a true minus sign, zero without a sign, and a dash for none."""
    if text == "-":
        return "–"
    return text.replace("+0.0", "0.0").replace("-0.0", "0.0").replace("-", MINUS)


def percent(value: float, sign: str = "") -> str:
    """Return `numerals.percent` in the signs of a page: "73.1", "+12.3", "−0.4", "0.0"."""
    return typeset(numerals.percent(value, sign))


def interval(low: float | None, high: float | None, sign: str = "") -> str:
    """Return `numerals.span` in the signs of a page: "70.1 to 75.9", "−1.2 to +3.4"."""
    return typeset(numerals.span(low, high, sign))


def listed(words: Sequence[str]) -> str:
    """Return words as prose: "a", "a and b", "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def short(name: str, longest: int = 24) -> str:
    """Return a name that fits next to an axis, without control characters, which end an SVG."""
    name = "".join(c if c.isprintable() else "?" for c in name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
