"""A table in every layout (text that fits the terminal, Markdown, LaTeX, CSV); printing of both."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Literal

from compoclip.console import emit_json, prose, terminal_width

Layout = Literal["text", "markdown", "latex", "csv"]
Narrower = Callable[[Sequence[str]], list[str]]
"""Makes the cells of a line fewer or shorter."""

_FOLDED = 24  # longer words are folded before columns are left out or follow below
_MARKDOWN = str.maketrans({"|": "\\|"})
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)


def without(*places: int) -> Narrower:
    """Leave the columns at these places out."""
    return lambda cells: [cell for k, cell in enumerate(cells) if k not in places]


@dataclass(frozen=True)
class Table:
    """A table of cells that are texts; as a string it is the text for a terminal.

    Numbers that have no room in the terminal follow in a block below, beside the same words.

    Args:
        rows: The cells of each row.
        header: The names of the columns.
        left: Number of first columns that are words, aligned on the left; the others are numbers,
            aligned on the right.
        title: The line above the table.
        notes: Lines below the table.
        muted: Numbers of rows that are not ours, grey in LaTeX (package xcolor) and in italics in
            Markdown.
        strong: (row, column) of cells in bold, in LaTeX and Markdown.
        narrower: Applied one after the other while the text is wider than the terminal, with
            columns of more than 24 characters folded.
    """

    rows: Sequence[Sequence[str]]
    header: Sequence[str]
    left: int = 1
    title: str = ""
    notes: Sequence[str] = ()
    muted: Collection[int] = ()
    strong: Collection[tuple[int, int]] = ()
    narrower: Sequence[Narrower] = ()

    def __str__(self) -> str:
        return self.text()

    def printed(self, layout: Layout) -> str:
        """Return the table in a layout, without a newline at its end."""
        if layout == "text":
            return self.text()
        return {"markdown": self.markdown, "latex": self.latex, "csv": self.csv}[layout]()

    def text(self) -> str:
        """Return the title, aligned columns, and indented notes; all fit the terminal, if any."""
        parts = [prose([self.title]), self._columns(), prose(self.notes, "  ")]
        return "\n".join(filter(None, parts))

    def _columns(self) -> str:
        """Return the aligned columns; those that do not fit the terminal follow in blocks below."""
        width = terminal_width()
        left, lines = self.left, [self.header, *self.rows]
        for narrower in self.narrower:
            if sum(min(column, _FOLDED) + 2 for column in _widths(lines)) - 2 <= width:
                break
            kinds = ["word" if place < left else "number" for place in range(len(lines[0]))]
            left = narrower(kinds).count("word")
            lines = [narrower(line) for line in lines]
        blocks = _blocks(lines, left, width)
        parts = ([[line[place] for place in block] for line in lines] for block in blocks)
        return "\n\n".join(_aligned(part, left, width) for part in parts)

    def markdown(self) -> str:
        """Return the table in Markdown, with the notes as a list."""
        header, *rows = (
            f"| {' | '.join(cells)} |" for cells in self._marked(_MARKDOWN, "**{}**", "*{}*")
        )
        rule = "|".join("---" if k < self.left else "---:" for k in range(len(self.header)))
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        title = [self.title, ""] if self.title else []
        return "\n".join([*title, header, f"|{rule}|", *rows, *notes])

    def latex(self) -> str:
        """Return the table in LaTeX, with title and notes as comments."""
        header, *rows = (
            f"{' & '.join(cells)} \\\\"
            for cells in self._marked(_LATEX, r"\textbf{{{}}}", r"\textcolor{{gray}}{{{}}}")
        )
        comments = [f"% {line}" for line in filter(None, [self.title, *self.notes])]
        kinds = "l" * self.left + "r" * (len(self.header) - self.left)
        begin = [f"\\begin{{tabular}}{{{kinds}}}", "\\hline", header, "\\hline"]
        return "\n".join([*comments, *begin, *rows, "\\hline", "\\end{tabular}"])

    def _marked(self, escapes: Mapping[int, str], bold: str, grey: str) -> Iterator[list[str]]:
        """Yield the header and the rows, escaped, with marked cells in one of two patterns."""
        yield [cell.translate(escapes) for cell in self.header]
        for number, row in enumerate(self.rows):
            cells = []
            for place, cell in enumerate(row):
                pattern = "{}"
                if (number, place) in self.strong:
                    pattern = bold
                elif cell and number in self.muted:
                    pattern = grey
                cells.append(pattern.format(cell.translate(escapes)))
            yield cells

    def csv(self) -> str:
        """Return header and rows as CSV."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue().rstrip("\n")


def _width(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [_width(cells) for cells in zip(*lines)]


def _needs(lines: Sequence[Sequence[str]]) -> list[int]:
    """The width of the longest word of each column: in less room, words are taken apart."""
    return [_width(" ".join(cells).split()) for cells in zip(*lines)]


def _blocks(lines: Sequence[Sequence[str]], left: int, width: int) -> list[list[int]]:
    """The places of the columns that are shown together: all words, and numbers while they fit."""
    needs, words = _needs(lines), [*range(left)]
    blocks = [words]
    for place in range(left, len(needs)):
        block = [*blocks[-1], place]
        fits = sum(min(needs[column], _FOLDED) + 2 for column in block) - 2 <= width
        if fits or blocks[-1] == words:
            blocks[-1] = block
        else:
            blocks.append([*words, place])
    return blocks


def _aligned(lines: Sequence[Sequence[str]], left: int, width: int) -> str:
    """Align columns; fold the widest between words, and names at hyphens, until all fit `width`."""
    from rich.console import Console
    from rich.rule import Rule
    from rich.table import Table as Grid
    from rich.text import Text

    header, *rows = lines
    widths = _widths(lines)
    narrowest = [need if need <= _FOLDED else _FOLDED // 3 for need in _needs(lines)]
    gaps = 2 * len(widths) - 2
    while sum(widths) + gaps > width and max(widths) > 1:
        spare = [k for k, size in enumerate(widths) if size > narrowest[k]] or range(len(widths))
        widths[max(spare, key=widths.__getitem__)] -= 1
    grid = Grid.grid(padding=(0, 2), pad_edge=False)
    for place, size in enumerate(widths):
        grid.add_column(justify="left" if place < left else "right", overflow="fold", width=size)
    grid.add_row(*map(Text, header))
    grid.add_row(*[Rule(characters="-") for _ in header])
    for row in rows:
        words = zip(row[:left], widths)
        folded = [fill(word, size) if len(word) > size else word for word, size in words]
        grid.add_row(*map(Text, [*folded, *row[left:]]))
    console = Console(file=io.StringIO(), width=sum(widths) + gaps, color_system=None)
    with console.capture() as capture:
        console.print(grid)
    return "\n".join(map(str.rstrip, capture.get().splitlines()))


# --- What a verb prints. ---

Text = str | Table | Sequence[str | Table]
"""A text or a table, or several of them, printed with an empty line between."""

_STYLES = {  # what is coloured on a terminal
    "green": r"(?<=[\d\]])\+(?=\s|$)|\bhigher$|\(\+[^()]*, significant\)",
    "red": r"(?<=[\d\]])-(?=\s|$)|\blower$|\(-[^()]*, significant\)",
    "yellow": r"\b(at|below) chance\b",
    "bold": r".*(?=\n-+( +-+)*\n)",
}


def tell(as_json: bool, record: Any, text: Text) -> int:
    """Print what a verb did, as JSON or as text; return exit code 0.

    Text has colour on a terminal that has it, unless NO_COLOR is set.
    """
    if as_json:
        emit_json(record)
        return 0
    parts = [text] if isinstance(text, str | Table) else text
    printed = "\n\n".join(filter(None, map(str, parts)))
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text as Styled

        styled = Styled(printed)
        for style, pattern in _STYLES.items():
            styled.highlight_regex(re.compile(pattern, re.MULTILINE), style)
        Console(soft_wrap=True).print(styled)
    else:
        print(printed)
    return 0
