"""The tables of a study as files: Markdown, LaTeX and CSV, models as rows as papers print them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from compoclip.evaluation.layout import Layout, laid_out, span
from compoclip.evaluation.profile import LOWER_IS_BETTER, MATCH, NEITHER_IS_BETTER
from compoclip.evaluation.published.beside import beside, entries_of
from compoclip.evaluation.published.read import published_table, table_names
from compoclip.evaluation.published.show import shown
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.tables import comparison_text, percent
from compoclip.files import write_atomically
from compoclip.report.study import Study

LAYOUTS: Mapping[Layout, str] = {"markdown": "md", "latex": "tex", "csv": "csv"}
_NOTE = "In percent; below each model its 95 % intervals. Bold: the best of a column."


def write_tables(study: Study, folder: Path, resamples: int, seed: int) -> tuple[Path, ...]:
    """Write every table in every layout to `folder`; returns the paths.

    overall, skills, benchmarks (headlines): a row a model, a column a score. subtasks: the other
    way round. compare-MODEL: paired differences to the base. TABLE: every published table that a
    model fills a column of, with our rows below the papers'; on other items than the official ones
    they are marked. Raises CompoclipError when a file cannot be written.
    """
    common = study.common
    found = {
        "overall": _by_model(study, "Overall", study.profile.scores),
        "skills": _by_model(study, "Skills", study.skills.scores),
        "benchmarks": _by_model(
            study,
            "Headline scores of the benchmarks",
            {m: {b: _headline(study.results[m][b]) for b in common} for m in study.models},
        ),
        "subtasks": partial(_subtasks, study),
    }
    for model, comparison in study.comparisons.items():
        found[f"compare-{_file(model)}"] = partial(comparison_text, comparison)
    everything = [each for m in study.models for each in study.results[m].values()]
    for name in table_names():
        table = published_table(name)
        entries = entries_of(everything)
        measured = beside(table, entries, resamples=resamples, seed=seed)
        if measured:
            found[name] = partial(shown, table, measured)
    written = []
    for stem, text_in in found.items():
        for layout, suffix in LAYOUTS.items():
            path = folder / f"{stem}.{suffix}"
            text = text_in(layout=layout) + "\n"
            write_atomically(path, partial(Path.write_text, data=text, encoding="utf-8"))
            written.append(path)
    return tuple(written)


def _headline(results: Results) -> Score:
    return results.aggregates[results.headline]


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
        for part, metrics in study.results[study.base][benchmark].scores.items():
            metric = next(iter(metrics))
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
