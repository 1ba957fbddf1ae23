"""Files that list several captions per photo: BLIP's and Karpathy's JSON, Flickr8k's token file.

- BLIP's JSON: a list `[{"image": "val2014/COCO_val2014_000000391895.jpg", "caption": ["...", ...]},
  ...]`.
- Karpathy's original JSON: an object `{"images": [{"filename": "...", "filepath": "val2014",
  "split": "test", "sentences": [{"raw": "..."}]}]}`; "filepath" may be absent.
- Flickr8k: lines `name.jpg#k<TAB>caption` in one file and the photo names of a split in another. A
  few lines of public copies have a blank instead of the TAB, and some ids have no photo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.errors import CompoclipError

_TOKEN_LINE = re.compile(r"(?P<name>\S.*?)#(?P<k>\d{1,9})(?:\t|\s+)(?P<caption>.*)")


@dataclass(frozen=True)
class Captioned:
    """A photo by its name in the file, and its captions in file order."""

    image: str
    captions: tuple[str, ...]


def read_captions(path: Path, split: str = "test", remedy: str = "") -> tuple[Captioned, ...]:
    """Photos and captions of BLIP's or Karpathy's JSON; of the latter only those of `split`.

    Raises CompoclipError for malformed rows, photos listed twice and photos without captions.
    """
    value = files.read_json(path, remedy)
    karpathy = isinstance(value, dict)
    rows = files.items(files.field(value, "images", str(path)) if karpathy else value, str(path))
    found: dict[str, Captioned] = {}
    for index, item in enumerate(rows):
        where = f"{path}: row {index}"
        row = files.record(item, where)
        if karpathy and files.text(row, "split", where) != split:
            continue
        entry = _karpathy(row, where) if karpathy else _blip(row, where)
        if not entry.captions:
            raise CompoclipError(f"{where}: photo {entry.image!r:.80} has no caption")
        if entry.image in found:
            raise CompoclipError(f"{where}: photo {entry.image!r:.80} is listed twice")
        found[entry.image] = entry
    if not found:
        raise CompoclipError(f"{path}: no photos{f' of split {split!r}' if karpathy else ''}")
    return tuple(found.values())


def _blip(row: dict[str, object], where: str) -> Captioned:
    captions = files.items(files.field(row, "caption", where), f"{where}: 'caption'")
    return Captioned(
        files.text(row, "image", where),
        tuple(files.nonempty(text, f"{where}: caption {k}") for k, text in enumerate(captions)),
    )


def _karpathy(row: dict[str, object], where: str) -> Captioned:
    name = files.text(row, "filename", where)
    if "filepath" in row:
        name = f"{files.text(row, 'filepath', where)}/{name}"
    sentences = files.items(files.field(row, "sentences", where), f"{where}: 'sentences'")
    captions = (
        files.text(
            files.record(sentence, f"{where}: sentence {k}"), "raw", f"{where}: sentence {k}"
        )
        for k, sentence in enumerate(sentences)
    )
    return Captioned(name, tuple(captions))


def read_flickr8k(
    tokens: Path, split: Path, remedy: str = ""
) -> tuple[tuple[Captioned, ...], dict[str, int]]:
    """Photos in the order of the `split` file with their captions in the order of k.

    Returns them and the number of token lines of photos outside the split, by reason. Raises
    CompoclipError for malformed lines, repeated names or (name, k), photos without a caption.
    """
    names: dict[str, dict[int, str]] = {}
    for number, line in enumerate(files.read_text(split, remedy).split("\n"), start=1):
        name = line.strip()
        if name in names:
            raise CompoclipError(f"{split}: line {number}: photo {name!r:.80} is listed twice")
        if name:
            names[name] = {}
    outside = 0
    for number, line in enumerate(files.read_text(tokens, remedy).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{tokens}: line {number}"
        match = _TOKEN_LINE.fullmatch(line.rstrip("\r"))
        if match is None:
            raise CompoclipError(f"{where}: expected name.jpg#k, a TAB and the caption")
        if match["name"] not in names:
            outside += 1
            continue
        k = int(match["k"])
        if k in names[match["name"]]:
            raise CompoclipError(f"{where}: caption {k} of {match['name']!r} occurs twice")
        names[match["name"]][k] = files.nonempty(match["caption"], f"{where}: the caption")
    for name, captions in names.items():
        if not captions:
            raise CompoclipError(f"{tokens}: no caption for photo {name!r:.80} of {split}")
    if not names:
        raise CompoclipError(f"{split}: no photo names")
    photos = tuple(
        Captioned(name, tuple(captions[k] for k in sorted(captions)))
        for name, captions in names.items()
    )
    return photos, {"captions of photos outside the split": outside}


def locate(name: str, default: Path, flat: Path | None, where: str) -> Path:
    """Path of a photo: `default / name`, or in the folder `flat`, when given, by its file name."""
    if flat is None:
        return files.image_path(default, name, where)
    return files.image_path(flat, name.rsplit("/", maxsplit=1)[-1], where)
