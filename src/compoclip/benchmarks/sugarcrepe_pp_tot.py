"""SugarCrepe++, text-only task (TOT): the same three captions, no photo.

Files and layout: see `sugarcrepe_pp`. The two true captions must be closer to each other than
either is to the negative; the official code tests both, its readme names only the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks import sugarcrepe_pp
from compoclip.benchmarks.case import Benchmark

META = replace(
    sugarcrepe_pp.META,
    id="sugarcrepe_pp_tot",
    title="SugarCrepe++ (text-only)",
    source="repository Sri-Harsha/scpp, folder data; needs no photos",
    images=(),
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read SugarCrepe++ as TEXT_ONLY cases; `images` is accepted for uniformity and not used.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    return sugarcrepe_pp.read(META, annotations or root / "sugarcrepe_pp", None, subtasks)
