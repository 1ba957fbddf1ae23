"""Compare all recipes with equal data and samples: on the bundled world or on photos.

    python -m lab [--quick] [--out FOLDER] [--arms NAME ...] [--budget-minutes 180]
    python -m lab --photos DATA --base MODEL [...]     reports/real-photos.md

What is finished is not done again: after a stop, the same command goes on. The table is printed and
written to OUT/lab.md, all numbers to OUT/lab.json; --page puts the table into a page. With
--settings FILE they are called as the file is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compoclip.console import end_with
from lab.page import write_section
from lab.run import NAME, run_lab
from lab.settings import read_settings

_RECIPES = Path(__file__).parents[1] / "recipes"
_WORLD, _PHOTOS = _RECIPES / "lab.json", _RECIPES / "lab-photos.json"


def main() -> int:
    """Read the settings, run what is left, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for everything [lab-out, photo-lab-out]")
    parser.add_argument("--photos", metavar="DATA", help="compare on the photos of this folder")
    parser.add_argument("--base", metavar="MODEL", help="what every arm starts from")
    parser.add_argument("--arms", nargs="+", default=(), metavar="NAME", help="only these")
    parser.add_argument(
        "--budget-minutes", type=float, default=180, help="start nothing after that"
    )
    parser.add_argument("--quick", action="store_true", help="few arms, one learning rate each")
    parser.add_argument("--settings", type=Path, help="what to compare")
    parser.add_argument("--page", type=Path, help="Markdown page to put the table into")
    options = parser.parse_args()
    settings = read_settings(
        options.settings or (_PHOTOS if options.photos else _WORLD), options.quick
    )
    settings = settings.at(options.photos, options.base)
    out = Path(f"{settings.ground.name}{'-quick' if options.quick else ''}-out")
    seconds = 60 * options.budget_minutes
    name = options.settings.stem if options.settings else NAME
    text = run_lab(settings, options.out or out, options.arms, seconds, name=name)
    print(text)
    if options.page is not None:
        write_section(options.page, text)
    return 0


if __name__ == "__main__":
    end_with(main, "lab")
