"""Compare all recipes under equal conditions on the bundled world (docs/lab.md).

    python -m lab [--quick] [--out FOLDER] [--arms NAME ...] [--budget-minutes 180]

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
    parser.add_argument("--out", type=Path, help="folder for everything [lab-out, lab-quick-out]")
    parser.add_argument("--arms", nargs="+", default=(), metavar="NAME", help="only these")
    parser.add_argument(
        "--budget-minutes", type=float, default=180, help="start nothing after that"
    )
    parser.add_argument("--quick", action="store_true", help="few arms, one learning rate each")
    parser.add_argument("--settings", type=Path, default=_SETTINGS, help="what to compare")
    parser.add_argument("--page", type=Path, help="Markdown page to put the table into")
    options = parser.parse_args()
    settings = read_settings(options.settings, options.quick)
    out, minutes = ("lab-quick-out", 30.0) if options.quick else ("lab-out", 180.0)
    minutes = minutes if options.budget_minutes is None else options.budget_minutes
    text = run_lab(settings, options.out or Path(out), options.arms, 60 * minutes)
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
