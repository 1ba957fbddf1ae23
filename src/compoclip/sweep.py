"""Sweeps: many runs of a method over a grid or drawn settings, one table, one report."""

from __future__ import annotations

import csv
import io
import itertools
import math
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, dataclass, field, fields, replace
from multiprocessing import current_process
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from compoclip import console
from compoclip.config import (
    CONFIG,
    RELATIVE_TO,
    Option,
    OptionMark,
    as_kind,
    checked,
    closest,
    flat,
    options_of,
    parsed_config,
    read_config,
    read_value,
    require,
)
from compoclip.corpora.run import Engine
from compoclip.corpora.run import run as carried_out
from compoclip.data.fingerprint import Fingerprint, listed
from compoclip.errors import CompoclipError, RunInterruptedError, UsageError, printable
from compoclip.files import only_writer, require_writable, write_text
from compoclip.interrupts import signal_of
from compoclip.methods.registry import load_recipe
from compoclip.own import fence
from compoclip.ranks import device_named, launched
from compoclip.request import TrainRequest
from compoclip.run import (
    CHOSEN,
    EvaluateOptions,
    TrainOptions,
    evaluate,
    require_least,
    train,
)
from compoclip.training.settings import RunSettings
from compoclip.workers import available_cores

if TYPE_CHECKING:
    from compoclip.data.pack import Request

Headline = tuple[float, float | None, float | None]
BASE = "base"
LOSS = "loss"
TABLE = "sweep.csv"  # in OUT
_FEWEST_TRIES = 100  # draws in search of a combination that was not drawn yet


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Train a method with several settings, measure each, and show which is best.

    Every other option of train and of the method is the same for all runs. OUT/runs/NAME gets a
    run, with the file that repeats it; OUT/results what was measured; OUT/sweep.csv and
    OUT/report.html all of them. What is finished is not done again: the same command goes on, also
    with more values or draws. A run that fails is named in the table and does not stop the others.

    Examples:
        compoclip sweep fsc-clip --data world/train --grid lr=1e-4,5e-4 seed=0,1 --on world/suite
        compoclip sweep negclip --data d.tsv --random lr=log:1e-6..1e-4 --draws 8 --grid seed=0,1
        compoclip sweep --config sweep.yaml

    Args:
        out: Folder for everything.
        grid: NAME=VALUE,VALUE,...: each combination of these values is a run.
        random: NAME=LOW..HIGH, NAME=log:LOW..HIGH (evenly on a log scale) or NAME=VALUE,VALUE,...:
            --draws combinations are drawn, and each is run with all of --grid.
        draws: Combinations of --random.
        draw_seed: Another seed, other draws; more draws with the same seed keep the first ones.
        on: Benchmarks to measure every run on, named as for evaluate.
        eval_data: Data root of these benchmarks in the default layout.
        eval_images: Folder with their photos, when it is not in that data root.
        allow_partial: Measure on what is there of them when images or items are missing.
        sort_by: Benchmark by whose headline the table is sorted, or loss; unless given, the first
            benchmark.
        jobs: Runs at once, each in a process of its own, which reads its data itself.
        engine: Where jobs run: processes of this machine, or tasks of a Ray cluster, a core each
            and no GPU: the one that RAY_ADDRESS names, which sees OUT and the data under the same
            paths, else one here.
        json: Print the table as JSON.
    """

    out: Path
    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUES ...")] = ()
    random: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUES ...")] = ()
    draws: int = 0
    draw_seed: int = 0
    on: Annotated[tuple[str, ...], tyro.conf.arg(metavar="BENCHMARK ...")] = ()
    eval_data: Path = Path("data")
    eval_images: Path | None = None
    allow_partial: bool = False
    sort_by: str | None = None
    jobs: int = 1
    engine: Engine = "local"
    json: bool = False


def own_options() -> dict[str, Option]:
    """The options of a sweep; in a file --grid and --random may be mappings, too."""
    lists = {name: Option(dict | tuple[str, ...], ()) for name in ("grid", "random")}
    return {**options_of(SweepOptions), **lists}


def held_options() -> dict[str, Any]:
    """The options of train that a sweep says itself or that make no sense in one, with values."""
    own = own_options()
    return {
        name: Path() if option.default is MISSING else option.default
        for name, option in options_of(TrainOptions).items()
        if name in own or option.marked(OptionMark.ONCE)
    }


# --- Which runs there are: a grid, drawn combinations, or both. ---


@dataclass(frozen=True)
class DrawnRange:
    """Numbers from low to high, on a log scale or not, whole or not."""

    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, draws: random.Random) -> float | int:
        """One of them, of three digits."""
        if self.log:
            found = math.exp(draws.uniform(math.log(self.low), math.log(self.high)))
        else:
            found = draws.uniform(self.low, self.high)
        return round(found) if self.whole else min(self.high, max(self.low, float(f"{found:.3g}")))


Values = DrawnRange | tuple[Any, ...]
_RANGE = re.compile(r"(log:)?([^.]\S*?|\.\d\S*?)\.\.(\S+)")


def space_of(
    texts: Sequence[str], option: str, known: Mapping[str, Option], ranges: bool
) -> dict[str, Values]:
    """What --grid or --random says, by name.

    texts: NAME=VALUE,VALUE,..., NAME=[YAML list] or, where there may be ranges, NAME=LOW..HIGH.
    known: What may be varied. Raises UsageError for other names, and values of another type.
    """
    found: dict[str, Values] = {}
    for text in texts:
        spelled, equals, said = text.partition("=")
        name, where = spelled.replace("-", "_"), f"{option} {spelled}"
        if not equals or not said:
            raise UsageError(f"{option} {text}: write NAME=VALUE,VALUE,...")
        if name not in known:
            raise UsageError(f"{where}: no such option to vary; {closest(name, known)}")
        if name in found:
            raise UsageError(f"{where}: is there twice; put all values behind one")
        kind = known[name].kind
        match = _RANGE.fullmatch(said) if ranges else None
        if match:
            found[name] = _range(match, where, known[name])
            continue
        listed = read_value(said) if said.startswith("[") else None
        if not isinstance(listed, list):
            listed = [read_value(each) for each in said.split(",")]
        values = tuple(dict.fromkeys(as_kind(each, kind) for each in map(_hashable, listed)))
        for value in values:
            require(where, value, kind)
        found[name] = values
    return found


def _range(match: re.Match[str], where: str, option: Option) -> DrawnRange:
    low, high = (as_kind(read_value(match[k]), float) for k in (2, 3))
    for bound in (low, high):
        require(where, bound, float)
    numbers = option.types & {int, float}
    if not numbers:
        raise UsageError(f"{where}: is no number, so that it has no range; name its values")
    if not (0 if match[1] else -math.inf) < low < high < math.inf:
        above = ", above 0" if match[1] else ""
        raise UsageError(f"{where}: a range is LOW..HIGH with LOW below HIGH{above}, both finite")
    return DrawnRange(low, high, bool(match[1]), whole=float not in numbers)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def points(
    grid: Mapping[str, Values], drawn: Mapping[str, Values], draws: int, seed: int
) -> list[dict[str, Any]]:
    """The values of each run: all of the grid for every drawn combination."""
    combinations: list[dict[str, Any]] = []
    generator = random.Random(seed)
    for _ in range(draws * _FEWEST_TRIES if drawn else 0):
        one = {
            name: each.draw(generator) if isinstance(each, DrawnRange) else generator.choice(each)
            for name, each in drawn.items()
        }
        if one not in combinations:
            combinations.append(one)
        if len(combinations) == draws:
            break
    if drawn and len(combinations) < draws:
        console.note(f"there are but {len(combinations)} combinations to draw, not {draws}")
    choices = [values for values in grid.values() if isinstance(values, tuple)]
    every = [dict(zip(grid, chosen)) for chosen in itertools.product(*choices)]
    return [{**one, **cell} for one in combinations or [{}] for cell in every]


def names_of(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for the folder of each run, after its values."""
    names: list[str] = []
    for point in found:
        parts = [f"{name.replace('_', '-')}-{spelled(value)}" for name, value in point.items()]
        name = re.sub(r"[^\w.@+-]+", "-", "_".join(parts)).strip("-.")[:100] or "run"
        same = sum(each == name or each.startswith(f"{name}--") for each in names)
        names.append(f"{name}--{same + 1}" if same else name)
    return names


def spelled(value: Any) -> str:
    """A value as the table shows it."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- Carrying them out. ---


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep, as a worker gets it: plain data.

    point: the values in which it differs from the others. values: all, by name. threads: of torch;
    0 leaves them as they are.
    """

    name: str
    method: str
    point: Mapping[str, Any]
    values: Mapping[str, Any]
    measuring: EvaluateOptions
    threads: int = 0

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.values["out"])


@dataclass
class SweepLine:
    """What became of a run: a line of the table.

    scores: benchmark -> headline, a share of 1, with its interval. error: why there are none.
    """

    name: str
    point: Mapping[str, Any]
    loss: float | None = None
    scores: dict[str, Headline] = field(default_factory=dict)
    error: str = ""


def sweep(options: SweepOptions, request: TrainRequest) -> SweepTable:
    """Train and measure what is left to do; write OUT/sweep.csv and OUT/report.html.

    Args:
        options: What is varied, how it is measured and carried out.
        request: The run that all are made of, with the options that a sweep shares.

    Returns:
        What became of all runs.

    Raises:
        UsageError: For options that do not go together, and a folder of runs with other settings.
        RunInterruptedError: When it is interrupted; the same call goes on.
    """
    if launched()[1] > 1:
        raise UsageError("a sweep starts its runs by itself: call it without torchrun")
    require_least(1, options, "jobs")
    require_least(0, options, "draws", "draw_seed")
    if bool(options.random) != bool(options.draws):
        raise UsageError("--random and --draws go together: what to draw, and how often")
    if not (options.grid or options.random):
        raise UsageError("name what to vary: --grid NAME=VALUE,VALUE or --random NAME=LOW..HIGH")
    known = options_of(TrainOptions, load_recipe(request.method))
    held = held_options()
    known = {name: known[name] for name in known if name not in held}
    grid = space_of(options.grid, "--grid", known, ranges=False)
    drawn = space_of(options.random, "--random", known, ranges=True)
    twice = next((name for name in drawn if name in grid), None)
    if twice is not None:
        raise UsageError(f"--random {twice}: is in --grid already; vary it in one way")
    found = points(grid, drawn, options.draws, options.draw_seed)
    if options.engine == "ray" and device_named(request.options.device).type != "cpu":
        raise UsageError("--engine ray gives its tasks no GPU: add --device cpu, or leave it out")
    require_writable(options.out)
    measuring = EvaluateOptions(
        on=options.on,
        data=options.eval_data,
        images=options.eval_images,
        allow_partial=options.allow_partial,
        device=request.options.device,
        out=options.out / "results",
        cache=options.out / "results" / ".features",
    )
    benchmarks = [each.name for each in measuring.benchmarks()] if options.on else []
    sort_by = options.sort_by or next(iter(benchmarks), LOSS)
    if sort_by not in (*benchmarks, LOSS):
        raise UsageError(f"--sort-by {sort_by}: there is {', '.join([*benchmarks, LOSS])}")

    fixed = _values(request)
    threads = max(1, available_cores() // options.jobs) if options.jobs > 1 else 0
    runs = [
        SweepRun(
            name,
            request.method,
            point,
            {**fixed, **point, "out": options.out / "runs" / name},
            measuring,
            threads,
        )
        for name, point in zip(names_of(found), found)
    ]
    _require_possible(runs)
    with only_writer(options.out, folder=True):
        read: dict[Request, Fingerprint] = {}
        for each in runs:
            require_same_run(each, read)
        folder = f"{options.out}/runs"
        console.note(f"{console.counted(len(runs), 'run')} of {request.method} -> {folder}")
        done = _all(runs, options)
        lines = [done[each.name] for each in runs]
        one_base = not (request.options.from_scratch or {"model", "from_scratch"} & {*grid, *drawn})
        base = request.options.model if one_base else None
        return _tabled(options, lines, measuring, base, sort_by)


def _require_possible(runs: Sequence[SweepRun]) -> None:
    """Raise UsageError for a value that no run can have, whatever the other values."""
    wrong: dict[str, CompoclipError] = {}
    right = set[str]()
    for run in runs:
        values = [f"{name} {spelled(value)}" for name, value in run.point.items()]
        try:
            with redirect_stderr(io.StringIO()):  # notes come when it trains
                TrainRequest.of(run.method, run.values).composed()
            right.update(values)
        except CompoclipError as error:
            wrong |= dict.fromkeys(values, error)
    first = next((each for each in wrong if each not in right), None)
    if first is not None:
        raise UsageError(f"{first}: {wrong[first]}")


def _values(request: TrainRequest) -> dict[str, Any]:
    """All that is given of a request, by name; options of `CHOSEN` where they were chosen."""
    options = {each.name: getattr(request.options, each.name) for each in fields(TrainOptions)}
    parameters = flat(request.parameters)
    unset = {*CHOSEN}.difference(request.given)
    return {**options, **{k: v for k, v in parameters.items() if k not in unset}}


def require_same_run(run: SweepRun, read: dict[Request, Fingerprint]) -> None:
    """Raise UsageError when the folder holds a run of other settings, data or local files.

    Settings that change no weights, such as the device, may be others. read: the fingerprints of
    data so far.
    """
    file = run.folder / CONFIG
    if not file.is_file():
        return
    request = TrainRequest.of(run.method, run.values)
    known = {"method": Option(str, ""), **options_of(TrainOptions, load_recipe(run.method))}
    there, now = (
        checked(file, {k: v for k, v in found.items() if k in {*known, RELATIVE_TO}}, known, "it")
        for found in (read_config(file), parsed_config(request.text(repeats=True), file))
    )
    free = {each.name for each in fields(RunSettings)} - set(request.options.decisive())
    for name in known:
        one, other = there.get(name), now.get(name)
        if one != other and name not in free:
            raise UsageError(
                f"{file}: is of a run with {name} {spelled(one)}, not {spelled(other)}; choose "
                "another --out, or remove that run"
            )
    opened = request.options.request(request.options.data)
    if opened not in read:
        read[opened] = opened.open().fingerprint()
    data, sources = read[opened], request.composed().sources
    before = Fingerprint.load(run.folder)
    wanted = Fingerprint({**sources, **data.values}, data.rows)
    if differences := before.differences(wanted, whole=False):
        raise UsageError(
            f"{run.folder}: is of a run of other data or files ({listed(differences)}); choose "
            "another --out, or remove that run"
        )


def _all(runs: Sequence[SweepRun], options: SweepOptions) -> dict[str, SweepLine]:
    """What became of each run, by name; finished ones are not done again."""
    done: dict[str, SweepLine] = {}
    jobs = min(options.jobs, len(runs))
    try:
        for line in carried_out(carry_out_one, runs, jobs, options.engine):
            done[line.name] = line
            said = f"failed: {line.error}" if line.error else "done"
            console.note(f"[{len(done)}/{len(runs)}] {line.name}: {said}")
    except RunInterruptedError as error:
        raise RunInterruptedError(_GOES_ON, error.exit_code - 128) from None
    except KeyboardInterrupt as error:
        raise RunInterruptedError(_GOES_ON, signal_of(error)) from None
    except CompoclipError as error:  # of the processes: a run that takes all memory, say
        if not done:
            raise
        done |= {
            e.name: SweepLine(e.name, e.point, error=str(error)) for e in runs if e.name not in done
        }
    return done


_GOES_ON = "interrupted; the same command goes on"


def carry_out_one(run: SweepRun) -> SweepLine:
    """Train and measure, as far as it is not done yet; in a worker, or in this process."""
    line = SweepLine(run.name, run.point)
    in_worker = current_process().daemon
    try:
        with fence():
            request = TrainRequest.of(run.method, run.values)
            options = request.options
            written = run.folder / ("model" if options.merge else "adapter")
            if run.threads:
                import torch

                torch.set_num_threads(run.threads)
            if not written.exists():
                started = (run.folder / "state").is_dir()
                # workers of one that is a worker itself cannot be
                own = replace(options, resume=started, workers=0 if in_worker else options.workers)
                train(own, request.composed(), config=request.text(repeats=True))
            line.loss = _last_loss(run.folder)
            if run.measuring.on:
                line.scores = _scores(run.measuring, {run.name: str(written)})
    except RunInterruptedError:
        raise
    except Exception as error:  # the others are to be done all the same
        known = isinstance(error, CompoclipError)
        line.error = printable(str(error) if known else f"{type(error).__name__}: {error}")
    return line


def _last_loss(folder: Path) -> float | None:
    from compoclip.training.log import read_log

    losses = [each["loss"] for each in read_log(folder / "train.jsonl") if "loss" in each]
    return losses[-1] if losses else None


def _scores(measuring: EvaluateOptions, models: Mapping[str, str]) -> dict[str, Headline]:
    headlines = {each.benchmark: each.headline_score for each in evaluate(measuring, models)}
    return {name: (each.value, each.low, each.high) for name, each in headlines.items()}


# --- Table and report. ---


@dataclass(frozen=True)
class SweepTable:
    """What became of the runs of a sweep.

    Args:
        lines: The base, if it was measured, and then the runs, best first.
        sort_by: What the best is best by: a benchmark, or loss.
        report: The HTML page, where anything was measured.
    """

    lines: tuple[SweepLine, ...]
    sort_by: str
    report: Path | None

    @property
    def varied(self) -> list[str]:
        """The names of what is varied."""
        return list(dict.fromkeys(name for each in self.lines for name in each.point))

    @property
    def header(self) -> list[str]:
        """What stands above the columns of `rows`."""
        return ["run", *self.varied, LOSS, *self._benchmarks]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of each line, as they are shown."""
        return [_row(each, self.varied, self._benchmarks) for each in self.lines]

    @property
    def best(self) -> str | None:
        """The name of the best run that did not fail."""
        runs = (each.name for each in self.lines if each.name != BASE and not each.error)
        return next(runs, None)

    @property
    def failed(self) -> list[SweepLine]:
        """The runs that failed."""
        return [each for each in self.lines if each.error]

    @property
    def _benchmarks(self) -> list[str]:
        measured = (each for each in self.lines if each.name != BASE)
        return list(dict.fromkeys(name for each in measured for name in each.scores))


def _tabled(
    options: SweepOptions,
    lines: list[SweepLine],
    measuring: EvaluateOptions,
    base: str | None,
    sort_by: str,
) -> SweepTable:
    """Measure the base, write table and report."""
    ordered = sorted(lines, key=lambda each: _rank(each, sort_by))
    if base is not None and any(each.scores for each in lines):
        first = SweepLine(BASE, {})
        first.scores = _scores(measuring, {BASE: base})
        ordered.insert(0, first)
    trained = [each for each in lines if each.scores]
    report = _report(options, trained, base is not None) if trained else None
    table = SweepTable(tuple(ordered), sort_by, report)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [
            [*table.header, "error"],
            *([*row, each.error] for row, each in zip(table.rows, ordered)),
        ]
    )
    write_text(options.out / TABLE, text.getvalue())
    return table


def _rank(line: SweepLine, sort_by: str) -> tuple[bool, float]:
    """Best first; those without a value last."""
    if sort_by == LOSS:
        return (line.loss is None or bool(line.error), line.loss or 0.0)
    return (sort_by not in line.scores, -line.scores.get(sort_by, (0.0,))[0])


def _row(line: SweepLine, varied: Sequence[str], names: Sequence[str]) -> list[str]:
    from compoclip.evaluation.tables import bracketed, percent

    cells = [spelled(line.point[name]) if name in line.point else "" for name in varied]
    loss = "-" if line.loss is None else f"{line.loss:.4f}"
    scores = []
    for name in names:
        value, low, high = line.scores.get(name, (None, None, None))
        scores.append("-" if value is None else f"{percent(value)} {bracketed(low, high)}")
    return [line.name, *cells, "failed" if line.error else loss, *scores]


def _report(options: SweepOptions, trained: Sequence[SweepLine], has_base: bool) -> Path:
    from compoclip.report.write import write_report

    names = [*([BASE] if has_base else []), *(each.name for each in trained)]
    return write_report(
        [options.out / "results" / name for name in names],
        options.out / "report.html",
        runs=[options.out / "runs" / each.name for each in trained],
        base=names[0],
        title=f"Sweep: {console.counted(len(trained), 'run')}",
    )
