"""What an exporter makes: files and pictures below a suite's root, not yet written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compoclip.errors import UsageError
from compoclip.world.sampling import scene_for
from compoclip.world.scene import Scene, WorldConfig

EXPORT_SPLITS = ("val", "test")
_APART = 10_000_000
"""Index distance between the scenes of different image folders, so that no two share a scene."""


@dataclass(frozen=True)
class SuiteSpec:
    """What decides every byte of a suite. items: wanted items per sub-task.

    split: "val" or "test", never the scenes that models are trained on. Raises UsageError for
    another split or fewer than 2 items.
    """

    config: WorldConfig = field(default_factory=WorldConfig)
    items: int = 250
    seed: int = 0
    split: str = "test"

    def __post_init__(self) -> None:
        """Reject values that make no suite. Raises UsageError."""
        if self.split not in EXPORT_SPLITS:
            raise UsageError(
                f"world: a suite is made from split {' or '.join(EXPORT_SPLITS)}, "
                f"not {self.split!r}, so that it never holds training scenes"
            )
        if self.items < 2:
            raise UsageError(f"world: {self.items} items per sub-task; give at least 2")


@dataclass(frozen=True)
class Part:
    """One benchmark of a suite. spec: what `load_benchmark` is asked for. id: its name there.

    files: path below the root -> JSON value, or for .jsonl the list of its rows. images: path
    below the root -> scene; parts may share paths, which then show the same scene. items: sub-task
    -> how many items. skills: sub-task -> what it asks, in words.
    """

    spec: str
    id: str
    files: Mapping[str, object]
    images: Mapping[str, Scene]
    items: Mapping[str, int]
    about: Mapping[str, str]


@dataclass(frozen=True)
class Photos:
    """The scenes behind one image folder: scene `index` is the file `<folder>/<name>`.

    slot: number of the folder; folders of different slots never show the same scene.
    """

    spec: SuiteSpec
    folder: str
    slot: int
    digits: int = 12
    split: str = ""

    def name(self, index: int) -> str:
        """File name of a scene, numbered as COCO's photos are."""
        return f"{index:0{self.digits}d}.png"

    def path(self, index: int) -> str:
        """Its path below the suite's root."""
        return f"{self.folder}/{self.name(index)}"

    def scene(self, index: int) -> Scene:
        """The scene itself, a function of the spec, the slot and the index."""
        split = self.split or self.spec.split
        place = self.slot * _APART + index
        return scene_for(self.spec.config, self.spec.seed, split, place)

    def chosen(self, indices: Sequence[int]) -> dict[str, Scene]:
        """`Part.images` of these scenes."""
        return {self.path(i): self.scene(i) for i in sorted(set(indices))}
