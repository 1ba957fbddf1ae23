"""`compoclip report RESULTS ...`: one HTML page about results and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from compoclip import console
from compoclip.cli.options import parse
from compoclip.errors import UsageError


@dataclass(frozen=True)
class ReportOptions:
    """Write one HTML page about results: what got better and worse and by how much, skill by skill,
    with intervals, plots, examples, every number and where it comes from. Needs no network.

    Example:
        compoclip report results -o report.html --runs runs/negclip runs/fsc-clip

    Args:
        results: Folders that evaluate wrote (OUT or OUT/MODEL), or single result files.
        out: The HTML file to write.
        runs: Run folders that train wrote, for the training curves.
        base: Model that the others are compared with [default: the one whose weights others were
            trained from, else the first].
        title: Heading of the page.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.
        json: Print what was written as JSON.
    """

    results: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RESULTS ...", help_behavior_hint="(required)"),
    ]
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN ...")] = ()
    base: str | None = None
    title: str = "Compositionality report"
    resamples: int = 2000
    seed: int = 0
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, write the page, say where it is."""
    options = parse(ReportOptions, "report", argv)
    if not options.results:
        raise UsageError("give at least one results folder; see report --help")
    if options.resamples < 1:
        raise UsageError("--resamples must be at least 1")
    from compoclip.report.write import write_report

    out = write_report(
        options.results,
        options.out,
        runs=options.runs,
        base=options.base,
        title=options.title,
        resamples=options.resamples,
        seed=options.seed,
    )
    size = out.stat().st_size
    if options.json:
        console.emit_json({"report": str(out), "bytes": size})
    else:
        print(f"{out} ({size / 1e6:.1f} MB); open it in a browser")
    return 0
