"""The options of reading image-text data, and of packing it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from compoclip.config import InputFolder, Shown
from compoclip.errors import CompoclipError
from compoclip.typed import Count, Within, check_fields

Needs = Literal["captions", "labels", "captions or labels", "photos"]
"""The content that a row needs, in addition to an image, to become a sample."""
HELD_OUT = 0.1
"""The share of the photos in each of val and test, where the data name no splits."""


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """How image-text data is read.

    Args:
        images: Folder that image paths in the data are relative to.
        split: Split to use, for data with several splits; all uses everything. The default is
            train. In data without splits a hash of the photo decides between train, val and test.
        image_column: Column with image paths or bytes, for tables.
        caption_column: Column or columns (comma-separated) with captions, for tables.
        quoting: Read CSV and TSV files with quoted cells. Otherwise quotes are text, for captions
            that begin with one.
        orientation: upright rotates images by their EXIF orientation before any crop or box; stored
            does not. The default is stored for data sets in published formats (COCO, Karpathy,
            Flickr8k, NegCLIP, ...), upright for all other data.
        held_out: Share of the photos in val, and again in test, if the hash decides.
        split_seed: Seed of the hash.
        fraction: Share of the samples of the split to use, those with the smallest hash of their
            id: a smaller share is a part of a larger one.
        exclude: Glob patterns of files and folders that are left out of a folder of images. A
            pattern without a slash applies at any depth. A pattern with a slash is compared with
            the path from that folder on.
        templates: Make captions of class labels where samples have none. A template such as
            "a photo of a {}.", a file of templates, or a set with published ones (imagenet-1k).
    """

    images: InputFolder | None = None
    split: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    quoting: bool = True
    orientation: Literal["upright", "stored"] | None = None
    held_out: float = HELD_OUT
    split_seed: int = 0
    fraction: float = 1.0
    exclude: Annotated[tuple[str, ...], Shown("PATTERN ...")] = ()
    templates: Annotated[str | None, Shown("TEMPLATES", place=True)] = None


@dataclass(frozen=True)
class PackSpec:
    """How a pack stores images.

    Args:
        size: Length of the shorter side. 256 suits models with 224 pixels and random crops of at
            least 90 % of the area; use 384 for 336 pixels.
        quality: JPEG quality of resized images; smaller images are copied unchanged.
        keep: Copy all images unchanged.
        shard_size: Samples per shard.
    """

    size: Count = 256
    quality: Annotated[int, Within(1, 100)] = 90
    keep: bool = False
    shard_size: Count = 1000

    def __post_init__(self) -> None:
        """Raise UsageError for a setting out of its range."""
        check_fields(self, "pack: ")


_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: (all\b|[0-9.]*[0-9]\b|\"[^\"]*\"))?")


def as_target_option(text: str) -> str:
    """Return a message with the options of targets, split=all, in place of --split all."""
    return _OPTION.sub(lambda match: f"{match[1].replace('-', '_')}={match[2] or ''}", text)


@contextmanager
def naming_options(rename: Callable[[str], str]) -> Iterator[None]:
    """Rename the options in errors to those of the running command."""
    try:
        yield
    except CompoclipError as error:
        error.args = (rename(str(error)),)
        raise
