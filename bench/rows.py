"""The one table of `python -m bench all`, which every stage adds rows to."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compoclip.console import table
from compoclip.version import __version__

if TYPE_CHECKING:
    import torch

PROGRAM = "python -m bench"


@dataclass(frozen=True)
class Row:
    """One thing measured.

    bench: the stage. what: the quantity, with its unit. ours, baseline: its value for this program
    and for the way it is compared with (`against`), measured in one run; baseline is None where
    there is nothing to compare with. ratio: how many times better ours is. target: the least value
    of `of` that is wanted, None where nothing is asked for. limit: what keeps it from more, for a
    target that is missed.
    """

    bench: str
    what: str
    ours: float
    baseline: float | None = None
    against: str = ""
    ratio: float | None = None
    target: float | None = None
    of: Literal["ratio", "ours"] = "ratio"
    limit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none, or nothing to measure it by."""
        value = self.ratio if self.of == "ratio" else self.ours
        return None if self.target is None or value is None else value >= self.target

    def to_json(self) -> dict[str, Any]:
        """The fields, and `met`."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True)
class Inputs:
    """The inputs of the stages of `bench all`.

    quick: less of everything, for a run of minutes. captions: a file or folder of captions. photos:
    image-text data as `train --data` takes it; None has photo-like images made. folder: a place for
    files, deleted afterwards.
    """

    quick: bool
    captions: Path
    photos: str | None
    folder: Path


Rows = Callable[[Inputs], list[Row]]
"""The type of `rows` in every stage module `bench.<stage>`."""


def shown(rows: Sequence[Row]) -> str:
    """The rows as an aligned table; below it what limits the targets that are missed."""
    cells = [
        [
            row.bench,
            row.what,
            row.against,
            _number(row.baseline),
            _number(row.ours),
            _number(row.ratio),
            "" if row.target is None else f"{row.of} >= {_number(row.target)}",
            {True: "met", False: "missed", None: ""}[row.met],
        ]
        for row in rows
    ]
    header = ["bench", "what", "against", "baseline", "ours", "ratio", "target", ""]
    missed = [
        f"{row.bench}, {row.what}: {row.limit or 'not explained'}"
        for row in rows
        if row.met is False
    ]
    return "\n".join([table(cells, header, left=3), *([""] if missed else []), *missed])


def machine() -> str:
    """The processor and its cores, in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")
    return f"{name or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def surroundings(device: torch.device) -> dict[str, Any]:
    """The conditions of a measurement: device, threads, versions of libraries."""
    import open_clip
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else machine()
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


def _number(value: float | None) -> str:
    """Three figures that matter."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
