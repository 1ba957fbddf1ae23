"""`python -m bench all`: every stage, as one table."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.__main__ import STAGES
from bench.captions import world_captions
from bench.rows import PROGRAM, Inputs, Row, Rows, machine, shown
from compoclip.cli.options import parse
from compoclip.console import emit_json, note
from compoclip.errors import CompoclipError, UsageError
from compoclip.version import __version__


@dataclass(frozen=True)
class Options:
    """Measure every stage on this machine, each against the way it is compared with in the same
    run, and show what was aimed at. The ratios are what to look at: the numbers of a busy machine
    change from run to run.

    Args:
        quick: Measure less of everything: minutes on two cores.
        captions: Real captions (a .txt, .json, .jsonl file or a folder of them); else those of the
            world.
        photos: Image-text data as for train --data; else photo-like images are made.
        only: Only these stages.
        json: Print JSON.
    """

    quick: bool = False
    captions: Path | None = None
    photos: str | None = None
    only: tuple[str, ...] = ()
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code, 1 when a stage could not be measured."""
    options = parse(Options, "all", arguments, PROGRAM)
    unknown = set(options.only) - set(STAGES)
    if unknown:
        raise UsageError(f"no stage '{min(unknown)}' to measure; one of {', '.join(STAGES)}")
    rows: list[Row] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        captions = options.captions or _world_captions(Path(folder) / "captions.txt")
        for stage in options.only or STAGES:
            note(f"measuring {stage}")
            place = Path(folder) / stage
            place.mkdir()
            start = time.monotonic()
            measure: Rows = import_module(f"bench.{stage}").rows
            try:
                rows += measure(Inputs(options.quick, captions, options.photos, place))
            except CompoclipError as error:
                failed[stage] = str(error)
            seconds[stage] = round(time.monotonic() - start, 1)
    setting = _setting(options)
    if options.json:
        found = [row.to_json() for row in rows]
        emit_json({"setting": setting, "rows": found, "failed": failed, "seconds": seconds})
    else:
        versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
        print(f"{setting['machine']}, {setting['threads']} threads; {versions}")
        print(f"captions: {setting['captions']}; photos: {setting['photos']}\n")
        print(shown(rows))
        for stage, reason in failed.items():
            print(f"{stage}: could not be measured: {reason}")
        parts = ", ".join(f"{stage} {taken:.0f}" for stage, taken in seconds.items())
        print(f"\n{sum(seconds.values()):.0f} s ({parts})")
    return 1 if failed else 0


def _setting(options: Options) -> dict[str, Any]:
    import torch

    return {
        "quick": options.quick,
        "captions": str(options.captions or "of the world"),
        "photos": options.photos or "made, photo-like",
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "versions": {
            "compoclip": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _world_captions(path: Path) -> Path:
    """A file of captions of made scenes, for a machine without real ones."""
    path.write_text("\n".join(world_captions()), encoding="utf-8")
    return path
