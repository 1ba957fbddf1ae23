"""Results and runs -> one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from compoclip.benchmarks.case import SKILLS
from compoclip.console import counted, note, note_others, worded
from compoclip.errors import UsageError, require
from compoclip.evaluation.groups import (
    BRITTLENESS,
    COMPOSITION,
    LOWER_IS_BETTER,
    MATCH,
    NEITHER_IS_BETTER,
)
from compoclip.evaluation.items import POSITIVE_SCORE
from compoclip.evaluation.numerals import SATURATED, percent, span
from compoclip.evaluation.published.measured import (
    Measured,
    entries_of,
    fill_table,
    table_text,
    whole_table,
)
from compoclip.evaluation.published.read import (
    PublishedTable,
    comparison_tables,
    published_table,
)
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.statistics import BOOTSTRAP, FEWEST, Bootstrap
from compoclip.evaluation.tables import comparison_table, remarks, tie_values
from compoclip.files import file_stems, write_text
from compoclip.printed import Layout, Table
from compoclip.report import plotting, wording
from compoclip.report.cards import before_after, examples, most_improved, read_items, scenes
from compoclip.report.findings import (
    direction,
    findings,
    hard_positive_verdicts,
    overall_rows,
    score_lines,
    skill_rows,
    strength,
    tip,
)
from compoclip.report.looks import Album, require_measured
from compoclip.report.plotting import DARK, LIGHT
from compoclip.report.study import Levels, Study, curves_of, read_study
from compoclip.report.training import Run, read_run
from compoclip.report.wording import interval, listed
from compoclip.version import __version__

if TYPE_CHECKING:
    from compoclip.models.checkpoint import LoadedModel

# --- The tables of a study as files: Markdown, LaTeX and CSV, models as rows as papers print
# them. ---

LAYOUTS: Mapping[Layout, str] = {"markdown": "md", "latex": "tex", "csv": "csv"}
_NOTE = "In percent; below each model its 95 % intervals. Bold: the best of a column."
_BRACKETS = "In percent [95 %]."


def write_tables(study: Study, folder: Path) -> tuple[Path, ...]:
    """Write every table of a study in every layout.

    overall, skills, benchmarks (headlines): a row per model, a column per score. subtasks:
    transposed. levels-BENCHMARK: the scores by a number that its items have, such as CREPE's
    complexity. compare-MODEL: paired differences to the base. TABLE: every published table with a
    column that a model fills, with our rows below the papers'; rows on other than the official
    items are marked.

    Args:
        study: the results.
        folder: where the files go.

    Returns the paths written. Other tables in the folder, of models that are gone, are named.
    """
    headlines = {
        m: {b: study.results[m][b].headline_score for b in study.common} for m in study.models
    }
    printers: dict[str, Callable[[Layout], str]] = {
        "overall": _by_model(study, "Overall", study.profile.scores).printed,
        "grounded": study.grounded.table().printed,
        "skills": _by_model(study, "Skills", study.skills.scores).printed,
        "benchmarks": _by_model(study, "Headline scores of the benchmarks", headlines).printed,
    }
    rows = []
    for benchmark in study.common:
        for part in study.results[study.base][benchmark].scores:
            metric = study.results[study.base][benchmark].main(part).metric
            scores = [study.results[m][benchmark].scores[part][metric] for m in study.models]
            cells = [f"{percent(s.value)} [{span(s.low, s.high)}]" for s in scores]
            rows.append([benchmark, part, metric, *cells, percent(scores[0].chance)])
    head = ["benchmark", "sub-task", "metric", *study.models, "chance"]
    printers["subtasks"] = Table(rows, head, 3, "Sub-tasks", [_BRACKETS]).printed
    for benchmark, stem in file_stems(study.benchmarks).items():
        if curves := curves_of(study, benchmark):
            printers[f"levels-{stem}"] = _by_level(study, benchmark, curves).printed
    stems = file_stems(study.comparisons)
    for model, comparison in study.comparisons.items():
        gain = study.grounded.differences.get(model)
        compared = comparison_table(comparison, len(study.comparisons), gain=gain, brief=False)
        printers[f"compare-{stems[model]}"] = compared.printed
    entries = entries_of([result for m in study.models for result in study.results[m].values()])
    for table in comparison_tables():
        measured = fill_table(table, entries)
        if measured:
            printers[table.id] = partial(table_text, table, measured)
    written = []
    for stem, printed in printers.items():
        for layout, suffix in LAYOUTS.items():
            written.append(folder / f"{stem}.{suffix}")
            write_text(written[-1], printed(layout) + "\n")
    note_others(folder, [f"*.{suffix}" for suffix in LAYOUTS.values()], written)
    return tuple(written)


def _by_level(study: Study, benchmark: str, curves: Mapping[str, Levels]) -> Table:
    """A row per curve and level, a column per model."""
    rows = []
    for curve, levels in curves.items():
        for level, scores in levels.items():
            measured = [scores.get(model) for model in study.models]
            cells = [f"{percent(s.value)} [{span(s.low, s.high)}]" if s else "-" for s in measured]
            rows.append([curve, str(level), *cells, percent(next(iter(scores.values())).chance)])
    head = ["curve", "level", *study.models, "chance"]
    return Table(rows, head, 2, f"{benchmark} by level", [_BRACKETS])


def _by_model(study: Study, title: str, scores: Mapping[str, Mapping[str, Score]]) -> Table:
    """A row a model and below it its intervals, a column a score; chance as the last row."""
    base = scores[study.base]
    rows: list[list[str]] = []
    for model in study.models:
        values = scores[model]
        rows.append([model, *(percent(values[name].value) for name in base)])
        rows.append(["95 % interval", *(span(values[n].low, values[n].high) for n in base)])
    rows.append(["chance", *("-" if n == MATCH else percent(s.chance) for n, s in base.items())])
    strong: list[tuple[int, int]] = []
    for column, name in enumerate(base, 1):
        if name not in NEITHER_IS_BETTER:
            pick = min if name in LOWER_IS_BETTER else max
            best = percent(pick(scores[m][name].value for m in study.models))
            strong += [(k, column) for k in range(0, len(rows) - 1, 2) if rows[k][column] == best]
    return Table(rows, ["model", *base], title=title, notes=[_NOTE], strong=strong)


# --- How much of each benchmark was measured, and what an audit found in it. ---


def coverage(study: Study) -> dict[str, tuple[str, ...]]:
    """Return the row of each benchmark in the coverage table.

    Cells: items measured, of all; the same in percent; missing or damaged photos; rows that gave no
    item; texts longer than the model's context; items with ties. A cell lists one number per model
    where they differ.
    """
    rows: dict[str, tuple[str, ...]] = {}
    for name in study.benchmarks:
        measured = list(study.measured(name).values())
        every = [max(result.aggregates.values(), key=lambda s: s.expected) for result in measured]
        cells = [
            (
                score.items(","),
                f"{100 * score.n / max(1, score.expected):.0f} %",
                f"{result.missing_count:,}",
                _left_out(measured[0]) or "0",
                f"{result.truncated_texts:,}",
                f"{score.ties:,}",
            )
            for score, result in zip(every, measured)
        ]
        rows[name] = tuple(
            column[0] if len({*column}) == 1 else " / ".join(column) for column in zip(*cells)
        )
    return rows


def _left_out(results: Results) -> str:
    return ", ".join(f"{n:,} × {reason}" for reason, n in results.left_out.items() if n)


# --- Where every number comes from: models, data, versions. ---

_FIELDS = {
    "architecture": "architecture",
    "weights": "weights (hash)",
    "base": "trained from (hash)",
    "adapter": "adapter",
    "activation": "activation",
    "tokenizer": "tokenizer",
    "context_length": "context length",
    "image_size": "image size",
    "image_mean": "image mean",
    "image_std": "image deviation",
    "interpolation": "interpolation",
    "resize_mode": "resizing",
    "revision": "revision",
    "prompt": "prompt",
    "dtype": "number format",
}


def provenance(study: Study, runs: Sequence[Run]) -> list[Table]:
    """Return tables of model identities, benchmarks, library versions and every training run."""
    identities = {m: next(iter(study.results[m].values())).identity for m in study.models}
    by_weights = {i.get("weights"): m for m, i in identities.items() if i.get("weights")}
    models = []
    for key, label in _FIELDS.items():
        values = [identity.get(key) for identity in identities.values()]
        cells = [_text(value) for value in values]
        if key == "base":
            parents = map(by_weights.get, values)
            cells = [f"{c} = {p}" if p else c for c, p in zip(cells, parents)]
        if any(key in identity for identity in identities.values()):
            models.append((label, *cells))
    benchmarks = []
    for name in study.benchmarks:
        measured = list(study.measured(name).values())
        one, seconds = measured[0], " / ".join(f"{result.seconds:.0f}" for result in measured)
        ties = ", ".join(": ".join(filter(None, pair)) for pair in one.tie_policy.items())
        facts = (one.data_hash or "–", str(one.protocol), ties, _left_out(one) or "none", seconds)
        benchmarks.append((name, *facts))
    packages: dict[str, dict[str, None]] = {}
    for result in (results for m in study.models for results in study.results[m].values()):
        for package, version in result.versions.items():
            packages.setdefault(package, {})[version] = None  # a set that keeps the order
    head = ("benchmark", "annotations (hash)", "protocol", "ties", "rows left out", "seconds")
    versions = [(package, ", ".join(numbers)) for package, numbers in packages.items()]
    facts_of_runs = [
        Table(list(run.facts.items()), ("setting", "value"), title=f"Training run {run.name}")
        for run in runs
    ]
    return [
        Table(models, ("", *study.models), title="Model identities"),
        Table(benchmarks, head, title="Benchmarks (seconds: by model, in the order above)"),
        Table(versions, ("package", "version"), title="Versions used when measuring"),
        *facts_of_runs,
    ]


def _text(value: Any) -> str:
    if value in (None, "", [], ()):
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(
            f"{element:.4g}" if isinstance(element, float) else str(element) for element in value
        )
    return worded(value)


# --- The published tables that the results have a number for, with our rows below the papers'. ---

# Published table -> its column across, and those up.
_TRADEOFFS = {
    "fsc-clip-table1": ("comp", ("zs", "i2t")),
    "mieb": ("sugarcrepe", ("vg_attribution", "winoground_group")),
}


def published_rows(study: Study, table: PublishedTable) -> list[Measured]:
    """The models that have a column of a published table on the official items.

    Results on items of another edition are not shown: nothing published compares with them.
    """
    official = {
        model: [result for result in results.values() if result.reader_name in table.benchmarks]
        for model, results in study.results.items()
    }
    return fill_table(table, [(model, {"": of_model}) for model, of_model in official.items()])


def published_tradeoffs(study: Study) -> list[tuple[PublishedTable, list[plotting.Plot]]]:
    """Plot the models of this report among the published ones, where all share two columns."""
    tradeoffs = []
    for name, (across, others) in _TRADEOFFS.items():
        table = published_table(name)
        places = {column.id: k for k, column in enumerate(table.columns)}
        ours, plots = published_rows(study, table), []
        for x, y in ((places[across], places[up]) for up in others):
            dots = [
                plotting.Dot(row.name, study.models.index(row.name), one, other)
                for row, one, other in ((row, row.cells[x], row.cells[y]) for row in ours)
                if one is not None and other is not None
            ]
            published = {
                " ".join(filter(None, row.labels)): (a / 100, b / 100)
                for row, a, b in ((row, row.values[x], row.values[y]) for row in table.rows)
                if a is not None and b is not None
            }
            first, second = table.columns[x].label, table.columns[y].label
            title = f"{second} and {first}, {table.title}"
            labels = (f"{first}, %", f"{second}, %")
            if dots:
                plot = plotting.scatter(dots, labels, title=title, about=title, published=published)
                plots.append(plot)
        if plots:
            tradeoffs.append((table, plots))
    return tradeoffs


# --- Results and runs -> one HTML file that needs nothing else. ---

TITLE = "Compositionality report"
LIMIT = 5_000_000


def write_report(
    results: Sequence[Path],
    out: Path,
    *,
    runs: Sequence[Path] = (),
    base: str | None = None,
    maps: Mapping[str, LoadedModel] | None = None,
    tables: Path | None = None,
    title: str = TITLE,
    bootstrap: Bootstrap = BOOTSTRAP,
    bounds: Sequence[Path] = (),
) -> Path:
    """Write the report on all results below some folders; equal input gives equal bytes.

    Args:
        results: folders of results.
        out: the HTML file.
        runs: --out folders of train, for the training curves.
        base: name of the base model; None takes the one that others were trained from, else the
            first.
        maps: models by name, for token-patch maps in the examples.
        tables: folder for the tables as Markdown, LaTeX and CSV.
        title: of the page.
        bootstrap: the draws for the intervals.
        bounds: folders of results of reference models (random weights, texts alone, an oracle),
            which the page shows next to the models.

    Raises:
        UsageError: the base is unknown, or two runs share a name.
        CompoclipError: results, runs or models cannot be read, or `out` cannot be written.
    """
    require(not out.is_dir(), out, "is a folder; give the name of an HTML file")
    read = tuple(read_run(folder) for folder in runs)
    names = [run.name for run in read]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two runs are called {twice}; rename one of the folders")
    study = read_study(results, base, bootstrap, bounds)
    require_measured(maps or {}, study)
    page = render(study, read, title, bootstrap, maps or {})
    size = len(page.encode())
    if size > LIMIT:
        note(f"{out}: {size / 1e6:.1f} MB; report on fewer models or benchmarks for a smaller page")
    write_text(out, page)
    if tables is not None:
        write_tables(study, tables)
    return out


def render(
    study: Study,
    runs: Sequence[Run],
    title: str,
    bootstrap: Bootstrap,
    maps: Mapping[str, LoadedModel],
) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("compoclip.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions = (direction, interval, remarks, score_lines, strength, tip, counted)
    environment.globals |= {function.__name__: function for function in functions}
    environment.globals |= {"BRITTLENESS": BRITTLENESS, "POSITIVE_SCORE": POSITIVE_SCORE}
    environment.globals["SATURATED"] = SATURATED
    environment.filters["percent"] = wording.percent
    environment.tests["tied"] = tie_values
    script = environment.get_template("page.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    items = read_items(study)
    album = Album(models={m: maps[m] for m in study.models if m in maps})
    # In the order of the page: photos are embedded once.
    first = next(iter(before_after(study, items, album, count=1, all_models=True)), None)
    by_skill = examples(study, items, album)
    places = study.profile.groups.get(COMPOSITION, ())
    published_beside = [(table, published_rows(study, table)) for table in comparison_tables()]
    return environment.get_template("report.html.j2").render(
        title=title,
        study=study,
        version=__version__,
        bootstrap=bootstrap,
        fewest=FEWEST,
        script=script,
        script_hash=f"sha256-{digest}",
        colours=list(zip(LIGHT.models, DARK.models)),
        findings=findings(study),
        overall=overall_rows(study),
        composition=listed([f"{part.name} of {part.benchmark}" for part in places]),
        changes=plotting.changes(study),
        skills=skill_rows(study),
        definitions=SKILLS,
        hard_positives=hard_positive_verdicts(study),
        invariance=plotting.invariance(study),
        tradeoff=plotting.tradeoff(study),
        published_tradeoffs=published_tradeoffs(study),
        curves=plotting.training(runs, study.models),
        levels=plotting.levels(study),
        watched=any(curve.interval for run in runs for curve in run.curves.values()),
        first=first,
        winner=most_improved(study) if study.others else "",
        scenes=scenes(by_skill),
        examples=by_skill,
        album=album,
        coverage=coverage(study),
        published=[
            (table.id, whole_table(table, rows)) for table, rows in published_beside if rows
        ],
        provenance=provenance(study, runs),
        alone=[name for name in study.benchmarks if name not in study.common],
    )
