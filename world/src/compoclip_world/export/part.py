"""An exporter's output: files and pictures below a suite's root, not yet written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from compoclip.console import counted
from compoclip.errors import CompoclipError, UsageError
from compoclip_world.sampling import generator, scene_for
from compoclip_world.scene import Scene, WorldConfig

EXPORT_SPLITS = ("val", "test")
_APART = 10_000_000
"""Index distance between the scenes of different slots, so that no two show the same scene."""
_PATIENCE = 60
"""Scenes to look at, per wanted item, before giving up."""
T = TypeVar("T")


@dataclass(frozen=True)
class SuiteSpec:
    """The settings that decide every byte of a suite.

    items: wanted per sub-task, at least 2. split: "val" or "test", never the scenes that models are
    trained on. Raises UsageError for another split or fewer items.
    """

    config: WorldConfig = field(default_factory=WorldConfig)
    items: int = 250
    seed: int = 0
    split: str = "test"

    def __post_init__(self) -> None:
        """Reject values that make no suite. Raises UsageError."""
        if self.split not in EXPORT_SPLITS:
            splits = " or ".join(EXPORT_SPLITS)
            raise UsageError(
                f"world: a suite is made from split {splits}, not {self.split!r}, so that it never "
                "holds training scenes"
            )
        if self.items < 2:
            raise UsageError(f"world: {counted(self.items, 'item')} per sub-task; give at least 2")


@dataclass(frozen=True)
class Part:
    """One benchmark of a suite, a plain record that travels between processes.

    spec: what `load_benchmark` is asked for. id: its name in results. files: path below the root
    -> JSON value, for .jsonl, .csv and .txt the list of its rows. images: path below the root ->
    scene (.npy: as an array); parts may share a path, which then shows the same scene. items:
    sub-task -> how many. about: sub-task -> what it asks, in words. options: reader option -> its
    value, paths below the root.
    """

    spec: str
    id: str
    files: Mapping[str, Any]
    images: Mapping[str, Scene]
    items: Mapping[str, int]
    about: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Photos:
    """The scenes behind an image folder; scene `index` is the file `<folder>/<name(index)>`.

    slot: number of this series of scenes; different slots never show the same scene. shape: what
    differs from the config of the spec, so that rare things are frequent. split: another split.
    """

    spec: SuiteSpec
    folder: str
    slot: int
    shape: Mapping[str, Any] = field(default_factory=dict)
    split: str = ""

    def name(self, index: int) -> str:
        """File name of a scene: twelve digits, as COCO's photos have."""
        return f"{self.slot * _APART + index:012d}.png"

    def path(self, index: int) -> str:
        """Its path below the suite's root."""
        return f"{self.folder}/{self.name(index)}"

    def scene(self, index: int) -> Scene:
        """The scene itself, a function of the spec, the slot and the index."""
        config = replace(self.spec.config, **self.shape)
        split = self.split or self.spec.split
        return scene_for(config, self.spec.seed, split, self.slot * _APART + index)

    def chosen(self, indices: Iterable[int]) -> dict[str, Scene]:
        """`Part.images` of these scenes."""
        return {self.path(i): self.scene(i) for i in sorted(set(indices))}


def collect(
    photos: Photos, count: int, task: str, make: Callable[[Scene, Random], T | None]
) -> list[tuple[int, T]]:
    """The first `count` scenes that yield an item, as (index, item).

    `make` gets a generator that belongs to the task and the scene. Tasks that share `photos` share
    scenes where both can. Raises CompoclipError when too few scenes yield one.
    """
    items: list[tuple[int, T]] = []
    for index in range(_PATIENCE * count + _PATIENCE):
        rng = generator("suite", task, photos.spec.seed, photos.spec.split, photos.slot, index)
        item = make(photos.scene(index), rng)
        if item is not None:
            items.append((index, item))
        if len(items) == count:
            return items
    raise CompoclipError(
        f"world: only {len(items)} of {counted(count, 'item')} of {task} exist in the first "
        "scenes; ask for fewer items or allow more kinds, colours and objects"
    )
