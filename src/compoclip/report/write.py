"""Results and runs -> one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from compoclip.benchmarks.case import SKILLS
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.groups import COMPOSITION, LOWER_IS_BETTER, MATCH, NEITHER_IS_BETTER
from compoclip.evaluation.published.beside import (
    Measured,
    TableEntry,
    TableLine,
    beside,
    entries_of,
    header,
    lines,
    notes,
    shown,
)
from compoclip.evaluation.published.read import (
    PublishedRow,
    PublishedTable,
    published_table,
    table_names,
)
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.statistics import FEWEST, RESAMPLES
from compoclip.evaluation.tables import Layout, comparison_text, laid_out, percent, span
from compoclip.files import write_text
from compoclip.models.checkpoint import LoadedModel
from compoclip.report import plotting
from compoclip.report.cards import Desk, examples, extremes, read_items
from compoclip.report.findings import findings
from compoclip.report.looks import Looker, require_measured
from compoclip.report.plotting import DARK, LIGHT, Dot, Plot, Reference, scatter
from compoclip.report.study import Study, read_study
from compoclip.report.tables import invariance_rows, profile_rows, sheets, skill_rows
from compoclip.report.training import Run, read_run
from compoclip.report.wording import count, listed, words_for
from compoclip.version import __version__

# --- The tables of a study as files: Markdown, LaTeX and CSV, models as rows as papers print
# them. ---

LAYOUTS: Mapping[Layout, str] = {"markdown": "md", "latex": "tex", "csv": "csv"}
_NOTE = "In percent; below each model its 95 % intervals. Bold: the best of a column."


def write_tables(study: Study, folder: Path) -> tuple[Path, ...]:
    """Write every table of a study in every layout.

    overall, skills, benchmarks (headlines): a row a model, a column a score. subtasks: the other
    way round. compare-MODEL: paired differences to the base. TABLE: every published table that a
    model fills a column of, with our rows below the papers'; on other items than the official ones
    they are marked.

    Args:
        study: the results.
        folder: where the files go.

    Returns:
        The paths written.

    Raises:
        CompoclipError: a file cannot be written.
    """
    common = study.common
    found = {
        "overall": _by_model(study, "Overall", study.profile.scores),
        "skills": _by_model(study, "Skills", study.skills.scores),
        "benchmarks": _by_model(
            study,
            "Headline scores of the benchmarks",
            {m: {b: study.results[m][b].headline_score for b in common} for m in study.models},
        ),
        "subtasks": partial(_subtasks, study),
    }
    for model, comparison in study.comparisons.items():
        found[f"compare-{_file(model)}"] = partial(comparison_text, comparison)
    everything = [each for m in study.models for each in study.results[m].values()]
    for name in table_names():
        table = published_table(name)
        entries = entries_of(everything)
        measured = beside(table, entries)
        if measured:
            found[name] = partial(shown, table, measured)
    written = []
    for stem, text_in in found.items():
        for layout, suffix in LAYOUTS.items():
            path = folder / f"{stem}.{suffix}"
            text = text_in(layout=layout) + "\n"
            write_text(path, text)
            written.append(path)
    return tuple(written)


def _by_model(study: Study, title: str, scores: Mapping[str, Mapping[str, Score]]) -> partial[str]:
    """A row a model and below it its intervals, a column a score; chance as the last row."""
    names = list(scores[study.base])
    rows: list[list[str]] = []
    strong: list[tuple[int, int]] = []
    for model in study.models:
        rows.append([model, *(percent(scores[model][name].value) for name in names)])
        rows.append(["95 % interval", *(_interval(scores[model][name]) for name in names)])
    base = scores[study.base]
    rows.append(["chance", *("-" if n == MATCH else percent(base[n].chance) for n in names)])
    for column, name in enumerate(names, 1):
        if name not in NEITHER_IS_BETTER:
            pick = min if name in LOWER_IS_BETTER else max
            best = percent(pick(scores[m][name].value for m in study.models))
            strong += [(k, column) for k in range(0, len(rows) - 1, 2) if rows[k][column] == best]
    header = ["model", *names]
    return partial(laid_out, rows, header, title=title, strong=strong, notes=[_NOTE])


def _subtasks(study: Study, layout: Layout) -> str:
    """A row a sub-task of every benchmark, a column a model."""
    rows = []
    for benchmark in study.common:
        for part in study.results[study.base][benchmark].scores:
            metric = study.results[study.base][benchmark].main(part).metric
            found = [study.results[m][benchmark].scores[part][metric] for m in study.models]
            cells = [f"{percent(s.value)} [{_interval(s)}]" for s in found]
            rows.append([benchmark, part, metric, *cells, percent(found[0].chance)])
    header = ["benchmark", "sub-task", "metric", *study.models, "chance"]
    return laid_out(rows, header, layout, title="Sub-tasks", left=3, notes=["In percent [95 %]."])


def _interval(score: Score) -> str:
    return span(score.low, score.high)


def _file(name: str) -> str:
    """A model's name as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


# --- How much of each benchmark was measured, and what an audit found in it. ---


@dataclass(frozen=True)
class CoverageRow:
    """One benchmark. Numbers that differ between models stand side by side in their order.

    items: measured, of all. share: the same in percent. missing: photos absent or damaged.
    left_out: rows that made no items, with reasons. cut: texts longer than the model's context.
    ties: items whose outcome hangs on equal scores.
    """

    benchmark: str
    items: str
    share: str
    missing: str
    left_out: str
    cut: str
    ties: str
    whole: bool


def coverage_rows(study: Study) -> tuple[CoverageRow, ...]:
    """One row a benchmark."""
    return tuple(
        _row(name, [study.results[m][name] for m in study.models if name in study.results[m]])
        for name in study.benchmarks
    )


def _row(benchmark: str, measured: Sequence[Results]) -> CoverageRow:
    every = [max(each.aggregates.values(), key=lambda s: s.expected) for each in measured]
    first = measured[0]
    return CoverageRow(
        benchmark=benchmark,
        items=_same([s.items(",") for s in every]),
        share=_same([f"{100 * s.n / max(1, s.expected):.0f} %" for s in every]),
        missing=_same([count(each.missing_count) for each in measured]),
        left_out=", ".join(f"{count(n)} × {why}" for why, n in first.left_out.items() if n) or "0",
        cut=_same([count(each.truncated_texts) for each in measured]),
        ties=_same([count(s.ties) for s in every]),
        whole=not any(each.partial for each in measured),
    )


def _same(texts: Sequence[str]) -> str:
    """One text where all are alike, else all of them."""
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


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
}


@dataclass(frozen=True)
class TableSheet:
    """A plain table. head: column headings, the first for the row headings."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def provenance(study: Study) -> tuple[TableSheet, ...]:
    """Tables of model identities, benchmarks and library versions."""
    return (_models(study), _benchmarks(study), _versions(study))


def _models(study: Study) -> TableSheet:
    identities = {m: next(iter(study.results[m].values())).identity for m in study.models}
    by_weights = {i.get("weights"): m for m, i in identities.items() if i.get("weights")}
    rows = []
    for key, label in _FIELDS.items():
        cells = []
        for identity in identities.values():
            text = _text(identity.get(key))
            if key == "base" and identity.get("base") in by_weights:
                text += f" = {by_weights[identity['base']]}"
            cells.append(text)
        rows.append((label, *cells))
    return TableSheet("Model identities", ("", *study.models), tuple(rows))


def _text(value: Any) -> str:
    if value in (None, "", [], ()):
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in value)
    return str(value)


def _benchmarks(study: Study) -> TableSheet:
    head = ("benchmark", "annotations (hash)", "protocol", "ties", "rows left out", "seconds")
    rows = []
    for name in study.benchmarks:
        measured = [study.results[m][name] for m in study.models if name in study.results[m]]
        one = measured[0]
        ties = ", ".join(
            f"{part}: {policy}" if part else policy for part, policy in one.tie_policy.items()
        )
        left_out = ", ".join(f"{count(n)} × {why}" for why, n in one.left_out.items() if n)
        seconds = " / ".join(f"{each.seconds:.0f}" for each in measured)
        rows.append(
            (name, one.data_hash or "–", str(one.protocol), ties, left_out or "none", seconds)
        )
    return TableSheet("Benchmarks (seconds: by model, in the order above)", head, tuple(rows))


def _versions(study: Study) -> TableSheet:
    packages: dict[str, dict[str, None]] = {}
    for model in study.models:
        for each in study.results[model].values():
            for package, version in each.versions.items():
                packages.setdefault(package, {})[version] = None  # a set that keeps the order
    return TableSheet(
        "Versions used when measuring",
        ("package", "version"),
        tuple((package, ", ".join(versions)) for package, versions in packages.items()),
    )


# --- The published tables that the results have a number for, with our rows below the papers'. ---

# Published table -> its columns of compositionality, and of what it may cost.
_TRADEOFFS = {
    "fsc-clip-table1": ("comp", {"zs": "zero-shot accuracy", "i2t": "image-to-text R@1"}),
}


@dataclass(frozen=True)
class PublishedSheet:
    """One table as shown: heads of the row labels, heads of the numbers, lines, remarks."""

    id: str
    title: str
    labels: tuple[str, ...]
    heads: tuple[str, ...]
    lines: tuple[TableLine, ...]
    notes: tuple[str, ...]


def published_sheets(study: Study) -> tuple[PublishedSheet, ...]:
    """Every table of which some model has at least one column on the official items.

    Results on items of another edition are not shown: nothing published compares with them.
    """
    found = []
    for name in table_names():
        table = published_table(name)
        measured = beside(table, _entries(study, table))
        if measured:
            found.append(_sheet(table, measured))
    return tuple(found)


def _entries(study: Study, table: PublishedTable) -> list[TableEntry]:
    """The models with what they have of the table, editions apart."""
    names = {name for c in table.columns for s, _ in c.terms for name in (s.benchmark, s.instead)}
    return [
        TableEntry(model, {"": [each for each in results.values() if each.reader_name in names]})
        for model, results in study.results.items()
    ]


def _sheet(table: PublishedTable, measured: Sequence[Measured]) -> PublishedSheet:
    return PublishedSheet(
        id=table.id,
        title=table.title,
        labels=table.row_labels,
        heads=header(table)[1 + len(table.row_labels) :],
        lines=tuple(lines(table, measured)),
        notes=tuple(notes(table, measured)),
    )


@dataclass(frozen=True)
class PublishedPoints:
    """Trade-offs as a paper prints them. measured: models that stand among its points."""

    title: str
    source: str
    plots: tuple[Plot, ...]
    measured: tuple[str, ...]


def published_tradeoffs(study: Study) -> tuple[PublishedPoints, ...]:
    """Published points in grey, and among them the models measured on all of the same items."""
    found = []
    for name, (across, others) in _TRADEOFFS.items():
        table = published_table(name)
        places = {column.id: k for k, column in enumerate(table.columns)}
        ours = beside(table, _entries(study, table))
        plots: list[Plot] = []
        shown: dict[str, None] = {}
        for up, label in others.items():
            x, y = places[across], places[up]
            grey = [
                Reference(_row_name(row, table), one / 100, other / 100)
                for row in table.rows
                if (one := row.values[x]) is not None and (other := row.values[y]) is not None
            ]
            dots = [
                Dot(each.name, study.models.index(each.name), one_cell, other_cell)
                for each in ours
                if (one_cell := each.cells[x]) is not None
                and (other_cell := each.cells[y]) is not None
            ]
            shown |= dict.fromkeys(dot.name for dot in dots)
            plots.append(
                scatter(
                    dots,
                    (f"{table.columns[x].label} ({table.columns[x].rule}), %", f"{label}, %"),
                    title=f"{label[0].upper()}{label[1:]}, {table.title}",
                    about=f"{label} against compositionality in {table.title}",
                    front=True,
                    references=grey,
                )
            )
        found.append(PublishedPoints(table.title, table.paper, tuple(plots), tuple(shown)))
    return tuple(found)


def _row_name(row: PublishedRow, table: PublishedTable) -> str:
    """Method first: "FSC-CLIP (COCO, LoRA)"."""
    labels = dict(zip(table.row_labels, row.labels))
    method = labels.pop("method", "")
    more = [name if label == "yes" else label for name, label in labels.items() if label]
    return f"{method} ({', '.join(more)})" if more else method


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
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Path:
    """Write the report on everything below some folders of results; the same input, the same bytes.

    Args:
        results: folders of results.
        out: the HTML file.
        runs: --out folders of train, for the training curves.
        base: name of the model compared with; None takes the one whose weights others were trained
            from, else the first.
        maps: measured models by name, whose token-patch maps the examples show.
        tables: folder for the tables as Markdown, LaTeX and CSV.
        title: of the page.
        resamples: bootstrap draws for the intervals.
        seed: of the draws.

    Returns:
        `out`.

    Raises:
        UsageError: there is no such base, or two runs have one name.
        CompoclipError: results, runs, models or the place do not serve.
    """
    if out.is_dir():
        raise CompoclipError(f"{out}: is a folder; give the name of an HTML file")
    read = tuple(read_run(folder) for folder in runs)
    names = [run.name for run in read]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two runs are called {twice}; rename one of the folders")
    study = read_study(results, base, resamples, seed)
    require_measured(maps or {}, study)
    page = render(study, read, title, resamples, seed, maps or {})
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
    resamples: int,
    seed: int,
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
    script = environment.get_template("page.js").render()
    items, desk = (
        read_items(study),
        Desk(looker=Looker({m: maps[m] for m in study.models if m in maps})),
    )
    shown = examples(study, items, desk)
    drilled = extremes(study, items, desk)
    places = study.profile.groups.get(COMPOSITION, ())
    return environment.get_template("report.html.j2").render(
        title=title,
        study=study,
        version=__version__,
        resamples=resamples,
        seed=seed,
        fewest=FEWEST,
        script=script,
        script_hash=_csp_hash(script),
        colours=list(zip(LIGHT.models, DARK.models)),
        findings=findings(study),
        profile=profile_rows(study),
        composition=listed([f"{part.name} of {part.benchmark}" for part in places]),
        changes=plotting.changes(study),
        skills=skill_rows(study),
        definitions=SKILLS,
        invariance=plotting.invariance(study),
        invariance_rows=invariance_rows(study),
        tradeoff=plotting.tradeoff(study),
        runs=runs,
        curves=plotting.training(runs, study.models),
        examples=shown,
        album=desk.album,
        looker=desk.looker,
        extremes=drilled,
        coverage=coverage_rows(study),
        sheets=sheets(study),
        published=published_sheets(study),
        published_tradeoffs=published_tradeoffs(study),
        listed=listed,
        provenance=provenance(study),
        alone=[name for name in study.benchmarks if name not in study.common],
        words_for=words_for,
    )


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
