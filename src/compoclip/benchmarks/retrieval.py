"""Image-text retrieval: COCO (Karpathy test), Flickr30k, Flickr8k, COCO-Counterfactuals, NegBench,
and sets of long captions: Urban1k, DOCCI's test, ShareGPT4V-1k.

A family: load one set as `retrieval:coco`, `retrieval:docci` and so on. Read from

    <root>/coco/coco_karpathy_test.json    photos <root>/coco/<image>, image "val2014/..."
    <root>/flickr30k/flickr30k_test.json   photos <root>/flickr30k/images/<file name of image>
    <root>/flickr8k/Flickr8k.token.txt and Flickr_8k.testImages.txt, or flickr8k_test.json, or
        dataset_flickr8k.json              photos <root>/flickr8k/images/<file name>
    <root>/coco_counterfactuals/examples.jsonl      photos <root>/coco_counterfactuals/images/<name>
    <root>/urban1k/caption/<name>.txt      photos <root>/urban1k/image/<name>.jpg
    <root>/docci/docci_descriptions.jsonlines       photos <root>/docci/images/<image_file>
    <root>/sharegpt4v/share-captioner_coco_lcs_sam_1246k_1107.json, of which the first 1,000 rows
        count                              photos <root>/sharegpt4v/images/<file name of image>

Option `annotations`: another such file, for a token file with the option `split_file`: another list
of photo names. Argument `images`: the folder that holds the photo files themselves. Option
`pre_caption_words`: clean captions as CLIC does (30); by default they are used raw, as in the
published CLIP numbers. Option `pairs`: how many pairs of COCO-Counterfactuals to take (5,223 as
published; none: all).

Any other captioned photos go by their file, `retrieval:captions.csv`: see `captioned.py`.

A photo finds its captions when any of them is among the k best. The headline `r1` is the mean of
both directions' R@1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.captioned import hashed, open_photos
from compoclip.benchmarks.case import ImageRef, JudgedRetrieval, Retrieval
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.reader import OWN, Loading
from compoclip.captions.chunks import pre_caption
from compoclip.data.columns import cell_captions
from compoclip.data.image_names import is_read
from compoclip.data.options import DataOptions
from compoclip.data.published_rows import KARPATHY, ORIGINAL, PublishedRows, token_lines
from compoclip.errors import CompoclipError, UsageError, closest, require
from compoclip.files import bytes_hash
from compoclip.patterns import has_ending
from compoclip.typed import Count

# --- Files that list captions per photo: BLIP's, Karpathy's, Flickr8k's (see `data.sources`) and
# those of long captions; Urban1k is a folder of texts, of which the first line is the caption. ---

_LONG = {
    "docci": PublishedRows(
        "DOCCI",
        "image_file",
        {"split": str, "image_file": str, "description": str},
        {"photo": "image_file", "captions": "description"},
    ),
    "sharegpt4v": PublishedRows(
        "ShareGPT4V",
        "image",
        {"image": str, "conversations": list},
        {"photo": "image", "captions": "conversations"},
    ),
}
_FIRST = {"sharegpt4v": 1000}
"""Sets of which the first rows alone count."""


class Captioned(NamedTuple):
    """A photo by its name in the file, and its captions in file order."""

    image: str
    captions: tuple[str, ...]


Row = tuple[str, str, Sequence[str]]
"""Place in the file for messages, photo, captions."""


def _photos(
    rows: Iterable[Row], empty: str, path: Path, stripped: bool = False
) -> tuple[Captioned, ...]:
    """Return the photos; refuse one without captions or listed twice, and a file without any."""
    photos: dict[str, Captioned] = {}
    for location, name, captions in rows:
        fault = "is listed twice" if captions else "has no caption"
        require(captions and name not in photos, location, f"photo {name!r:.80} {fault}")
        numbered = enumerate(captions)
        texts = [files.nonempty(text, f"{location}: caption {number}") for number, text in numbered]
        photos[name] = Captioned(name, tuple(text.strip() if stripped else text for text in texts))
    require(photos, path, empty)
    return tuple(photos.values())


def read_captions(path: Path, remedy: str = "", name: str = "") -> tuple[Captioned, ...]:
    """Return photos and captions of BLIP's or Karpathy's JSON, or of the set `name`; of a file with
    splits those of the test.

    Raises CompoclipError for photos listed twice and photos without captions.
    """
    empty = f"no captions; {files.OFFICIAL}" if name in (*_LONG, "urban1k") else "no photos"
    if name == "urban1k":
        texts = ((file, files.read_text(file)) for file in sorted(path.glob("*.txt")))
        firsts = ((str(file), f"{file.stem}.jpg", text.split("\n")[:1]) for file, text in texts)
        return _photos(firsts, empty, path, stripped=True)
    layout = _LONG.get(name, KARPATHY)
    if has_ending(path, ".json"):
        value = files.read_json(path, remedy)
        if isinstance(value, dict):
            layout, value = ORIGINAL, files.field(value, "images", str(path))
            empty += " of split 'test'"
        rows = tables.json_rows(value, str(path))
    else:
        rows = tables.read_annotations(path, absent=remedy)
    photos = _test_photos(layout, islice(rows, _FIRST.get(name)))
    return _photos(photos, empty, path, stripped=name in _LONG)


def _test_photos(layout: PublishedRows, rows: Iterable[tables.Row]) -> Iterator[Row]:
    """Yield the photos of rows, where these name splits those of the test."""
    for index, location, row in rows:
        for sample in layout.samples_of(row, index, location):
            if "split" not in layout.keys or row["split"] == "test":
                photo = files.nonempty(sample["photo"], f"{location}: {layout.photo!r}")
                yield location, photo, cell_captions(sample["captions"])


def read_flickr8k(
    tokens: Path, split: Path, remedy: str = ""
) -> tuple[tuple[Captioned, ...], dict[str, int]]:
    """Return photos in the order of the `split` file with their captions in the order of k.

    The second value is the number of token lines of photos outside the split, by reason.
    """
    names: dict[str, dict[int, str]] = {}
    for number, line in enumerate(files.read_text(split, remedy).split("\n"), start=1):
        if name := line.strip():
            if name in names:
                raise CompoclipError(f"{split}: line {number}: photo {name!r:.80} is listed twice")
            names[name] = {}
    require(names, split, "no photo names")
    files.require_size(tokens, remedy or files.ABSENT)
    outside = 0
    for location, name, k, caption in token_lines(tokens):
        captions = names.get(name)
        if captions is None:
            outside += 1
            continue
        require(k not in captions, location, f"caption {k} of {name!r} occurs twice")
        captions[k] = files.nonempty(caption, f"{location}: the caption")
    bare = next((name for name, captions in names.items() if not captions), None)
    require(bare is None, tokens, f"no caption for photo {bare!r:.80} of {split}")
    photos = (Captioned(name, tuple(row[k] for k in sorted(row))) for name, row in names.items())
    return tuple(photos), {"captions of photos outside the split": outside}


def locate(name: str, default: Path, flat: Path | None, location: str) -> Path:
    """Return `default / name`, or the file of that name in the folder `flat` when given."""
    if flat is None:
        return files.image_path(default, name, location)
    return files.image_path(flat, name.rsplit("/", maxsplit=1)[-1], location)


# --- COCO-Counterfactuals: lines with `id`, `image_0`, `image_1`, `caption_0`, `caption_1`. ---
#
# Image i shows caption i; both members of every pair are in the gallery. Image names may lack their
# suffix. The published scores use a random 30 % of the 17,410 pairs, and which ones is not known.
# Taken are the pairs whose ids have the smallest hashes (blake2b, 128 bit, of the id as UTF-8).

PAIRS = 5223
ALL_PAIRS = 17410


def _counterfactuals(
    path: Path, folder: Path, pairs: int | None
) -> tuple[tuple[Captioned, ...], dict[str, int]]:
    """Return the chosen pairs in file order, each as two captioned photos, and what is left out."""
    seen_ids: set[object] = set()
    names: set[str] = set()
    rows: dict[str, list[Captioned]] = {}
    stems = by_stem((folder,))
    for _, location, row in tables.read_annotations(path):
        members = rows[files.identifier(row, "id", location, seen_ids)] = []
        for k in (0, 1):
            name = files.text(row, f"image_{k}", location)
            require(
                name not in names, location, f"image {name!r:.80} is listed twice; fetch it again"
            )
            names.add(name)
            if not is_read(name):
                name = stems[name].name if name in stems else f"{name}.jpg"
            members.append(Captioned(name, (files.text(row, f"caption_{k}", location),)))
    require(rows, path, f"holds no pairs; {files.OFFICIAL}")
    chosen = set(sorted(rows, key=lambda key: bytes_hash(key.encode()))[:pairs])
    photos = tuple(photo for key, both in rows.items() if key in chosen for photo in both)
    reason = f"pairs beyond the {pairs} with the smallest hashes of their ids"
    return photos, {} if pairs is None else {reason: len(rows) - len(chosen)}


# --- The sets. ---

_SPLIT = "Flickr_8k.testImages.txt"


def _retrieval(
    photos: Iterable[tuple[ImageRef, Sequence[str]]], templates: str | None = None
) -> Retrieval:
    """Return the gallery; captions made by templates are true of all photos of their class."""
    images, captions = zip(*photos)
    owners = [owner for owner, texts in enumerate(captions) for _ in texts]
    texts = tuple(text for texts in captions for text in texts)
    if templates is None:
        return Retrieval(images, texts, tuple(zip(owners, range(len(texts)))))
    number = {text: k for k, text in enumerate(dict.fromkeys(texts))}
    return Retrieval(images, tuple(number), tuple(zip(owners, map(number.__getitem__, texts))))


def read(
    data: Loading,
    *,
    reading: DataOptions,
    annotations: Path | None = None,
    split_file: Path | None = None,
    pre_caption_words: Count | None = None,
    pairs: Count | None = PAIRS,
) -> Retrieval:
    """Read the set that the target names; layout: see the module.

    The benchmark is called "retrieval_<set>", with cleaned captions "retrieval_<set>_pre<words>".
    """
    about, name = data.about, ",".join(data.parts)
    if name == OWN and (annotations or data.opened):
        custom = open_photos(data, annotations or data.root, reading)
        data.files["captions"], data.expected = hashed(custom), {}
        return _retrieval([(photo.image, photo.captions) for photo in custom], reading.templates)
    if name not in about.parts:
        raise UsageError(f"{about.id}: no set or file {name!r}; {closest(name, about.parts)}")
    if reading != DataOptions(images=data.images):
        raise UsageError(
            f"{about.id}: {name} is published as one split; options of reading data go with a file "
            "of yours"
        )
    listed = [file for file in about.of_set(name, about.files) if not file.endswith(_SPLIT)]
    places = [data.root / file for file in listed]
    path = annotations or next((place for place in places if place.is_file()), places[0])
    default = data.root / about.of_set(name, about.images)[0]
    flat: Path | None = data.images or default
    if name == "coco" and data.images is None:  # whose names begin with a folder
        default, flat = default.parent, None
    data.name = f"{about.id}_{name}"
    data.expected = {way: about.expected[f"{name}/{way}"] for way in ("i2t", "t2i")}
    if pre_caption_words is not None:
        data.name += f"_pre{pre_caption_words}"
        data.stated.append(f"pre_caption {pre_caption_words}")
    data.files["captions"] = path
    left_out: dict[str, int] = {}
    if name == "coco_cf":
        photos, left_out = _counterfactuals(path, flat or default, pairs)
        data.files = {"pairs": path}
        data.expected = dict.fromkeys(data.expected, 2 * (pairs or ALL_PAIRS))
        data.stated.append(f"pairs {pairs}")
    elif name in (*_LONG, "urban1k") or has_ending(path, ".json"):
        if name == "urban1k":
            path = path.parent if "*" in path.name else path
            data.files = {file.name: file for file in sorted(path.glob("*.txt"))}
        photos = read_captions(path, name=name)
    else:
        data.files["split"] = other = split_file or path.parent / _SPLIT
        photos, left_out = read_flickr8k(path, other)
    data.left_out.update(left_out)
    photo_texts = []
    for photo in photos:
        place = locate(photo.image, default, flat, f"{path}: photo {photo.image!r:.80}")
        texts = photo.captions
        if pre_caption_words is not None:
            texts = tuple(pre_caption(text, pre_caption_words) for text in texts)
        photo_texts.append((ImageRef(place), texts))
    return _retrieval(photo_texts)


def _gallery(data: Loading, name: str, annotations: Path | None) -> tuple[Path, Path]:
    """Return file and photo folder of a benchmark without sub-tasks; name: of its file."""
    about = data.about
    if data.parts:
        raise UsageError(f"{about.id}: one gallery has no sub-tasks; name it alone")
    data.files[name] = path = annotations or data.root / about.files[0]
    return path, data.photos(about.images[0])


def negbench(data: Loading, *, annotations: Path | None = None) -> Retrieval:
    """Read a table of NegBench: columns filepath and captions, a Python list in text.

    Headline `t2i_r5`: R@5 of photos by text, as published (R@5 and R-Neg@5).
    """
    path, folder = _gallery(data, "captions", annotations)

    def rows() -> Iterator[Row]:
        for _, location, row in tables.read_annotations(path, ("filepath", "captions")):
            name = files.text(row, "filepath", location).replace("\\", "/").rpartition("/")[2]
            files.image_path(folder, name, location)
            yield location, name, tables.texts(row, "captions", location)

    photos = _photos(rows(), f"no rows; {files.OFFICIAL}", path)
    return _retrieval((ImageRef(folder / photo.image), photo.captions) for photo in photos)


def simpleneg(
    data: Loading, *, annotations: Path | None = None, gallery: Count = 25_000
) -> JudgedRetrieval:
    """Read SimpleNeg: a JSON list of [text, question about what it denies, about what it names].

    gallery: the photos that are searched, the first so many by name, as in the released code.
    """
    path, folder = _gallery(data, "texts", annotations)
    names = ("text", "question about what it denies", "question about what it names")
    rows = [
        [files.nonempty(cell, f"{path}: row {k}") for cell in files.items(row, str(path), names)]
        for k, row in enumerate(files.items(files.read_json(path), str(path)))
    ]
    require(rows, path, f"no rows; {files.OFFICIAL}")
    photos = sorted(by_stem([folder]).values())
    if len(photos) < gallery:
        raise CompoclipError(
            f"{folder}: holds {len(photos)} of the {gallery} photos that are searched; get the "
            f"others, or name gallery={max(1, len(photos))}"
        )
    data.stated += [photo.name for photo in photos[:gallery]]
    return JudgedRetrieval(
        tuple(map(ImageRef, photos[:gallery])),
        tuple(text for text, *_ in rows),
        (),
        tuple((named, denied) for _, denied, named in rows),
    )
