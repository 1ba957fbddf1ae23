"""`compoclip report RESULTS ...`: one HTML page about results and runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from compoclip.cli.options import Outcome, Printing, ResultPaths
from compoclip.config import Count, Shown
from compoclip.files import require_writable
from compoclip.run import load_models


@dataclass(frozen=True)
class ReportOptions(Printing):
    """Write an HTML report of results: changes by skill with intervals, plots and examples, all
    numbers and their origin. The page needs no network.

    Example:
        compoclip report results -o report.html --runs runs/negclip runs/fsc-clip

    Args:
        results: Results folders of evaluate (OUT or OUT/MODEL), or single result files.
        out: The HTML file to write.
        bounds: Folders of results of reference models (random weights, texts alone, an oracle), as
            compoclip demo writes them. The tables show them beside the models.
        runs: Run folders of train, for the training curves.
        maps: Models as NAME=MODEL, named as in the results. The examples then show which patches
            each model aligns with the changed words.
        tables: Folder for all tables as Markdown, LaTeX and CSV, including papers' tables with
            published rows.
        base: Model to compare the others with [default: the model that others were trained from,
            else the first].
        title: Heading of the page.
        resamples: Bootstrap resamples for intervals; verdicts need none.
        seed: Seed of the bootstrap.
    """

    results: ResultPaths
    out: Annotated[Path, Shown(short="-o")] = Path("report.html")
    bounds: Annotated[tuple[Path, ...], Shown("RESULTS ...")] = ()
    runs: Annotated[tuple[Path, ...], Shown("RUN ...")] = ()
    maps: Annotated[tuple[str, ...], Shown("NAME=MODEL ...")] = ()
    tables: Path | None = None
    base: str | None = None
    title: str = "Compositionality report"
    resamples: Count = 2000
    seed: int = 0


def main(options: ReportOptions) -> Outcome:
    """Parse, write the page, say where it is."""
    if options.tables is not None:
        require_writable(options.tables)
    from compoclip.report.write import write_report

    out = write_report(
        options.results,
        options.out,
        runs=options.runs,
        base=options.base,
        maps=load_models(options.maps),
        tables=options.tables,
        title=options.title,
        resamples=options.resamples,
        seed=options.seed,
        bounds=options.bounds,
    )
    size = out.stat().st_size
    tables = {"tables": str(options.tables)} if options.tables else {}
    record = {"report": str(out), "bytes": size, **tables}
    return record, f"{out} ({size / 1e6:.1f} MB); open it in a browser"
