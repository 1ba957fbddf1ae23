"""What'sUp: where one thing is, in the photo or relative to another (Kamath et al., EMNLP 2023).

Read from `<root>/whatsup/` (option `annotations`: another folder), each file a JSON list:

    controlled_images_dataset.json   [{"image_path": "data/controlled_images/mug_on_plate.jpeg",
    controlled_clevr_dataset.json      "caption_options": [true, false, false, false]}]
    coco_qa_one_obj.json, coco_qa_two_obj.json   [[image id, true, false]]
    vg_qa_one_obj.json, vg_qa_two_obj.json       the same

Photos: `<root>/whatsup/controlled_images`, `whatsup/controlled_clevr` and `whatsup/vg_images`
(argument `images`: a folder with these three) and `<root>/coco/val2017` (option `coco_images`), the
last two by id. The truth is text 0 and the first of equal texts is taken, so a tie is **right**.

The controlled photos show two things in four positions, told by the file name
`<thing>_<position>[_of]_<thing>`. `pair` is the share of opposite positions (left and right; on and
under, or in front and behind) of which both are right, chance 1/16; `set` that of whole sets of
four, chance 1/256. Headline `vl_compo`: plain mean of the six files' accuracies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta, TiePolicy
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.errors import CompoclipError

_PARTS = {
    "controlled_a": Subtask("spatial", 412),
    "controlled_b": Subtask("spatial", 408),
    "coco_one": Subtask("spatial", 2247),
    "coco_two": Subtask("spatial", 440),
    "vg_one": Subtask("spatial", 1160),
    "vg_two": Subtask("spatial", 291),
}
_FILES = {
    "controlled_a": "controlled_images_dataset",
    "controlled_b": "controlled_clevr_dataset",
    "coco_one": "coco_qa_one_obj",
    "coco_two": "coco_qa_two_obj",
    "vg_one": "vg_qa_one_obj",
    "vg_two": "vg_qa_two_obj",
}
_FOLDERS = {"controlled_a": "controlled_images", "controlled_b": "controlled_clevr"}
_POSITIONS = {
    "controlled_a": {"left": "beside", "right": "beside", "on": "over", "under": "over"},
    "controlled_b": {"left": "beside", "right": "beside", "in-front": "deep", "behind": "deep"},
}
_WORDS = ("left", "right", "above", "below", "front", "behind", "top", "bottom")
META = Meta(
    id="whatsup",
    title="What'sUp",
    citation="Kamath et al., What's 'up' with vision-language models? Investigating their struggle "
    "with spatial reasoning, EMNLP 2023",
    source="repository amitakamath/whatsup_vlms and its file share; photos: the authors' own, "
    "COCO val2017, Visual Genome (GQA)",
    licence="MIT",
    access="open; authors' file share",
    images=(
        "whatsup/controlled_images",
        "whatsup/controlled_clevr",
        "whatsup/vg_images",
        "coco/val2017",
    ),
    chance={
        **{name: 1 / 4 if name in _FOLDERS else 1 / 2 for name in _PARTS},
        "/pair": 1 / 16,
        "/set": 1 / 256,
    },
    **facts(_PARTS, lambda part: f"whatsup/{_FILES[part]}.json"),
)
_REMEDY = "put it there or select the parts you have, e.g. whatsup:controlled_*"


def _cases(
    data: Loading, *, annotations: Path | None = None, coco_images: Path | None = None
) -> Iterator[Case]:
    data.joint = {"pair": "pair", "set": "set"}
    photos = data.photos("whatsup")
    for part in data.parts:
        path = (annotations or data.root / "whatsup") / f"{_FILES[part]}.json"
        if part in _FOLDERS:
            yield from _controlled(data, path, part, photos / _FOLDERS[part])
        elif part.startswith("coco"):
            coco = coco_images or data.root / "coco" / "val2017"
            yield from _questions(data, path, part, coco, 12)
        else:
            yield from _questions(data, path, part, photos / "vg_images", 0)


def _rules(data: Loading) -> dict[str, Aggregate]:
    """The aggregates, those over pairs and sets only if the files hold any."""
    pairs = tuple(_FOLDERS)
    labels = {label for case in data.cases for label in case.labels}
    return {
        "vl_compo": Aggregate(META.parts),
        "controlled": Aggregate(pairs),
        **{each: Aggregate(pairs, metric=each) for each in ("pair", "set") if each in labels},
    }


def _case(subtask: str, index: int, image: Path, texts: Sequence[str], relation: str) -> Case:
    labels = {"relation": relation} if relation else {}
    key = f"{subtask}/{index}"
    return Case(key, Form.CHOOSE_TEXT, (ImageRef(image),), tuple(texts), subtask, labels=labels)


def _controlled(data: Loading, path: Path, subtask: str, photos: Path) -> list[Case]:
    cases = []
    places: list[tuple[str, str]] = []
    for index, where, row in data.rows(subtask, path, _REMEDY):
        listed = PurePosixPath(files.text(row, "image_path", where)).name
        image = files.image_path(photos, listed, where)
        options = files.items(files.field(row, "caption_options", where), f"{where}: options")
        texts = [files.nonempty(text, f"{where}: option {k}") for k, text in enumerate(options)]
        if len(texts) != 4:
            raise CompoclipError(f"{where}: 'caption_options' must hold 4 texts, not {len(texts)}")
        words = image.stem.split("_")
        if len(words) < 3 or words[1] not in _POSITIONS[subtask]:
            raise CompoclipError(
                f"{where}: image name {image.name!r:.80} tells no position; expected "
                f"<thing>_<{'|'.join(_POSITIONS[subtask])}>[_of]_<thing>"
            )
        places.append((f"{words[0]} {words[-1]}", words[1]))
        cases.append(_case(subtask, index, image, texts, words[1]))
    counts = Counter(places)
    return [
        replace(case, labels={**case.labels, **_groups(things, position, subtask, counts)})
        for case, (things, position) in zip(cases, places)
    ]


def _groups(
    things: str, position: str, subtask: str, counts: Mapping[tuple[str, str], int]
) -> dict[str, str]:
    """The labels "pair" and "set" where each position that belongs to it is there exactly once."""
    kinds = _POSITIONS[subtask]
    whole = {place: counts.get((things, place), 0) == 1 for place in kinds}
    labels = {}
    if all(whole[place] for place, kind in kinds.items() if kind == kinds[position]):
        labels["pair"] = f"{things} {kinds[position]}"
    if all(whole.values()):
        labels["set"] = things
    return labels


def _questions(
    data: Loading, path: Path, subtask: str, photos: Path, digits: int
) -> Iterator[Case]:
    """Rows [image id, true, false]; the photo's name is the id with leading zeros."""
    found = by_stem((photos,))
    for index, where, value in data.values(subtask, path, _REMEDY):
        row = files.items(value, where)
        if len(row) != 3 or isinstance(row[0], bool) or not isinstance(row[0], int | str):
            raise CompoclipError(f"{where}: expected [image id, true text, false text]")
        stem = str(row[0]).zfill(digits)
        image = found.get(stem) or files.image_path(photos, f"{stem}.jpg", where)
        texts = [files.nonempty(text, f"{where}: text {k}") for k, text in enumerate(row[1:])]
        words = texts[0].lower().rstrip(".").split()
        relation = next((word for word in _WORDS if word in words), "")
        yield _case(subtask, index, image, texts, relation)


WHATSUP = CaseReader(META, _cases, _rules, "vl_compo", TiePolicy.FIRST)
