"""Options of the verbs that measure models made on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compoclip.cli.device import device_named
from compoclip.errors import UsageError

if TYPE_CHECKING:
    import torch

    from compoclip.benchmarks.case import Benchmark
    from compoclip.evaluation.run import Options


@dataclass(frozen=True)
class Measuring:
    """How to measure, as for evaluate."""

    on: tuple[str, ...] = ()
    """benchmarks or suites, written as for evaluate --on"""
    data: Path = Path("data")
    """data root in the default layout"""
    images: Path | None = None
    """folder with the photos, when it is not in the data root"""
    batch_size: int = 64
    """images or texts encoded at once"""
    workers: int = 2
    """threads that read images"""
    device: str = "auto"
    """cpu, cuda, cuda:N or mps; auto takes a GPU when there is one"""
    allow_partial: bool = False
    """score what is there when images or items are missing, and mark it"""
    max_bad: int = 0
    """damaged images to leave out before giving up"""
    resamples: int = 2000
    """bootstrap resamples for intervals"""
    seed: int = 0
    """seed of the bootstrap"""
    fresh: bool = False
    """measure again even where results are already there"""


def benchmarks_of(measuring: Measuring) -> list[Benchmark]:
    """What --on names, checked as far as it can be without a model.

    Raises UsageError for wrong options and names, CompoclipError for missing data.
    """
    if not measuring.on:
        raise UsageError("name what to measure on: --on BENCHMARK ...")
    for name in ("batch_size", "workers", "resamples"):
        if getattr(measuring, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
    if measuring.max_bad < 0:
        raise UsageError("--max-bad must not be negative")
    from compoclip.evaluation.run import require_data
    from compoclip.evaluation.targets import parse_targets

    targets = parse_targets(measuring.on, measuring.data, measuring.images)
    benchmarks = [target.load() for target in targets]
    require_data(benchmarks, measuring.allow_partial)
    return benchmarks


def settings_of(measuring: Measuring, cache: Path) -> tuple[Options, torch.device]:
    """Settings of `evaluate`, with features kept in `cache`, and the device."""
    from compoclip.evaluation.run import Options

    settings = Options(
        batch_size=measuring.batch_size,
        workers=measuring.workers,
        max_bad=measuring.max_bad,
        allow_partial=measuring.allow_partial,
        cache=cache,
        resamples=measuring.resamples,
        seed=measuring.seed,
        fresh=measuring.fresh,
    )
    return settings, device_named(measuring.device)
