"""ARO's order task: a caption among four shuffles of its words (Yuksekgonul et al., ICLR 2023).

It is made of `<root>/coco/coco_karpathy_test.json` and `<root>/flickr30k/flickr30k_test.json`,
photos as in `retrieval`; options name other places. All texts are cleaned with `pre_caption(30)`;
the truth is text 0 and a tie is right, as in the published numbers. The published code shuffles
with the global generator without a seed. Here every shuffle has its own seed, made from the
caption's key and the kind of shuffle, so that the cases are always the same. A shuffle may by
chance return the caption itself; such distractors stay, as in the original.

Rules: `vl_compo` is the mean of VG-Relation averaged over relation names, VG-Attribution averaged
over attribute pairs with at least 25 cases, and the two order tasks; `paper` leaves out the
relation names that the official notebook leaves out; `mosaiclip` counts the two order tasks as one.

`aro,split=val` is the validation part of Visual Genome's rows, and `aro,split=test` all the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from compoclip.benchmarks.case import Aggregate, Form, ImageRef
from compoclip.benchmarks.entries import entries
from compoclip.benchmarks.files import hash_number
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.retrieval import Captioned, locate, read_captions
from compoclip.benchmarks.shuffles import WORDS, shuffled, tagger_stated
from compoclip.benchmarks.table import Row
from compoclip.captions.chunks import pre_caption
from compoclip.data.options import HELD_OUT
from compoclip.errors import UsageError

LEFT_OUT = tuple(sorted(entries()["aro"]["left_out_of_paper"]))
"""Names left out of VG-Relation's `paper` aggregate (the official notebook of ARO, MIT)."""
_MIN_PAIR = 25
_ORDER = Aggregate(("coco_order", "flickr30k_order"))
_REMEDY = "put it there or select the parts you have, e.g. aro:vg_relation,vg_attribution"


def with_orders(
    rows: Iterable[Row],
    data: Loading,
    *,
    split: Literal["val", "test"] | None = None,
    held_out: float = HELD_OUT,
    coco_captions: Path | None = None,
    flickr30k_captions: Path | None = None,
    coco_images: Path | None = None,
    flickr30k_images: Path | None = None,
    tagger: str = "hanta",
    workers: int = 1,
) -> Iterator[Row]:
    """Add the order tasks to the rows of Visual Genome.

    split: val takes the part of Visual Genome's rows that models are chosen on, and no order task,
    test everything else; all is taken by default. held_out: share of the rows in val. tagger: whose
    nouns and adjectives the order tasks shuffle (see `captions.tagger`); scores under different
    taggers have different data hashes. workers: processes that tag; the result does not depend on
    it."""
    yield from one_side(rows, data, split, held_out) if split else rows
    coco, flickr = data.root / "coco", data.root / "flickr30k"
    order = {
        "coco_order": (coco_captions or coco / "coco_karpathy_test.json", coco, coco_images),
        "flickr30k_order": (
            flickr30k_captions or flickr / "flickr30k_test.json",
            flickr / "images",
            flickr30k_images or flickr / "images",
        ),
    }
    parts = [part for part in data.parts if part in order]
    if parts:
        data.stated.append(tagger_stated(tagger))
    for part in parts:
        path, default, flat = order[part]
        data.files[part] = path
        table = {"form": Form.CHOOSE_TEXT, "id": "{key}", "texts": ["texts*"]}
        for photo, cases in shuffled_captions(
            part, read_captions(path, remedy=_REMEDY), tagger, workers
        ):
            location = f"{path}: photo {photo.image!r:.80}"
            images = (ImageRef(locate(photo.image, default, flat, location)),)
            for key, texts in cases:
                values = {"texts": [*texts]}
                yield Row(values, location, key, 0, part, path, table, {}, images=images)


def one_side(
    rows: Iterable[Row], data: Loading, split: Literal["val", "test"], held_out: float
) -> Iterator[Row]:
    """Yield the rows of Visual Genome that are in the validation part, or all others.

    MosaiCLIP (Singh et al., EMNLP 2023, appendix H.1) chooses models on a tenth of each sub-task.
    Here it is the rows with the smallest hash of photo and caption; rows that share both are on one
    side. Raises UsageError for a share outside (0, 1), and for order tasks alone with val.
    """
    if not 0 < held_out < 1:
        raise UsageError(f"aro: held_out={held_out:g} must lie between 0 and 1")
    data.stated.append(f"split {split}, held out {held_out:g}")
    if split == "val":
        data.name += "_val"
        data.parts = tuple(part for part in data.parts if part not in _ORDER.parts)
        if not data.parts:
            raise UsageError(
                "aro: split=val has Visual Genome's sub-tasks alone: vg_relation, vg_attribution"
            )
        data.expected = {part: data.expected[part] for part in data.parts}
        data.skills = {part: data.skills[part] for part in data.parts}
    numbered: dict[str, list[tuple[int, Row]]] = {}
    for row in rows:
        number = hash_number(f"{row.text('image_path')}\0{row.text('true_caption')}")
        numbered.setdefault(row.part, []).append((number, row))
    for part, of_part in numbered.items():
        smallest = sorted(number for number, _ in of_part)[: round(held_out * len(of_part))]
        last = smallest[-1] if smallest else -1
        chosen = [row for number, row in of_part if (number <= last) == (split == "val")]
        data.expected[part] -= len(of_part) - len(chosen)
        yield from chosen


def rules(data: Loading) -> dict[str, Aggregate]:
    """Return the named aggregates.

    Both filters are dropped where they would leave nothing, which happens only with other items
    than the official ones.
    """
    cases = data.content.cases
    relations = {case.labels["relation"] for case in cases if "relation" in case.labels}
    pairs = Counter(case.labels["attributes"] for case in cases if "attributes" in case.labels)
    relation = Aggregate(("vg_relation",), macro_by="relation")
    relation_paper = relation if relations <= {*LEFT_OUT} else replace(relation, exclude=LEFT_OUT)
    min_group = _MIN_PAIR if max(pairs.values(), default=0) >= _MIN_PAIR else 1
    attribution = Aggregate(("vg_attribution",), macro_by="attributes", min_group=min_group)
    return {
        "vg_relation": relation,
        "vg_relation_paper": relation_paper,
        "vg_attribution": attribution,
        "order": _ORDER,
        "vl_compo": Aggregate((relation, attribution, *_ORDER.parts)),
        "paper": Aggregate((relation_paper, attribution, *_ORDER.parts)),
        "mosaiclip": Aggregate((relation, attribution, _ORDER)),
    }


def shuffled_captions(
    subtask: str, photos: Sequence[Captioned], tagger: str, workers: int
) -> Iterator[tuple[Captioned, list[tuple[str, tuple[str, ...]]]]]:
    """Yield each photo with (key, cleaned caption and its four shuffles) of all its captions."""
    from compoclip.captions.parser import parse_many

    parsed = iter(parse_many((c for photo in photos for c in photo.captions), tagger, workers))
    for photo in photos:
        cases = []
        for k, caption in enumerate(photo.captions):
            key = f"{subtask}/{photo.image}#{k}"
            texts = (caption, *shuffled(caption, next(parsed).tokens, key))
            cases.append((key, tuple(pre_caption(text, WORDS) for text in texts)))
        yield photo, cases
