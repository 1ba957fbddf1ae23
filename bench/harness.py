"""The harness of all stages: options, clocks, and the one table of what was measured.

A stage is a module `bench.<stage>` with `Options` (a dataclass), `QUICK` (its arguments under
--quick) and `measure(options, folder)`, which returns rows; `folder` is deleted afterwards.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from compoclip.cli.options import parse
from compoclip.console import emit_json, note
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import read_json_object
from compoclip.interrupts import PARENT
from compoclip.printed import Table
from compoclip.version import __version__

PROGRAM = "python -m bench"
# Numbers may be no less than these, and all others no less than 1.
_LEAST = {"workers": 0, "micro_batch": 0, "seed": 0, "batch_size": 2, "few": 2, "steps": 6}


@dataclass(frozen=True)
class Row:
    """One thing measured.

    Attributes:
        what: The quantity, with its unit.
        ours: Its value for this program.
        baseline: Its value for what it is compared with, measured in the same run.
        against: What that is.
        times: How many times better ours is; computed from the two where it is not given.
        target: The least wanted value of `of`; None where none is stated.
        of: What `target` is stated for.
        limit: What keeps it from more, for a target that is missed.
        less: A smaller value is better.
    """

    what: str
    ours: float
    baseline: float | None = None
    against: str = ""
    times: float | None = None
    target: float | None = None
    of: Literal["ratio", "ours"] = "ratio"
    limit: str = ""
    less: bool = False

    @property
    def ratio(self) -> float | None:
        """Return how many times better ours is; None without a baseline."""
        if self.times is not None or self.baseline is None:
            return self.times
        over, under = (self.baseline, self.ours) if self.less else (self.ours, self.baseline)
        return over / under if under else None

    @property
    def met(self) -> bool | None:
        """Return whether the target is reached; None without a target, or a value to compare."""
        value = self.ratio if self.of == "ratio" else self.ours
        return None if self.target is None or value is None else value >= self.target


def shown(rows: Sequence[tuple[str, Row]]) -> str:
    """Return (stage, row) pairs as an aligned table; below it what limits missed targets."""
    cells = [
        [
            *(stage, row.what, row.against),
            *(number_text(each) for each in (row.baseline, row.ours, row.ratio)),
            "" if row.target is None else f"{row.of} >= {number_text(row.target)}",
            {True: "met", False: "missed", None: ""}[row.met],
        ]
        for stage, row in rows
    ]
    header = ["bench", "what", "against", "baseline", "ours", "ratio", "target", ""]
    missed = [
        f"{stage}, {row.what}: {row.limit or 'not explained'}"
        for stage, row in rows
        if row.met is False
    ]
    return "\n\n".join([str(Table(cells, header, left=3)), *filter(None, ["\n".join(missed)])])


def number_text(value: Any) -> str:
    """Return a number with three significant figures, "" for None, and anything else as text."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class OfCaptions:
    """Options of stages that work on captions.

    Args:
        captions: Captions: a .txt, .json, .jsonl file or a folder of them; else those of the world.
    """

    captions: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Sampled(OfCaptions):
    """Options of stages that sample captions.

    Args:
        seed: Seed of the draw.
    """

    seed: int = 0


@dataclass(frozen=True)
class All:
    """Measure every stage on this machine, each against the way it is compared with in the same
    run, and show the targets. Look at the ratios: the numbers of a busy machine change from run to
    run.

    Args:
        captions: Real captions (a .txt, .json, .jsonl file or a folder of them); else those of the
            world.
        photos: Image-text data as for train --data; else photo-like images are made.
        only: Only these stages.
    """

    captions: Path | None = None
    photos: str | None = None
    only: tuple[str, ...] = ()


def run(stages: Mapping[str, str], name: str, arguments: Sequence[str]) -> int:
    """Measure a stage, or all, and print. Return the exit code: 1 when a stage of all failed."""
    words = [word for word in arguments if word not in ("--quick", "--json")]
    quick, every = "--quick" in arguments, name == "all"
    rows: list[tuple[str, Row]] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    options: Any = parse(All, f"{PROGRAM} {name}", words) if every else None
    unknown = set(options.only) - set(stages) if every else ()
    if unknown:
        raise UsageError(f"no stage '{min(unknown)}' to measure; one of {', '.join(stages)}")
    for stage in (options.only or stages) if every else (name,):
        module = import_module(f"bench.{stage}")
        given = _inputs(module, options) if every else words
        given = [*(module.QUICK if quick else ()), *given]
        asked = parse(module.Options, f"{PROGRAM} {stage}", given)
        _require_numbers(asked)
        if every:
            note(f"measuring {stage}")
        start = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                rows += [(stage, row) for row in module.measure(asked, Path(folder))]
        except CompoclipError as error:
            if not every:
                raise
            failed[stage] = str(error)
        seconds[stage] = round(time.monotonic() - start, 1)
    around = surroundings(torch.device("cpu"))  # of rows from another device, their words say so
    setting = {**asdict(options if every else asked), "quick": quick, **around}
    if "--json" in arguments:
        found = [
            {"bench": stage, **asdict(row), "ratio": row.ratio, "met": row.met}
            for stage, row in rows
        ]
        setting = {key: str(v) if isinstance(v, Path) else v for key, v in setting.items()}
        emit_json({"setting": setting, "rows": found, "failed": failed, "seconds": seconds})
        return 1 if failed else 0
    versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    print(f"{setting['device']}, {setting['threads']} threads; {versions}")
    told = (f"{key} {value}" for key, value in setting.items() if key not in around)
    print(f"{', '.join(told)}\n\n{shown(rows)}")
    for stage, reason in failed.items():
        print(f"{stage}: could not be measured: {reason}")
    parts = ", ".join(f"{stage} {taken:.0f}" for stage, taken in seconds.items())
    print(f"\n{sum(seconds.values()):.0f} s ({parts})")
    return 1 if failed else 0


def _inputs(module: Any, options: All) -> list[str]:
    """Return the captions and photos of `bench all` as arguments of a stage that takes them."""
    known = {field.name for field in fields(module.Options)}
    inputs = {"captions": options.captions, "data": options.photos}
    return [f"--{name}={value}" for name, value in inputs.items() if value and name in known]


def _require_numbers(options: Any) -> None:
    for name, value in asdict(options).items():
        if isinstance(value, int) and value < _LEAST.get(name, 1) and not isinstance(value, bool):
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} must be at least {_LEAST.get(name, 1)}")


# --- Clocks and conditions. ---


def timed(work: Callable[[], Any], device: torch.device | None = None) -> tuple[float, float, Any]:
    """Return wall and processor seconds of some work, the device drained, and its result."""

    def now() -> tuple[float, float]:
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter(), time.process_time()

    start = now()
    result = work()
    end = now()
    return end[0] - start[0], max(end[1] - start[1], 1e-9), result


def in_turn(
    ways: Mapping[str, Callable[[], Any]],
    repeats: int,
    device: torch.device | None = None,
    before: Callable[[], object] = lambda: None,
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, Any]]:
    """Return by way the wall and processor seconds of each repeat, and its last result.

    The order is turned round every time. before: is called before each, and not timed.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    results: dict[str, Any] = {}
    for name in turns(ways, repeats):
        before()
        *spent, results[name] = timed(ways[name], device)
        times[name].append((spent[0], spent[1]))
    return times, results


def turns(ways: Iterable[str], repeats: int) -> Iterator[str]:
    """Yield every way once per repeat, in an order that is turned round every time."""
    order = list(ways)
    for repeat in range(repeats):
        yield from order[:: -1 if repeat % 2 else 1]


def cpu_medians(ways: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return by way the median processor seconds, over repeats after an uncounted one."""
    times, _ = in_turn(ways, repeats + 1)
    return {name: statistics.median(t for _, t in each[1:]) for name, each in times.items()}


@dataclass(frozen=True)
class Spent:
    """Processor seconds, wall time and memory of a process.

    Attributes:
        seconds: Wall seconds.
        processor: User and system seconds, of the processes that it started too.
        peak_bytes: Memory of the largest of these processes.
        problem: Why it failed, "" where it did not.
        stopped: It ran for as long as it may.
    """

    seconds: float
    processor: float = 0.0
    peak_bytes: int = 0
    problem: str = ""
    stopped: bool = False


def run_process(command: Sequence[str], folder: Path, limit: float, **variables: str) -> Spent:
    """Run a command in `folder`, and stop it after `limit` seconds.

    It writes output.txt and errors.txt there.
    variables: Set in its environment.
    """
    errors, result = folder / "errors.txt", folder / "spent.json"
    launcher = [sys.executable, str(Path(__file__).with_name("launch.py")), str(limit), str(result)]
    with errors.open("w") as file, (folder / "output.txt").open("w") as output:
        subprocess.run(
            [*launcher, *command],
            stdout=output,
            stderr=file,
            env={**os.environ, PARENT: str(os.getpid()), **variables},
            cwd=folder,
            check=False,
        )
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if not result.is_file():  # the command cannot be started, or the launcher was killed
        return Spent(0.0, problem=lines[-1] if lines else "was killed")
    record = read_json_object(result)
    stopped, code, problem = record["seconds"] >= limit, record.pop("code"), ""
    if stopped:
        problem = f"stopped after {limit:.0f} s"
    elif code:
        problem = lines[-1] if lines else f"ended with {code} (out of memory?)"
    return Spent(**record, problem=problem, stopped=stopped)


def surroundings(device: torch.device) -> dict[str, Any]:
    """Return the conditions of a measurement: device, threads, versions of libraries."""
    import open_clip

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")
    name = f"{name or platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "device": f"{device.type}: {name}",
        "threads": torch.get_num_threads(),
        "versions": {
            "compoclip": __version__,
            "torch": torch.__version__,
            "open_clip": open_clip.__version__,
            "python": platform.python_version(),
        },
    }
