"""The ground that a lab stands on: where its training data, suites, columns and bounds come from.

`Ground` is all that a lab asks of it. `World` is the bundled world, whose oracle makes data and
benchmarks; `lab.photos.Photos` is real photos with captions. `LabSettings.ground` says which.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from compoclip.console import note
from compoclip.errors import CompoclipError
from compoclip.files import read_json
from compoclip.version import __version__
from compoclip_world.bounds import BOUNDS
from compoclip_world.dataset import bundled_world, crowded, world_of
from compoclip_world.export.part import SuiteSpec
from compoclip_world.export.suite import write_suite
from compoclip_world.scene import WorldConfig
from lab.columns import COLUMNS, Column
from lab.data import DataSpec, write_data

if TYPE_CHECKING:
    from lab.settings import LabSettings

DATA, SUITE, CHOICE_SUITE = "data", "suite", "choice-suite"
"""Folders of a lab: training tables, and the suites of the test and of the choice of rates."""


class Ground(ABC):
    """One kind of lab.

    name: what its output folder is called after. tables: the training tables that it always has,
    `data/TABLE.jsonl`; arms train on the first unless they say otherwise. columns: of its table.
    bounds: of `compoclip_world.bounds`, those that can be measured. kept: what one half of the
    number that rates are chosen by is about. shown: the columns of the page's table. legend: what
    is said of bounds and columns below the table. partial: whether items without their photo are
    left out and counted.
    """

    name: ClassVar[str]
    tables: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[Column, ...]]
    bounds: ClassVar[tuple[str, ...]]
    kept: ClassVar[str]
    shown: ClassVar[tuple[str, ...]]
    legend: ClassVar[str]
    partial: ClassVar[bool] = False

    @abstractmethod
    def prepare(self, settings: LabSettings, out: Path, choosing: bool) -> None:
        """Write training data and suites into the lab's folder, unless they are there.

        choosing: whether rates are to be chosen, on a suite of their own. Raises CompoclipError
        when the folder holds those of other settings, or when there is no such benchmark.
        """

    @abstractmethod
    def about(self, settings: LabSettings) -> str:
        """Return the sentences about data and items that stand above the table."""

    def measured(self, settings: LabSettings, choosing: bool) -> tuple[str, ...]:
        """The benchmarks of the test suite, or of the one that rates are chosen by."""
        return settings.benchmarks

    def columns_for(self, settings: LabSettings, choosing: bool) -> tuple[Column, ...]:
        """The columns of the table, or those that learning rates are chosen by."""
        return self.columns


@dataclass(frozen=True)
class World(Ground):
    """Scenes of the bundled world, benchmarks made of it, and its oracle as a bound."""

    name = "lab"
    tables = ("scenes", "variations")
    columns = COLUMNS
    bounds = BOUNDS
    kept = "zero-shot and retrieval"
    shown = ("binding", "order", "negation", "style", "t2i")
    legend = (
        "oracle: what a model without a fault reaches (zero-shot and retrieval: 100 by "
        "construction). "
    )

    def prepare(self, settings: LabSettings, out: Path, choosing: bool) -> None:
        """Draw the scenes, and write the world's benchmarks."""
        world = bundled_world()
        tables = tuple((name, tuple(weights.items())) for name, weights in settings.tables.items())
        trained = world_of({**asdict(lab_world(world)), **settings.world}, "world")
        seed = settings.world_seed
        write_data(out / DATA, DataSpec(trained, settings.scenes, seed, tables=tables))
        spec = SuiteSpec(world, settings.items, seed, split=settings.split)
        _suite(settings, out / SUITE, spec)
        if choosing:
            spec = SuiteSpec(world, settings.choice_items, seed, split="val")
            _suite(settings, out / CHOICE_SUITE, spec)

    def about(self, settings: LabSettings) -> str:
        """Say how many scenes and items there are."""
        return f"The data are {settings.scenes} scenes and {settings.items} items a sub-task."


def lab_world(world: WorldConfig) -> WorldConfig:
    """The world that arms train on: the demo's scenes, whose captions also mention relations."""
    pairs = crowded(world)
    weights = {**dict(pairs.caption_weights), "conjunction": 0.72, "relation": 0.2}
    return replace(pairs, caption_weights=tuple(sorted(weights.items())))


def _suite(settings: LabSettings, suite: Path, spec: SuiteSpec) -> None:
    made_by = json.loads(json.dumps({"compoclip": __version__, **asdict(spec)}))
    if not (suite / "suite.json").is_file():
        note(f"writing {spec.items} items a sub-task -> {suite}")
        write_suite(suite, spec, workers=2 if spec.items >= 100 else 1)
    found = read_json(suite / "suite.json")
    if found.get("made_by") != made_by:
        raise CompoclipError(
            f"{suite}: made with other settings; delete it or choose another --out"
        )
    require_benchmarks(settings, [each["id"] for each in found["benchmarks"]], suite)


def require_benchmarks(settings: LabSettings, there: list[str], suite: Path) -> None:
    """Raise CompoclipError when the settings name a benchmark that a suite does not have."""
    for name in settings.benchmarks:
        if name not in there:
            raise CompoclipError(f"no benchmark '{name}' in {suite}; it has: {', '.join(there)}")
