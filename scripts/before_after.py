"""Draw items that a tuned model gets right and its base wrong: photo, caption, negative, scores.

    python scripts/before_after.py demo-out/results/base demo-out/results/negclip \
        -o docs/before-after.svg --skills binding spatial

Items are of sub-tasks in which the tuned model is significantly better, and the scores of both on
the whole sub-task stand below the photo. Of each skill it takes the item with the smallest hash, so
that nobody picks them. `--lost` draws items that the base gets right and the tuned model wrong, of
sub-tasks in which it is significantly worse. docs/gallery.md says how its pictures were made.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from compoclip.console import counted, end_with, note
from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import Bootstrap
from compoclip.files import write_text
from compoclip.report import Album, before_after, read_items, read_study
from compoclip.report.cards import Card
from compoclip.report.looks import Piece

# Template -> characters of a line in it.
_WIDE, _NARROW = ("before_after.svg.j2", 50), ("before_after_narrow.svg.j2", 44)


def main(argv: list[str] | None = None) -> int:
    """Write the picture; raise CompoclipError for results without such items."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path, help="results of the base")
    parser.add_argument("tuned", type=Path, help="results of the tuned model")
    parser.add_argument("-o", "--out", type=Path, required=True, help="SVG to write")
    parser.add_argument("--images", type=Path, help="folder of the photos, if they have moved")
    parser.add_argument("--skills", nargs="+", default=(), help="skills, one item each")
    parser.add_argument("--subtasks", nargs="+", default=(), help="only items of these sub-tasks")
    parser.add_argument("--count", type=int, default=3, help="number of items")
    parser.add_argument("--lost", action="store_true", help="draw items that the base gets right")
    parser.add_argument("--narrow", action="store_true", help="draw for a phone: one column")
    options = parser.parse_args(argv)
    study = read_study([options.base, options.tuned], None, Bootstrap(1))
    measured = dict.fromkeys(map(study.skill, study.skills.groups))
    for skill in options.skills:
        if skill not in measured:
            raise CompoclipError(f"--skills {skill}: has {', '.join(measured)}")
    album = Album(root=options.images)
    cards = before_after(
        study,
        read_items(study),
        album,
        options.skills,
        options.count,
        options.lost,
        options.subtasks,
    )
    if not cards:
        moved = "worse" if options.lost else "better"
        raise CompoclipError(
            f"{study.others[0]} is not significantly {moved} than {study.base} in any sub-task of "
            "these skills"
        )
    if album.unreadable:
        raise CompoclipError(
            f"{album.unreadable} photos cannot be read; name their folder: --images"
        )
    write_text(options.out, picture(cards, options.narrow))
    note(f"{options.out}: {', '.join(f'{c.part.benchmark} {c.part.name} {c.item}' for c in cards)}")
    return 0


def picture(cards: Sequence[Card], narrow: bool = False) -> str:
    """Draw items on which base and tuned model differ, one below the other, as an SVG.

    narrow: for a phone, with the texts below the photo.
    """
    base, tuned = (name for name, *_ in cards[0].lines)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    file, longest = _NARROW if narrow else _WIDE
    return environment.get_template(file).render(
        cards=[
            (card, [(label, broken(pieces, longest), true) for label, pieces, true in card.texts])
            for card in cards
        ],
        about=f"Captions and negatives of {counted(len(cards), 'photo')}, scored by {base} and "
        f"{tuned}",
    )


def broken(pieces: Sequence[Piece], longest: int) -> list[list[Piece]]:
    """Break a text between words into lines of at most `longest` characters, without control
    characters, which end an SVG."""
    lines: list[list[Piece]] = [[]]
    for word in (Piece(w, p.changed) for p in pieces for w in re.findall(r"\S+\s*|\s+", p.text)):
        if lines[-1] and sum(len(p.text) for p in lines[-1]) + len(word.text.rstrip()) > longest:
            lines.append([])
        shown = "".join(c if c.isprintable() else " " for c in word.text)
        lines[-1].append(Piece(shown, word.changed))
    return lines


if __name__ == "__main__":
    end_with(main, "before_after.py")
