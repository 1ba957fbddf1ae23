"""Hard Positives: caption, rewording with the same meaning, hard negative (Kamath et al., 2024).

**hard_positives_own** makes such items from any captioned photos, with the package's rewrites:

    <root>/hard_positives_own/captions.json     photos <root>/hard_positives_own/images

(option `annotations`: another file, argument `images`: another folder). The file is BLIP's or
Karpathy's JSON (of the latter the photos of the test), a list of {"image": name, "caption": text or
texts} lines in .jsonl, or Flickr8k's token file in .txt with the option `split_file`. A caption is
put otherwise by a synonym or by exchanged conjuncts (`synonym`, `and-swap`), and made false by
`crepe-atom` (sub-tasks replace_object, replace_attribute, replace_relation) or `crepe-swap`
(swap_object, swap_attribute); no caption of the photo may name a word that the false one puts in. A
photo gives at most one item of a sub-task, a sub-task has at most `most` items (1,000), and what is
drawn follows from `seed` (42) and the photo's name. The headline is `replace`, the plain mean of
the three.

A model that was trained on these rewrites knows their manner: compare it with others, not with
published scores.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.retrieval import OwnPhotos, keep_drawn
from compoclip.captions.parser import parse
from compoclip.captions.tagger import get_tagger
from compoclip.captions.types import Caption
from compoclip.errors import CompoclipError
from compoclip.rewrites.base import Refused, Rewritten, get_rewrite, rng_for
from compoclip.rewrites.reading import Reading, read

_NAMES = {
    "attribute": "vl_checklist_attributes",
    "relation": "vl_checklist_relations",
    "swap": "visual_genome_attribution",
}


def official(
    reading: Loading,
    *,
    data: Path | None = None,
    swapped: Path | None = None,
    aro_images: Path | None = None,
) -> Iterator[Case]:
    """Yield the items of both folders, `data` and `swapped`, joined by position."""
    first = data or reading.root / "hard_positives" / "data"
    second = swapped or reading.root / "hard_positives" / "swapped_data"
    for part in reading.parts:
        path, other = (folder / f"{_NAMES[part]}.json" for folder in (first, second))
        photos = reading.photos("vg")
        remedy = "select the parts you have, e.g. hard_positives:attribute,relation"
        if part == "swap":
            photos = aro_images or reading.root / "aro" / "images"
            remedy = f"copy ARO's {path.name} there, or {remedy}"
        rows = list(reading.rows(f"data/{part}", path, remedy))
        twins = list(reading.rows(f"swapped_data/{part}", other, remedy))
        if len(rows) != len(twins):
            raise CompoclipError(
                f"{other}: {len(twins)} rows, but {path} has {len(rows)}; the two are joined by "
                "position, fetch both again"
            )
        for (index, where, row), (_, there, twin) in zip(rows, twins):
            _agree(row, twin, where, there)
            name = files.text(row, "image_path", where).removeprefix("data/")
            box = files.box(row, where) if part == "swap" else None
            image = ImageRef(files.image_path(photos, name, where), box)
            texts = (
                files.text(row, "true_caption", where),
                files.text(twin, "true_caption", there),
                files.text(row, "false_caption", where),
            )
            yield Case(f"{part}/{index}", Form.TRIPLE, (image,), texts, part)


def _agree(row: dict[str, object], twin: dict[str, object], where: str, there: str) -> None:
    for key in ("image_id", "false_caption"):
        mine, theirs = files.field(row, key, where), files.field(twin, key, there)
        if str(mine) != str(theirs):
            raise CompoclipError(
                f"{there}: {key} {theirs!r:.80} differs from {mine!r:.80} in the row it belongs to "
                "in the data folder; the files are joined by position, fetch both again"
            )


# --- Items of your own. ---

_VERSION = "hard_positives_own 1"
_POSITIVES = ("synonym", "and-swap")
_NEGATIVES = {
    "replace_object": ("crepe-atom", "atom:object"),
    "replace_attribute": ("crepe-atom", "atom:attribute"),
    "replace_relation": ("crepe-atom", "atom:relation"),
    "swap_object": ("crepe-swap", "swap:object"),
    "swap_attribute": ("crepe-swap", "swap:attribute"),
}
"""Sub-task -> the rewrite that makes its negatives, and the rule of those that are meant."""
_DRAWS = 6  # negatives of a caption that are looked at, for one of the rule


@dataclass(frozen=True)
class _Reworded:
    """A caption, put otherwise and made false."""

    caption: str
    positive: Rewritten
    negative: Rewritten

    @property
    def texts(self) -> tuple[str, str, str]:
        return self.caption, self.positive.text, self.negative.text


def own(
    data: Loading,
    *,
    annotations: Path | None = None,
    split_file: Path | None = None,
    seed: int = 42,
    most: int = 1000,
) -> Iterator[Case]:
    """Yield items of captions. most: items of each sub-task. seed: of all that is drawn."""
    own, tagger = OwnPhotos.of(data, annotations, split_file, most), get_tagger()
    items: list[tuple[str, str, _Reworded]] = []
    made = Counter[str]()
    for photo in random.Random(seed).sample(own.photos, len(own.photos)):
        wanted = [part for part in data.parts if made[part] < most]
        for part in set(data.parts).difference(wanted):
            data.left_out[f"photos beyond the first {most} with an item of {part}"] += 1
        if not wanted:
            continue
        captions = [parse(text, tagger) for text in photo.captions]
        readings = [read(each) for each in captions]
        for part in wanted:
            found = _item(captions, readings, part, rng_for(seed, photo.image, 0, part))
            if found is None:
                data.left_out[f"photos without an item of {part}"] += 1
                continue
            made[part] += 1
            items.append((part, photo.image, found))
    drawn = [[part, name, *each.texts] for part, name, each in items]
    keep_drawn(data, drawn, _VERSION, f"seed {seed}", f"most {most}")
    for part, name, each in items:
        image = own.image(name)
        labels = {"positive": each.positive.rule, "negative": each.negative.rule}
        yield Case(f"{part}/{name}", Form.TRIPLE, (image,), each.texts, part, labels=labels)


def _item(
    captions: Sequence[Caption], readings: Sequence[Reading], part: str, rng: random.Random
) -> _Reworded | None:
    """An item of the first caption, in a drawn order, that can be put otherwise and made false."""
    name, rule = _NEGATIVES[part]
    for caption in rng.sample(captions, len(captions)):
        positive = _positive(caption, rng)
        if positive is None:
            continue
        for _ in range(_DRAWS):
            negative = get_rewrite(name)(caption, rng)
            if isinstance(negative, Refused):
                break
            if negative.rule == rule and not _told(negative.text, caption.text, readings):
                return _Reworded(caption.text, positive, negative)
    return None


def _positive(caption: Caption, rng: random.Random) -> Rewritten | None:
    for name in rng.sample(_POSITIVES, len(_POSITIVES)):
        found = get_rewrite(name)(caption, rng)
        if isinstance(found, Rewritten):
            return found
    return None


def _told(negative: str, caption: str, readings: Sequence[Reading]) -> bool:
    """Whether a caption of the photo names a word that the negative puts in."""
    new = set(negative.lower().split()) - set(caption.lower().split())
    return any(reading.holds(word.strip(".,")) for reading in readings for word in new)


def own_rules(data: Loading) -> dict[str, Aggregate]:
    """Return the means over the sub-tasks of each family that have items, of three metrics."""
    there = {case.subtask for case in data.cases}
    return {
        f"{name}_{metric}" if metric else name: Aggregate(parts, metric=metric or None)
        for name in ("replace", "swap")
        if (parts := tuple(p for p in data.parts if p in there and p.startswith(name)))
        for metric in ("", "original", "brittleness")
    }
