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
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from compoclip.checks import check_values
from compoclip.config import (
    AtOnce,
    Option,
    Seed,
    Shown,
    is_part,
    no_option,
    of_setting,
    parsed_config,
    read_value,
    require,
)
from compoclip.console import counted, note
from compoclip.differences import require_same
from compoclip.errors import (
    CompoclipError,
    RunInterruptedError,
    UsageError,
    interruption_said,
    optional,
    printable,
)
from compoclip.files import bytes_hash, content_hash
from compoclip.models.names import place_of
from compoclip.plugins import fence
from compoclip.programs.request import TrainRequest, known_options
from compoclip.programs.run import evaluate, train
from compoclip.training.settings import RunSettings
from compoclip.typed import Natural

if TYPE_CHECKING:
    from compoclip.benchmarks.case import Benchmark
    from compoclip.data.fingerprint import Fingerprint
    from compoclip.data.sources.open import Request

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
    draw_seed: Seed = 0
    sort_by: str | None = None
    jobs: AtOnce = 1


def spaces_of(
    options: SweepOptions, request: TrainRequest
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spaces of --grid and of --random, as `space_of` does, before any work.

    Raise UsageError where they do not go together or with the sampler.
    """
    grid = space_of(options.grid, "--grid", request)
    sampled = space_of(options.random, "--random", request)
    if not (grid or sampled) or grid.keys() & sampled.keys():
        raise UsageError("name the options to vary, each once: --grid NAME=VALUE,VALUE or --random")
    if bool(options.draws) != (options.sampler == "tpe" or bool(sampled)):
        raise UsageError("--random and --draws go together: what to sample, and how often")
    return grid, sampled


def space_of(texts: Sequence[str], flag: str, request: TrainRequest) -> dict[str, Any]:
    """Return the Optuna distributions of --grid or --random by name; choices stay texts.

    Raise UsageError for an unknown name, and for a value of another type or that names what is not
    there.
    """
    kinds, options = _optuna().distributions, _free_options(request)
    space: dict[str, Any] = {}
    for text in texts:
        name, _, said = text.partition("=")
        place = f"{flag} {name}"
        key = name if is_part(name) else name.replace("-", "_")
        if not said:
            raise UsageError(f"{flag} {text}: write NAME=VALUE,VALUE,...")
        if key in space:
            raise UsageError(f"{place}: is there twice")
        if key not in options and not is_part(key):
            raise UsageError(f"{place}: {no_option(key, options, str(request.method))}")
        option = options.get(key, Option(key, Any, None))  # a part of the method takes any value
        numeric = flag == "--random" and option.plain in (int, float)
        if numeric and (match := _RANGE.fullmatch(said)):
            number = kinds.IntDistribution if option.plain is int else kinds.FloatDistribution
            try:
                low, high = (option.plain(float(match[k])) for k in (2, 3))
                space[key] = number(low, high, log=bool(match[1]))
            except (ValueError, OverflowError) as error:
                raise UsageError(f"{place}: write LOW..HIGH, both finite ({error})") from None
            continue
        values = read_value(said) if said[0] == "[" else said.split(",")
        choices = [value if isinstance(value, str) else json.dumps(value) for value in values]
        for choice in choices:
            value = of_setting(choice, option.kind)
            require(place, value, option.kind)
            check_values([(option, value)], request.options)
        space[key] = kinds.CategoricalDistribution([*dict.fromkeys(choices)])
    return space


def _free_options(request: TrainRequest) -> dict[str, Option]:
    return {k: v for k, v in known_options(request.method).items() if k not in _FIXED}


def run_one(request: TrainRequest) -> dict[str, Any]:
    """Train and measure as far as it is not done; in a worker, or in this process."""
    options, name = request.options, request.options.out.name
    line = dict[str, Any](name=name, loss=None, scores={}, error="")
    written = options.written
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
    grid, sampled = spaces_of(options, request)
    space = {**grid, **sampled}

    def request_at(point: Mapping[str, Any], name: str) -> TrainRequest:
        values = {
            key: of_setting(str(v), free_options[key].kind if key in free_options else Any)
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
    from compoclip.benchmarks.files import images_hash

    benchmarks = request.options.measuring().benchmarks() if request.options.on else []
    photos = {benchmark.name: images_hash(benchmark.content.images) for benchmark in benchmarks}
    inputs = _Inputs(request)
    _require_same_sweep(request, {*space}, inputs, benchmarks)

    def name_of(point: Mapping[str, Any], number: int | None = None) -> str:
        return run_name(point, number, inputs.differing(request_at(point, "")))

    study = optuna.create_study(
        storage=f"sqlite:///{out / 'sweep.db'}",
        study_name="sweep",
        sampler=optuna.samplers.TPESampler(seed=options.draw_seed),
        direction="minimize" if by == "loss" else "maximize",
        load_if_exists=True,
    )
    state = optuna.trial.TrialState
    names = {} if tpe else {name_of(point): point for point in points}
    done = {}
    for trial in study.get_trials(states=(state.COMPLETE,)):
        line = trial.user_attrs["line"]
        number = trial.number if tpe else None
        made_from_these = line["name"] == name_of(line["point"], number)
        if made_from_these and (tpe or line["name"] in names):
            there = _is_there(line, request, out / "runs" / line["name"])
            if there and line.get("photos", {}) == photos:  # else it is measured again
                done[line["name"]] = line
    yield from done.values()
    todo = [point for name, point in names.items() if name not in done]
    left, ahead = max(0, options.draws - len(done)) if tpe else len(todo), iter(todo)
    note(f"{counted(left, 'run')} of {request.method} -> {out}/runs")
    from compoclip.workers import at_once  # with multiprocessing

    while left > 0:
        trials, tasks = dict[str, Any](), []
        for _ in range(min(left, jobs) if tpe else left):
            # Values known beforehand are no parameters of the study: these cannot grow.
            trial, left = study.ask(space if tpe else None), left - 1
            point = trial.params if tpe else next(ahead)
            name = name_of(point, trial.number if tpe else None)
            trials[name] = (trial, point)
            tasks.append(request_at(point, name))
        with at_once(jobs) as apply:
            for line in apply(run_one, tasks):
                trial, line["point"] = trials[line["name"]]
                line["photos"] = photos
                trial.set_user_attr("line", line)
                error, value = line["error"], line["scores"].get(by, line["loss"])
                study.tell(trial, None if error else value, state.FAIL if error else None)
                note(f"{line['name']}: {f'failed: {error}' if error else 'done'}")
                yield line


def run_name(
    point: Mapping[str, Any], number: int | None = None, inputs: Mapping[str, Any] | None = None
) -> str:
    """Return the folder name of a run of a sweep.

    number: of the trial, where a sampler may choose a point twice. inputs: the content of what this
    point names and other points do not.
    """
    parts = (f"{key.replace('_', '-')}-{value}" for key, value in point.items())
    return folder_name("_".join(parts), [point, number, *([inputs] if inputs else [])])


def folder_name(words: str, decisive: object) -> str:
    """Return words as far as they fit, and a hash of what decides the run, JSON-ready."""
    return f"{slug(words)}-{bytes_hash(json.dumps(decisive, default=str).encode())[:8]}"


def slug(words: str) -> str:
    """Return words as a part of a file name."""
    return re.sub(r"[^\w.@+-]+", "-", words).strip("-.")[:80]


def _is_there(line: Mapping[str, Any], request: TrainRequest, folder: Path) -> bool:
    """Return whether the model that a line is about is there; what is left without it is removed.

    Raises CompoclipError for another model in its place.
    """
    written = replace(request.options, out=folder).written
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


def _require_same_sweep(
    request: TrainRequest, varied: set[str], inputs: _Inputs, benchmarks: Sequence[Benchmark]
) -> None:
    """Raise UsageError when the folder holds a sweep of other settings, data or local files."""
    from compoclip.data.fingerprint import FILE, Fingerprint

    options, out = request.options, request.options.out
    free = {field.name for field in fields(RunSettings)} - {*options.decisive()}
    values = parsed_config(request.text(repeats=True), out)
    values = {k: v for k, v in values.items() if k not in varied | free | {"relative_to"}}
    contents = inputs.of(request)
    values |= {k: v for k, v in contents.items() if k.removeprefix(_CONTENT) not in varied}
    if benchmarks:
        values["items of"] = {benchmark.name: benchmark.data_hash for benchmark in benchmarks}
    data = inputs.data(request)
    now = Fingerprint({**values, **data.values}, data.rows)
    if (out / FILE).exists():
        require_same(out, Fingerprint.load(out).differences(now), "is of another sweep")
    now.save(out)


_CONTENT = "content of "


class _Inputs:
    """Inputs of the runs of a sweep besides their options; each file and data set is read once.

    request: what the runs share.
    """

    def __init__(self, request: TrainRequest) -> None:
        self._hash = cache(content_hash)
        self._read: dict[str, Fingerprint] = {}
        self._shared = request

    def of(self, request: TrainRequest) -> dict[str, str]:
        """Return the content of the models, files and local code that a run is made from."""
        options, method = request.options, request.composed()
        contents = dict(method.sources)
        contents |= {f"{_CONTENT}{file}": self._hash(file) for file in method.plan.files}
        for name in ("model", "teacher", "image_weights", "init_from"):
            value = getattr(options, name)
            for spec in value if isinstance(value, tuple) else (value,):
                if place := place_of(str(spec or "")):
                    contents[f"{_CONTENT}{name if spec is value else place}"] = self._hash(place)
        return contents

    def data(self, request: TrainRequest) -> Fingerprint:
        """Return the fingerprint of the data as a run reads them."""
        reading = self._reading(request)
        if repr(reading) not in self._read:
            self._read[repr(reading)] = reading.open().fingerprint()
        return self._read[repr(reading)]

    def differing(self, request: TrainRequest) -> dict[str, str]:
        """Return the contents of a run that are not those of what the runs share."""
        shared, contents = self.of(self._shared), self.of(request)
        if repr(self._reading(request)) != repr(self._reading(self._shared)):
            contents["data"] = self.data(request).digest
        return {name: value for name, value in contents.items() if shared.get(name) != value}

    @staticmethod
    def _reading(request: TrainRequest) -> Request:
        from compoclip.data.sources.open import request_of

        return request_of(request.options.data, request.options)
