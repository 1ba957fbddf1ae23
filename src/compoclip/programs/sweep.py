"""Sweeps on Optuna: runs over a grid, random values or TPE, resumable, in several processes."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, fields, replace
from multiprocessing import parent_process
from pathlib import Path
from typing import Annotated, Any, Literal

from compoclip.checks import check_values
from compoclip.config import Option, Shown, is_part, parsed_config, read_value, require
from compoclip.console import counted, note
from compoclip.differences import require_same
from compoclip.errors import (
    CompoclipError,
    RunInterruptedError,
    UsageError,
    closest,
    interruption_said,
    optional,
    printable,
)
from compoclip.files import bytes_hash, content_hash
from compoclip.plugins import fence
from compoclip.programs.request import TrainRequest, known_options
from compoclip.programs.run import evaluate, train
from compoclip.training.settings import RunSettings
from compoclip.typed import Count, Natural, convert

_RANGE = re.compile(r"(log:)?([^.]\S*?|\.\d\S*?)\.\.(\S+)")
_FIXED = {"out", "data", "resume", "stop_after", "push_to_hub", "json"}


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options that a sweep varies. OUT/runs holds the run folders; --on measures every run.

    Args:
        grid: NAME=VALUE,VALUE,...: each combination of these values is a run.
        random: NAME=LOW..HIGH, NAME=log:LOW..HIGH (evenly on a log scale) or NAME=VALUE,VALUE,...
        draws: Combinations of --random to sample.
        sampler: random runs each combination with all of --grid; tpe samples all values, near
            the best runs so far.
        draw_seed: Seed of the sampler; more draws with the same seed keep the first ones.
        sort_by: Benchmark whose headline sorts the table, or loss (default: the first benchmark).
        jobs: Runs at once, each in a process of its own, which reads its data itself.
    """

    grid: Annotated[tuple[str, ...], Shown("NAME=VALUES ...")] = ()
    random: Annotated[tuple[str, ...], Shown("NAME=VALUES ...")] = ()
    draws: Natural = 0
    sampler: Literal["random", "tpe"] = "random"
    draw_seed: Natural = 0
    sort_by: str | None = None
    jobs: Count = 1


def space_of(texts: Sequence[str], flag: str, options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the Optuna distributions of --grid or --random by name; choices stay texts.

    Raises UsageError for an unknown name and a value of another type.
    """
    kinds, distributions = _optuna().distributions, dict[str, Any]()
    for key, (place, said) in _named_values(texts, flag, options).items():
        option = _option_named(key, options)
        if match := _range(said, flag, option):
            plain = option.plain
            number = kinds.IntDistribution if plain is int else kinds.FloatDistribution
            try:
                low, high = (plain(float(match[k])) for k in (2, 3))
                distributions[key] = number(low, high, log=bool(match[1]))
            except (ValueError, OverflowError) as error:
                raise UsageError(f"{place}: write LOW..HIGH, both finite ({error})") from None
            continue
        distributions[key] = kinds.CategoricalDistribution([*_choices(place, said, option)])
    return distributions


def require_varied(options: SweepOptions, request: TrainRequest) -> None:
    """Raise UsageError for a name or value of --grid or --random that does not fit, or names what
    is not there, before any work."""
    known = _free_options(request)
    for texts, flag in ((options.grid, "--grid"), (options.random, "--random")):
        for key, (place, said) in _named_values(texts, flag, known).items():
            option = _option_named(key, known)
            if not _range(said, flag, option):
                choices = _choices(place, said, option)
                check_values([(option, value) for value in choices.values()], request.options)


def _range(said: str, flag: str, option: Option) -> re.Match[str] | None:
    """Return LOW..HIGH taken apart; None for anything else."""
    numeric = flag == "--random" and option.plain in (int, float)
    return _RANGE.fullmatch(said) if numeric else None


def _choices(place: str, said: str, option: Option) -> dict[str, Any]:
    """Return the values of VALUE,VALUE,... by their texts; raise UsageError for one of another
    type. place: for messages."""
    values = read_value(said) if said[0] == "[" else said.split(",")
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    choices = {text: convert(read_value(text), option.kind) for text in texts}
    for value in choices.values():
        require(place, value, option.kind)
    return choices


def _free_options(request: TrainRequest) -> dict[str, Option]:
    return {k: v for k, v in known_options(request.method).items() if k not in _FIXED}


def _named_values(
    texts: Sequence[str], flag: str, options: Mapping[str, Option]
) -> dict[str, tuple[str, str]]:
    """Return of each NAME=VALUES its place, for messages, and its values as a text, by name."""
    values: dict[str, tuple[str, str]] = {}
    for text in texts:
        name, _, said = text.partition("=")
        key = name if is_part(name) else name.replace("-", "_")
        if not said:
            raise UsageError(f"{flag} {text}: write NAME=VALUE,VALUE,...")
        if key in values:
            raise UsageError(f"{flag} {name}: is there twice")
        if key not in options and not is_part(key):
            raise UsageError(f"{flag} {name}: no such option; {closest(key, options)}")
        values[key] = (f"{flag} {name}", said)
    return values


def _option_named(name: str, options: Mapping[str, Option]) -> Option:
    """Return an option by name; one that takes any value for a part of the method."""
    return Option(name, Any, None) if is_part(name) else options[name]


def run_one(request: TrainRequest) -> dict[str, Any]:
    """Train and measure as far as it is not done; in a worker, or in this process."""
    options, name = request.options, request.options.out.name
    line = dict[str, Any](name=name, loss=None, scores={}, error="")
    written = options.out / ("model" if options.merge else "adapter")
    try:
        with fence():
            from compoclip.training.log import read_log

            if not written.exists():
                run_options = replace(
                    options,
                    on=options.on if options.eval_every else (),
                    resume=(options.out / "state").is_dir(),
                    workers=0 if parent_process() else options.workers,
                )
                with interruption_said():
                    train(run_options, request.composed(), config=request.text(repeats=True))
            line["content"] = content_hash(written)
            log = read_log(options.out / "train.jsonl")
            line["loss"] = [record["loss"] for record in log if "loss" in record][-1]
            measuring = options.measuring(options.out.parents[1] / "results")
            for results in evaluate(measuring, {name: str(written)}) if options.on else ():
                line["scores"][results.benchmark] = results.headline_score.value
    except RunInterruptedError:
        raise
    except CompoclipError as error:  # the others are to be done all the same
        line["error"] = printable(str(error))
    return line


def sweep(options: SweepOptions, request: TrainRequest, by: str) -> Iterator[dict[str, Any]]:
    """Yield the results of all runs; those in the study OUT/sweep.db are not repeated.

    by: a benchmark or "loss". Raises UsageError for values that do not fit, and another sweep's
    folder.
    """
    optuna, tpe, out, jobs = _optuna(), options.sampler == "tpe", request.options.out, options.jobs
    free_options = _free_options(request)
    grid, sampled = (
        space_of(texts, flag, free_options)
        for texts, flag in ((options.grid, "--grid"), (options.random, "--random"))
    )
    space = {**grid, **sampled}
    if not space or len(space) < len(grid) + len(sampled):
        raise UsageError("name the options to vary, each once: --grid NAME=VALUE,VALUE or --random")
    if bool(options.draws) != (tpe or bool(sampled)):
        raise UsageError("--random and --draws go together: what to sample, and how often")

    def request_at(point: Mapping[str, Any], name: str) -> TrainRequest:
        values = {
            key: convert(read_value(str(v)), _option_named(key, free_options).kind)
            for key, v in point.items()
        }
        shared = {**vars(request.options), **request.parameters, "out": out / "runs" / name}
        return TrainRequest.of(request.method, {**shared, **values})

    sampling = optuna.create_study(sampler=optuna.samplers.RandomSampler(options.draw_seed))
    samples = [sampling.ask(sampled).params for _ in range(options.draws if sampled else 1)]
    cells = [dict(zip(grid, c)) for c in itertools.product(*(g.choices for g in grid.values()))]
    points = [] if tpe else [{**cell, **one} for one in samples for cell in cells]
    points = list({json.dumps(point): point for point in points}.values())
    for point in points:
        request_at(point, "").check()  # before torch is loaded
    with redirect_stderr(io.StringIO()):  # notes come when a run trains
        for point in points:
            request_at(point, "").composed()
    _require_same_sweep(request, {*space})
    study = optuna.create_study(
        storage=f"sqlite:///{out / 'sweep.db'}",
        study_name="sweep",
        sampler=optuna.samplers.TPESampler(seed=options.draw_seed),
        direction="minimize" if by == "loss" else "maximize",
        load_if_exists=True,
    )
    state = optuna.trial.TrialState
    lines = [e.user_attrs["line"] for e in study.get_trials(states=(state.COMPLETE,))]
    done = [e for e in lines if tpe or e["point"] in points]
    done = [line for line in done if _is_there(line, request, out / "runs" / line["name"])]
    yield from done
    todo = [point for point in points if point not in [line["point"] for line in done]]
    left, ahead = max(0, options.draws - len(done)) if tpe else len(todo), iter(todo)
    note(f"{counted(left, 'run')} of {request.method} -> {out}/runs")
    from compoclip.workers import at_once  # with multiprocessing

    while left > 0:
        trials, tasks = dict[str, Any](), []
        for _ in range(min(left, jobs) if tpe else left):
            # Values known beforehand are no parameters of the study: these cannot grow.
            trial, left = study.ask(space if tpe else None), left - 1
            point = trial.params if tpe else next(ahead)
            name = run_name(point, trial.number if tpe else None)
            trials[name] = (trial, point)
            tasks.append(request_at(point, name))
        with at_once(jobs) as apply:
            for line in apply(run_one, tasks):
                trial, line["point"] = trials[line["name"]]
                trial.set_user_attr("line", line)
                error, value = line["error"], line["scores"].get(by, line["loss"])
                study.tell(trial, None if error else value, state.FAIL if error else None)
                note(f"{line['name']}: {f'failed: {error}' if error else 'done'}")
                yield line


def run_name(point: Mapping[str, Any], number: int | None = None) -> str:
    """Return the folder name of a run: its values as far as they fit, and a hash of all of them.

    number: of the trial, where a sampler may choose a point twice.
    """
    parts = (f"{key.replace('_', '-')}-{value}" for key, value in point.items())
    words = re.sub(r"[^\w.@+-]+", "-", "_".join(parts)).strip("-.")[:80]
    return f"{words}-{bytes_hash(json.dumps([point, number]).encode())[:8]}"


def _is_there(line: Mapping[str, Any], request: TrainRequest, folder: Path) -> bool:
    """Return whether the model that a line is about is there; what is left without it is removed.

    Raises CompoclipError for another model in its place.
    """
    written = folder / ("model" if request.options.merge else "adapter")
    if not written.exists():
        shutil.rmtree(folder, ignore_errors=True)
        return False
    if line.get("content") != content_hash(written):
        raise CompoclipError(
            f"{written}: was changed after the sweep made it; move {folder} to another place, and "
            "the same command makes it anew"
        )
    return True


def _optuna() -> Any:
    optuna = optional("optuna", "sweep", "a sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _require_same_sweep(request: TrainRequest, varied: set[str]) -> None:
    """Raise UsageError when the folder holds a sweep of other settings, data or local files."""
    from compoclip.data.fingerprint import FILE, Fingerprint
    from compoclip.data.sources.open import request_of

    options, out = request.options, request.options.out
    free = {field.name for field in fields(RunSettings)} - {*options.decisive()}
    values = parsed_config(request.text(repeats=True), out)
    values = {k: v for k, v in values.items() if k not in varied | free | {"relative_to"}}
    for name in ("model", "teacher", "image_weights"):
        if name not in varied and (value := getattr(options, name)) and Path(value).exists():
            values[f"content of {name}"] = content_hash(Path(value))
    if options.on:
        benchmarks = options.measuring().benchmarks()
        values["items of"] = {benchmark.name: benchmark.data_hash for benchmark in benchmarks}
    data = request_of(options.data, options).open().fingerprint()
    now = Fingerprint({**values, **request.composed().sources, **data.values}, data.rows)
    if (out / FILE).exists():
        require_same(out, Fingerprint.load(out).differences(now), "is of another sweep")
    now.save(out)
