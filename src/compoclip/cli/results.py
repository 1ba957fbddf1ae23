"""The verbs about results: `evaluate`, `compare`, `report`, `bundle`, `verify`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from compoclip import config, console
from compoclip.cli.options import Outcome, Printing, ResultPaths
from compoclip.config import (
    BundlePlace,
    InputFolder,
    NamedModel,
    OutputFile,
    OutputFolder,
    Resamples,
    ResultPlace,
    RunFolder,
    Shown,
    TableName,
)
from compoclip.errors import CompoclipError, UsageError, printable
from compoclip.programs.run import EvaluateOptions, evaluate, load_models, named_models

if TYPE_CHECKING:
    from compoclip.printed import Table


def evaluate_main(options: EvaluateOptions) -> Outcome | int:
    """Measure every model; print headlines, details if wanted, and what they say."""
    models = named_models(options.models)
    several = len(models) > 1
    failures: list[CompoclipError] = []

    def failed(name: str, error: CompoclipError) -> None:
        console.note(f"compoclip: {name} is left out: {error}")
        failures.append(error)

    results = evaluate(options, models, processes=True, failed=failed if several else None)
    code = failures[0].exit_code if failures else 0
    if not results:  # rank 0 has them
        return code
    from compoclip.evaluation.closing import closing_sentences
    from compoclip.evaluation.grounded import ground_all
    from compoclip.evaluation.groups import group_scores, overall_groups
    from compoclip.evaluation.results import by_model
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip.evaluation.tables import overall_table, overview_table, results_table

    names = list(dict.fromkeys(result.model for result in results))
    bootstrap = Bootstrap(options.resamples, options.seed)
    grounded = ground_all(by_model(results), bootstrap=bootstrap)
    if options.json:
        return grounded.results_json(results), "", code
    texts: list[str | Table] = [overview_table(results, names[0], grounded=grounded)]
    if options.details:
        texts.append(grounded.table())
    for name in names:
        of_model = [result for result in results if result.model == name]
        if options.details:
            texts += map(results_table, of_model)
        if means := group_scores(of_model, overall_groups(of_model), bootstrap):
            texts.append(overall_table(name, means))
    texts.append(console.prose(closing_sentences(results, names[0], bootstrap, grounded)))
    more = "" if options.details else "--details adds the sub-tasks\n"
    texts.append(f"{more}next: compoclip report {options.out} -o report.html")
    return None, texts, code


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
    columns per fine-tuning set, BLOCK=RESULTS names the block of a model. Models named so share one
    row, and a block that is named again begins a new row.

    Examples:
        compoclip compare results/base results/fsc results/negclip
        compoclip compare results --against fsc-clip-table1 --format markdown
        compoclip compare coco=results/a cc=results/b yfcc=results/c --against mosaiclip-table1
        compoclip compare results/fsc --against mieb --mteb mieb-files

    Args:
        results: Folders that evaluate wrote (OUT/MODEL) or single result files; the first is the
            base, and every other one is compared with it. With --against also OUT itself.
        against: Published table: fsc-clip-table1, fsc-clip-retrieval, fsc-clip-zero-shot,
            mosaiclip-table1, mosaiclip-table8, mosaiclip-table9, hard-positives, clic, negbench,
            half-truths, vismin, naturalbench, con-clip; mieb has 49 public models; newer-2026
            has the best published numbers of 2024 to 2026 with the caveats of their sources.
        allow_partial: With --against, compute derived columns from the numbers that exist, and mark
            them.
        mteb: With --against mieb, new folder for the results as mteb's files, one per
            model and task.
        details: Add the sub-tasks to the tables; layouts other than text have them always.
        format: Layout of the tables.
        resamples: Bootstrap resamples for intervals.
        seed: Seed of the bootstrap.
    """

    results: ResultPaths
    against: TableName | None = None
    allow_partial: bool = False
    mteb: OutputFolder | None = None
    details: bool = False
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    resamples: Resamples = 2000
    seed: int = 0


def compare_main(options: CompareOptions) -> Outcome:
    """Print a table for each pair, and what they say."""
    config.require_with(options, "against", "allow_partial", "mteb")
    if options.against is not None:
        config.refuse(options, ("details", "resamples", "seed"), unused_with="--against")
        return _against(options, options.against)
    if len(options.results) < 2:
        inside = [folder for place in options.results for folder in sorted(place.glob("*/"))]
        of_models = [str(folder) for folder in inside if any(folder.glob("*.json"))]
        example = " ".join(of_models if len(of_models) > 1 else ["results/base", "results/tuned"])
        raise UsageError(
            "give the results of the base and of at least one other: compoclip compare " + example
        )
    from compoclip.evaluation.comparison import compare_all, one_model
    from compoclip.evaluation.grounded import ground_all
    from compoclip.evaluation.results import load_results
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip.evaluation.tables import comparison_table

    base, *others = (one_model(load_results(path), path) for path in options.results)
    bootstrap = Bootstrap(options.resamples, options.seed)
    comparisons = compare_all(base, others, bootstrap)
    plain = options.format == "text"  # other layouts are for files
    details = options.details or not plain
    models = {model[0].model: model for model in (base, *others)}
    grounded = ground_all(models, bootstrap=bootstrap)
    tables, record = [], []
    for pair in comparisons:
        gain = grounded.differences.get(pair.other)
        tables.append(comparison_table(pair, len(comparisons), details, gain, brief=plain))
        models_of_pair = {name: grounded.record(name) for name in (pair.base, pair.other)}
        gains = {"mean_grounded_gain": gain and asdict(gain), "grounded": models_of_pair}
        record.append({**asdict(pair), **gains})
    if details:
        tables.append(grounded.table())
    texts = [table.printed(options.format) for table in tables]
    if plain and not options.json:
        from compoclip.evaluation.closing import closing_sentences

        results = [result for model in (base, *others) for result in model]
        said = closing_sentences(results, base[0].model, bootstrap, grounded)
        texts.append(console.prose(said))
        more = "" if details else "--details adds the sub-tasks\n"
        places = " ".join(map(str, options.results))
        texts.append(f"{more}next: compoclip report {places} -o report.html")
    return record, texts


def _against(options: CompareOptions, name: str) -> Outcome:
    """Print a published table with our rows."""
    from compoclip.evaluation.comparison import one_model
    from compoclip.evaluation.published.measured import (
        TableEntry,
        entries_of,
        fill_table,
        table_text,
        to_json,
    )
    from compoclip.evaluation.published.mteb_files import write_mteb_files
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
    for places in by_block:
        models_of = {b: one_model(load_results(place), place) for b, place in places.items()}
        models = dict.fromkeys(results[0].model for results in models_of.values())
        rows.append((" + ".join(models), models_of))
    measured = fill_table(table, rows, allow_partial=options.allow_partial)
    if not measured:
        benchmarks = list(dict.fromkeys(s.benchmark for c in table.columns for s, _ in c.terms))
        more = " and others" if len(benchmarks) > 12 else ""
        console.note(
            "no result fits a column, so only published rows are shown; the table is about "
            f"{', '.join(benchmarks[:12])}{more}"
        )
    text = table_text(table, measured, options.format)
    if options.mteb is not None:
        written = write_mteb_files(table, rows, measured, options.mteb)
        console.note(f"{options.mteb}: {console.counted(len(written), 'file')} of mteb")
    return to_json(table, measured), text


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
    out: Annotated[OutputFile, Shown(short="-o")] = Path("report.html")
    bounds: Annotated[tuple[ResultPlace, ...], Shown("RESULTS ...")] = ()
    runs: Annotated[tuple[InputFolder, ...], Shown("RUN ...")] = ()
    maps: Annotated[tuple[NamedModel, ...], Shown("NAME=MODEL ...")] = ()
    tables: OutputFolder | None = None
    base: str | None = None
    title: str = "Compositionality report"
    resamples: Resamples = 2000
    seed: int = 0


def report_main(options: ReportOptions) -> Outcome:
    """Parse, write the page, say where it is."""
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip.report.write import write_report

    out = write_report(
        options.results,
        options.out,
        runs=options.runs,
        base=options.base,
        maps=load_models(options.maps),
        tables=options.tables,
        title=options.title,
        bootstrap=Bootstrap(options.resamples, options.seed),
        bounds=options.bounds,
    )
    size = out.stat().st_size
    tables = {"tables": str(options.tables)} if options.tables else {}
    record = {"report": str(out), "bytes": size, **tables}
    return record, f"{out} ({size / 1e6:.1f} MB); open it in a browser"


@dataclass(frozen=True, kw_only=True)
class BundleOptions(Printing):
    """Put a run, its results and their items into one bundle that `verify` checks.

    The bundle has the run's configuration and log, the results of all models with the outcome of
    every item, and hashes of weights, data, code and files. It has no weights and no
    photos. It does contain the paths of this machine that the configuration and the results name.

    Examples:
        compoclip bundle runs/fsc --results results --out fsc-bundle.zip

    Args:
        run: Folder of a finished run.
        results: Results of the run's model and of its base. The two are compared.
        out: New folder, or file that ends in .zip.
        against: Published tables whose columns the page of the bundle shows.
    """

    run: Annotated[RunFolder, Shown("RUN", positional=True)]
    results: ResultPlace
    out: Path
    against: Annotated[tuple[TableName, ...], Shown("TABLE ...")] = ()


def bundle_main(options: BundleOptions) -> Outcome:
    """Write a bundle, say where it is."""
    from compoclip.evaluation.bundle import write_bundle

    out = write_bundle(options.run, options.results, options.out, options.against)
    text = f"{out}: written; compoclip verify {out} checks it"
    return {"bundle": str(out)}, text


@dataclass(frozen=True)
class VerifyOptions(Printing):
    """Compute scores, intervals and tests of bundles again from their items; check all hashes.

    The exit code is 1 if anything differs. Fields that the files cannot prove are listed. A bundle
    has no signature, so only an evaluation of the weights shows that they give these scores.

    Examples:
        compoclip verify fsc-bundle.zip

    Args:
        bundles: Folders, or .zip or .tar.gz files.
    """

    bundles: Annotated[tuple[BundlePlace, ...], Shown("BUNDLE ...", positional=True)]


def verify_main(options: VerifyOptions) -> Outcome:
    """Return what was checked and what was not, with exit code 1 if anything is wrong."""
    from compoclip.evaluation.verify import verify_bundle

    reports = {str(path): verify_bundle(path) for path in options.bundles}
    texts = []
    for path, report in reports.items():
        rows = [[word, line] for word, lines in asdict(report).items() for line in lines]
        texts.append(f"{path}\n\n{console.columns(rows)}")
    problems = [f"{path}: {line}" for path, report in reports.items() for line in report.wrong]
    if problems:
        more = f"; and {len(problems) - 1} more, listed below" if len(problems) > 1 else ""
        console.note(f"compoclip verify: {printable(problems[0] + more)}")
    record = {path: asdict(report) for path, report in reports.items()}
    return record, texts, int(bool(problems))
