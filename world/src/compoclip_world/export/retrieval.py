"""The world's retrieval set: images with captions that are true of no other image of the set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from compoclip.benchmarks.files import same
from compoclip.errors import CompoclipError
from compoclip_world.captions import WorldCaption, captions_for
from compoclip_world.dataset import crowded
from compoclip_world.export.part import Part, Photos, SuiteSpec
from compoclip_world.export.sugarcrepe import photos
from compoclip_world.logic import Form, NounPhrase, Quantifier, nodes_of
from compoclip_world.oracle import is_false
from compoclip_world.scene import Scene

_EACH = 5
_CANDIDATES = 16
_SPARE = 2.0
_SLOT = 20
_FEW = 4  # candidates of the fine-tuning style, not to prefer short ones
_FILE = "flickr30k/style_test.json"
# Captions that tell little are not drawn at all.
_WEIGHTS = (
    ("object", 0.0),
    ("negation", 0.0),
    ("predicate", 0.03),
    ("background", 0.12),
    ("position", 0.35),
    ("long", 0.4),
)


def build(spec: SuiteSpec) -> list[Part]:
    """Two caption files: in the layout of COCO's test set on the photos of `sugarcrepe`, and in the
    layout of Flickr30k's one caption per image as fine-tuning has them (`dataset.crowded`).
    """
    style = crowded(spec.config)
    tuned = Photos(replace(spec, config=style), "flickr30k/images", _SLOT)
    base_style = captioned(photos(spec), spec.items, "val2017/")
    tuned_style = captioned(tuned, spec.items, "", _FEW, per_image=1, weights=style.caption_weights)
    return [
        Part(
            source,
            name,
            {file: rows},
            images,
            {"i2t": len(rows), "t2i": sum(len(row["caption"]) for row in rows)},
            {
                "i2t": f"the caption of an image among {len(rows)} images, {style_of}",
                "t2i": f"the image of a caption among {len(rows)}, {style_of}",
            },
            options,
        )
        for source, name, file, (rows, images), style_of, options in (
            (
                "retrieval:coco",
                "world-retrieval",
                "coco/coco_karpathy_test.json",
                base_style,
                "in words that the base knows",
                {},
            ),
            (
                "retrieval:flickr30k",
                "world-retrieval-style",
                _FILE,
                tuned_style,
                "in the style of the fine-tuning captions",
                {"annotations": _FILE},
            ),
        )
    ]


def captioned(
    pool: Photos,
    count: int,
    prefix: str,
    candidates: int = _CANDIDATES,
    accepted: Callable[[Scene, str, str, int], bool] = lambda scene, image, text, number: True,
    per_image: int = _EACH,
    weights: tuple[tuple[str, float], ...] = _WEIGHTS,
) -> tuple[list[dict[str, Any]], dict[str, Scene]]:
    """Return `count` images of the pool, `per_image` short captions of each, and the scenes.

    A caption is taken when the oracle calls it FALSE of every other image looked at and it is
    `accepted` as number so-and-so of its image; the shortest are taken. Images with fewer
    are passed over. Raises CompoclipError when too few are left.
    """
    spec = pool.spec
    config = replace(spec.config, caption_weights=weights)
    scenes = [pool.scene(i) for i in range(round(_SPARE * count) + 10)]
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    for index, scene in enumerate(scenes):
        drawn = captions_for(scene, config, spec.seed, index, candidates)
        short_first = sorted(drawn, key=lambda caption: len(caption.text.split()))
        image = prefix + pool.name(index)
        captions = own_captions(
            short_first, index, scenes, partial(accepted, scene, image), per_image
        )
        if len(captions) == per_image:
            rows.append({"image": image, "caption": captions})
            images[pool.path(index)] = scene
        if len(rows) == count:
            return rows, images
    raise CompoclipError(
        f"world: only {len(rows)} of {count} images have {per_image} captions of their own; "
        "ask for fewer items or allow more kinds and colours"
    )


def own_captions(
    captions: Sequence[WorldCaption],
    index: int,
    scenes: Sequence[Scene],
    accepted: Callable[[str, int], bool] = lambda text, number: True,
    most: int = _EACH,
) -> list[str]:
    """Return the first captions of scene `index`, at most `most`, that are false of all other
    scenes, accepted as number so-and-so, and not the same words again.
    """
    chosen: list[str] = []
    for caption in captions:
        if any(same(caption.text, earlier) for earlier in chosen):
            continue
        others = (other for i, other in enumerate(scenes) if i != index)
        if false_of(caption.form, others) and accepted(caption.text, len(chosen)):
            chosen.append(caption.text)
        if len(chosen) == most:
            break
    return chosen


def false_of(form: Form, scenes: Iterable[Scene]) -> bool:
    """Return whether a caption is false of every scene; at once where a kind of it is lacking."""
    needed = {
        node.word
        for node in nodes_of(form)
        if isinstance(node, NounPhrase) and node.quantifier is not Quantifier.NONE
    }
    return all(
        not needed <= {thing.kind for thing in scene.things} or is_false(form, scene)
        for scene in scenes
    )
