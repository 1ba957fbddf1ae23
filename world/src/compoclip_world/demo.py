"""`compoclip demo`: fine-tune the bundled model four ways, offline; measure, and report."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compoclip import console
from compoclip.cli.options import Outcome
from compoclip.config import MethodName, ModelName, OutputFolder
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.differences import require_same
from compoclip.errors import CompoclipError, RunInterruptedError
from compoclip.files import content_hash, only_writer
from compoclip.interrupts import PARENT, signal_of
from compoclip.run import EvaluateOptions, evaluate
from compoclip.workers import available_cores

if TYPE_CHECKING:
    from compoclip.evaluation.results import Results
    from compoclip.models.checkpoint import LoadedModel

BASE = "base"
_SETTINGS = ("model", "scenes", "items_per_task", "epochs", "batch_size", "lr", "seed")
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
    methods: tuple[MethodName, ...] = ("clip-ft", "negclip", "fsc-clip", "compo")
    model: ModelName = "bundled"
    scenes: int = 16000
    items_per_task: int = 500
    epochs: float = 2.0
    batch_size: int = 128
    lr: float = 1e-3
    seed: int = 0
    json: bool = False


def main(options: DemoOptions) -> Outcome:
    """Run the stages in order, print the table, name the report."""
    with only_writer(options.out, folder=True):
        return _run(options)


def _run(options: DemoOptions) -> Outcome:
    started = time.monotonic()
    _require_same_demo(options)
    _write_world(options)
    _train_all(options)
    models = _models(options)
    results = _evaluate(options, models)
    bounds = _bounds(options, models[BASE])
    report = _report(options, models)
    from compoclip.evaluation.closing import change_text
    from compoclip.evaluation.grounded import ground_all
    from compoclip.evaluation.results import by_model
    from compoclip.evaluation.tables import overview_text

    grounded = ground_all(by_model(results), bounds)
    record = {
        "report": str(report),
        "results": grounded.results_json(results),
        "bounds": [asdict(each) for each in bounds],
    }
    minutes = (time.monotonic() - started) / 60
    text = "\n\n".join(
        [
            overview_text(results, BASE, grounded=grounded),
            _headlines(results, bounds),
            console.prose(
                f"{model}: {change_text(gain)}." for model, gain in grounded.differences.items()
            ),
            f"All scores, with examples: {report}   ({minutes:.1f} minutes)\n"
            "Next, with your own photos: "
            "compoclip tune captions.csv --images photos/ --model MODEL --out tuned",
        ]
    )
    return record, text


def _headlines(results: Sequence[Results], bounds: Sequence[Results]) -> str:
    """Return a table of what the demo is about: a row per question, a column per model."""
    from compoclip.evaluation.comparison import compare_all
    from compoclip.evaluation.results import by_benchmark, by_model
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip.evaluation.tables import SIGNS, laid_out, percent
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
    return laid_out(rows, header, notes=notes)


def _require_same_demo(options: DemoOptions) -> None:
    """Raise UsageError when the folder holds a demo of other options; methods may be added."""
    values = {name: getattr(options, name) for name in _SETTINGS}
    values["content of model"] = content_hash(Path(options.model))
    now = Fingerprint(values)
    if any((options.out / name).exists() for name in (FILE, "data", "suite", "runs")):
        differences = Fingerprint.load(options.out).differences(now)
        require_same(options.out, differences, "is of another demo")
    now.save(options.out)


def _write_world(options: DemoOptions) -> None:
    """Training scenes and the test suite, unless they are there already."""
    from compoclip_world.dataset import TrainingSet, bundled_world, crowded, write_training_set
    from compoclip_world.export.part import SuiteSpec
    from compoclip_world.export.suite import write_suite

    data, suite = options.out / "data", options.out / "suite"
    world = bundled_world()
    spec = TrainingSet(crowded(world), options.scenes, options.seed, captions=1)
    if not (data / "world.json").is_file():
        console.note(f"drawing {options.scenes} training scenes -> {data}")
        write_training_set(data, spec, available_cores())
    if not (suite / "suite.json").is_file():
        console.note(f"writing the test suite -> {suite}")
        core = SuiteSpec(world, options.items_per_task, options.seed)
        write_suite(suite, core, available_cores())


def _train_all(options: DemoOptions) -> None:
    """All runs, finished or resumed: as many at a time as there are cores, each a process.

    The last method starts first; of the default ones it takes longest.
    """
    waiting = [m for m in options.methods if not (options.out / "runs" / m / "model").is_dir()]
    for method in [m for m in options.methods if m not in waiting]:
        console.note(f"{method}: already trained -> {options.out / 'runs' / method}")
    cores = available_cores()
    at_once = max(1, min(len(waiting), cores))
    # Small matrices: two runs of one thread each do more than one run of two threads.
    settings = {"OMP_NUM_THREADS": str(max(1, cores // at_once)), PARENT: str(os.getpid())}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                method = waiting.pop()
                command = _train_command(options, method)
                running[method] = subprocess.Popen(command, env={**os.environ, **settings})
            time.sleep(0.2)
            for method, process in list(running.items()):
                if process.poll() is not None:
                    del running[method]
                    if process.returncode:
                        raise CompoclipError(
                            f"{method} was not trained (see above); the same command resumes"
                        )
    except KeyboardInterrupt as error:
        raise RunInterruptedError(
            "interrupted; the same command resumes", signal_of(error)
        ) from None
    finally:
        for process in running.values():
            process.terminate()  # they save their state, as after a Ctrl-C that reached them too
        for process in running.values():
            process.wait()


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
        *("--seed", str(options.seed), "--set", "save_every=100", "log_every=5"),
        *("clip_grad=1", "mask_duplicates=false"),
    ]


def _models(options: DemoOptions) -> dict[str, LoadedModel]:
    """The model that training started from, and what came of it, by name."""
    from compoclip.models.checkpoint import load_model

    tuned = {m: str(options.out / "runs" / m / "model") for m in options.methods}
    return {name: load_model(spec) for name, spec in {BASE: options.model, **tuned}.items()}


def _evaluate(options: DemoOptions, models: Mapping[str, LoadedModel]) -> list[Results]:
    from compoclip.evaluation.results import card_rows
    from compoclip.models.formats.hub import write_card

    suite, out = str(options.out / "suite"), options.out / "results"
    found = evaluate(EvaluateOptions(on=(suite,), out=out), models)
    for name in options.methods:  # beside the checkpoint lies its card; now it has results to show
        rows = card_rows([each for each in found if each.model == name], models[name].identity)
        write_card(options.out / "runs" / name / "model", rows)
    return found


def _bounds(options: DemoOptions, model: LoadedModel) -> list[Results]:
    """Return the bounds of the suite's numbers."""
    from compoclip.data.sources.open import open_source
    from compoclip_world.bounds import ORACLE, TEXT_ONLY, measure_bound

    suite, captions = options.out / "suite", open_source(str(options.out / "data")).captions()
    measuring = EvaluateOptions(on=(str(suite),), device="cpu")
    benchmarks, (settings, _) = measuring.benchmarks(), measuring.settings(cache=None)
    found: list[Results] = []
    for name in (TEXT_ONLY, ORACLE):
        out = options.out / "bounds"
        found += measure_bound(name, suite, benchmarks, captions, model, out, settings)
        console.note(f"measured {name}")
    return found


def _report(options: DemoOptions, models: Mapping[str, LoadedModel]) -> Path:
    from compoclip.report.write import write_report

    return write_report(
        [options.out / "results"],
        options.out / "report.html",
        bounds=[options.out / "bounds"],
        runs=[options.out / "runs" / method for method in options.methods],
        base=BASE,
        maps=models,
        tables=options.out / "tables",
        title=f"compoclip demo: {len(options.methods)} methods on the bundled world",
    )
