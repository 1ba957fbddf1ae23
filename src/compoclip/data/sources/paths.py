"""Recognisers look at `Data`, what a path names; folders of images are read here as well."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compoclip.data.columns import column_named
from compoclip.data.folders import image_files, list_folder, walk
from compoclip.data.image_names import is_read, kind_unread, why_unread
from compoclip.data.places import PACKED, TABLES, is_remote, named_files
from compoclip.data.published_rows import KAGGLE_FILE, is_bar_header, is_token_line
from compoclip.data.sources import Source
from compoclip.data.sources.published import published_table
from compoclip.data.sources.shards import first_fields, require_shards
from compoclip.data.sources.table import RowBuilder
from compoclip.data.split_names import (
    ALL,
    COLUMN,
    TRAIN,
    named_splits,
    others_left_out,
    require_split,
    rows_decide,
    split_of,
)
from compoclip.files import read_json
from compoclip.patterns import ROW_FILES, find_files, has_ending, shards_of_folder
from compoclip.records import columns_of
from compoclip.tables import first_line, read_lines

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request

METADATA = ("metadata.jsonl", "captions.jsonl", "metadata.csv", "metadata.parquet")
"""Files that name the images of a folder, as Hugging Face's imagefolder: file_name and text."""


@dataclass
class Data:
    """A path that is to be opened.

    others: numbers of files of other splits, by reason; known once the files are chosen.
    """

    request: Request
    others: dict[str, int] = field(default_factory=dict)

    @property
    def remote(self) -> bool:
        """Return whether the library of Hugging Face opens it."""
        return is_remote(self.request.spec)

    @cached_property
    def path(self) -> Path:
        """Return the path, or the first of those that a brace pattern stands for."""
        return self.files[0] if self.files else Path(self.request.spec)

    @cached_property
    def folder(self) -> bool:
        """Return whether it is a folder."""
        return not self.remote and Path(self.request.spec).is_dir()

    @cached_property
    def files(self) -> Sequence[Path]:
        """Return the files that are named one by one."""
        return named_files(self.request.spec)

    @cached_property
    def shards(self) -> Sequence[Path]:
        """Return the tar files; none where there are none."""
        spec = self.request.spec
        if self.folder:
            return shards_of_folder(Path(spec))
        tars = self.files and has_ending(self.path, ".tar", *PACKED)
        return require_shards(self.files) if tars else ()

    @cached_property
    def tables(self) -> Sequence[Path]:
        """Return the files of rows; none where there are none."""
        if self.folder:
            return find_files(self.request.spec, ROW_FILES)
        return self.files if self.files and has_ending(self.path, *TABLES) else ()

    @cached_property
    def published_table(self) -> Callable[..., Source] | None:
        """Return what opens the tables, if a published data set has their columns."""
        return published_table(self.tables, self.request) if self.tables else None

    @cached_property
    def tokens(self) -> Path | None:
        """Return the token file."""
        if not self.folder:
            plain = len(self.files) == 1 and not self.request.image_column
            if (
                not plain
                or self.request.caption_column
                or not has_ending(self.path, ".csv", ".txt")
            ):
                return None
            recognises = is_bar_header if has_ending(self.path, ".csv") else is_token_line
            return self.path if recognises(first_line(self.path)) else None
        folder = Path(self.request.spec)
        kaggle = folder / KAGGLE_FILE
        if kaggle.is_file() and is_token_line(first_line(kaggle)):
            return kaggle
        return next(iter(sorted(folder.glob("*.token.txt"))), None)

    @cached_property
    def metadata(self) -> Path | None:
        """Return the file that names the images of the folder."""
        if not self.folder:
            return None
        files = (Path(self.request.spec) / name for name in METADATA)
        return next((file for file in files if file.is_file()), None)

    @cached_property
    def json(self) -> Any:
        """Return the content of a JSON file; None for another file."""
        if len(self.files) != 1 or not has_ending(self.path, ".json"):
            return None
        return read_json(self.path, damaged="fix the file, or fetch it again")

    @property
    def keys(self) -> set[str]:
        """Return the keys of the object in a JSON file."""
        return {*self.json} if isinstance(self.json, dict) else set()

    @property
    def first(self) -> Mapping[str, Any]:
        """Return the first row of the list in a JSON file."""
        rows = self.json
        return rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}

    @cached_property
    def photos(self) -> tuple[Sequence[str], Counter[str]]:
        """Return the images below the folder, and the numbers of all other files by reason."""
        left_out = Counter[str]()
        if not self.folder:
            return (), left_out
        return [*image_files(Path(self.request.spec), left_out, self.request.exclude)], left_out

    def choose(self, files: Sequence[Path]) -> tuple[list[Path], list[str]]:
        """Return the files of the split that is asked for, and the splits that they stand for.

        Where no file of a folder is named after a split, or rows decide nevertheless, all are
        taken. Raises UsageError for a split that no file is named after.
        """
        split = self.request.split
        splits = named_splits([file.name for file in files], split) if self.folder else []
        usual = any(splits) and split_of(files[0].name)
        rows = usual and rows_decide(splits, lambda: self._rows_say_splits(files[0]))
        if rows or not any(splits):
            return [*files], ["" for _ in files]
        if split == ALL:
            return [*files], splits
        counts = Counter(splits)
        members = require_split(split, counts, self.request.spec)
        self.others = {} if split else others_left_out(counts, members, "file")
        chosen = [(file, part) for file, part in zip(files, splits) if part in members]
        return [file for file, _ in chosen], [part for _, part in chosen]

    def _rows_say_splits(self, file: Path) -> bool:
        if file in self.shards:
            return column_named(COLUMN, first_fields(file)) is not None

        def says_splits(names: Collection[str]) -> bool:
            return column_named(COLUMN, names) is not None

        return says_splits(columns_of(file, says_splits, self.request.quoting))


# --- Folders of images with caption files beside them. ---


def open_images(path: Path, request: Request) -> Source:
    """Open the images below a folder, with captions in files of the same name.

    Each image has its captions in a .txt file of the same name, one per line. Images of other
    kinds and what `folders.walk` passes over are counted. Folders such as train and val2014 are
    splits. The label of an image is the folder that it lies in: the first one, or the first below
    its split; as classes, links to folders there are followed. Ids are paths relative to the
    folder, in sorted order.
    """
    builder = RowBuilder(path, path, needs=request.needs)
    visited = {path.resolve()} if request.needs == "labels" else None
    folders, _ = list_folder(path, Counter(), request.exclude, visited=visited)
    splits = _splits_of(folders, request)  # folders named after a split, or as the one asked for
    classes: set[str] = set()  # those without photos too
    levels = 0 if request.needs == "captions" else 2 if splits else 1
    for folder, files in walk(path, builder.left_out, request.exclude, levels):
        top, *below = *Path(folder).parts, ""
        split = splits.get(top, "")
        label = below[0] if split and below else top
        classes.add(label)
        endings: dict[str, list[str]] = {}  # of the files of one name
        for name in files:
            stem, dot, ending = name.rpartition(".")
            if dot:
                endings.setdefault(stem, []).append(ending)
        for stem, kinds in endings.items():
            images = [f"{stem}.{kind}" for kind in kinds if is_read(f"{stem}.{kind}")]
            text = max((kind for kind in kinds if kind.lower() == "txt"), default="")
            texts = read_lines(path / folder / f"{stem}.{text}") if images and text else ()
            lines = [line.strip() for _, line in texts]
            captions = [line for line in lines if line] or lines[:1]  # an empty one is counted
            for name in images:
                image = os.path.join(folder, name)
                builder.add(image, image, captions, label=label, split=split)
            if images:
                continue
            unread = [kind for kind in kinds if why_unread(f"{stem}.{kind}")]
            if text:  # other files of that name are taken for the image
                unread = [kind for kind in kinds if kind.lower() not in ("txt", "")]
                if not unread:
                    builder.add(stem, None, (), split=split)
            for kind in unread:
                builder.left_out[kind_unread(kind.lower())] += 1
    source = builder.build(f"folder {path}")
    source.classes = tuple(sorted(classes - {""}))
    return source


def open_photos(data: Data) -> Source:
    """Open the images below a folder without captions; every other file is counted.

    Ids and splits are those of `open_images`, but folders without images do not count.
    """
    names, left_out = data.photos
    path = Path(data.request.spec)
    builder = RowBuilder(path, path, needs=data.request.needs)
    builder.left_out.update(left_out)
    tops = [name.partition(os.sep)[0] if os.sep in name else "" for name in names]
    splits = _splits_of({*tops} - {""}, data.request)
    for name, top in zip(names, tops):
        builder.add(name, name, (), split=splits.get(top, ""))
    return builder.build(f"folder {path}")


def _splits_of(folders: Collection[str], request: Request) -> dict[str, str]:
    chosen = request.split if request.split not in (None, ALL) else None
    splits = {name: split for name in folders if (split := split_of(name))}
    if request.needs == "labels" and len(splits) < len(folders):
        return {}  # a class is called train
    if chosen:
        splits |= {name: chosen for name in folders if name.startswith(chosen)}
    alone = len(splits) == 1 and len(folders) > 2  # a class of trains among others
    return {} if alone and {*splits} == {TRAIN} else splits


def holds_images(folder: Path) -> bool:
    """Return whether a folder has images, at any depth."""
    files = (name for _, names in walk(folder, Counter(), linked_levels=2) for name in names)
    return any(is_read(name) or why_unread(name) for name in files)
