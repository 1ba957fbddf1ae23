"""Image-text retrieval: COCO (Karpathy test), Flickr30k, Flickr8k, COCO-Counterfactuals.

A family: load one set as `retrieval:coco`, `retrieval:flickr30k`, `retrieval:flickr8k` or
`retrieval:coco_cf`. Read from

    <root>/coco/coco_karpathy_test.json    photos <root>/coco/<image>, image "val2014/..."
    <root>/flickr30k/flickr30k_test.json   photos <root>/flickr30k/images/<file name of image>
    <root>/flickr8k/Flickr8k.token.txt and Flickr_8k.testImages.txt, or flickr8k_test.json, or
        dataset_flickr8k.json              photos <root>/flickr8k/images/<file name>
    <root>/coco_counterfactuals/examples.jsonl      photos <root>/coco_counterfactuals/images/<name>

The formats are described in `caption_files` and `coco_counterfactuals`. Option `annotations`:
another such file, for a token file with the option `split_file`: another list of photo names.
Argument `images`: the folder that holds the photo files themselves. Option `pre_caption_words`:
clean captions as CLIC does (30); by default they are used raw, as in the published CLIP numbers.
Option `pairs`: how many pairs of COCO-Counterfactuals to take (5,223 as published; none: all).

A photo finds its captions when any of them is among the k best. The headline `r1` is the mean of
both directions' R@1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.caption_files import Captioned, locate, read_captions, read_flickr8k
from compoclip.benchmarks.case import Aggregate, Benchmark, ImageRef, Retrieval, TiePolicy
from compoclip.benchmarks.coco_counterfactuals import ALL_PAIRS, PAIRS, read_counterfactuals
from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.parts import close
from compoclip.captions.pre_caption import pre_caption
from compoclip.errors import UsageError

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


def load(
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
