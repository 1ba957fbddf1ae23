"""VALSE: a caption and a foil for six linguistic phenomena and noun phrases (Parcalabescu et al.,
ACL 2022).

Read from the eleven files `<root>/valse/NAME.json` or, where they are not unpacked, from the one
`.zip` in that folder (option `annotations`: another folder, or an archive). Each is a JSON object,
id -> row (other keys are ignored):

    {"dataset": "visual7w", "image_file": "v7w_2371044.jpg", "caption": "There are no people ...",
     "foil": "There are people ...", "mturk": {"caption": 3, "foil": 0, "other": 0}}

Only rows that at least two of three annotators found right (`mturk.caption` >= 2) are valid; the
others are counted as left out. Photos by `dataset` and name: `<root>/visual7w`, `coco/val2017`,
`coco/train2014`, `coco/val2014`, `swig`, `visdial/val2018` (argument `images`: one folder with all
of them; options `visual7w_images`, `coco_images`, `swig_images`, `visdial_images`: other places).

Metric: the caption scores higher than the foil; a tie is wrong. Headline `vl_compo`: plain mean of
the seven phenomena, of which counting is a mean of three files, actions and coreference of two;
`macro` is the plain mean of the eleven files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, Meta
from compoclip.benchmarks.files import only_zip, read_members
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import RemoteFile, repository
from compoclip.errors import CompoclipError

_PARTS = {
    "existence": Subtask("negation", 505, 420_403, "1aa34858e0d940d03c91c2ce8a71d4fc"),
    "plurals": Subtask("counting", 851, 1_097_122, "3228e65575ec15b901e6c26fc5b4c1dd"),
    "counting-hard": Subtask("counting", 868, 537_197, "89bf5083f6ee887547281c5893555f11"),
    "counting-small-quant": Subtask("counting", 900, 534_996, "06815066be1b6d4b043f689912ffffd4"),
    "counting-adversarial": Subtask("counting", 691, 407_394, "8d069adcc263c73d73e4772ed8713103"),
    "relations": Subtask("spatial", 535, 664_587, "ea3d88573fcfadd3536d95b873fc9024"),
    "action-replacement": Subtask("relation", 648, 664_129, "eeba2de5a47924697b7f02d77b03fb45"),
    "actant-swap": Subtask("role", 949, 503_017, "cfe5c0f1754515ef41ac71daabad2951"),
    "coreference-standard": Subtask("binding", 708, 592_329, "47fc3a5156c82a8acdf4e0e0b9a0c79d"),
    "coreference-hard": Subtask("binding", 104, 95_649, "f12a09d4c6fd40e9cfeade1be136cc4a"),
    "foil-it": Subtask("object", 943, 538_911, "20a72074a81832cbe4d36481ecc373b4"),
}
_FACTS = facts(
    _PARTS,
    "valse/{}.json".format,
    repository("Heidelberg-NLP/VALSE", "2152d90d4aecd11f7f74cf03420abcb63efff9c5") + "/data",
)
_VISUAL7W = "http://vision.stanford.edu/yukezhu/visual7w_images.zip"
_FACTS["remote"] += (RemoteFile("visual7w", _VISUAL7W, archive=True),)
META = Meta(
    id="valse",
    title="VALSE",
    citation="Parcalabescu et al., VALSE: A Task-Independent Benchmark for Vision and Language "
    "Models Centered on Linguistic Phenomena, ACL 2022",
    source="repository Heidelberg-NLP/VALSE, folder data; photos: Visual7W, COCO, SWiG, VisDial",
    licence="MIT",
    access="open; photos at four sources",
    images=(
        "visual7w",
        "coco/val2017",
        "coco/train2014",
        "coco/val2014",
        "swig",
        "visdial/val2018",
    ),
    chance={"": 1 / 2},
    archives=("valse/*.zip",),
    **_FACTS,
)
_PHENOMENA: Mapping[str, str | Aggregate] = {
    "existence": "existence",
    "plurality": "plurals",
    "counting": Aggregate(("counting-hard", "counting-small-quant", "counting-adversarial")),
    "spatial": "relations",
    "actions": Aggregate(("action-replacement", "actant-swap")),
    "coreference": Aggregate(("coreference-standard", "coreference-hard")),
    "noun_phrases": "foil-it",
}
_VOTES = 2


@dataclass(frozen=True)
class _Photos:
    """Where the photos of each source lie; `flat`: one folder with all of them."""

    flat: Path | None
    visual7w: Path
    coco: Path
    swig: Path
    visdial: Path

    def folder(self, dataset: str, name: str) -> Path | None:
        """The folder of a photo, None for an unknown source."""
        if self.flat is not None:
            return self.flat
        match dataset.replace("_", ""):
            case "visual7w":
                return self.visual7w
            case "SWiG":
                return self.swig
            case "coco2017":
                return self.coco / "val2017"
        for prefix, folder in (
            ("COCO_train2014_", self.coco / "train2014"),
            ("COCO_val2014_", self.coco / "val2014"),
            ("VisualDialog_val2018_", self.visdial),
        ):
            if name.startswith(prefix):
                return folder
        return None


def _cases(
    data: Loading,
    *,
    annotations: Path | None = None,
    visual7w_images: Path | None = None,
    coco_images: Path | None = None,
    swig_images: Path | None = None,
    visdial_images: Path | None = None,
) -> Iterator[Case]:
    """coco_images: the folder that holds train2014 and so on."""
    root = data.root
    contents = _contents(annotations or root / "valse", data.parts)
    data.files |= {name: content for name, (_, content) in contents.items()}
    photos = _Photos(
        data.images,
        visual7w_images or root / "visual7w",
        coco_images or root / "coco",
        swig_images or root / "swig",
        visdial_images or root / "visdial" / "val2018",
    )
    found = False
    for name, (where, content) in contents.items():
        for key, value in files.record(files.parse_json(content, where), where).items():
            case = _case(name, key, value, photos, f"{where}: row {key!r:.80}")
            if case is None:
                data.left_out["rows that fewer than two annotators found right"] += 1
            else:
                found = True
                yield case
    if not found:
        raise CompoclipError(f"{annotations or root / 'valse'}: no valid rows in the files")


def _contents(place: Path, kept: Sequence[str]) -> dict[str, tuple[str, bytes]]:
    """Sub-task -> (its file for messages, its content), unpacked or from an archive."""
    archive = place
    if place.is_dir():
        unpacked = any((place / f"{name}.json").is_file() for name in kept)
        archive = place if unpacked else only_zip(place) or place
    if archive.suffix.lower() == ".zip":
        return read_members(archive, {name: f"{name}.json" for name in kept})
    remedy = "put the official file there, or select the parts you have, e.g. valse:existence"
    paths = {name: place / f"{name}.json" for name in kept}
    return {name: (str(path), files.read_bytes(path, remedy)) for name, path in paths.items()}


def _case(subtask: str, key: str, value: Any, photos: _Photos, where: str) -> Case | None:
    """The case of a row; None for one that too few annotators found right."""
    row = files.record(value, where)
    votes = files.record(files.field(row, "mturk", where), f"{where}: 'mturk'")
    texts = files.texts(row, ("caption", "foil"), where)
    dataset, name = files.texts(row, ("dataset", "image_file"), where)
    if files.number(votes, "caption", f"{where}: 'mturk'") < _VOTES:
        return None
    folder = photos.folder(dataset, name)
    if folder is None:
        raise CompoclipError(
            f"{where}: photo {name!r:.80} of data set {dataset!r:.80} is of no known source; "
            "is this the official file?"
        )
    image = files.photo(folder, row, "image_file", where)
    return Case(f"{subtask}/{key}", Form.CHOOSE_TEXT, (image,), texts, subtask)


VALSE = CaseReader(
    META,
    _cases,
    rules={
        "vl_compo": Aggregate(tuple(_PHENOMENA.values())),
        **{name: rule for name, rule in _PHENOMENA.items() if isinstance(rule, Aggregate)},
    },
    headline="vl_compo",
)
