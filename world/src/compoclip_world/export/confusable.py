"""The world's confusable gallery: retrieval where every image has three near neighbours.

The neighbours differ in which thing has which colour, in where the things are, and in the kind or
the presence of one of them (`pairs.neighbours`). A caption is true of one image of the gallery.
"""

from __future__ import annotations

from functools import cache

from compoclip.console import counted
from compoclip.errors import CompoclipError
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.export.retrieval import false_of
from compoclip_world.pairs import neighbours
from compoclip_world.parser import parse
from compoclip_world.scene import Scene

_FOLDER = "flickr8k"
_PATIENCE = 60  # draws per group
_form = cache(parse)


def build(spec: SuiteSpec) -> list[Part]:
    """Write the gallery in the layout of Flickr8k's test set, one caption per image.

    Raises CompoclipError when too few groups come up.
    """
    groups = max(1, spec.items // 4)
    gallery: list[tuple[str, Scene]] = []
    for index in range(_PATIENCE * groups):
        group = neighbours(spec.config, spec.seed, index, spec.split)
        if group is not None and _apart(group, gallery) and _apart(gallery, group):
            gallery += group
        if len(gallery) == 4 * groups:
            break
    else:
        raise CompoclipError(
            f"world: only {len(gallery) // 4} of {counted(groups, 'group')} of neighbours "
            "came up; ask for fewer items or allow more kinds and colours"
        )
    names = [f"{index // 4:05d}_{'abcd'[index % 4]}.png" for index in range(len(gallery))]
    rows = [{"image": name, "caption": [text]} for name, (text, _) in zip(names, gallery)]
    images = {f"{_FOLDER}/images/{name}": scene for name, (_, scene) in zip(names, gallery)}
    many = len(gallery)
    return [
        Part(
            "retrieval:flickr8k",
            "world-confusable",
            {f"{_FOLDER}/flickr8k_test.json": rows},
            images,
            {"i2t": many, "t2i": many},
            {
                "i2t": f"the caption of an image among {many}, three of them nearly true",
                "t2i": f"the image of a caption among {many}, three of them nearly right",
            },
        )
    ]


def _apart(captions: list[tuple[str, Scene]], scenes: list[tuple[str, Scene]]) -> bool:
    """Return whether every caption is false of every scene."""
    return all(false_of(_form(text), (scene for _, scene in scenes)) for text, _ in captions)
