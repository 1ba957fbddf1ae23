"""`python -m bench peers`: the same work by compoclip and by other tools, in turns.

`peers.yaml` says who does what. Every tool runs in a process of its own with one thread, and a peer
in an environment of its own below --envs. These environments see the libraries of this interpreter
(torch among them), so that all tools compute with the same torch. What a peer pins comes before.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import statistics
import string
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from bench.harness import Row, run_process, turns
from bench.peer_data import PeerData
from bench.peer_programs import (
    NUMBERS,
    SECONDS,
    captions_read,
    cosines_with_first,
    losses_of,
    scores_of_photos,
)
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.results import load_results
from compoclip.files import read_json_object, write_json, write_text
from compoclip.search import read_index
from compoclip.training.log import LOG, read_log
from compoclip.typed import Within

QUICK = ("--works", "items", "--repeats=1", "--photos=8")
PACKAGES = "packages.json"
OURS = "compoclip"
PROGRAM = Path(__file__).with_name("peer_programs.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
LONGEST = 3600.0  # seconds of a command

Work = Literal[
    "items",
    "retrieval",
    "zero-shot",
    "train",
    "negatives",
    "cached",
    "frozen",
    "index",
    "find",
    "one-in-5600",
    "one-in-100000",
    "all-in-5600",
    "all-in-100000",
    "rewrite",
]
Numbers = dict[str, float]

_TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
PEERS: Mapping[str, Sequence[str]] = _TABLE["packages"]

# --- How the numbers of a tool are read from the folder that it ran in. ---


def common_names(numbers: Numbers) -> Numbers:
    """Return the numbers that have a name common to all tools, under that name."""
    return {
        re.sub(pattern, common, name): value
        for name, value in numbers.items()
        for pattern, common in _TABLE["names"]
        if re.fullmatch(pattern, name)
    }


def read_evaluation(folder: Path) -> Numbers:
    """Read the results of `compoclip evaluate`."""
    numbers: Numbers = {}
    for results in load_results(folder / "results"):
        name = results.reader_name
        numbers |= {f"{name} {rule}": score.value for rule, score in results.aggregates.items()}
        for part, scores in results.scores.items():
            numbers |= {f"{name} {part} {metric}": s.value for metric, s in scores.items()}
    return common_names(numbers)


def read_clip_benchmark(folder: Path) -> Numbers:
    """Read the files of CLIP_benchmark, one per data set, beside those of the harness."""
    numbers: Numbers = {}
    for path in folder.glob("*.json"):
        metrics = read_json_object(path).get("metrics", {})
        numbers |= {f"{path.stem} {name}": value for name, value in metrics.items()}
    return common_names(numbers)


def read_training(folder: Path) -> Numbers:
    """Read the losses that `compoclip train` logs."""
    records = read_log(folder / "run" / LOG)
    return losses_of([record["loss"] for record in records if "loss" in record])


def read_open_clip_train(folder: Path) -> Numbers:
    """Read the losses that open_clip_train logs, with five digits."""
    text = (folder / "logs" / "run" / "out.log").read_text(encoding="utf-8")
    return losses_of([float(loss) for loss in re.findall(r"Contrastive_loss: (\S+) \(", text)])


def read_search(folder: Path) -> Numbers:
    """Read what `compoclip search --json` printed."""
    answers = json.loads((folder / "output.txt").read_text(encoding="utf-8"))
    return scores_of_photos(
        [[(hit["photo"], hit["score"]) for hit in answer["hits"]] for answer in answers]
    )


def read_features(folder: Path) -> Numbers:
    """Read the index that `compoclip index` wrote."""
    index = read_index(folder / "photos.index")
    return cosines_with_first(index.names, index.features[:])


READERS: Mapping[str, Callable[[Path], Numbers]] = {
    "program": lambda folder: read_json_object(folder / NUMBERS),
    "evaluation": read_evaluation,
    "clip_benchmark": read_clip_benchmark,
    "log": read_training,
    "open_clip_log": read_open_clip_train,
    "search": read_search,
    "index": read_features,
    "rewrites": lambda folder: captions_read(folder / "negatives.jsonl"),
}

# --- The table. ---


@dataclass(frozen=True)
class Way:
    """How a tool does a work; the members are described in the table."""

    tool: str
    commands: Sequence[str]
    read: str = "program"
    differs: str = ""

    def words(self, data: PeerData) -> list[list[str]]:
        """Return the words of each command; the data that they name are written now."""
        commands = [string.Template(line).substitute(_TABLE["fragments"]) for line in self.commands]
        return [
            [word.format(data=data, program=PROGRAM) for word in shlex.split(command)]
            for command in commands
        ]


@dataclass(frozen=True)
class Task:
    """A work and who does it, compoclip first."""

    about: str
    within: float
    ways: Sequence[Way]


WORKS: Mapping[Work, Task] = {
    work: Task(entry["about"], entry["within"], [Way(**way) for way in entry["ways"]])
    for work, entry in _TABLE["works"].items()
}

# --- Environments. ---


def prepare_environment(peer: str, envs: Path) -> Path:
    """Return the interpreter of a peer's environment, which is made unless it is there.

    Raises CompoclipError where the packages cannot be installed.
    """
    folder, packages = envs.resolve() / peer, list(PEERS[peer])
    python, record = folder / "bin" / "python", folder / PACKAGES
    if record.is_file() and read_json_object(record) == {"packages": packages}:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    note(f"installing {', '.join(packages)} in {folder}")
    _install([sys.executable, "-m", "venv", "--without-pip", str(folder)], peer)
    (site,) = folder.glob("lib/python*/site-packages")
    write_text(site / "shared.pth", sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    _install([*pip, *packages], peer)
    write_json(record, {"packages": packages})
    return python


def _install(command: Sequence[str], peer: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise CompoclipError(f"{peer} cannot be installed: {errors[-1]}")


def _interpreter(peer: str, envs: Path | None) -> Path | str:
    """Return the interpreter of a tool, or why there is none."""
    if peer == OURS:
        return Path(sys.executable)
    if envs is None:
        return "not measured without --envs"
    try:
        return prepare_environment(peer, envs)
    except CompoclipError as error:
        return str(error)


# --- Measuring. ---


@dataclass
class Measured:
    """Seconds and memory of a tool at a work, run by run, and the numbers of its last run.

    seconds: Processor seconds. problem: Why it could not be measured.
    """

    tool: str
    differs: str = ""
    seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    numbers: Numbers = field(default_factory=dict)
    problem: str = ""

    @property
    def median(self) -> float:
        """Return the median of the processor seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> str:
        """Return the fewest and the most processor seconds."""
        return f"{min(self.seconds):.1f} to {max(self.seconds):.1f}"

    @property
    def gigabytes(self) -> float:
        """Return the peak memory of the largest process."""
        return max(self.peak_bytes) / 1e9


def measure_once(way: Way, python: Path, data: PeerData, folder: Path, result: Measured) -> None:
    """Run the commands of a tool in an empty folder, and add what they took or why they failed."""
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HOME": str(folder / "cache")}
    seconds, peak_bytes = 0.0, 0
    for words in way.words(data):
        variables = {**ONE_THREAD, **OFFLINE, **caches}
        spent = run_process([str(python), *words], folder, LONGEST, **variables)
        if spent.problem:
            result.problem = spent.problem
            return
        seconds += spent.processor
        peak_bytes = max(peak_bytes, spent.peak_bytes)
    try:
        result.numbers = READERS[way.read](folder)
    except (CompoclipError, OSError, ValueError, LookupError) as error:
        result.problem = f"its numbers cannot be read: {error!r:.200}"
        return
    result.seconds.append(result.numbers.pop(SECONDS, seconds))
    result.peak_bytes.append(peak_bytes)


def measure_work(
    task: Task, tools: Mapping[str, Path | str], data: PeerData, repeats: int, folder: Path
) -> list[Measured]:
    """Run the tools of a work in turns; one that fails is not run again.

    tools: Tool -> its interpreter, or why it has none.
    """
    ways = {way.tool: way for way in task.ways if way.tool in tools}
    results = {tool: Measured(tool, way.differs) for tool, way in ways.items()}
    for tool in turns(ways, repeats):
        result, python = results[tool], tools[tool]
        if isinstance(python, str):
            result.problem = python
        elif not result.problem:
            note(f"{task.about}: {tool}")
            with tempfile.TemporaryDirectory(dir=folder) as place:
                measure_once(ways[tool], python, data, Path(place), result)
    return list(results.values())


def compare(ours: Numbers, peers: Numbers, within: float) -> str:
    """Return in words whether the numbers that two tools share are equal."""
    gaps = {name: abs(ours[name] - peers[name]) for name in ours if name in peers}
    unequal = {name: gap for name, gap in gaps.items() if not gap <= within}
    count = f"{len(gaps)} {'number' if len(gaps) == 1 else 'numbers'}"
    if not unequal:
        return f"equal: {count} within {within:g}" if gaps else "nothing to compare"
    name = max(unequal, key=lambda name: unequal[name])
    both = f"{name}: {ours[name]:.5g} and {peers[name]:.5g}"
    return f"unequal: {len(unequal)} of {count}, most of all {both}"


# --- The stage. ---


@dataclass(frozen=True)
class Options:
    """Processor seconds and peak memory of the same work by compoclip and by its peers: open_clip,
    open_clip_train, sentence-transformers, mteb, CLIP_benchmark, faiss and spacy. All have the same
    random weights of a ViT-B/32 and one thread, and run in turns.

    Args:
        works: Only these works: items, retrieval, zero-shot, train, negatives, cached, frozen,
            index, find, one-in-5600, one-in-100000, all-in-5600, all-in-100000, rewrite.
        tools: Only these peers.
        envs: Folder of the peers' environments. Missing ones are made with pip. Without it only
            compoclip is measured.
        repeats: Runs of each tool.
        photos: Photos to evaluate and to search. The sets for zero-shot have at most as many,
            but at least one per class, and SugarCrepe's items at least one per part.
        pairs: Pairs to train on, all in one step.
        real: Folder of real data, with photos/, annotations/ and classification/. Without it
            pictures are made.
    """

    works: tuple[Work, ...] = ()
    tools: tuple[str, ...] = ()
    envs: Path | None = None
    repeats: Annotated[int, Within(1, 100)] = 3
    photos: int = 60
    pairs: int = 32
    real: Path | None = None


def measure(options: Options, folder: Path) -> list[Row]:
    """Measure every work, one after the other."""
    for tool in set(options.tools) - {*PEERS}:
        raise UsageError(f"no peer {tool!r}; one of {', '.join(PEERS)}")
    data = PeerData(folder, options.real, options.photos, options.pairs)
    tools: dict[str, Path | str] = {}
    rows: list[Row] = []
    for work in options.works or tuple(WORKS):
        for way in WORKS[work].ways:
            chosen = not options.tools or way.tool in (OURS, *options.tools)
            if chosen and way.tool not in tools:
                tools[way.tool] = _interpreter(way.tool, options.envs)
        results = measure_work(WORKS[work], tools, data, options.repeats, folder)
        rows += rows_of(work, results)
    return rows


def rows_of(work: Work, results: Sequence[Measured]) -> list[Row]:
    """Return the rows of a work, each peer against ours; a peer that failed has its reason."""
    ours, *peers = results
    if ours.problem:
        raise CompoclipError(f"{work}: {ours.problem}")
    seconds, memory = f"{work}: CPU seconds ({ours.spread})", f"{work}: GB at most"
    rows = [] if peers else [Row(seconds, ours.median), Row(memory, ours.gigabytes)]
    for peer in peers:
        if peer.problem:
            rows.append(Row(seconds, ours.median, None, f"{peer.tool}: {peer.problem}"))
            continue
        equal = compare(ours.numbers, peer.numbers, WORKS[work].within)
        against = f"{peer.tool} ({peer.spread}), {equal}"
        against += f"; {peer.differs}" if peer.differs else ""
        rows.append(Row(seconds, ours.median, peer.median, against, less=True))
        rows.append(Row(memory, ours.gigabytes, peer.gigabytes, peer.tool, less=True))
    return rows
