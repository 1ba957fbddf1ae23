"""`compoclip compare BASE OTHER...`: are differences more than noise, and what did papers print?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from compoclip import console
from compoclip.cli.options import Outcome, Printing, ResultPaths, require_with
from compoclip.config import Count
from compoclip.errors import UsageError


@dataclass(frozen=True)
class CompareOptions(Printing):
    """Compare models pairwise with a base, item by item, on every benchmark both have.

    The test is a sign-flip test over photos, which is McNemar's test if every photo has one item.
    p (Holm) is corrected over all sub-tasks of all models, or over all benchmarks of all models.
    "higher" and "lower" are significant at 0.05 by this p; "equivalent within 1 point" means that
    the interval lies within one point of zero; all else is "not significant". Fewer than ten photos
    get no verdict. Intervals are from a bootstrap over photos and not corrected. Models measured on
    different annotations or under different rules are refused.

    --against fills the columns of a published table, below its rows. In a table with one block of
    columns per fine-tuning set, BLOCK=RESULTS names the block of a model; models named so share one
    row, until a block is repeated.

    Examples:
        compoclip compare results/base results/fsc results/negclip
        compoclip compare results --against fsc-clip-table1 --format markdown
        compoclip compare coco=results/a cc=results/b yfcc=results/c --against mosaiclip-table1

    Args:
        results: Folders that evaluate wrote (OUT/MODEL) or single result files; the first is the
            base, each other one is compared with it. With --against also OUT itself.
        against: Published table: fsc-clip-table1, fsc-clip-retrieval, fsc-clip-zero-shot,
            mosaiclip-table1, mosaiclip-table8, mosaiclip-table9, hard-positives, clic, negbench,
            half-truths, vismin, naturalbench, con-clip; mieb has 49 public models; newer-2026
            has the best published numbers of 2024 to 2026 with the caveats of their sources.
        allow_partial: With --against, make derived columns of the numbers that are there, marked.
        details: Add the sub-tasks to the tables; layouts other than text have them always.
        format: Layout of the tables.
        resamples: Bootstrap resamples for intervals.
        seed: Seed of the bootstrap.
    """

    results: ResultPaths
    against: str | None = None
    allow_partial: bool = False
    details: bool = False
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    resamples: Count = 2000
    seed: int = 0


def main(options: CompareOptions) -> Outcome:
    """Print a table for each pair, and what they say."""
    require_with(options, "against", "allow_partial")
    if options.against is not None:
        return _against(options, options.against)
    if len(options.results) < 2:
        raise UsageError("give the base's results and at least one other; see compare --help")
    from compoclip.evaluation.comparison import compare_all, one_model
    from compoclip.evaluation.results import load_results
    from compoclip.evaluation.tables import comparison_text

    base, *others = (one_model(load_results(path), path) for path in options.results)
    found = compare_all(base, others, options.resamples, options.seed)
    plain = options.format == "text"  # other layouts are for files
    details = options.details or not plain
    texts = [comparison_text(each, options.format, len(found), details) for each in found]
    if plain and not options.json:
        from compoclip.evaluation.closing import closing_sentences

        results = [each for model in (base, *others) for each in model]
        draws = options.resamples, options.seed
        texts.append(console.prose(closing_sentences(results, base[0].model, (), *draws)))
        more = "" if details else "--details adds the sub-tasks\n"
        places = " ".join(map(str, options.results))
        texts.append(f"{more}next: compoclip report {places} -o report.html")
    return [asdict(each) for each in found], "\n\n".join(texts)


def _against(options: CompareOptions, name: str) -> Outcome:
    """Print a published table with our rows."""
    from compoclip.evaluation.comparison import one_model
    from compoclip.evaluation.published.beside import (
        TableEntry,
        beside,
        entries_of,
        shown,
        to_json,
    )
    from compoclip.evaluation.published.read import published_table
    from compoclip.evaluation.results import load_results

    table = published_table(name)
    # Rows to be: one per model, and one for the models that are named for different blocks.
    rows: list[TableEntry] = []
    by_block: list[dict[str, Path]] = []
    for path in options.results:
        block, equals, place = str(path).partition("=")
        if not equals or path.exists():
            rows += entries_of(load_results(path))
            continue
        if block not in table.blocks:
            blocks = ", ".join(table.blocks) or "none"
            raise UsageError(f"{path}: {table.id} has no block '{block}'; its blocks: {blocks}")
        if not by_block or block in by_block[-1]:
            by_block.append({})
        by_block[-1][block] = Path(place)
    for each in by_block:
        models_of = {b: one_model(load_results(place), place) for b, place in each.items()}
        models = dict.fromkeys(results[0].model for results in models_of.values())
        rows.append((" + ".join(models), models_of))
    measured = beside(table, rows, allow_partial=options.allow_partial)
    if not measured:
        wanted = list(dict.fromkeys(s.benchmark for c in table.columns for s, _ in c.terms))
        more = " and others" if len(wanted) > 12 else ""
        console.note(
            "no result fits a column, the published rows stand alone; the table is about "
            f"{', '.join(wanted[:12])}{more}"
        )
    text = shown(table, measured, options.format)
    return to_json(table, measured), text
