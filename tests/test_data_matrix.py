"""Every form of data in every situation: the same photos give the same samples.

`EXPECTED` states what a situation gives in all forms; `EXCEPTIONS` the cells that differ, and why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from build.photos import encode, stored_in
from build.tables import write_csv, write_json, write_jsonl, write_parquet, write_tar, write_text
from compoclip.data.columns import SAMPLE_REASONS
from compoclip.data.decode import decode
from compoclip.data.options import PackSpec
from compoclip.data.pack import pack
from compoclip.data.sources import Source
from compoclip.data.sources.open import Request
from compoclip.errors import CompoclipError

pytestmark = pytest.mark.usefixtures("user_cache")


@dataclass(frozen=True)
class Photo:
    """A photo of the data: its file, its captions, and where it belongs."""

    name: str
    content: bytes | None
    captions: tuple[str, ...]
    label: str
    split: str = ""
    missing: bool = False  # the data name a file that does not exist
    link: bool = False  # the file is a link to one elsewhere

    @property
    def listed(self) -> str | None:
        """The name by which the data list the photo."""
        return None if self.content is None else self.name

    @property
    def stored(self) -> bytes | None:
        """The bytes that the data hold."""
        return None if self.missing else self.content

    def place(self, *folders: str) -> str:
        """The path of the file below folders, of which some may be empty."""
        return "/".join(filter(None, (*folders, self.name)))


def shapes(number: int) -> Image.Image:
    """Return an image of smooth shapes; each number has others."""
    cells = np.random.default_rng(number).integers(0, 255, (4, 8, 3), np.uint8)
    return Image.fromarray(cells).resize((160, 80), Image.Resampling.BICUBIC)


@cache
def jpeg(number: int, quality: int = 95) -> bytes:
    return encode(shapes(number), "JPEG", quality=quality)


@cache
def sideways() -> bytes:
    return encode(shapes(0), "JPEG", quality=95, exif=stored_in(6))


def photos(count: int = 4) -> list[Photo]:
    return [
        Photo(f"p{k}.jpg", jpeg(k), (f"photo {k}",), ("cat", "dog")[k % 2]) for k in range(count)
    ]


def put(folder: Path, data: Sequence[Photo], place: Callable[[Photo], str] = Photo.place) -> None:
    """Write the files of photos; place: where each lies, by default in the folder itself."""
    for photo in data:
        path = folder / place(photo)
        path.parent.mkdir(parents=True, exist_ok=True)
        if photo.stored is None:
            continue
        if photo.link:
            real = folder.parent / "elsewhere" / photo.name
            real.parent.mkdir(exist_ok=True)
            real.write_bytes(photo.stored)
            path.symlink_to(real)
        else:
            path.write_bytes(photo.stored)


# --- Forms: what each writes into a folder, and how that is opened. ---

Opened = tuple[str, dict[str, Any]]


def rows_of(data: Sequence[Photo]) -> list[dict[str, Any]]:
    """Return rows with an image, a list of captions, and a label or split where there are any."""
    rows: list[dict[str, Any]] = []
    for photo in data:
        row: dict[str, Any] = {"image": photo.listed}
        if any(other.captions for other in data):
            row["caption"] = list(photo.captions)
        else:
            row["label"] = photo.label
        if any(other.split for other in data):
            row["split"] = photo.split
        rows.append(row)
    return rows


def rows_with_bytes(data: Sequence[Photo]) -> list[dict[str, Any]]:
    return [{**row, "image": photo.stored} for row, photo in zip(rows_of(data), data)]


def delimited(ending: str, delimiter: str) -> Callable[[Path, Sequence[Photo]], Opened]:
    def write(folder: Path, data: Sequence[Photo]) -> Opened:
        put(folder, data)
        rows = []
        for row in rows_of(data):
            row["image"] = row["image"] or ""
            if "caption" in row:
                rows += [{**row, "caption": text} for text in row["caption"]]
            else:
                rows.append(row)
        return str(write_csv(folder / f"data.{ending}", *rows, delimiter=delimiter)), {}

    return write


def json_rows(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data)
    return str(write_json(folder / "data.json", rows_of(data))), {}


def json_lines(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data)
    return str(write_jsonl(folder / "data.jsonl", rows_of(data))), {}


def by_photo(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data)
    table = {photo.listed or "": list(photo.captions) for photo in data}
    return str(write_json(folder / "data.json", table)), {}


def metadata(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data)
    rows = [{"file_name": row.pop("image"), **row} for row in rows_of(data)]
    write_jsonl(folder / "metadata.jsonl", rows)
    return str(folder), {}


def parquet(folder: Path, data: Sequence[Photo]) -> Opened:
    return str(write_parquet(folder / "data.parquet", rows_with_bytes(data))), {}


def shards(folder: Path, data: Sequence[Photo]) -> Opened:
    members: list[tuple[str, bytes]] = []
    for photo, row in zip(data, rows_of(data)):
        if photo.stored is not None:
            members.append((photo.name, photo.stored))
        key = photo.name.rpartition(".")[0]
        del row["image"]
        if "label" in row:
            members.append((f"{key}.cls", photo.label.encode()))
        else:
            members.append((f"{key}.json", json.dumps(row).encode()))
    return str(write_tar(folder / "data.tar", members)), {}


def caption_files(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data, lambda photo: photo.place(photo.split, "" if photo.captions else photo.label))
    for photo in data:
        if photo.captions:
            text = (folder / photo.place(photo.split)).with_suffix(".txt")
            write_text(text, "\n".join(photo.captions))
    return str(folder), {}


def class_folder(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data, lambda photo: photo.place(photo.split, photo.label))
    return str(folder), {"needs": "labels"}


def karpathy(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data)
    images = []
    for photo in data:
        sentences = [{"raw": text} for text in photo.captions]
        split = photo.split or "train"
        images.append({"filename": photo.listed, "split": split, "sentences": sentences})
    return str(write_json(folder / "dataset.json", {"images": images})), {}


def coco(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data)
    images, annotations = [], []
    for number, photo in enumerate(data):
        images.append({"id": number, "file_name": photo.listed})
        annotations += [{"image_id": number, "caption": text} for text in photo.captions]
    value = {"images": images, "annotations": annotations}
    return str(write_json(folder / "captions.json", value)), {}


def flickr8k(folder: Path, data: Sequence[Photo]) -> Opened:
    put(folder, data)
    lines = [
        f"{photo.name}#{k}\t{text}\n" for photo in data for k, text in enumerate(photo.captions)
    ]
    for split, name in (("train", "train"), ("val", "dev"), ("test", "test")):
        if any(photo.split for photo in data):
            listed = [f"{photo.name}\n" for photo in data if photo.split == split]
            write_text(folder / f"Flickr_8k.{name}Images.txt", "".join(listed))
    return str(write_text(folder / "Flickr8k.token.txt", "".join(lines))), {}


def hugging_face(folder: Path, data: Sequence[Photo]) -> Opened:
    library = pytest.importorskip("datasets", reason="the datasets library is not installed")
    library.disable_progress_bars()
    table = library.Dataset.from_list(rows_with_bytes(data))
    if "label" in table.column_names:
        table = table.class_encode_column("label")
    table.save_to_disk(folder / "saved")
    return f"hf:{folder / 'saved'}", {}


def packed(folder: Path, data: Sequence[Photo]) -> Opened:
    spec, options = json_lines(folder, data)
    out = folder.parent / "packed"
    pack(Request(spec, **options), out, PackSpec(keep=True), max_bad=len(data))
    return str(out), {}


FORMS: dict[str, Callable[[Path, Sequence[Photo]], Opened]] = {
    "csv": delimited("csv", ","),
    "tsv": delimited("tsv", "\t"),
    "json rows": json_rows,
    "json by photo": by_photo,
    "jsonl": json_lines,
    "metadata": metadata,
    "parquet": parquet,
    "hf": hugging_face,
    "shards": shards,
    "pack": packed,
    "caption files": caption_files,
    "class folder": class_folder,
    "karpathy": karpathy,
    "coco": coco,
    "flickr8k": flickr8k,
}


# --- What is seen of the data. ---


def opened(spec: str, options: dict[str, Any], **more: Any) -> Source:
    return Request(spec, **{**options, **more}).open()


def samples(source: Source) -> str:
    """State the numbers of samples and captions, and what is left out."""
    captions = sum(map(len, source.column("captions")))
    lost = "".join(f", {count} x {why}" for why, count in source.left_out.items())
    return f"{len(source)} samples, {captions} captions{lost}"


def plain(spec: str, options: dict[str, Any]) -> str:
    return samples(opened(spec, options))


def splits(spec: str, options: dict[str, Any]) -> str:
    counts = {}
    for split in (None, "train", "val", "all"):
        try:
            counts[split or "default"] = str(len(opened(spec, options, split=split)))
        except CompoclipError:
            counts[split or "default"] = "error"
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def sizes(spec: str, options: dict[str, Any]) -> str:
    source = opened(spec, options)
    shapes = {decode(source[k].image, upright=source.upright).size for k in range(len(source))}
    return " and ".join(f"{width} x {height}" for width, height in sorted(shapes))


def readable(spec: str, options: dict[str, Any]) -> str:
    """Count the samples, and those whose photo can be read."""
    source, good = opened(spec, options), 0
    for k in range(len(source)):
        try:
            decode(source[k].image)
            good += 1
        except CompoclipError:
            pass
    return f"{samples(source)}; {good} readable"


def sides(spec: str, options: dict[str, Any]) -> str:
    """Say whether photos and their copies, in the order of the data, are in one split."""
    side_of: dict[str, str] = {}
    for split in ("train", "val", "test"):
        source = opened(spec, options, split=split, held_out=0.33)
        for id, captions in zip(source.column("id"), source.column("captions")):
            side_of[captions[0] if captions else Path(id).stem.replace("p", "photo ")] = split
    together = sum(side_of[f"photo {k}"] == side_of[f"photo {k + COPIED}"] for k in range(COPIED))
    return f"{len(side_of)} photos, {together} copies beside their original"


def labels(spec: str, options: dict[str, Any]) -> str:
    try:
        opened(spec, {**options, "needs": "captions"})
    except CompoclipError as error:
        refused = "labels, not captions" in str(error)
        source = opened(spec, {**options, "needs": "labels"})
        return f"{'refused' if refused else error}; {' '.join(sorted(source.column('label')))}"
    return "opened"


# --- Situations. ---

COPIED = 8


@dataclass(frozen=True)
class Situation:
    """The photos, what is seen, and what is put beside the data before they are opened."""

    data: Callable[[], list[Photo]]
    seen: Callable[[str, dict[str, Any]], str] = plain
    beside: Callable[[Path], None] = lambda folder: None


def several_captions() -> list[Photo]:
    return [replace(p, captions=(*p.captions, f"{p.name} more")) for p in photos()]


def split_column() -> list[Photo]:
    return [replace(p, split=s) for p, s in zip(photos(), ("train", "train", "val", "test"))]


def splits_in_capitals() -> list[Photo]:
    return [replace(photo, split=photo.split.title()) for photo in split_column()]


def texts_in_capitals(folder: Path) -> None:
    for path in folder.rglob("p*.txt"):
        path.rename(path.with_suffix(".TXT"))


def changed(**change: Any) -> Callable[[], list[Photo]]:
    return lambda: [*photos(3), replace(photos()[3], **change)]


def copies(quality: int) -> Callable[[], list[Photo]]:
    """Photos, and each once more under another name."""

    def write() -> list[Photo]:
        data = photos(2 * COPIED)
        data[COPIED:] = [replace(p, content=jpeg(k, quality)) for k, p in enumerate(data[COPIED:])]
        return data

    return write


def system_folders(folder: Path) -> None:
    for name in ("__MACOSX", "@eaDir"):
        (folder / name).mkdir()
        for place in (folder, *(below for below in folder.iterdir() if below.is_dir())):
            write_text(place / name / "p0.txt", "no photo of the data")
            (place / name / "p0.jpg").write_bytes(jpeg(99))


def linked_folder(folder: Path) -> None:
    other = write_text(folder.parent / "more" / "x.txt", "no photo of the data").parent
    (other / "x.jpg").write_bytes(jpeg(98))
    (folder / "linked").symlink_to(other)


SITUATIONS = {
    "several captions": Situation(several_captions),
    "split column": Situation(split_column, splits),
    "splits in capitals": Situation(splits_in_capitals, splits),
    "caption files in capitals": Situation(photos, plain, texts_in_capitals),
    "null image": Situation(changed(content=None)),
    "missing file": Situation(changed(missing=True), readable),
    "sideways photo": Situation(lambda: [replace(p, content=sideways()) for p in photos()], sizes),
    "doubled photo": Situation(copies(95), sides),
    "near-equal photo": Situation(copies(60), sides),
    "empty text": Situation(changed(captions=("  ",))),
    "odd ending": Situation(changed(name="p3.jfif"), readable),
    "system folder": Situation(photos, plain, system_folders),
    "link": Situation(changed(link=True), readable, linked_folder),
    "label instead of caption": Situation(
        lambda: [replace(p, captions=()) for p in photos()], labels
    ),
}
WITHOUT = "3 samples, 3 captions, 1 x sample without an image"
EXPECTED = {
    "several captions": "4 samples, 8 captions",
    "split column": "default 2, train 2, val 1, all 4",
    "splits in capitals": "default 2, train 2, val 1, all 4",
    "caption files in capitals": "4 samples, 4 captions",
    "null image": WITHOUT,
    "missing file": "4 samples, 4 captions; 3 readable",
    "sideways photo": "80 x 160",
    "doubled photo": "16 photos, 8 copies beside their original",
    "near-equal photo": "16 photos, 8 copies beside their original",
    "empty text": "3 samples, 3 captions, 1 x empty caption, 1 x sample without a caption",
    "odd ending": "4 samples, 4 captions; 4 readable",
    "system folder": "4 samples, 4 captions",
    "link": "4 samples, 4 captions; 4 readable",
    "label instead of caption": "refused; cat cat dog dog",
}
STORED = "Images of published data sets are used as they are stored."
BY_FIELD = "Every row of Karpathy's file says its split, so that no hash decides."
NO_SPLITS = "The form names no splits, so that a hash of the photo decides."
IN_FILE = "The form holds the bytes of the photo: without them the image is null."
CAPTIONS_ALONE = "The form has no place for labels."
PACKED = "The pack counts in pack.json what it leaves out, and holds the split it was made of."
LABELS_ALONE = "A class folder has labels and no captions; other columns of the row are equal."
FILES_ALONE = "A folder names no photo but its files."
SYSTEM = "file of the system (such as @eaDir, __MACOSX or Thumbs.db)"
COUNTED = "A folder is walked, and what is passed over is counted."
EXCEPTIONS: dict[tuple[str, str], tuple[str, str]] = {
    **{
        (form, situation): (words, reason)
        for situation in ("split column", "splits in capitals")
        for form, words, reason in (
            ("json by photo", "default 4, train 3, val error, all 4", NO_SPLITS),
            ("coco", "default 4, train 3, val error, all 4", NO_SPLITS),
            ("pack", "default 2, train 2, val error, all 2", PACKED),
        )
    },
    ("flickr8k", "splits in capitals"): (
        "default 4, train 3, val error, all 4",
        "The official lists of splits have small letters.",
    ),
    ("pack", "null image"): ("3 samples, 3 captions", PACKED),
    ("pack", "empty text"): ("3 samples, 3 captions", PACKED),
    **{
        (form, "missing file"): (f"{WITHOUT}; 3 readable", IN_FILE)
        for form in ("parquet", "hf", "shards", "pack", "caption files")
    },
    ("flickr8k", "missing file"): (
        f"{WITHOUT}; 3 readable",
        "The official file names a photo that does not exist.",
    ),
    **{(form, "sideways photo"): ("160 x 80", STORED) for form in ("karpathy", "coco", "flickr8k")},
    **{
        ("karpathy", situation): ("error: no split 'val'; it has: train", BY_FIELD)
        for situation in ("doubled photo", "near-equal photo")
    },
    ("caption files", "system folder"): (f"4 samples, 4 captions, 10 x {SYSTEM}", COUNTED),
    ("caption files", "link"): ("4 samples, 4 captions, 1 x link to a folder; 4 readable", COUNTED),
    **{
        (form, "label instead of caption"): ("error: no usable sample", CAPTIONS_ALONE)
        for form in ("json by photo", "karpathy", "coco")
    },
    ("flickr8k", "label instead of caption"): ("error: unknown format", CAPTIONS_ALONE),
    ("pack", "label instead of caption"): ("error: the data have labels", CAPTIONS_ALONE),
    ("class folder", "several captions"): ("4 samples, 0 captions", LABELS_ALONE),
    ("class folder", "caption files in capitals"): ("4 samples, 0 captions", LABELS_ALONE),
    ("class folder", "null image"): ("3 samples, 0 captions", FILES_ALONE),
    ("class folder", "missing file"): ("3 samples, 0 captions; 3 readable", FILES_ALONE),
    ("class folder", "empty text"): ("4 samples, 0 captions", LABELS_ALONE),
    ("class folder", "odd ending"): ("4 samples, 0 captions; 4 readable", LABELS_ALONE),
    ("class folder", "system folder"): (f"4 samples, 0 captions, 18 x {SYSTEM}", COUNTED),
    ("class folder", "link"): ("5 samples, 1 captions; 5 readable", "Linked folders are classes."),
}


def outcome(form: str, situation: str, folder: Path) -> str:
    data, case = folder / "data", SITUATIONS[situation]
    data.mkdir(parents=True)
    try:
        spec, options = FORMS[form](data, case.data())
        case.beside(data)
        return case.seen(spec, options)
    except (CompoclipError, KeyError, TypeError) as error:
        return f"error: {error}"


@pytest.mark.parametrize("form", FORMS)
def test_the_same_photos_give_the_same_samples(form: str, tmp_path: Path) -> None:
    outcomes, expected = {}, {}
    for situation in SITUATIONS:
        words, _ = EXCEPTIONS.get((form, situation), (EXPECTED[situation], ""))
        actual = outcome(form, situation, tmp_path / situation)
        named = words.startswith("error: ") and words.removeprefix("error: ") in actual
        outcomes[situation] = words if named and actual.startswith("error: ") else actual
        expected[situation] = words
    assert outcomes == expected


IN_FOLDERS = {"hf", "pack", "metadata", "caption files", "class folder"}


@pytest.mark.parametrize("form", sorted({*FORMS} - IN_FOLDERS))
def test_endings_in_capitals_are_the_same_endings(form: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spec, options = FORMS[form](tmp_path / "data", photos())
    usual = plain(spec, options)
    capital = Path(spec).rename(Path(spec).with_suffix(Path(spec).suffix.upper()))
    assert plain(str(capital), options) == usual == "4 samples, 4 captions"


# --- Kept + left out = rows. ---

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "null image": {"content": None},
    "no caption": {"captions": ()},
    "empty text": {"captions": ("  ",)},
    "word for an empty cell": {"captions": ("nan",)},
    "too long": {"captions": ("x" * 70_000,)},
    "one of two is empty": {"captions": ("a photo", " ")},
}
ROWS = ("csv", "json rows", "json by photo", "jsonl", "metadata", "parquet", "hf", "shards")
ROWS += ("caption files", "karpathy", "coco", "flickr8k")
NEED_CAPTIONS = ("csv", "flickr8k")
"""Forms that cannot name a photo without a caption."""


@pytest.mark.parametrize("form", ROWS)
def test_samples_and_those_left_out_are_all_photos(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    names = [*KINDS, *rng.choice(list(KINDS), 13).tolist(), "plain"]
    splits = ("train", "test") * len(names)
    data = [
        replace(photo, split=split, **KINDS[kind])
        for photo, split, kind in zip(photos(len(names)), splits, names)
    ]
    if form == "json by photo":  # whose keys are photos, of which one alone may be ""
        data = [photo for photo in data if photo.content is not None]
    if form in NEED_CAPTIONS:
        data = [photo for photo in data if photo.captions]
    if form == "csv":
        data = [photo for photo in data if len(photo.captions[0]) < 70_000 or photo.content]
    (tmp_path / "data").mkdir()
    spec, options = FORMS[form](tmp_path / "data", data)
    whole = opened(spec, options, split="all")

    def total(source: Source) -> int:
        return len(source) + sum(source.left_out.get(reason, 0) for reason in SAMPLE_REASONS)

    assert total(whole) == len(data)
    texts = sum(len(photo.captions) for photo in data if photo.content is not None)
    if form == "caption files":  # a blank line between others is no caption
        texts -= sum(photo.captions == ("a photo", " ") for photo in data)
    lost = sum(n for reason, n in whole.left_out.items() if reason not in SAMPLE_REASONS)
    assert sum(1 for _ in whole.captions()) + lost == texts
    default = opened(spec, options)
    parts = {part: opened(spec, options, split=part) for part in ("train", "test")}
    if any(whole.split_counts()):
        assert sum(map(total, parts.values())) == len(data)
        asked = sum(n for reason, n in default.left_out.items() if "of split" in reason)
        assert total(default) + asked == len(data)
