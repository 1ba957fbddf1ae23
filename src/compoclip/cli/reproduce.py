"""`compoclip reproduce NAME`: a paper's table, or one model from the downloads to a bundle."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compoclip import config
from compoclip.cli.data import agreed, get
from compoclip.cli.options import Outcome
from compoclip.console import columns, counted, duration, note, prose, require_terminal
from compoclip.errors import UsageError
from compoclip.files import write_text
from compoclip.printed import Table
from compoclip.programs.reproduce import ReproduceOptions

if TYPE_CHECKING:
    from compoclip.benchmarks.sources import RemoteFile
    from compoclip.evaluation.published.protocols import TrainingPhotos
    from compoclip.evaluation.published.read import PublishedTable
    from compoclip.programs.experiments import Experiment

_OF_TABLES = ("scale", "seeds", "arms", "model", "max_steps", "allow_partial", "jobs")
"""Options that one model does not have."""
_OF_FULL_SCALE = ("captions", "images", "allow_partial", "url_base")
"""Options that only the paper's own scale has."""


def reproduce_main(options: ReproduceOptions) -> Outcome | int:
    """List the tables, run one of them, or reproduce one model."""
    if options.list:
        config.refuse(
            options, sorted(vars(options).keys() - {"list", "json"}), unused_with="--list"
        )
        return _list()
    if not options.name:
        raise UsageError("name a paper or a model; compoclip reproduce --list shows the papers")
    if options.table and options.figure:
        raise UsageError("--table and --figure exclude each other; choose one")
    _ = options.limit  # says of a budget that it is none
    if options.table or options.figure:
        return _table(options)
    config.refuse(options, _OF_TABLES, needs="--table or --figure")
    return _model(options)


def _model(options: ReproduceOptions) -> Outcome | int:
    """State what it takes, ask, run all stages, print the page."""
    from compoclip.programs.reproduce import reproduce

    def agree(plan: Mapping[str, Any]) -> bool:
        from compoclip.evaluation.plan_page import stated

        note(columns(stated(plan)))
        return options.yes or agreed("Start this?")

    bundle = reproduce(options, agree, lambda job: get(job, options.data, options.url_base))
    if bundle is None:
        return 1
    text = (options.out / "page.md").read_text(encoding="utf-8")
    check = f"{text}\n{bundle}: compoclip verify {bundle} checks it"
    return {"bundle": str(bundle), "page": text}, check


def _list() -> Outcome:
    from compoclip.evaluation.published.read import paper, paper_names

    records: list[dict[str, Any]] = []
    papers: list[str | Table] = []
    header = ["compoclip reproduce", "what it is", "trains"]
    for name in paper_names():
        of_paper = paper(name)
        rows, notes = [], []
        for table in of_paper.tables:
            trained = sum(bool(row.arm and row.arm.recipe) for row in table.rows)
            runs = f"{counted(trained, 'row')}, {counted(len(table.seeds), 'seed')}"
            option, number = table.place.split(" ", 1)
            command = f"{name} --{option} {number}"
            rows.append([command, table.title.partition(", ")[2], runs if trained else "-"])
            if table.needs:
                notes.append(f"{table.place} needs {table.needs}")
            records.append(
                {
                    "paper": name,
                    "place": table.place,
                    "id": table.id,
                    "title": table.title,
                    "rows": trained,
                    "seeds": list(table.seeds),
                    "measured_on": list(table.measure),
                    "needs": table.needs,
                }
            )
        papers.append(Table(rows, header, left=3, title=of_paper.title, notes=notes))
    usage = "compoclip reproduce PAPER --table N --out FOLDER runs one; add --scale world to try it"
    return records, (*papers, prose([usage]))


def _table(options: ReproduceOptions) -> Outcome | int:
    """State what a table takes, ask, run it, print its page."""
    from compoclip.evaluation.published.read import paper

    place_name = f"table {options.table}" if options.table else f"figure {options.figure}"
    table = paper(options.name).table(place_name)
    from compoclip.programs.experiments import FULL, experiment, require_arms, scale_named

    require_arms(table, options.arms)  # before a scale draws its scenes
    if options.scale != FULL:
        config.refuse(options, _OF_FULL_SCALE, needs=f"--scale {FULL}")
    scale = scale_named(options.scale, options.out)
    table = replace(table, measure=options.on or table.measure)
    if scale:
        scale = replace(scale, on=options.on or scale.on, model=options.model or scale.model)
    samples = 0
    if options.captions and not scale:
        from compoclip.data.sources.open import open_source

        samples = len(open_source(options.captions, images=options.images))
    return _run_table(experiment(table, options, scale, samples))


def _run_table(planned: Experiment) -> Outcome | int:
    from compoclip.programs.experiment_costs import estimate, within_budget
    from compoclip.programs.experiments import (
        require_same_place,
        run_experiment,
        save_plan,
    )

    options = planned.options
    require_same_place(planned)
    planned = _with_downloads(planned)
    planned.measuring().benchmarks()  # faults of the data are found before the estimate
    if not options.yes:
        require_terminal()
    if options.limit:
        planned, costs = within_budget(planned, options.limit)
    else:
        costs = estimate(planned)
    seconds = sum(cost.seconds for cost in costs.values()) / planned.jobs
    share = f" on {planned.share:g} of the training data" if planned.share < 1 else ""
    note(
        f"{planned.table.title}: {counted(len(costs), 'run')}{share}, {planned.jobs} at once; "
        f"takes about {duration(seconds)} here"
    )
    save_plan(planned, costs)
    if not options.yes and not agreed("Start this?"):
        return 1
    run_experiment(planned, costs)
    text = page_of(planned)
    path = options.out / f"{planned.table.id}.md"
    write_text(path, text)
    _call_commands(planned)
    record = {"page": str(path), "text": text, "runs": [run.name for run in planned.unique]}
    return record, f"{text}\nwritten to {path}"


def page_of(planned: Experiment) -> str:
    """Return the page of a table, in Markdown, from the results in its folder.

    Columns that are means of several benchmarks are filled from those that were measured, where a
    scale or the user chose the benchmarks.
    """
    from compoclip.evaluation.experiment_page import experiment_page
    from compoclip.evaluation.results import load_results
    from compoclip.programs.experiments import BLIND_MODEL, mixed_name

    options, folder = planned.options, planned.options.out / "results"
    names = [*map(mixed_name, planned.unique), BLIND_MODEL]
    measured = {name: load_results(folder / name) for name in names if (folder / name).is_dir()}
    runs: dict[tuple[str, ...], dict[str, list[Any]]] = {}
    for (labels, block), of_row in planned.runs.items():
        results = [measured[name] for name in map(mixed_name, of_row) if name in measured]
        if results:
            runs.setdefault(labels, {})[block] = results
    about = planned.scale.about if planned.scale else _about_full(planned)
    if options.model:
        about += f", from {options.model}"
    if planned.share < 1:
        about += f", on {planned.share:g} of the training data"
    if options.max_steps:
        about += f", but every run ended after {counted(options.max_steps, 'step')}"
    blind = measured.get(BLIND_MODEL, [])
    partial = planned.scale is not None or bool(options.on)
    return experiment_page(planned.table, runs, blind, about, partial)


def _call_commands(planned: Experiment) -> None:
    """Call what a figure computes from its models; a command with {arm} is called for each."""
    from compoclip.cli.main import main

    folder, on = planned.options.out, planned.measuring().on
    models = {run.name: run.model for run in planned.unique}
    tuned = {run.name: run.model for run in planned.trained}
    for command in planned.table.commands:
        for name, model in tuned.items() if "{arm}" in command else [("", "")]:
            values = {
                "{models}": [f"{key}={value}" for key, value in models.items()],
                "{model}": [next(iter(planned.unique)).arm.model],
                "{arm}": [model],
                "{on}": list(on),
                "{captions}": [_test_captions(planned)],
                "{results}": [str(folder / "results" / key) for key in models],
            }
            out = folder / planned.table.id
            if name:
                out = out / name
                out.parent.mkdir(parents=True, exist_ok=True)
            arguments: list[str] = []
            for word in command.split():
                arguments += values.get(word, [word.replace("{out}", str(out))])
            note(f"compoclip {shlex.join(arguments)}")
            with redirect_stdout(sys.stderr):
                code = main(arguments)
            if code:
                raise UsageError(f"compoclip {arguments[0]} failed; the same command repeats it")


def _test_captions(planned: Experiment) -> str:
    """Return captions that no arm was trained on, for commands that read texts alone."""
    if planned.scale:
        return str(planned.scale.captions)
    return str(planned.options.data / "coco" / "coco_karpathy_test.json")


def _about_full(planned: Experiment) -> str:
    options = planned.options
    models = "settings" if options.model else "models and settings"
    if options.captions:
        return f"the paper's {models}, {counted(planned.samples, 'sample')} of {options.captions}"
    return f"the paper's data, {models}"


def _with_downloads(planned: Experiment) -> Experiment:
    """Fetch what the paper's own scale needs; leave out benchmarks that cannot be fetched."""
    if planned.scale:
        return planned
    from compoclip.evaluation.published.protocols import training_photos
    from compoclip.programs.reproduce import (
        fetch_missing,
        missing_files,
        present,
        require_named,
        training_jobs,
    )

    options = planned.options
    if planned.table.needs:
        note(f"needs {planned.table.needs}")
    data = {run.arm.data: training_photos(run.arm.data) for run in planned.trained}
    for name, photos in data.items():
        require_named(name, photos, options)
        if photos.by_hand:
            _state_samples(name, photos, planned)
    fetched = [(photos, photos.photos) for photos in data.values() if not photos.by_hand]
    jobs: dict[str, RemoteFile] = {}
    if options.allow_partial:
        benchmarks, left_out = present(planned.table.measure, options.data)
    else:
        jobs, benchmarks, left_out = missing_files(planned.table.measure, options.data)
    for photos, folders in fetched:
        jobs = {**training_jobs(photos, folders, options.data), **jobs}
    by_reason: dict[str, list[str]] = {}
    for spec, reason in left_out.items():
        by_reason.setdefault(reason, []).append(spec)
    for reason, names in by_reason.items():
        note(f"left out: {', '.join(names)}: {reason}")
    if not benchmarks:
        raise UsageError(f"nothing to measure on; {next(iter(left_out.values()), '')}")
    size = sum(job.size for job in jobs.values())
    if jobs and not options.yes:
        named = ", ".join([*jobs][:3]) + (", ..." if len(jobs) > 3 else "")
        note(f"{counted(len(jobs), 'file')} to fetch, {size / 1e9:.2f} GB: {named}")
        if not agreed("Fetch them?"):
            raise UsageError("nothing was fetched")
    fetched_specs = () if options.allow_partial else benchmarks
    fetch_missing(
        fetched_specs, fetched, options.data, lambda job: get(job, options.data, options.url_base)
    )
    table: PublishedTable = replace(planned.table, measure=tuple(benchmarks))
    return replace(planned, table=table)


def _state_samples(name: str, data: TrainingPhotos, planned: Experiment) -> None:
    """Say which part of the named training data is used, or that it is less than the paper's."""
    samples, captions = planned.samples, planned.options.captions
    if samples > data.number:
        note(f"{name}: {data.number:,} of the {samples:,} samples, chosen by their hash")
    elif samples < data.number:
        note(f"{name}: the paper has {data.number:,} samples, {captions} {samples:,}")
