"""`compoclip data pack DATA --out PACK`: training data as shards with small images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from compoclip.cli.data_ls import in_bytes
from compoclip.cli.options import parse
from compoclip.console import counted, emit_json, note
from compoclip.errors import UsageError


@dataclass(frozen=True)
class PackOptions:
    """Write training data as webdataset shards whose images are no larger than training needs.

    Captions, negatives, similar images, negative images, groups and scores come along. Training
    from the pack (train --data PACK) decodes a fraction of the pixels. Interrupted, the same
    command goes on. The bytes do not depend on --workers.

    Examples:
        compoclip data pack dataset_coco.json --images coco --split train --out coco-pack
        compoclip train fsc-clip --data coco-pack --out run

    Args:
        data: Image-text data, as for train --data.
        out: Folder of the pack.
        size: Length of the shorter side. 256 suits models that see 224 pixels, whose random crops
            keep 90 % of the area or more; take 384 for 336 pixels.
        quality: JPEG quality of images that are scaled down; smaller ones stay as they are.
        keep: Leave all images as they are, byte for byte.
        shard_size: Samples a shard.
        images: Folder that image paths in the data are relative to.
        split: Split of the data to use, where it holds several: train unless given; all takes
            everything.
        image_column: Column with image paths or bytes, for tables.
        caption_column: Column or columns (comma-separated) with captions, for tables.
        max_bad: Unreadable images to leave out; each is named.
        workers: Processes that write shards.
        json: Print JSON.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    out: Path
    size: int = 256
    quality: int = 90
    keep: bool = False
    shard_size: int = 1000
    images: Path | None = None
    split: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    max_bad: int = 0
    workers: int = 1
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Pack and say what became of the images."""
    options = parse(PackOptions, "data pack", argv)
    if options.workers < 1 or options.max_bad < 0:
        raise UsageError("--workers must be at least 1 and --max-bad not negative")
    from compoclip.corpora.engine import run
    from compoclip.data.pack import PackSpec, Request, pack

    request = Request(
        options.data,
        options.images,
        options.image_column,
        options.caption_column,
        options.split,
    )
    spec = PackSpec(options.size, options.quality, options.keep, options.shard_size)
    workers = partial(run, workers=options.workers)
    packed = pack(request, options.out, spec, workers, options.max_bad)
    if options.json:
        emit_json({**asdict(packed), "out": str(options.out)})
        return 0
    print(
        f"{options.out}: {counted(packed.samples, 'sample')} in {counted(packed.shards, 'shard')}, "
        f"{in_bytes(packed.size_bytes)}; {counted(packed.scaled, 'image')} scaled down, "
        f"{packed.as_they_were} as they were"
    )
    for reason in packed.bad.values():
        note(f"left out: {reason}")
    for reason, count in packed.left_out.items():
        note(f"  {count} x {reason}")
    return 0
