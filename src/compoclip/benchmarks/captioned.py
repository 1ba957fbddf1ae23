"""Benchmarks made of captioned photos of a user's, in any form that training data have.

    compoclip evaluate MODEL --on retrieval:captions.csv rewrites:captions.csv --images photos/

The file is opened as `--data` is: columns are guessed, rows of one photo are joined, photos are
turned upright, and photos in shards and tables are read there. Options are those of training data
(`DataOptions`); `split` is test unless given, or val, where the data name splits; else everything,
of which a hash makes "train", "val" and "test".

**retrieval:FILE** is image-text retrieval among all photos, as of the published sets.

**rewrites:FILE**: see `rewritten`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.reader import Loading
from compoclip.console import counted, note_once
from compoclip.data.options import DataOptions, as_target_option, naming_options

if TYPE_CHECKING:
    from compoclip.captions.types import Caption
    from compoclip.rewrites.reading import Reading


@dataclass(frozen=True)
class CaptionedPhoto:
    """A photo, its name in the file and its captions."""

    name: str
    image: ImageRef
    captions: tuple[str, ...]

    @cached_property
    def parsed(self) -> tuple[Caption, ...]:
        """The captions, parsed."""
        from compoclip.captions.parser import parse  # with the tagger

        return tuple(map(parse, self.captions))

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """The texts of the captions."""
        from compoclip.rewrites.reading import read

        return tuple(map(read, self.parsed))

    def names_new_word(self, false: str, caption: str) -> bool:
        """Return whether a caption names a word that the false text adds to one of them."""
        new = set(false.lower().split()) - set(caption.lower().split())
        return any(reading.holds(word.strip(".,")) for reading in self.readings for word in new)


def open_photos(data: Loading, place: Path, reading: DataOptions) -> tuple[CaptionedPhoto, ...]:
    """Open the photos of a file, in its order; file and split end the name of the benchmark.

    Raises UsageError for wrong options and what is no data, CompoclipError for malformed files.
    """
    from compoclip.data.sources.open import request_of

    if data.opened is not None:
        file, split, source = data.opened
    else:
        file, split = place, reading.split or ""
        with naming_options(as_target_option):
            source = request_of(str(place), reading).open_held_out()
    photos: dict[ImageRef, CaptionedPhoto] = {}
    columns = source.located(), source.column("image"), source.column("captions")
    for (path, member), name, texts in zip(*columns, strict=True):
        image = ImageRef(path, member=member, upright=source.upright)
        earlier = photos[image].captions if image in photos else ()
        photos[image] = CaptionedPhoto(name, image, tuple(dict.fromkeys((*earlier, *texts))))
    captions = counted(sum(len(photo.captions) for photo in photos.values()), "caption")
    counts = f"{counted(len(photos), 'photo')}, {captions}"
    note_once(f"{source.describe()}: {counts}")  # two benchmarks may be made of them
    data.name += f"_{file.name}_{split}" if split else f"_{file.name}"
    data.left_out.update({as_target_option(reason): n for reason, n in source.left_out.items()})
    return tuple(photos.values())


def hashed(photos: Sequence[CaptionedPhoto], *more: Sequence[str]) -> bytes:
    """Return what items depend on, for the data hash."""
    listed = [[photo.name, photo.image.upright, *photo.captions] for photo in photos]
    return json.dumps([listed, *more]).encode()
