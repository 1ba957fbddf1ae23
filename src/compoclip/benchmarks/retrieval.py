"""Image-text retrieval: COCO (Karpathy test), Flickr30k, Flickr8k, COCO-Counterfactuals.

A family: load one set as `retrieval:coco`, `retrieval:flickr30k`, `retrieval:flickr8k` or
`retrieval:coco_cf`. Read from

    <root>/coco/coco_karpathy_test.json    photos <root>/coco/<image>, image "val2014/..."
    <root>/flickr30k/flickr30k_test.json   photos <root>/flickr30k/images/<file name of image>
    <root>/flickr8k/Flickr8k.token.txt and Flickr_8k.testImages.txt, or flickr8k_test.json, or
        dataset_flickr8k.json              photos <root>/flickr8k/images/<file name>
    <root>/coco_counterfactuals/examples.jsonl      photos <root>/coco_counterfactuals/images/<name>

The formats are described with their readers, below. Option `annotations`:
another such file, for a token file with the option `split_file`: another list of photo names.
Argument `images`: the folder that holds the photo files themselves. Option `pre_caption_words`:
clean captions as CLIC does (30); by default they are used raw, as in the published CLIP numbers.
Option `pairs`: how many pairs of COCO-Counterfactuals to take (5,223 as published; none: all).

A photo finds its captions when any of them is among the k best. The headline `r1` is the mean of
both directions' R@1.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, ImageRef, Meta, Retrieval, TiePolicy
from compoclip.benchmarks.files import SUFFIXES, by_stem, close
from compoclip.benchmarks.reader import Loading, Reader
from compoclip.captions.chunks import pre_caption
from compoclip.errors import CompoclipError, UsageError

# --- Files that list several captions per photo: BLIP's and Karpathy's JSON, Flickr8k's token
# file. ---
#
# - BLIP's JSON: a list `[{"image": "val2014/COCO_val2014_000000391895.jpg", "caption": ["...",
# ...]},
#   ...]`.
# - Karpathy's original JSON: an object `{"images": [{"filename": "...", "filepath": "val2014",
#   "split": "test", "sentences": [{"raw": "..."}]}]}`; "filepath" may be absent.
# - Flickr8k: lines `name.jpg#k<TAB>caption` in one file and the photo names of a split in another.
# A
#   few lines of public copies have a blank instead of the TAB, and some ids have no photo.

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


@dataclass(frozen=True)
class OwnPhotos:
    """Captioned photos of one's own, for benchmarks that make their items of any.

    Attributes:
        photos: In the order of the file, or of the list of names.
        path: The file with the captions.
        folder: Of the photos.
    """

    photos: tuple[Captioned, ...]
    path: Path
    folder: Path

    @classmethod
    def of(
        cls,
        data: Loading,
        annotations: Path | None,
        split_file: Path | None,
        most: int | None = None,
    ) -> OwnPhotos:
        """Open them: by default NAME/captions.json and NAME/images of the data root.

        Args:
            data: Of the benchmark NAME.
            annotations: The file that was named, see `captioned`.
            split_file: See there.
            most: Items of each sub-task that are wanted; None is all.

        Returns:
            The photos.

        Raises:
            CompoclipError: For absent or malformed files.
            UsageError: For a file of another kind, and when no item is wanted.
        """
        if most is not None and most < 1:
            raise UsageError(f"{data.name}: most must be at least 1, not {most}")
        path = annotations or data.root / data.name / "captions.json"
        folder = data.photos(f"{data.name}/images")
        data.stated += ["upright"]
        return cls(captioned(data, path, split_file), path, folder)

    def image(self, name: str) -> ImageRef:
        """The photo of that name; raises CompoclipError for one outside of the folder."""
        path = files.image_path(self.folder, name, f"{self.path}: photo {name!r:.80}")
        return ImageRef(path, upright=True)


def keep_drawn(data: Loading, drawn: Sequence[Sequence[str]], *stated: str) -> None:
    """Tell the data hash what was drawn: it depends on the parser and its words, too.

    Args:
        data: Of the benchmark.
        drawn: The texts of each item.
        *stated: What else decides the items.
    """
    data.files["items"] = json.dumps(drawn).encode()
    data.stated += stated


def captioned(data: Loading, path: Path, split_file: Path | None) -> tuple[Captioned, ...]:
    """The photos of a file of captions of one's own, whichever of the formats it has.

    Args:
        data: Told of the files, for the data hash, and of what was left out.
        path: BLIP's or Karpathy's JSON (of the latter the photos of the test); .jsonl, a list of
            {"image": name, "caption": text or texts}; or Flickr8k's token file, .txt.
        split_file: The photo names that a token file goes with.

    Returns:
        Photos in the order of the file, or of the list of names.

    Raises:
        CompoclipError: For absent or malformed files.
        UsageError: For a file of another kind, and a token file without a list of names.
    """
    data.files["captions"] = path
    match path.suffix.lower():
        case ".json":
            return read_captions(path)
        case ".txt" if split_file is not None:
            data.files["split"] = split_file
            photos, left_out = read_flickr8k(path, split_file)
            data.left_out.update(left_out)
            return photos
        case ".jsonl":
            return _lines(data, path)
    raise UsageError(
        f"{path}: expected captions in .json or .jsonl, or Flickr8k's .txt with split_file=..."
    )


def _lines(data: Loading, path: Path) -> tuple[Captioned, ...]:
    captions: dict[str, list[str]] = {}
    for _, where, row in data.lines("captions", path):
        value = files.field(row, "caption", where)
        texts = value if isinstance(value, list) else [value]
        name = files.text(row, "image", where)
        captions.setdefault(name, []).extend(
            files.nonempty(text, f"{where}: caption {k}", "mend the row")
            for k, text in enumerate(texts)
        )
    return tuple(Captioned(name, tuple(texts)) for name, texts in captions.items())


def locate(name: str, default: Path, flat: Path | None, where: str) -> Path:
    """Path of a photo: `default / name`, or in the folder `flat`, when given, by its file name."""
    if flat is None:
        return files.image_path(default, name, where)
    return files.image_path(flat, name.rsplit("/", maxsplit=1)[-1], where)


# --- Pairs of COCO-Counterfactuals as a retrieval set, both members of every pair in the
# gallery. ---
#
# A JSON Lines file with the fields `id`, `image_0`, `image_1`, `caption_0`, `caption_1`; image i
# shows caption i. Image names may lack their suffix.
#
# The published scores use a random 30 % of the 17,410 pairs, and which ones is not known. Taken are
# the pairs whose ids have the smallest hashes (blake2b, 128 bit, of the id as UTF-8 text).

PAIRS = 5223
ALL_PAIRS = 17410


def read_counterfactuals(
    path: Path, folder: Path, pairs: int | None
) -> tuple[tuple[Captioned, ...], dict[str, int]]:
    """The chosen pairs in file order, each as two photos with a caption, and what was left out.

    folder: of the photos, where names without a suffix are looked up. pairs: how many to take, None
    for all. Raises CompoclipError for malformed rows, an id or an image that occurs twice, and a
    file without rows.
    """
    seen: set[object] = set()
    names: set[str] = set()
    rows: dict[str, tuple[Captioned, Captioned]] = {}
    stems = by_stem((folder,))
    for number, row in files.read_jsonl(path):
        where = f"{path}: line {number}"
        key = files.identifier(row, "id", where, seen)
        members = []
        for k in (0, 1):
            name = files.text(row, f"image_{k}", where)
            if name in names:
                raise CompoclipError(f"{where}: image {name!r:.80} is listed twice; fetch it again")
            names.add(name)
            if not name.lower().endswith(SUFFIXES):
                name = stems[name].name if name in stems else f"{name}.jpg"
            members.append(Captioned(name, (files.text(row, f"caption_{k}", where),)))
        rows[key] = (members[0], members[1])
    if not rows:
        raise CompoclipError(f"{path}: holds no pairs; fetch the official file again")
    chosen = set(sorted(rows, key=_digest)[:pairs])
    photos = tuple(photo for key, both in rows.items() if key in chosen for photo in both)
    rest = len(rows) - len(chosen)
    reason = f"pairs beyond the {pairs} with the smallest hashes of their ids"
    return photos, {} if pairs is None else {reason: rest}


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


# --- Image-text retrieval: COCO (Karpathy test), Flickr30k, Flickr8k, COCO-Counterfactuals. ---

_FILES = {
    "coco": ("coco/coco_karpathy_test.json",),
    "flickr30k": ("flickr30k/flickr30k_test.json",),
    "flickr8k": (
        "flickr8k/Flickr8k.token.txt",
        "flickr8k/flickr8k_test.json",
        "flickr8k/dataset_flickr8k.json",
    ),
    "coco_cf": ("coco_counterfactuals/examples.jsonl",),
}
_IMAGES = {
    "coco": "coco",
    "flickr30k": "flickr30k/images",
    "flickr8k": "flickr8k/images",
    "coco_cf": "coco_counterfactuals/images",
}
_SPLIT = "Flickr_8k.testImages.txt"
_EXPECTED = {
    "coco": (5000, 25010),
    "flickr30k": (1000, 5000),
    "flickr8k": (1000, 5000),
    "coco_cf": (2 * PAIRS, 2 * PAIRS),
}
META = Meta(
    id="retrieval",
    title="Image-text retrieval",
    citation="Lin et al., Microsoft COCO, ECCV 2014, split of Karpathy and Fei-Fei, CVPR 2015; "
    "Young et al., Flickr30k, TACL 2014; Hodosh et al., Flickr8k, JAIR 2013; "
    "Le et al., COCO-Counterfactuals, NeurIPS 2023 Datasets and Benchmarks",
    source="BLIP's Karpathy JSON files and COCO val2014; Flickr30k and Flickr8k from the "
    "University of Illinois; dataset-hub page Intel/COCO-Counterfactuals",
    licence="COCO captions and COCO-Counterfactuals CC BY 4.0; "
    "Flickr30k and Flickr8k research and educational use only",
    status="partly gated",
    access="COCO and COCO-Counterfactuals open; Flickr30k and Flickr8k by request form",
    files=(*(name for names in _FILES.values() for name in names), f"flickr8k/{_SPLIT}"),
    images=("coco/val2014", "flickr30k/images", "flickr8k/images", "coco_counterfactuals/images"),
    part_folders={"coco_cf": "coco_counterfactuals"},
    parts=tuple(_FILES),
    chance={},
    skills={"i2t": "retrieval", "t2i": "retrieval"},
    expected={
        f"{name}/{direction}": count
        for name, counts in _EXPECTED.items()
        for direction, count in zip(("i2t", "t2i"), counts)
    },
    hashes={"coco/coco_karpathy_test.json": "7e3ddea55a47d0827a1671c29ac15e7f"},
    family=True,
)
_RULES = {f"r{k}": Aggregate(("i2t", "t2i"), metric=f"r{k}") for k in (1, 5, 10)}


def _load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
    split_file: Path | None = None,
    pre_caption_words: int | None = None,
    pairs: int | None = PAIRS,
) -> Benchmark:
    """Read one retrieval set; `subtasks` holds its name. Layout: see the module.

    The benchmark is called "retrieval_<set>", with cleaned captions "retrieval_<set>_pre<words>".
    Raises CompoclipError for absent or malformed files, UsageError for an unknown set, and a word
    limit or a number of pairs below 1.
    """
    if len(subtasks) != 1 or subtasks[0] not in _FILES:
        wanted = ",".join(subtasks)
        raise UsageError(f"retrieval has no set {wanted!r}; {close(wanted, _FILES)}")
    if pre_caption_words is not None and pre_caption_words < 1:
        raise UsageError(f"pre_caption_words must be at least 1, not {pre_caption_words}")
    if pairs is not None and pairs < 1:
        raise UsageError(f"pairs must be at least 1, not {pairs}")
    name = subtasks[0]
    path = annotations or _first_existing([root / file for file in _FILES[name]])
    default = root / _IMAGES[name]
    if name == "coco_cf":
        photos, left_out = read_counterfactuals(path, images or default, pairs)
        paths = {"pairs": path}
    else:
        photos, paths, left_out = _read(path, split_file)
    flat = images or (default if name != "coco" else None)
    refs = tuple(
        ImageRef(locate(photo.image, default, flat, f"{path}: photo {photo.image!r:.80}"))
        for photo in photos
    )
    texts = [text for photo in photos for text in photo.captions]
    if pre_caption_words is not None:
        texts = [pre_caption(text, pre_caption_words) for text in texts]
    owners = [i for i, photo in enumerate(photos) for _ in photo.captions]
    extra = [] if pre_caption_words is None else [f"pre_caption {pre_caption_words}"]
    if name == "coco_cf":
        extra.append(f"pairs {pairs}")
    return Benchmark(
        name=f"retrieval_{name}" + (f"_pre{pre_caption_words}" if pre_caption_words else ""),
        content=Retrieval(refs, tuple(texts), tuple(zip(owners, range(len(texts))))),
        data_hash=files.data_hash(paths, extra),
        ties={"": TiePolicy.FIRST},
        skills=META.skills,
        expected=dict.fromkeys(("i2t", "t2i"), 2 * (pairs or ALL_PAIRS))
        if name == "coco_cf"
        else dict(zip(("i2t", "t2i"), _EXPECTED[name])),
        aggregates=_RULES,
        headline="r1",
        left_out=left_out,
    )


def _first_existing(paths: Sequence[Path]) -> Path:
    return next((path for path in paths if path.is_file()), paths[0])


def _read(
    path: Path, split_file: Path | None
) -> tuple[tuple[Captioned, ...], dict[str, Path], dict[str, int]]:
    """Photos, the files that were read, and counts of what was left out."""
    if path.suffix.lower() == ".json":
        return read_captions(path), {"captions": path}, {}
    split = split_file or path.parent / _SPLIT
    photos, left_out = read_flickr8k(path, split)
    return photos, {"captions": path, "split": split}, left_out


RETRIEVAL = Reader(META, _load)
