"""The metrics log of a run: one JSON object per line, one line per logged step or measurement."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Self, TextIO

from compoclip.console import counted, duration, note
from compoclip.errors import CompoclipError, optional, require_package
from compoclip.files import reading, reason, replacing, writing
from compoclip.ranks import SINGLE, Ranks


class MetricsLog:
    """The log of a run, written by rank 0; all ranks learn whether it could be written.

    On resume, what was logged after the state that is resumed is dropped first.
    """

    def __init__(self, path: Path, resume_step: int, ranks: Ranks = SINGLE) -> None:
        self._path, self._ranks = path, ranks
        self._file: TextIO | None = None
        with ranks.agreed():
            if not ranks.first:
                return
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                records = read_log(path) if resume_step and path.is_file() else []
                lines = (
                    json.dumps(record) + "\n" for record in records if record["step"] <= resume_step
                )
                with replacing(path) as place:
                    place.write_text("".join(lines))
                self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed on exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is None:
            return
        with suppress(OSError):
            self._file.close()
        if error[0] is not None:  # a run that fails before there is anything to log leaves no trace
            with suppress(OSError):
                if not self._path.stat().st_size:
                    self._path.unlink()
                    self._path.parent.rmdir()

    def write(self, record: dict[str, Any]) -> None:
        """Append one record. Raises CompoclipError, on all ranks, when the disk is full."""
        with self._ranks.agreed():
            if self._file is not None:
                with writing(self._path):
                    self._file.write(json.dumps(record) + "\n")
                    self._file.flush()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the records of a log, one per logged step, in the order of the file.

    A torn last line (from a kill) is left out. Raises CompoclipError for any other malformed line,
    which it names.

    Args:
        path: A run's `train.jsonl`.
    """
    with reading(path):
        lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if type(record["step"]) is not int:
                raise TypeError("step")
        except (ValueError, TypeError, KeyError, RecursionError):
            if number == len(lines) or not line.strip():
                continue
            raise CompoclipError(
                f"{path}: line {number} is no record of a step; remove that line"
            ) from None
        records.append(record)
    return records


class ProgressLines:
    """Prints a line now and then: method, step, loss, images and captions a second, time to go."""

    def __init__(self, method: str) -> None:
        self._method, self._last = method, 0.0
        self._before = {"images": 0.0, "texts": 0.0, "seconds": 0.0, "step": 0.0}

    def __call__(self, record: dict[str, Any], total: int) -> None:
        """Print the line of a logged step, or of what was measured after it."""
        if "eval" in record:
            scores = (
                f"{name} {100 * score['value']:.1f}" for name, score in record["eval"].items()
            )
            note(f"  step {record['step']}: {', '.join(scores)}")
            return
        now = time.monotonic()
        if now - self._last < 5 and record["step"] != total:
            return
        since = {name: record[name] - value for name, value in self._before.items()}
        seconds = max(1e-9, since["seconds"])
        left = (total - record["step"]) * seconds / max(1.0, since["step"])
        lost = record["skipped_steps"]
        skipped = f"{counted(int(lost), 'step')} skipped (not finite)  " if lost else ""
        note(
            f"{self._method}: step {record['step']:.0f}/{total}  loss {record['loss']:.4f}  "
            f"{since['images'] / seconds:.0f} images/s  {since['texts'] / seconds:.0f} captions/s  "
            f"{skipped}{duration(left)} left"
        )
        self._last, self._before = now, {name: record[name] for name in self._before}


# --- Trackers: what a run logs, also for TensorBoard and Weights & Biases. ---
#
# `train.jsonl` stays the record of a run; a tracker is a view of it. At its first record a tracker
# is given all that the log has from before, and what it had itself is dropped: a resumed run has
# every step once, also those that a killed process had not written out.

LOG, TENSORBOARD, WANDB = "train.jsonl", "tensorboard", "wandb"
#: Any of these says how Weights & Biases is to be reached; without them it stays offline.
_REACHED_BY = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL")


Tracker = tuple[Callable[[Mapping[str, float], int], object], Callable[[], object]]
"""Takes the numbers of logged steps, each step once and in order; then is closed."""


class Trackers(ExitStack):
    """The trackers of a run, opened at its first record. Has the interface of the loop's `report`.

    Args:
        names: Names in `_OPEN`; CompoclipError when the package of one is not installed.
        config: The settings shown with the curves.
        report: Also called with every record.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        out: Path,
        config: Mapping[str, Any],
        report: Callable[[dict[str, Any], int], None],
    ) -> None:
        for name in names:
            require_package(name, "track", f"--track {name}")
        super().__init__()
        self._names, self._out, self._config, self._report = names, out, config, report
        self._logs: list[Callable[[Mapping[str, float], int], object]] = []

    def __call__(self, record: dict[str, Any], total: int) -> None:
        """Report and track a logged step or a measurement."""
        self._report(record, total)
        records = [record]
        if self._names and not self._logs:
            for log, close in (_OPEN[name](self._out, self._config) for name in self._names):
                self._logs.append(log)
                self.callback(close)
            earlier = (other for other in read_log(self._out / LOG) if other != record)
            records = [*(other for other in earlier if other["step"] <= record["step"]), record]
        for log in self._logs:
            for entry in records:
                log(_numbers(entry), int(entry["step"]))


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by name, of its scores and of what was sampled, too."""
    plain = {k: v for k, v in record.items() if k != "step" and isinstance(v, int | float)}
    scores = {f"eval/{k}": score["value"] for k, score in record.get("eval", {}).items()}
    shares = {f"drawn/{k}": n for k, n in record.get("drawn", {}).items()}
    return {name: float(value) for name, value in (plain | scores | shares).items()}


def _tensorboard(out: Path, config: Mapping[str, Any]) -> Tracker:
    """Event files in OUT/tensorboard: `tensorboard --logdir OUT`."""
    from torch.utils.tensorboard import SummaryWriter

    folder = out / TENSORBOARD
    with writing(folder):
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        writer: Any = SummaryWriter(str(folder))
    lines = (f"    {name}: {value}" for name, value in config.items())
    writer.add_text("settings", "\n".join(lines), 0)

    def log(record: Mapping[str, float], step: int) -> None:
        for name, value in record.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _wandb(out: Path, config: Mapping[str, Any]) -> Tracker:
    """A run in OUT/wandb: offline, for `wandb sync`, unless the environment says otherwise."""
    wandb: Any = optional(WANDB, "track", f"--track {WANDB}")
    offline = not any(os.environ.get(name) for name in _REACHED_BY)
    offline |= os.environ.get("WANDB_MODE") == "offline"
    runs = sorted((out / WANDB).glob("*run-*-*"))
    id = runs[-1].name.rpartition("-")[2] if runs else None
    for old in runs if offline else ():  # a folder that cannot be added to is made anew
        shutil.rmtree(old, ignore_errors=True)
    try:
        with redirect_stdout(sys.stderr):  # standard output is the command's
            run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "compoclip",
                name=os.environ.get("WANDB_NAME") or out.absolute().name,
                dir=str(out),
                id=id,
                resume="allow",
                config=dict(config),
                mode="offline" if offline else None,
                settings=wandb.Settings(console="off", silent=True),
            )
    except Exception as error:  # a missing network, key or disk raises another type each
        raise CompoclipError(
            f"--track wandb: could not start ({reason(error)}); WANDB_MODE=offline needs no network"
        ) from error

    def log(record: Mapping[str, float], step: int) -> None:
        if step >= run.step:  # else the server has them
            run.log(dict(record), step=step)

    return log, run.finish


_OPEN: Mapping[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    TENSORBOARD: _tensorboard,
    WANDB: _wandb,
}
