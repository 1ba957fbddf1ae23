"""Numbers and tables in words: percent, intervals, aligned text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from typing import Literal

from compoclip.console import Narrower, prose, table

Layout = Literal["text", "markdown", "latex", "csv"]
_ESCAPES = {
    "markdown": {"|": "\\|"},
    "latex": {
        "\\": r"\textbackslash{}",
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    },
}


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


def with_interval(value: float, low: float | None, high: float | None, sign: str = "") -> str:
    """Return a number and its interval in percent, "71.2 [70.1, 75.9]"; sign: as of `percent`."""
    return f"{percent(value, sign)} [{span(low, high, sign).replace(' to ', ', ')}]"


def laid_out(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    layout: Layout = "text",
    *,
    title: str = "",
    left: int = 1,
    muted: Collection[int] = (),
    strong: Collection[tuple[int, int]] = (),
    notes: Sequence[str] = (),
    narrower: Sequence[Narrower] = (),
) -> str:
    """Lay a table out; the first `left` columns are words, the others numbers.

    title: line above the table. muted: numbers of rows that are not ours, grey in LaTeX (package
    xcolor) and in italics in Markdown. strong: (row, column) of cells in bold, in LaTeX and
    Markdown. notes: lines below the table. In LaTeX title and notes are comments; CSV has neither.
    narrower: as of `console.table`, for text.
    """
    above = [title] if title else []
    if layout == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        return text.getvalue().rstrip("\n")
    if layout == "text":
        laid = table(rows, header, left, narrower)
        parts = [prose(above), laid, prose(notes, "  ")]
        return "\n".join(filter(None, parts))

    def line(cells: Sequence[str], row: int = -1) -> str:
        """Return one line, with cells of row `row` in bold or muted."""
        words = []
        for column, cell in enumerate(cells):
            word = "".join(_ESCAPES[layout].get(c, c) for c in cell)
            bold, grey = (row, column) in strong, bool(word) and row in muted
            if layout == "latex":
                word = f"\\textbf{{{word}}}" if bold else word
                words.append(f"\\textcolor{{gray}}{{{word}}}" if grey else word)
            else:
                words.append(f"**{word}**" if bold else f"*{word}*" if grey else word)
        return f"{' & '.join(words)} \\\\" if layout == "latex" else f"| {' | '.join(words)} |"

    body = [line(row, number) for number, row in enumerate(rows)]
    if layout == "latex":
        kinds = "l" * left + "r" * (len(header) - left)
        first = [*(f"% {remark}" for remark in [*above, *notes]), f"\\begin{{tabular}}{{{kinds}}}"]
        whole = [*first, "\\hline", line(header), "\\hline", *body, "\\hline", "\\end{tabular}"]
        return "\n".join(whole)
    rule = "|".join("---" if place < left else "---:" for place in range(len(header)))
    remarks = ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join([*above, "\n".join([line(header), f"|{rule}|", *body, *remarks])])
