"""Results and runs -> one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from compoclip import __version__
from compoclip.benchmarks.skills import SKILLS
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.profile import COMPOSITION
from compoclip.evaluation.statistics import FEWEST, RESAMPLES
from compoclip.files import write_atomically
from compoclip.models.loaded import LoadedModel
from compoclip.report import figures
from compoclip.report.cards import Desk
from compoclip.report.coverage import coverage_rows
from compoclip.report.drill import extremes
from compoclip.report.examples import examples, read_items
from compoclip.report.export import write_tables
from compoclip.report.findings import findings
from compoclip.report.looks import Looker, require_measured
from compoclip.report.plotting import DARK, LIGHT
from compoclip.report.provenance import provenance
from compoclip.report.published import published_sheets, published_tradeoffs
from compoclip.report.study import Study, read_study
from compoclip.report.tables import invariance_rows, profile_rows, sheets, skill_rows
from compoclip.report.training import Run, read_run
from compoclip.report.wording import listed, words_for

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
    """Write the report on everything below the `results` folders to `out`; returns `out`.

    runs: --out folders of train, for the training curves. base: the model to compare with (None:
    the one whose weights others were trained from, else the first). maps: measured models by name,
    whose token-patch maps the examples show. tables: folder for the tables as Markdown, LaTeX and
    CSV. resamples, seed: of the bootstrap. The same input gives the same bytes. Raises UsageError
    for an unknown base, CompoclipError for results, runs, models or a place that do not serve.
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
    write_atomically(out, lambda place: place.write_text(page, encoding="utf-8"))
    if tables is not None:
        write_tables(study, tables, resamples, seed)
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
        changes=figures.changes(study),
        skills=skill_rows(study),
        definitions=SKILLS,
        invariance=figures.invariance(study),
        invariance_rows=invariance_rows(study),
        tradeoff=figures.tradeoff(study),
        runs=runs,
        curves=figures.training(runs, study.models),
        examples=shown,
        album=desk.album,
        looker=desk.looker,
        extremes=drilled,
        coverage=coverage_rows(study),
        sheets=sheets(study),
        published=published_sheets(study, resamples, seed),
        published_tradeoffs=published_tradeoffs(study, resamples, seed),
        listed=listed,
        provenance=provenance(study),
        alone=[name for name in study.benchmarks if name not in study.common],
        words_for=words_for,
    )


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
