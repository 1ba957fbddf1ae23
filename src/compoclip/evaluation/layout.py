"""Tables of text cells as aligned text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from typing import Literal

from compoclip.console import table

Layout = Literal["text", "markdown", "latex", "csv"]
_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def span(low: float | None, high: float | None, sign: str = "") -> str:
    """An interval of fractions in percent, "70.1 to 75.9"; "-" where there is none. sign: "+" for
    differences."""
    return (
        "-" if low is None or high is None else f"{100 * low:{sign}.1f} to {100 * high:{sign}.1f}"
    )


def bracketed(low: float | None, high: float | None, sign: str = "") -> str:
    """The same beside a number: "[70.1, 75.9]"; "[-]" where there is none."""
    return f"[{span(low, high, sign).replace(' to ', ', ')}]"


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
) -> str:
    """The table in a layout; the first `left` columns are words, the others numbers.

    title: line above the table. muted: numbers of rows that are not ours, grey in LaTeX (package
    xcolor) and in italics in Markdown. strong: (row, column) of cells in bold, in LaTeX and
    Markdown. notes: lines below the table. In LaTeX title and notes are comments; CSV has neither.
    """
    above = [title] if title else []
    if layout == "csv":
        return _csv(rows, header)
    if layout == "markdown":
        return "\n\n".join([*above, _markdown(rows, header, left, muted, strong, notes)])
    if layout == "latex":
        return _latex(rows, header, left, muted, strong, [*above, *notes])
    return "\n".join([*above, table(rows, header, left), *(f"  {line}" for line in notes)])


def _csv(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().rstrip("\n")


def _markdown(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    left: int,
    muted: Collection[int],
    strong: Collection[tuple[int, int]],
    notes: Sequence[str],
) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = ["---"] * left + ["---:"] * (len(header) - left)

    def styled(cell: str, row: int, column: int) -> str:
        if (row, column) in strong:
            return f"**{cell}**"
        return f"*{cell}*" if cell and row in muted else cell

    body = [
        line([styled(cell, number, column) for column, cell in enumerate(row)])
        for number, row in enumerate(rows)
    ]
    remarks = ["", *(f"- {each}" for each in notes)] if notes else []
    return "\n".join([line(header), f"|{'|'.join(rule)}|", *body, *remarks])


def _latex(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    left: int,
    muted: Collection[int],
    strong: Collection[tuple[int, int]],
    notes: Sequence[str],
) -> str:
    def line(cells: Sequence[str], grey: bool = False, row: int = -1) -> str:
        words = ["".join(_LATEX.get(c, c) for c in cell) for cell in cells]
        words = [f"\\textbf{{{w}}}" if (row, k) in strong else w for k, w in enumerate(words)]
        words = [f"\\textcolor{{gray}}{{{word}}}" if grey and word else word for word in words]
        return f"{' & '.join(words)} \\\\"

    kinds = "l" * left + "r" * (len(header) - left)
    return "\n".join(
        [
            *(f"% {each}" for each in notes),
            f"\\begin{{tabular}}{{{kinds}}}",
            "\\hline",
            line(header),
            "\\hline",
            *(line(row, number in muted, number) for number, row in enumerate(rows)),
            "\\hline",
            "\\end{tabular}",
        ]
    )
