"""Compare all recipes with equal data and samples: on the bundled world or on photos.

    python -m lab [--quick] [--out FOLDER] [--arms NAME ...] [--budget-minutes 180]
    python -m lab --photos DATA --base MODEL [...]     reports/real-photos.md

What is finished is not done again: after a stop, the same command goes on. The table is printed and
written to OUT/lab.md, all of its columns to OUT/lab.tsv, all numbers to OUT/lab.json; --page puts
the table into a page, and the .tsv beside it. With --settings FILE they are called as the file is.
"""

from __future__ import annotations

from pathlib import Path

from compoclip.console import end_with
from compoclip.files import read_text, write_text
from lab.page import lab_parser, publish
from lab.run import NAME, run_lab
from lab.settings import read_settings

_RECIPES = Path(__file__).parents[1] / "recipes"
_WORLD, _PHOTOS = _RECIPES / "lab.json", _RECIPES / "lab-photos.json"


def main() -> int:
    """Read the settings, run what is left, print the table."""
    parser = lab_parser(__doc__, "lab-out, photo-lab-out")
    parser.add_argument("--arms", nargs="+", default=(), metavar="NAME", help="only these")
    parser.add_argument("--quick", action="store_true", help="few arms, one learning rate each")
    options = parser.parse_args()
    settings = read_settings(
        options.settings or (_PHOTOS if options.photos else _WORLD), options.quick
    )
    settings = settings.at(options.photos, options.base)
    out = options.out or Path(f"{settings.ground.name}{'-quick' if options.quick else ''}-out")
    seconds = 60 * options.budget_minutes
    name = options.settings.stem if options.settings else NAME
    publish(run_lab(settings, out, options.arms, seconds, name=name), options.page)
    if options.page is not None:
        write_text(options.page.with_suffix(".tsv"), read_text(out / f"{name}.tsv"))
    return 0


if __name__ == "__main__":
    end_with(main, "lab")
