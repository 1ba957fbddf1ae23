"""The papers' tables on drawn scenes: what `compoclip reproduce PAPER --scale world` runs on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compoclip import console
from compoclip.evaluation.published.read import PublishedNumber
from compoclip.files import write_text
from compoclip.programs.experiments import Scale
from compoclip.workers import available_cores
from compoclip_world.captions import CAPTION_TYPES, captions_for
from compoclip_world.dataset import (
    TrainingSet,
    bundled_world,
    crowded,
    has_training_set,
    write_training_set,
)
from compoclip_world.export.part import SuiteSpec
from compoclip_world.export.suite import has_suite, write_suite
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig

SCENES = 8000
ITEMS = 300
TEST_CAPTIONS = 500
_CAPTIONS = {
    "scenes": ({"conjunction": 0.72, "relation": 0.2, "object": 0.04, "position": 0.04}, 1),
    "relations": ({"relation": 0.95, "object": 0.05}, 1),
    "sentences": ({"object": 0.4, "position": 0.3, "predicate": 0.3}, 4),
}
"""Training data -> weights of the types of captions, and sentences of the caption of a scene."""
_ZERO_SHOT = ("kinds", "colours", "looks", "compounds", "novel-compounds")
_LOW_RATE = 3e-4
"""The rate that validation scenes of the lab chose for some recipes, see recipes/lab.json."""


def scale(folder: Path) -> Scale:
    """Write the training scenes and the suite, unless they are there; return the scale.

    Every arm takes two passes over 8,000 scenes in batches of 128, with the image tower of the
    bundled model frozen where the arm does not say otherwise.
    """
    world = bundled_world()
    for name, (weights, number) in _CAPTIONS.items():
        described = _described(world, weights)
        spec = TrainingSet(described, SCENES, captions=number, joined=number > 1)
        if not has_training_set(folder / name, spec):
            console.note(f"drawing {SCENES:,} training scenes -> {folder / name}")
            write_training_set(folder / name, spec, available_cores())
    captions = folder / "test-captions.txt"
    if not captions.is_file():
        scenes = [scene_for(world, 0, "test", index) for index in range(TEST_CAPTIONS)]
        texts = [captions_for(s, world, 0, k, 1)[0].text for k, s in enumerate(scenes)]
        write_text(captions, "\n".join(texts) + "\n")
    suite, core = folder / "suite", SuiteSpec(world, ITEMS, 0)
    if not has_suite(suite, core):
        console.note(f"writing the test suite -> {suite}")
        write_suite(suite, core, available_cores())
    zero_shot = tuple(PublishedNumber(f"zero_shot_{name}") for name in _ZERO_SHOT)
    return Scale(
        model="bundled",
        data={name: folder / name for name in _CAPTIONS},
        captions=captions,
        on=(str(suite),),
        usual={"freeze": ("image",)},
        by_recipe={
            "mosaic-clip": {"second_stage": 1, "lr": _LOW_RATE},
            "hard-positives": {"lr": _LOW_RATE},
            "clic": {"lr": _LOW_RATE},
        },
        fixed={
            "epochs": 2.0,
            "batch_size": 128,
            "warmup": 15,
            "clip_grad": 1.0,
            "crop": False,
            "mask_duplicates": False,
            "save_every": 50,
        },
        lr=1e-3,
        lora_lr=1e-2,
        columns={"zs": zero_shot},
        about=f"{SCENES:,} drawn scenes, the bundled model, two passes in batches of 128",
    )


def _described(world: WorldConfig, weights: dict[str, float]) -> WorldConfig:
    """Return the crowded world with captions of some types."""
    whole = {**dict.fromkeys(CAPTION_TYPES, 0.0), **weights}
    return replace(crowded(world), caption_weights=tuple(sorted(whole.items())))
