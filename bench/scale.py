"""`python -m bench scale`: seconds and memory of commands while their data grow tenfold."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bench.harness import Row, run_process, surroundings
from bench.made import narrow_model, photo_files, world_captions
from compoclip.console import note
from compoclip.data.sources.open import Request
from compoclip.errors import UsageError
from compoclip.evaluation import ModelEncoder
from compoclip.files import read_json_object, write_json
from compoclip.models import load_model
from compoclip.models.checkpoint import save_model
from compoclip.report.plotting import Theme, write_figure
from compoclip.search import PhotoIndex, index_photos
from compoclip.training.log import LOG, read_log
from compoclip.typed import Within

QUICK = ("--verbs", "rewrite", "--most=1000")
RECORDS = "scale.json"
_ALL, _STEP, _AROUND = "the whole command", "a step", "all but the steps"
_PROCESSOR = "the processor"  # which other programs on the machine hardly change
_CAPTIONS = 20_000  # distinct captions of the world; further ones have a number at the end
_PIXELS = 64  # of the shorter side of photos
NARROW = "narrow"
"""The name of a model with next to no arithmetic in it."""
_MANNERS = {
    0.1: "does not grow",
    0.9: "grows less than linearly",
    1.1: "grows linearly",
    math.inf: "grows more than linearly",
}
"""The largest slope of log seconds by log rows -> what it is called."""
_PANEL = (360, 300)
_RANGE = 20  # of the numbers of an axis at least, or next to no growth would look steep

Verb = Literal["rewrite", "data pack", "index", "evaluate", "evaluate retrieval", "train", "search"]


# --- Data of a number of rows. ---


class MadeData:
    """Data of a number of rows, each part written when a command first needs it."""

    def __init__(self, folder: Path, rows: int, model: str) -> None:
        self._folder, self._rows, self._model = folder, rows, model
        folder.mkdir()

    @cached_property
    def model(self) -> str:
        """Write the narrow model if it is the one to take."""
        if self._model != NARROW:
            return self._model
        save_model(narrow_model(_PIXELS, layers=1), self._folder / NARROW)
        return str(self._folder / NARROW)

    @cached_property
    def _texts(self) -> list[str]:
        first = world_captions(min(_CAPTIONS, 4 * math.ceil(self._rows / 4)))
        return [
            first[row % len(first)] + (f" number {row // len(first)}" if row >= len(first) else "")
            for row in range(self._rows)
        ]

    @cached_property
    def captions(self) -> Path:
        """Write a caption per line."""
        path = self._folder / "captions.txt"
        path.write_text("\n".join(self._texts) + "\n", encoding="utf-8")
        return path

    @cached_property
    def photos(self) -> Path:
        """Write a folder of photos, no two of them equal."""
        photo_files(self._folder / "photos", self._rows, size=_PIXELS)
        return self._folder / "photos"

    @cached_property
    def pairs(self) -> Path:
        """Write a table of the photos with a caption each."""
        path = self.photos.with_name("pairs.jsonl")
        with path.open("w", encoding="utf-8") as file:
            for row, text in enumerate(self._texts):
                file.write(json.dumps({"image": f"photos/{row}.jpg", "caption": text}) + "\n")
        return path

    @cached_property
    def index(self) -> Path:
        """Write an index of random features, with the record of a real one."""
        photos, path = self._folder / "few", self._folder / "photos.index"
        photo_files(photos, 2, size=_PIXELS)
        encoder = ModelEncoder(load_model(self.model))
        about = index_photos(Request(str(photos)), encoder, path, self.model).about
        width = encoder.encode_texts(["a star"]).shape[1]
        features = np.random.default_rng(0).standard_normal((self._rows, width), np.float32)
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        names = [f"{row}.jpg" for row in range(self._rows)]
        PhotoIndex(features, names, names, about, self._texts).save(path)
        return path


# --- One process for each command and size. ---

COMMANDS: Mapping[Verb, str] = {
    "rewrite": "rewrite {data.captions} -o {out}.jsonl --rewrites negclip --workers 1",
    "data pack": "data pack {data.pairs} --split all --size 48 --out {out} --workers 1",
    "index": "index {data.photos} --model {data.model} --out {out} --device cpu",
    "evaluate": "evaluate {data.model} --on rewrites:{data.pairs},most=10000000 --out {out} "
    "--device cpu",
    "evaluate retrieval": "evaluate {data.model} --on retrieval:{data.pairs} --out {out} "
    "--device cpu",
    "train": "train fsc-clip --model {data.model} --data {data.pairs} --out {out} --batch-size 32 "
    "--max-steps 12 --set log_every=1 --workers 1 --device cpu",
    "search": "search {data.index} 'a red star on a blue mug' --json --device cpu",
}
"""Arguments of compoclip. data: A `MadeData`, whose parts are written when they are named."""


def command_of(verb: Verb, data: MadeData, out: Path) -> list[str]:
    """Return the arguments of a command; the data that they name are written now."""
    return [word.format(data=data, out=out) for word in shlex.split(COMMANDS[verb])]


@dataclass
class Measured:
    """A command at one size.

    spent: Seconds of its process. seconds: By part; empty where the minutes had ended, or it
    failed. peak_bytes: Memory of its largest process. problem: Why it failed.
    """

    rows: int
    spent: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    problem: str = ""


def measure_command(verb: Verb, data: MadeData, rows: int, folder: Path, limit: float) -> Measured:
    """Run a command once, with empty caches, and stop it after `limit` seconds."""
    out = folder / "out"
    command = [sys.executable, "-m", "compoclip", *command_of(verb, data, out)]
    spent = run_process(command, folder, limit, XDG_CACHE_HOME=str(folder / "cache"))
    if spent.stopped:
        return Measured(rows, spent.seconds)
    if spent.problem:
        note(f"{verb}, {rows:,} rows: {spent.problem}")
        return Measured(rows, spent.seconds, problem=spent.problem)
    parts = {_PROCESSOR: spent.processor, **_parts(out, spent.seconds)}
    return Measured(rows, spent.seconds, parts, spent.peak_bytes)


def _parts(out: Path, seconds: float) -> dict[str, float]:
    """Return the seconds of a command by part: of a training run, a step and everything else."""
    if not (out / LOG).is_file():
        return {_ALL: seconds}
    marks = [record["seconds"] for record in read_log(out / LOG) if "loss" in record]
    return {_AROUND: seconds - marks[-1], _STEP: statistics.median(np.diff(marks).tolist())}


# --- What the numbers say. ---


def slope_of(measured: Sequence[Measured], part: str) -> tuple[float, int, int] | None:
    """Return the slope of log seconds by log rows between the two largest sizes, and these.

    None with fewer than two.
    """
    points = [(m.rows, m.seconds[part]) for m in measured if m.seconds]
    if len(points) < 2:
        return None
    (fewer, less), (more, longer) = points[-2:]
    return math.log(longer / less) / math.log(more / fewer), fewer, more


def sentence_of(verb: str, measured: Sequence[Measured]) -> str:
    """Return a sentence that says whether the time of a command grows linearly."""
    parts = measured[0].seconds
    clauses = []
    for part in parts:
        slope = slope_of(measured, part)
        if slope is None:
            clauses.append(f"the time of {part} was measured at one size alone")
            continue
        value, fewer, more = slope
        manner = next(words for largest, words in _MANNERS.items() if value <= largest)
        clauses.append(
            f"the time of {part} {manner} from {fewer:,} to {more:,} rows (slope {value:.2f})"
        )
    return f"{verb}: {'; '.join(clauses) or 'no size was finished'}."


def draw_figure(stem: Path, verb: str, measured: Sequence[Measured]) -> tuple[Path, Path]:
    """Write the seconds and the memory of a command by its rows, both axes logarithmic."""
    done = [m for m in measured if m.seconds]
    rows = [m.rows for m in done]

    def lines(axes: Axes, theme: Theme, values: Mapping[str, list[float]], unit: str) -> None:
        for place, (name, numbers) in enumerate(values.items()):
            axes.plot(rows, numbers, label=name, **theme.line(place))
        axes.set(xscale="log", yscale="log", xlabel="rows", ylabel=unit)
        low, high = axes.get_ylim()  # beyond which the line of slope one would reach
        last = next(iter(values.values()))[-1]
        through = [last * size / rows[-1] for size in rows]
        axes.plot(rows, through, color=theme.soft, linewidth=1, linestyle=":", label="linear")
        wider = max(1.0, math.sqrt(_RANGE * low / high))
        axes.set_ylim(low / wider, high * wider)
        if high < 100 * low:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=9)

    seconds = {part: [m.seconds[part] for m in done] for part in done[0].seconds}
    memory = {"largest process": [m.peak_bytes / 1e9 for m in done]}
    panels = [
        (f"{verb}: time", partial(lines, values=seconds, unit="seconds")),
        (f"{verb}: memory", partial(lines, values=memory, unit="GB")),
    ]
    return write_figure(stem, panels, _PANEL)


# --- The stage. ---


@dataclass(frozen=True)
class Options:
    """Seconds and peak memory of commands on made data, as their rows grow by factors of ten. Each
    command runs in a process of its own, once per size, until its minutes have ended. Making the
    data does not count.

    Args:
        verbs: Only these commands: rewrite, data pack, index, evaluate (rewrites),
            evaluate retrieval, train, search.
        fewest: Rows of the smallest data.
        most: Rows of the largest data.
        minutes: Minutes for all sizes of a command; it is stopped then, and the rest stays empty.
        model: Anything `compoclip evaluate` takes, or narrow for a model with next to no
            arithmetic in it, which shows what all else costs.
        out: Folder for scale.json and a figure per command. What is recorded there of other
            commands stays.
        resume: Do not measure again what is recorded in --out.
    """

    verbs: tuple[Verb, ...] = ()
    fewest: int = 1000
    most: int = 1_000_000
    minutes: Annotated[float, Within(0.0001, 10_000)] = 2.0
    model: str = "bundled"
    out: Path | None = None
    resume: bool = False


def measure(options: Options, folder: Path) -> list[Row]:
    """Measure every command at every size, and write records and figures.

    A command that fails is not tried with more rows.
    """
    if options.most < options.fewest:
        raise UsageError("--most must be at least --fewest")
    verbs = options.verbs or tuple(COMMANDS)
    factors = math.floor(math.log10(options.most / options.fewest) + 1e-9)
    sizes = [options.fewest * 10**power for power in range(factors + 1)]
    measured: dict[Verb, list[Measured]] = {verb: [] for verb in verbs}
    left = dict.fromkeys(verbs, 60 * options.minutes)
    recorded = {verb: _recorded(options, verb) for verb in verbs}
    for rows in sizes:
        data = MadeData(folder / str(rows), rows, options.model)
        for verb, results in measured.items():
            result = recorded[verb].get(rows, Measured(rows))
            if left[verb] > 0 and not result.seconds:
                note(f"{verb}, {rows:,} rows")
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    result = measure_command(verb, data, rows, Path(place), left[verb])
            left[verb] = left[verb] - result.spent if result.seconds else 0.0
            results.append(result)
            if options.out:
                _record(options, verb, results)
        shutil.rmtree(folder / str(rows))
    for verb, results in measured.items():
        note(sentence_of(verb, results))
    return [
        row
        for verb, results in measured.items()
        for result in results
        for row in _rows(verb, result)
    ]


def _records(out: Path) -> dict[str, Any]:
    path = out / RECORDS
    return read_json_object(path, damaged="delete it") if path.is_file() else {}


def _recorded(options: Options, verb: Verb) -> dict[int, Measured]:
    """Return by rows what --resume need not measure of a command."""
    if not options.resume:
        return {}
    if options.out is None:
        raise UsageError("--resume needs --out, the folder of the record")
    sizes = _records(options.out).get(verb, {"sizes": []})["sizes"]
    return {size["rows"]: Measured(**size) for size in sizes if size["seconds"]}


def _record(options: Options, verb: Verb, results: Sequence[Measured]) -> None:
    """Write what is measured of a command so far, beside the records of the others."""
    assert options.out is not None
    options.out.mkdir(parents=True, exist_ok=True)
    records = _records(options.out)
    records[verb] = {
        "model": options.model,
        "minutes": options.minutes,
        "sentence": sentence_of(verb, results),
        "sizes": [asdict(result) for result in results],
        **surroundings(torch.device("cpu")),
    }
    write_json(options.out / RECORDS, records)
    if results[0].seconds:
        draw_figure(options.out / verb.replace(" ", "-"), verb, results)


def _rows(verb: Verb, result: Measured) -> list[Row]:
    if not result.seconds:
        return []
    size = f"{verb}, {result.rows:,} rows"
    rows = [Row(f"{size}: seconds of {part}", value) for part, value in result.seconds.items()]
    return [*rows, Row(f"{size}: GB at most", result.peak_bytes / 1e9)]
