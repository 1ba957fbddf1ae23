"""Parts of a suite, and false captions by any edit of a logical form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

from compoclip_world.captions import CAPTION_TYPES, facts_of
from compoclip_world.export.part import Part
from compoclip_world.export.texts import seemly
from compoclip_world.logic import Form
from compoclip_world.oracle import is_false, is_true
from compoclip_world.parser import parse
from compoclip_world.scene import Scene, WorldConfig
from compoclip_world.wording import Wording

_FAR = 60


def world_part(
    spec: str,
    files: Mapping[str, Any],
    images: Mapping[str, Scene],
    items: Mapping[str, int],
    **options: str,
) -> Part:
    """A part called "world-" and its spec; what its sub-tasks ask is not stated."""
    name = spec.replace("_", "-").replace(":", "-")
    return Part(spec, f"world-{name}", files, images, items, dict.fromkeys(items, ""), options)


def foils(
    scene: Scene,
    config: WorldConfig,
    form: Form,
    edit: Callable[[Form], Iterable[Form]],
    count: int,
    rng: Random,
) -> tuple[str, tuple[str, ...]] | None:
    """The form in words, and `count` different false captions that are one edit or two away.

    All are worded alike, the oracle has judged them TRUE and FALSE, and the false ones are
    `seemly`. None when the form is not true or does not yield enough.
    """
    style, colour_first = rng.randrange(2**32), rng.random() < 0.4

    def worded(said: Form) -> str:
        return Wording(Random(style), variants=0.5, colour_first=colour_first).caption(said)

    text = worded(form)
    if not is_true(text, scene):
        return None
    near = list(edit(form))
    rng.shuffle(near)
    far = (other for changed in near for other in edit(changed))
    found: dict[str, None] = {}
    for changed in (*near, *islice(far, _FAR)):
        other = worded(changed)
        if other == text or other in found or not is_false(other, scene):
            continue
        if seemly(parse(other), config):
            found[other] = None
        if len(found) == count:
            return text, tuple(found)
    return None


def form_of(scene: Scene, config: WorldConfig, types: Sequence[str], rng: Random) -> Form | None:
    """A seemly logical form of one of the caption types (see `captions.CAPTION_TYPES`), or None."""
    form = CAPTION_TYPES[rng.choice(types)][1](facts_of(scene), config, rng)
    return form if form is not None and seemly(form, config) else None
