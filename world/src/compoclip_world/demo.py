"""`compoclip demo`: fine-tune the bundled model three ways, offline; measure, and report."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from compoclip import console
from compoclip.cli.options import Outcome
from compoclip.config import MethodName, ModelName, OutputFolder, require_distinct
from compoclip.differences import require_same
from compoclip.errors import CompoclipError, RunInterruptedError, UsageError
from compoclip.files import content_hash, only_writer, require_writable
from compoclip.interrupts import PARENT, signal_of
from compoclip.methods.optim import Optim
from compoclip.printed import Table
from compoclip.programs.run import EvaluateOptions
from compoclip.ranks import silent
from compoclip.training.log import LOG, read_log
from compoclip.typed import Count
from compoclip.workers import available_cores

if TYPE_CHECKING:
    from compoclip.evaluation.results import Results
    from compoclip.models.checkpoint import LoadedModel

BASE = "base"
_SETTINGS = ("model", "scenes", "items_per_task", "epochs", "batch_size", "lr", "seed")
_PRODUCT = 0.0112
"""Seconds of the product in `_announce` on two idle cores of an AMD EPYC, one of which takes:"""
_SCENE, _CACHED = 0.7e-3, 2.2e-3
"""seconds to draw a scene, and to parse its caption and encode its image,"""
_ITEM, _BASE, _BOUNDS = 0.07, 0.08, 0.016
"""to draw a test item of every sub-task, and to measure the base and the bounds on it,"""
_MEASURED, _REPORTED = 0.022, 0.045
"""to measure another model on it, and to report it,"""
_START = 6.0
"""to start a training and read its data,"""
_TRAINING = {"clip-ft": 1.0e-3, "negclip": 1.7e-3, "fsc-clip": 4.2e-3, "compo": 5.7e-3}
"""and to train on a sample by each method."""
_FIRST, _TRAINED = "training, measuring the base", "training and measuring"
Stage = Callable[[str, float], None]
"""Says which stage of the demo runs, and the share of it that is done."""
_HEADLINES = {  # (benchmark, sub-task): what it asks
    ("world-foils", "bind_colour"): "exchanged colours",
    ("world-foils", "negation"): "negation, wordings of training",
    ("world-foils", "negation_missing"): 'negation, "X is missing"',
    ("world-confusable", "t2i"): "look-alikes, text to image",
    ("world-confusable", "i2t"): "look-alikes, image to text",
    ("world-retrieval-style", "t2i"): "captions' style, text to image",
    ("world-retrieval-style", "i2t"): "captions' style, image to text",
    ("world-retrieval", "t2i"): "base's style, text to image",
    ("world-retrieval", "i2t"): "base's style, image to text",
}


@dataclass(frozen=True)
class DemoOptions:
    """Fine-tune the bundled model on drawn scenes with several methods, and write a report.

    OUT gets data/ and suite/ (scenes, captions, benchmarks), runs/METHOD/model (checkpoints),
    results/, bounds/ (results of an oracle and of a text-only model),
    report.html and tables/ (Markdown, LaTeX, CSV). The same command resumes an interrupted demo.

    Args:
        out: Folder for everything.
        methods: Recipes to compare. All start from the same model and see the same samples.
        model: The model to fine-tune.
        scenes: Training scenes.
        items_per_task: Test items per sub-task.
        epochs: Passes over the training scenes.
        batch_size: Images per step.
        lr: Peak learning rate.
        seed: Seed of scenes, order and rewrites.
        json: Print the results as JSON.
    """

    out: OutputFolder = Path("demo-out")
    methods: tuple[MethodName, ...] = ("clip-ft", "negclip", "fsc-clip")
    model: ModelName = "bundled"
    scenes: Count = 16000
    items_per_task: Count = 500
    epochs: float = 2.0
    batch_size: int = 128
    lr: float = 1e-3
    seed: int = 0
    json: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for settings that no training can use."""
        Optim(self.epochs, self.batch_size, self.lr)
        require_distinct("methods", self.methods)
        if not self.methods:
            raise UsageError("--methods: name one at least, such as negclip")
        if self.batch_size > self.scenes:
            raise UsageError(
                f"--batch-size {self.batch_size}: more than the scenes to train on; give "
                f"{self.scenes} at most, or more --scenes"
            )


def main(options: DemoOptions) -> Outcome:
    """Run the stages in order, print the table, name the report."""
    require_writable(options.out)
    with only_writer(options.out, folder=True):
        return _run(options)


def _run(options: DemoOptions) -> Outcome:
    started = time.monotonic()
    _require_same_demo(options)
    if not (options.out / "results").is_dir():
        _announce(options)
    with _progress(options) as stage:
        _write_world(options, stage)
        suite = _train_and_measure(options, stage)
        stage("report", 0.0)
        with silent():
            report = _report(options, suite.models)
    from compoclip.evaluation.closing import change_text
    from compoclip.evaluation.grounded import ground_all
    from compoclip.evaluation.results import by_model
    from compoclip.evaluation.tables import overview_table

    bounds = suite.bounds
    results = [result for name in (BASE, *options.methods) for result in suite.results[name]]
    grounded = ground_all(by_model(results), bounds)
    record = {
        "report": str(report),
        "results": grounded.results_json(results),
        "bounds": [asdict(bound) for bound in bounds],
    }
    minutes = (time.monotonic() - started) / 60
    return record, (
        overview_table(results, BASE, grounded=grounded),
        _headlines(results, bounds),
        console.prose(
            f"{model}: {change_text(gain)}." for model, gain in grounded.differences.items()
        ),
        f"All scores, with examples: {report}   ({minutes:.1f} minutes)\n"
        "Next, with your own photos: "
        "compoclip tune captions.csv --images photos/ --model MODEL --out tuned",
    )


def _stages(options: DemoOptions) -> dict[str, float]:
    """Return what is done in order, and how many seconds each takes (`_PRODUCT`)."""
    items, cores = options.items_per_task, available_cores()
    first = items * _BASE
    runs = [_run_seconds(options, method) for method in options.methods]
    cached = options.scenes * _CACHED
    # One process measures, and no training is split among cores.
    measured = first + items * (_BOUNDS + len(runs) * _MEASURED)
    work = first + items * _BOUNDS + cached + sum(runs)
    whole = max(cached + max(runs), measured, work / cores)
    return {
        "drawing scenes": options.scenes * _SCENE / cores,
        "drawing tests": items * _ITEM / cores,
        _FIRST: first,
        _TRAINED: whole - first,
        "report": items * _REPORTED,
    }


def _run_seconds(options: DemoOptions, method: str) -> float:
    """Return what it takes to train and to measure a method, on one core."""
    samples = options.scenes * options.epochs
    return _START + samples * _cost(method) + options.items_per_task * _MEASURED


@contextmanager
def _progress(options: DemoOptions) -> Iterator[Stage]:
    """Show one bar for the whole demo, on a terminal, and else a line every ten seconds."""
    stages = _stages(options)
    whole = sum(stages.values())
    started = time.monotonic()
    last = -math.inf
    bar = console.progress_bar() if sys.stderr.isatty() else None
    task = bar.add_task("", total=whole) if bar else None

    def stage(name: str, share: float) -> None:
        nonlocal last
        names = list(stages)
        done = sum(stages[other] for other in names[: names.index(name)]) + share * stages[name]
        now = time.monotonic()
        if bar and task is not None:
            bar.update(task, completed=done, description=name)
        elif now - last >= 10:
            last = now
            seconds = (now - started) / done * (whole - done) if done else 0.0
            left = f", {console.duration(seconds)} left" if done else ""
            console.note(f"{name}: {100 * done / whole:.0f} % of the demo done{left}")

    with bar or nullcontext():
        yield stage


def _announce(options: DemoOptions) -> None:
    """Print how long the demo takes here, judged by how fast this machine multiplies matrices."""
    import numpy as np

    matrix = np.ones((1024, 1024), np.float32)
    seconds = []
    for _ in range(12):
        started = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - started)
    expected = sum(_stages(options).values()) * statistics.median(seconds) / _PRODUCT
    console.note(
        f"draws {console.counted(options.scenes, 'scene')}, trains "
        f"{console.counted(len(options.methods), 'model')} and measures them, in about "
        f"{console.duration(expected)} if this machine stays as busy as it is now"
    )


def _headlines(results: Sequence[Results], bounds: Sequence[Results]) -> Table:
    """Return a table of what the demo is about: a row per question, a column per model."""
    from compoclip.evaluation.comparison import compare_all
    from compoclip.evaluation.numerals import SIGNS, percent
    from compoclip.evaluation.results import by_benchmark, by_model
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip_world.bounds import TEXT_ONLY

    base, *tuned = by_model(results).values()
    blind = by_benchmark(by_model(bounds)[TEXT_ONLY])
    changes = {
        (comparison.other, d.benchmark, d.name): d
        for comparison in compare_all(base, tuned, Bootstrap(resamples=0))
        for d in comparison.subtasks
    }
    named = by_benchmark(base)
    rows = []
    for (benchmark, task), question in _HEADLINES.items():
        if benchmark in named and task in named[benchmark].scores:
            differences = [changes[models[0].model, benchmark, task] for models in tuned]
            cells = [f"{percent(d.other)}{SIGNS.get(d.verdict, ' ')}" for d in differences]
            seen = blind.get(benchmark)
            without = percent(seen.main(task).value) if seen and task in seen.scores else "-"
            rows.append([question, percent(named[benchmark].main(task).value), *cells, without])
    header = ["percent right", BASE, *(models[0].model for models in tuned), "captions alone"]
    notes = [f"+ / -: higher / lower than {BASE} (paired, p < 0.05, Holm's correction)"]
    return Table(rows, header, notes=notes)


def _require_same_demo(options: DemoOptions) -> None:
    """Raise UsageError when the folder holds a demo of other options; methods may be added."""
    from compoclip.data.fingerprint import FILE, Fingerprint

    values = {name: getattr(options, name) for name in _SETTINGS}
    values["content of model"] = content_hash(Path(options.model))
    now = Fingerprint(values)
    if any((options.out / name).exists() for name in (FILE, "data", "suite", "runs")):
        differences = Fingerprint.load(options.out).differences(now)
        require_same(options.out, differences, "is of another demo")
    now.save(options.out)


def _write_world(options: DemoOptions, stage: Stage) -> None:
    """Training scenes and the test suite, unless they are there already."""
    from compoclip_world.dataset import (
        TrainingSet,
        bundled_world,
        crowded,
        has_training_set,
        write_training_set,
    )
    from compoclip_world.export.part import SuiteSpec
    from compoclip_world.export.suite import has_suite, write_suite

    data, suite = options.out / "data", options.out / "suite"
    world = bundled_world()
    # Four shards keep up to four cores busy to the end.
    shard = max(1, math.ceil(options.scenes / 4))
    spec = TrainingSet(crowded(world), options.scenes, options.seed, captions=1, shard_size=shard)
    core = SuiteSpec(world, options.items_per_task, options.seed)
    if not has_training_set(data, spec):
        stage("drawing scenes", 0.0)
        with silent():
            write_training_set(data, spec, available_cores())
    if not has_suite(suite, core):
        stage("drawing tests", 0.0)
        with silent():
            write_suite(suite, core, available_cores())


class _Suite:
    """The test suite, read once for all models, and what this process measures on it.

    Attributes:
        benchmarks: Those of the suite.
        models: The measured models by name.
        results: The results of these models by name.
        bounds: The results of an oracle and of a text-only model.
    """

    def __init__(self, options: DemoOptions) -> None:
        self._options, self._out = options, options.out
        measuring = EvaluateOptions(on=(str(self._out / "suite"),), device="cpu")
        self.benchmarks = measuring.benchmarks()
        self._settings, _ = measuring.settings(cache=self._out / "results" / ".features")
        self.models: dict[str, LoadedModel] = {}
        self.results: dict[str, list[Results]] = {}
        self.bounds: list[Results] = []

    def measure(self, name: str, spec: str) -> None:
        """Measure a model, or read its results where it has been measured."""
        from compoclip.evaluation.encoder import ModelEncoder
        from compoclip.evaluation.run import evaluate
        from compoclip.models.checkpoint import load_model

        model, out = load_model(spec), self._out / "results"
        self.models[name] = model
        self.results[name] = evaluate(
            name, ModelEncoder(model), self.benchmarks, out, self._settings
        )

    def measure_trained(self, method: str) -> None:
        """Measure the model that a method has trained, and note its results in its card."""
        from compoclip.evaluation.results import card_rows
        from compoclip.models.formats.hub import write_card

        folder = _model_folder(self._options, method)
        self.measure(method, str(folder))
        write_card(folder, card_rows(self.results[method], self.models[method].identity))

    def measure_bounds(self) -> None:
        """Measure the bounds of the suite's numbers."""
        from compoclip.data.sources.open import open_source
        from compoclip_world.bounds import ORACLE, TEXT_ONLY, measure_bound

        suite, out, settings = self._out / "suite", self._out / "bounds", self._settings
        settings = replace(settings, cache=None)
        captions = open_source(str(self._out / "data")).captions()
        for name in (TEXT_ONLY, ORACLE):
            self.bounds += measure_bound(
                name, suite, self.benchmarks, captions, self.models[BASE], out, settings
            )


class _Trainings:
    """The trainings that a demo lacks, each in a process that prints to runs/METHOD.log.

    The one that takes longest starts first: of the default methods it alone needs the patches of
    images, and the others read the features that it has cached.

    Attributes:
        waiting: Methods whose training has not started.
        running: Method -> the process that trains it.
        threads: Of every process, and of this one while it measures.
    """

    def __init__(self, options: DemoOptions) -> None:
        untrained = (m for m in options.methods if not _model_folder(options, m).is_dir())
        self.waiting = sorted(untrained, key=_cost)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._options, cores = options, available_cores()
        # Small matrices: two runs of one thread each do more than one run of two threads.
        self.threads = cores // max(1, min(len(self.waiting), cores))

    def start(self, most: int) -> None:
        """Start trainings until `most` are running."""
        settings = {"OMP_NUM_THREADS": str(self.threads), PARENT: str(os.getpid())}
        while self.waiting and len(self.running) < most:
            method = self.waiting.pop()
            log_path = _printed(self._options, method)
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as log:
                self.running[method] = subprocess.Popen(
                    _train_command(self._options, method),
                    env={**os.environ, **settings},
                    stdout=log,
                    stderr=log,
                )

    def ended(self) -> list[str]:
        """Return the methods whose training has ended since the last call.

        Raises CompoclipError when one has failed.
        """
        ended = [method for method, process in self.running.items() if process.poll() is not None]
        for method in ended:
            if self.running.pop(method).returncode:
                log_path = _printed(self._options, method)
                raise CompoclipError(
                    f"{method} was not trained ({_last_line(log_path)}; more in {log_path}); "
                    "the same command resumes"
                )
        return ended

    def stop(self) -> None:
        """End the processes, which save their state, as after a Ctrl-C that reached them too."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait()


def _train_and_measure(options: DemoOptions, stage: Stage) -> _Suite:
    """Train and measure what is not trained or measured yet, with all cores.

    This process measures on one core: first the base, whose features of images the other models
    read, then every model that has been trained, and the bounds when a core is free. Trainings run
    on the other cores, and on this one, too, while there is no model to measure.
    """
    cores, is_new = available_cores(), not (options.out / "runs").is_dir()
    trainings = _Trainings(options)
    unmeasured = [method for method in options.methods if method not in trainings.waiting]
    try:
        stage(_FIRST, 0.0)
        trainings.start(cores - 1)
        with _threads(trainings.threads):
            with silent():
                suite = _Suite(options)
                suite.measure(BASE, options.model)
            if is_new:
                console.note(_first_scene(suite))
            before = _trained(options)
            while unmeasured or trainings.waiting or trainings.running or not suite.bounds:
                trainings.start(cores - 1 if unmeasured else cores)
                with silent():
                    if unmeasured:
                        suite.measure_trained(unmeasured.pop(0))
                    elif len(trainings.running) < cores and not suite.bounds:
                        suite.measure_bounds()
                    else:
                        time.sleep(0.2)
                unmeasured += trainings.ended()
                stage(_TRAINED, (_trained(options) - before) / max(1e-9, 1 - before))
    except KeyboardInterrupt as error:
        raise RunInterruptedError(
            "interrupted; the same command resumes", signal_of(error)
        ) from None
    finally:
        trainings.stop()
    return suite


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with so many threads inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _printed(options: DemoOptions, method: str) -> Path:
    """Return the file of what the training of a method prints."""
    return options.out / "runs" / f"{method}.log"


def _model_folder(options: DemoOptions, method: str) -> Path:
    """Return the folder of the model that a method trains."""
    return options.out / "runs" / method / "model"


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "it printed nothing"


def _trained(options: DemoOptions) -> float:
    """Return how much of training and measuring is done, as a share of its processor time."""
    steps = max(1, round(options.epochs * (options.scenes // options.batch_size)))
    measuring = options.items_per_task * _MEASURED
    done = 0.0
    for method in options.methods:
        log = options.out / "runs" / method / LOG
        records = read_log(log) if log.is_file() else []
        share = records[-1]["step"] / steps if records else 0.0
        done += share * (_run_seconds(options, method) - measuring)
        if (options.out / "results" / method).is_dir():
            done += measuring
    return min(1.0, done / sum(_run_seconds(options, method) for method in options.methods))


def _cost(method: str) -> float:
    return _TRAINING.get(method, max(_TRAINING.values()))


def _first_scene(suite: _Suite) -> str:
    """Return the first scene of exchanged colours in words, and what the base makes of it."""
    from compoclip.evaluation.encoder import ModelEncoder

    name, task = next(iter(_HEADLINES))
    (foils,) = (benchmark for benchmark in suite.benchmarks if benchmark.name == name)
    case = next(case for case in foils.content.cases if case.subtask == task)
    encoder = ModelEncoder(suite.models[BASE])
    (image,) = encoder.encode_images([encoder.read_image(case.images[0])])
    (right, *_), (wrong, *_) = case.sides
    texts = case.texts[right], case.texts[wrong]
    caption, foil = encoder.encode_texts(texts) @ image
    return (
        f'the first scene, {case.images[0].path}: "{texts[0]}" is true and "{texts[1]}" is false; '
        f"the base scores them {caption:.3f} and {foil:.3f}, which is "
        f"{'right' if caption > foil else 'wrong'}"
    )


def _train_command(options: DemoOptions, method: str) -> list[str]:
    """`compoclip train` with one set of hyper-parameters for every method; the papers' are for
    150 M parameters. Losses are those of the papers, which leave no equal captions out.

    The image tower is frozen, so its features are computed once. On a CPU in float32, the default:
    processors do not agree on what bfloat16 gives.
    """
    run = options.out / "runs" / method
    return [
        *(sys.executable, "-m", "compoclip", "train", method),
        *("--model", options.model, "--data", str(options.out / "data")),
        *("--out", str(run), *(["--resume"] if (run / "state").is_dir() else [])),
        *("--freeze", "image", "--no-crop", "--cache-frozen"),
        *("--epochs", str(options.epochs), "--batch-size", str(options.batch_size)),
        *("--lr", str(options.lr), "--warmup", "20"),
        # The run that takes longest samples its texts in another process.
        *("--workers", "1" if method == max(options.methods, key=_cost) else "0"),
        *("--seed", str(options.seed), "--set", "save_every=100", "log_every=5"),
        *("clip_grad=1", "mask_duplicates=false"),
    ]


def _report(options: DemoOptions, models: Mapping[str, LoadedModel]) -> Path:
    from compoclip.report.write import write_report

    methods = console.counted(len(options.methods), "method")
    return write_report(
        [options.out / "results"],
        options.out / "report.html",
        bounds=[options.out / "bounds"],
        runs=[options.out / "runs" / method for method in options.methods],
        base=BASE,
        maps=models,
        tables=options.out / "tables",
        title=f"compoclip demo: {methods} on the bundled world",
    )
