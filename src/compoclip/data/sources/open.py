"""Opening whatever training data a path names."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compoclip.data.columns import fields
from compoclip.data.decode import is_read, why_unread
from compoclip.data.folders import list_folder, walk
from compoclip.data.options import DataOptions, Needs
from compoclip.data.sources import Source
from compoclip.data.sources.mixture import WeightedMix, mixture_of
from compoclip.data.sources.published import (
    KAGGLE_FILE,
    UNITS,
    is_bar_header,
    is_token_line,
    numbered,
    open_coco,
    open_flickr8k,
    open_karpathy,
    open_published,
)
from compoclip.data.sources.shards import find_shards, open_shards
from compoclip.data.sources.splits import (
    ALL,
    TEST,
    TRAIN,
    VAL,
    NoUseError,
    Split,
    by_hash,
    files_of,
    split_of,
)
from compoclip.data.sources.table import RowBuilder
from compoclip.data.sources.tables import HUB, STREAM, open_hugging_face, open_table
from compoclip.data.written import UNIT_CAPTION
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import read_json, write_json
from compoclip.tables import (
    ROW_FILES,
    expand_braces,
    find_files,
    has_ending,
    read_lines,
    require_local,
)

# --- A folder of images with caption files next to them. ---

NO_IMAGE = "caption file without an image"


def open_images(path: Path, asked: Request) -> Source:
    """Open the images below a folder, with captions in files of the same name.

    The label of an image is the folder that it lies in: the first below that of its split.

    Each image has its captions in a .txt file of the same name, one per line. Images without
    captions, images of other kinds, captions without an image and what `folders.walk` passes over
    are left out and counted. Ids are paths relative to the folder, in sorted order.

    split: folders such as train and val2014 are splits; by default "train" is read, and other
    images are counted; "all" reads everything. Raises CompoclipError without any captioned image,
    UsageError for an unknown split.
    """
    builder = RowBuilder(path, path, needs=asked.needs)
    chosen = Split(asked.split)
    folders, _ = list_folder(path, Counter(), asked.exclude)
    by_split = asked.split is not None or any(map(split_of, folders))
    for folder, files in walk(path, builder.left_out, asked.exclude):
        endings: dict[str, list[str]] = {}  # of the files of one name
        for name in files:
            stem, dot, ending = name.rpartition(".")
            endings.setdefault(stem if dot else name, []).append(ending)
        for stem, kinds in endings.items():
            if not any(is_read(f"{stem}.{kind}") for kind in kinds):  # else it goes with an image
                unread = [kind for kind in kinds if why_unread(f"{stem}.{kind}")]
                if "txt" in kinds:  # other files of that name are taken for the image
                    unread = [kind for kind in kinds if kind not in ("txt", "")]
                    builder.left_out[NO_IMAGE] += not unread
                for kind in unread:
                    builder.left_out[f"image of a kind that is not read (.{kind.lower()})"] += 1
        split = chosen.named(folder) if by_split else None
        label = "".join(folder.split("/")[1 if split else 0 :][:1])
        for name in filter(is_read, files):
            if by_split and not chosen.takes(split):
                continue
            stem = name.rpartition(".")[0]
            image = os.path.join(folder, name)
            texts = path / folder / f"{stem}.txt"
            lines = read_lines(texts) if "txt" in endings[stem] else ()
            captions = [line for _, line in lines if line.strip()]
            builder.add(image, image, captions, label=label)
    chosen.require(path)
    builder.left_out.update(chosen.left_out("image"))
    source = builder.build(f"folder {path}{chosen}")
    source.classes = tuple(sorted({*source.column("label")} - {""}))
    return source


# --- One call that opens whatever training data a path names. ---

FORMATS = (
    "table (.csv, .tsv, .jsonl, .jsonl.gz, .parquet, or a folder of one of the last three)",
    "training set as published (TROHN, VisMin, DeGLA, SemCLIP, Flickr30k-Counterfactuals)",
    "NegCLIP table (.tsv with columns title, filepath, neg_caption)",
    "Karpathy or COCO caption JSON, or CS-CLIP's training data (.json)",
    "Flickr8k token file (.txt with lines name.jpg#k<TAB>caption, or below image,caption), or "
    "Flickr30k's results.csv",
    "webdataset shards (.tar, 'train-{000..099}.tar', or a folder of .tar)",
    "folder of images with name.txt or metadata.jsonl beside them",
    "data set of Hugging Face (hf:NAME/SPLIT)",
)

_ENDINGS = (".json", ".csv", ".tsv", ".txt", ".tar", *ROW_FILES)
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # owner/name on the Hugging Face hub


@dataclass(frozen=True)
class Request(DataOptions):
    """Names image-text data; every process opens them for itself.

    Args:
        spec: The path; or several with their weights, `a.jsonl=0.7 b.tsv=0.3`. Options go to the
            data sets that have a use for them. A mixture is read upright unless all of its parts
            are in published formats.
        needs: What a row needs to become a sample: captions, for training; labels, as classes in
            Parquet, shards or folders have them; or a photo alone.
    """

    spec: str
    needs: Needs = "captions"

    def open(self) -> Source:
        """Open the data. Raises as `open_source`, UsageError without the folder of images."""
        return open_source(**vars(self))

    def open_held_out(self) -> Source:
        """The source to measure on: unless a split is named, test or else val of the splits that
        the data name, and everything of data that name none. Raises as `open` does."""
        for split in (TEST, VAL) if self.split is None else ():
            try:
                _open(replace(self, split=split))
            except NoUseError:
                break
            except UsageError:
                continue
            return replace(self, split=split).open()
        return self.open()

    def refuse(self, kind: str, *names: str) -> None:
        """Raise UsageError for an option that was given but means nothing to a format."""
        for name in names:
            value = getattr(self, name)
            if value not in (None, ()) and (name, value) != ("split", ALL):
                raise NoUseError(name, f"{self.spec}: {kind} take no --{name.replace('_', '-')}")


def open_source(spec: str, **options: Any) -> Source:
    """Open the image-text source that a path, brace pattern or folder names; see FORMATS.

    Args:
        spec: The path.
        **options: The other fields of `Request`.

    Raises:
        UsageError: For an unknown format, column or split, an option without use for the format,
            or a path that is not local.
        CompoclipError: For files that are missing or malformed.
    """
    asked = Request(spec, **options)
    try:
        source = _open(asked)
    except NoUseError as error:
        if error.option != "split" or asked.split not in (TRAIN, VAL, TEST):
            raise
        whole = _open(replace(asked, split=None))
        source = by_hash(whole, asked.split, asked.held_out, asked.split_seed)
    if asked.orientation is not None:
        source.upright = asked.orientation == "upright"
    return source


def require_there(asked: Request) -> None:
    """Raise UsageError or CompoclipError unless files that the request names are there.

    Nothing is read; a data set of the hub is taken to be there.
    """
    for each in (asked.spec, asked.images or ""):
        if not str(each).startswith((HUB, STREAM)) or str(each).startswith(f"{HUB}//"):
            require_local(each)
    problem = "no such folder; name the folder of the images with --images"
    there = asked.images is None or asked.images.is_dir()
    require(there, asked.images, problem, UsageError)
    if (weights := mixture_of(asked.spec)) is not None:
        for part in weights:
            require_there(replace(asked, spec=part))
        return
    if asked.spec.startswith((HUB, STREAM)):
        return
    path = Path(asked.spec)
    if path.is_dir():
        require(any(path.iterdir()), path, "an empty folder; name one with photos or data")
        return
    files = [path] if path.is_file() else [Path(name) for name in expand_braces(asked.spec)]
    missing = next((file for file in files if not file.is_file()), None)
    if missing and _HUB_ID.fullmatch(asked.spec) and not has_ending(missing, *_ENDINGS):
        raise CompoclipError(
            f"{asked.spec}: not found; check the path. A Hugging Face data set is {HUB}{asked.spec}"
            f"/SPLIT, or downloaded first (hf download {asked.spec} --repo-type dataset --local-dir"
            " FOLDER)"
        )
    require(not missing, missing, "not found; check the path")


def _open(asked: Request) -> Source:
    require_there(asked)
    spec, split = asked.spec, asked.split
    if (weights := mixture_of(spec)) is not None:
        return _open_mixture(weights, asked)
    if not Path(spec).is_dir():
        asked.refuse("data that are no folder of images", "exclude")
    if spec.startswith((HUB, STREAM)) and not spec.startswith(f"{HUB}//"):
        return open_hugging_face(asked)
    path = Path(spec)
    folder = path.is_dir()
    if spec.endswith((".tar", ".tar.gz", ".tgz")) or (folder and next(path.glob("*.tar"), None)):
        asked.refuse("webdataset shards", "images", "image_column", "exclude")
        if not folder:
            asked.refuse("webdataset shards without their folder", "split")
        shards = find_shards(spec)
        shards, others = files_of(shards, split, spec) if folder else (shards, {})
        return _counting(open_shards(shards, asked.caption_column, asked.needs), others)
    if folder:
        return _open_folder(path, asked)
    files = [path] if path.is_file() else [Path(name) for name in expand_braces(spec)]
    path = files[0]
    plain = len(files) == 1 and not (asked.image_column or asked.caption_column)
    bars = plain and has_ending(path, ".csv") and is_bar_header(_first_line(path))
    tabular = has_ending(path, ".csv", ".tsv", *ROW_FILES)
    if tabular and not bars:
        return _open_tables(files, asked)
    if len(files) > 1:
        raise _unknown(spec)
    if bars or (has_ending(path, ".txt") and is_token_line(_first_line(path))):
        asked.refuse("token files", "image_column", "caption_column")
        return _published(open_flickr8k(path, asked))
    if not has_ending(path, ".json"):
        raise _unknown(spec)
    asked.refuse("caption JSON", "image_column")
    data = read_json(path, damaged="fetch the file again")
    first = data[0] if isinstance(data, list) and data else None
    if isinstance(first, dict) and UNIT_CAPTION in first:
        asked.refuse("files of units", "split")
        return _published(UNITS.read(path, numbered(data, f"{path}, row"), asked.images))
    if isinstance(data, dict) and KEY in data:
        asked.refuse("selections", "images", "caption_column")
        if split not in (None, ALL):  # it may be a part of one already
            raise UsageError(f"{spec}: selections take no --split; leave it out")
        return _open_selection(path, data)
    if isinstance(data, dict) and "annotations" in data:
        asked.refuse("COCO annotations", "split")
        return _published(open_coco(path, data, asked))
    asked.refuse("caption JSON", "caption_column")
    return _published(open_karpathy(path, data, asked))


def _first_line(path: Path) -> str:
    return next((line for _, line in read_lines(path) if line.strip()), "")


def _open_tables(files: Sequence[Path], asked: Request) -> Source:
    """Open tables of a published set, of columns that are named, or of any."""
    if asked.quoting and (found := open_published(files, asked)):
        return _published(found)
    return open_table(files, asked)


METADATA = ("metadata.jsonl", "captions.jsonl", "metadata.csv", "metadata.parquet")
"""Files that name the images of a folder, as Hugging Face's imagefolder: file_name and text."""


def _open_folder(path: Path, asked: Request) -> Source:
    split = asked.split
    for name in METADATA:
        if (path / name).is_file():
            asked.refuse("image folders with metadata", "images", "exclude")
            return open_table([path / name], replace(asked, images=path))
    tables = find_files(path, ROW_FILES)
    if tables:
        asked.refuse("folders of tables", "exclude")
        # File names decide on the split; rows do if no file is named after one.
        if not any(split_of(file.name) or file.name.startswith(split or "\0") for file in tables):
            return _open_tables(tables, asked)
        chosen, others = files_of(tables, split, path)
        return _counting(_open_tables(chosen, replace(asked, split=ALL)), others)
    tokens = sorted(path.glob("*.token.txt"))
    if (path / KAGGLE_FILE).is_file() and is_token_line(_first_line(path / KAGGLE_FILE)):
        tokens.append(path / KAGGLE_FILE)
    if tokens:
        asked.refuse("folders with a token file", "exclude")
        return _published(open_flickr8k(tokens[0], asked))
    if any(
        is_read(name) or why_unread(name) for _, names in walk(path, Counter()) for name in names
    ):
        kind = "image folders without metadata"
        asked.refuse(kind, "images", "image_column", "caption_column")
        return open_images(path, asked)
    raise _unknown(str(path))


def _published(source: Source) -> Source:
    """A published data set: its images are used as they are stored."""
    source.upright = False
    return source


def _open_mixture(weights: Mapping[str, float], asked: Request) -> Source:
    """Open several data sets; an option that none of them has a use for is refused."""
    refused: dict[str, list[NoUseError]] = {}

    def opened(spec: str) -> Source:
        options = {**vars(asked), "spec": spec, "orientation": None}
        while True:
            try:
                return open_source(**options)
            except NoUseError as error:
                refused.setdefault(error.option, []).append(error)
                options[error.option] = None

    parts = {spec: opened(spec) for spec in weights}
    for errors in refused.values():
        if len(errors) == len(weights):
            raise errors[0]
    whole = math.fsum(weights.values())
    shares = (f"{weights[name] / whole:.4g} of {part.describe()}" for name, part in parts.items())
    mix = WeightedMix({name: len(part) for name, part in parts.items()}, weights)
    return Source.mixed(parts, " + ".join(shares), mix)


def _counting(source: Source, others: Mapping[str, int]) -> Source:
    """The source, counting also the files that were left out before it was opened."""
    source.left_out = {**source.left_out, **others}
    return source


def _unknown(spec: str) -> UsageError:
    if has_ending(Path(spec), ".pt", ".pth", ".pkl", ".pickle"):
        return UsageError(
            f"{spec}: a pickle may run anything, so none is opened as data; if it is CC-Neg's, "
            "write its training rows as a table once: compoclip data cc-neg"
        )
    return UsageError(f"{spec}: unknown format; known are: {'; '.join(FORMATS)}")


# --- A source without some of its samples: a file that names it and the ids to leave out. ---
#
#     {"selection_of": {"spec": "/data/trohn", "images": "/data/coco/train2017"},
#      "without": ["000000391895.jpg#0", ...], "because": "photos of the Karpathy test"}

KEY = "selection_of"
_OPTIONS: Mapping[str, Any] = {
    "spec": str,
    **dict.fromkeys(("images", "image_column", "caption_column", "split"), str | None),
    "orientation": str | None,
    "quoting": bool | None,
    "held_out": float | None,
    "split_seed": int | None,
    "exclude": list[str] | None,
}
_REMEDY = "write it again: compoclip data audit --kept"


def _open_selection(path: Path, data: Mapping[str, Any]) -> Source:
    """Open what a selection names, without the samples that it leaves out."""
    without = fields(data, {"without": list[str]}, str(path), _REMEDY)["without"]
    options = fields(data[KEY], _OPTIONS, str(path), _REMEDY)
    require(options.keys() == _OPTIONS.keys(), path, f"no selection of a source; {_REMEDY}")
    named = {name: value for name, value in options.items() if value is not None}
    if "images" in named:
        named["images"] = Path(named["images"])
    named["exclude"] = tuple(named.get("exclude", ()))
    itself = Path(named["spec"]).absolute() == path.absolute()
    require(not itself, path, f"selects from itself; {_REMEDY}", UsageError)
    source = open_source(**named)
    left, ids = frozenset(without), list(source.column("id"))
    if missing := left.difference(ids):
        raise CompoclipError(
            f"{path}: leaves out {min(missing)!r:.80}, unknown to {source.describe()}; {_REMEDY}"
        )
    kept = np.array([i for i, id in enumerate(ids) if id not in left], np.int64)
    require(len(kept), path, f"leaves out every sample; {_REMEDY}")
    because = str(data.get("because") or "sample that the selection leaves out")
    fewer = len(ids) - len(kept)
    return source.take(kept, f"{source.describe()} without {fewer} ({path})", {because: fewer})


def write_selection(path: Path, asked: Request, without: Sequence[str], because: str) -> None:
    """Write a file that opens as `asked` without some samples.

    asked: a local path is written in full. without: ids of the samples. because: the reason.
    """
    given = {name: value for name, value in vars(asked).items() if value not in (None, True, ())}
    given.pop("needs")
    named = {**given, "spec": Path(asked.spec)}
    source = {k: str(v.absolute()) if isinstance(v, Path) else v for k, v in named.items()}
    write_json(path, {KEY: source, "because": because, "without": list(without)})
