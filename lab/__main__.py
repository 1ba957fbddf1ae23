"""Compare all recipes under equal conditions on the bundled world (docs/lab.md).

    python -m lab --out lab-out [--arms NAME ...] [--budget-minutes 90]

What is finished is not done again: after a stop, the same command goes on. The table is printed and
written to OUT/table.md, all numbers to OUT/lab.json; --page puts the table into a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compoclip.errors import CompoclipError
from lab.page import write_section
from lab.run import run_lab
from lab.settings import read_settings

_SETTINGS = Path(__file__).parents[1] / "recipes" / "lab.json"


def main() -> int:
    """Read the settings, run what is left, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("lab-out"), help="folder for everything")
    parser.add_argument("--arms", nargs="+", default=(), metavar="NAME", help="only these")
    parser.add_argument("--budget-minutes", type=float, default=90, help="start nothing after that")
    parser.add_argument("--settings", type=Path, default=_SETTINGS, help="what to compare")
    parser.add_argument("--page", type=Path, help="Markdown page to put the table into")
    options = parser.parse_args()
    settings = read_settings(options.settings)
    text = run_lab(settings, options.out, options.arms, 60 * options.budget_minutes)
    print(text)
    if options.page is not None:
        write_section(options.page, text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CompoclipError as error:
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
