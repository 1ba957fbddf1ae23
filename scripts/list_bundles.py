"""Write the list of bundles in results/community/README.md: recipe, model, machine, results.

    python scripts/list_bundles.py

A test checks that the page is what this gives.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compoclip.benchmarks.fetch import unpack
from compoclip.config import CONFIG, parsed_config
from compoclip.evaluation.bundle import BUNDLE
from compoclip.evaluation.results import load_results
from compoclip.files import read_json
from compoclip.printed import Table

COMMUNITY = Path(__file__).resolve().parents[1] / "results" / "community"
PAGE = COMMUNITY / "README.md"
HEADING = "## Bundles\n"


def bundles() -> list[Path]:
    """Return the bundles, folders and archives, in the order of their names."""
    folders = [path.parent for path in COMMUNITY.rglob(BUNDLE)]
    archives = [path for path in COMMUNITY.rglob("*") if path.name.endswith((".zip", ".tar.gz"))]
    return sorted([*folders, *archives])


def row(bundle: Path) -> list[str]:
    """Return what the page says of a bundle."""
    with TemporaryDirectory() as temporary:
        folder = bundle
        if not bundle.is_dir():
            folder = Path(temporary) / "bundle"
            unpack(bundle, folder)
        manifest = read_json(folder / BUNDLE)
        found = load_results(folder / "results")
        facts: dict[str, Any] = manifest["facts"]["run"]
        config = parsed_config((folder / "run" / CONFIG).read_text(), folder / "run" / CONFIG)
        (of_run, *_) = (e for e in found if e.identity.get("weights") == facts["weights"])
        scores = [
            f"{each.benchmark} {100 * each.aggregates[each.headline].value:.1f}"
            for each in found
            if each.model == of_run.model
        ]
    machine = manifest["machine"]
    where = ", ".join(machine["gpus"]) or f"{machine['cores']} CPU cores"
    name = f"[{bundle.name}]({bundle.relative_to(COMMUNITY).as_posix()})"
    return [name, str(facts["method"]), str(config["model"]), where, "; ".join(scores)]


def listed() -> str:
    """Return the section of the page."""
    header = ["bundle", "recipe", "model", "machine", "headline scores of the run"]
    rows = sorted((row(each) for each in bundles()), key=lambda each: each[1:4])
    return f"{HEADING}\n{Table(rows, header, left=5).markdown()}\n"


def main() -> int:
    """Replace the section on the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(f"{text.partition(HEADING)[0]}{listed()}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
