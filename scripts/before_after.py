"""Draw items that a tuned model gets right and its base wrong: photo, caption, negative, scores.

    python scripts/before_after.py demo-out/results/base demo-out/results/negclip \
        -o docs/before-after.svg --skills binding spatial

Of each skill it takes the item with the smallest hash, so that nobody picks them. `--lost` draws
items that the base gets right and the tuned model wrong. docs/gallery.md says how its pictures were
made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compoclip.console import end_with, note
from compoclip.errors import CompoclipError
from compoclip.files import write_text
from compoclip.report import Album, before_after, before_after_svg, read_items, read_study


def main(argv: list[str] | None = None) -> int:
    """Write the picture.

    Args:
        argv: Arguments of the command line.

    Raises:
        CompoclipError: results cannot be read, or there is no such item.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path, help="results of the base")
    parser.add_argument("tuned", type=Path, help="results of the tuned model")
    parser.add_argument("-o", "--out", type=Path, required=True, help="SVG to write")
    parser.add_argument("--images", type=Path, help="folder of the photos, if they have moved")
    parser.add_argument("--skills", nargs="+", default=(), help="skills, one item each")
    parser.add_argument("--count", type=int, default=3, help="number of items")
    parser.add_argument("--lost", action="store_true", help="draw items that the base gets right")
    options = parser.parse_args(argv)
    study = read_study([options.base, options.tuned], None, 1, 0)
    for skill in options.skills:
        if skill not in study.skills.groups:
            raise CompoclipError(f"--skills {skill}: has {', '.join(study.skills.groups)}")
    album = Album(root=options.images)
    cards = before_after(
        study, read_items(study), album, options.skills, options.count, options.lost
    )
    if not cards:
        raise CompoclipError(f"{study.others[0]} and {study.base} differ on no such item")
    if album.unreadable:
        raise CompoclipError(
            f"{album.unreadable} photos cannot be read; name their folder: --images"
        )
    write_text(options.out, before_after_svg(cards))
    note(f"{options.out}: {', '.join(f'{c.part.benchmark} {c.part.name} {c.item}' for c in cards)}")
    return 0


if __name__ == "__main__":
    end_with(main, "before_after.py")
