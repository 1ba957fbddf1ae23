"""Write reports/papers.md from the pages that `compoclip reproduce PAPER --table N` wrote.

    python scripts/papers_report.py OUT... > reports/papers.md

OUT: folders of `--out`. The pages stand in the order of the papers' tables; the beginning counts,
over all pages, how many printed differences have the same direction, and has the notes that stand
on several pages.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from compoclip.evaluation.published.read import paper, paper_names
from compoclip.printed import Table

DIRECTIONS = re.compile(
    r"prints (\d+) differences? from .*? Of these (\d+) agree in direction here, (\d+) are "
    r"contrary, and (\d+) are not significant"
)
_ONCE = (
    *("- Paper: ", "- Here: ", "- Measured on ", "- Mean grounded gain", "- A dash "),
    *("- Brackets ", "- + marks "),
)
"""Beginnings of notes that mean the same in every section."""
INTRODUCTION = """# The papers' tables on drawn scenes

Every section is a table or figure of one of the four papers, run with
`compoclip reproduce PAPER --table N --scale world`: the same rows as in the paper, but on 8,000
drawn scenes with the bundled model. Such runs cannot repeat a paper's numbers. They show whether
its differences have the same direction on other data, with a model of 6 million parameters.
[Reproduce a paper](../docs/guide/reproduce.md) describes the command.

A row that several tables share counts in each of them. All contrary differences are about
zero-shot classification and retrieval: fine-tuning lowers them in the papers, and here training on
more scenes of the same kind raises them."""


def main(folders: list[str]) -> None:
    """Print the report."""
    sections = []
    sums: dict[str, list[int]] = {}
    for name in paper_names():
        of_paper = paper(name)
        for table in of_paper.tables:
            pages = [Path(folder) / f"{table.id}.md" for folder in folders]
            for page in filter(Path.is_file, pages):
                text = page.read_text(encoding="utf-8")
                sections.append(f"#{text.strip()}")
                counts = DIRECTIONS.search(text)
                if counts:
                    numbers = [int(number) for number in counts.groups()]
                    before = sums.get(of_paper.title, [0, 0, 0, 0])
                    sums[of_paper.title] = [a + b for a, b in zip(before, numbers)]
    header = ["paper", "printed differences", "same direction", "contrary", "not significant here"]
    rows = [[title, *map(str, numbers)] for title, numbers in sums.items()]
    common, sections = without_common_notes(sections)
    print("\n\n".join([INTRODUCTION, Table(rows, header).markdown(), common, *sections]))


def without_common_notes(sections: list[str]) -> tuple[str, list[str]]:
    """Return the notes of `_ONCE` that stand in several sections, and the sections without them."""
    lines = [section.splitlines() for section in sections]
    times = Counter(line for section in lines for line in section if line.startswith(_ONCE))
    common = [line for line, number in times.items() if number > 1]
    rest = ("\n".join(line for line in section if line not in common) for section in lines)
    return "\n".join(common), [section.strip() for section in rest]


if __name__ == "__main__":
    main(sys.argv[1:])
