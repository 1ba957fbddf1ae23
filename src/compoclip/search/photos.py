"""Photos to search: listed, and encoded in this process or by workers of a Ray cluster."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compoclip import files
from compoclip.cluster import Needs, run
from compoclip.data.decode import decode, photo_hash
from compoclip.data.sources import Source
from compoclip.data.sources.open import Request
from compoclip.data.vectors import Matrix
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.workers import available_cores

if TYPE_CHECKING:
    from compoclip.evaluation.encoder import ModelEncoder, Precision

_BATCHES = 8  # of a task of Ray: seconds of work, and what a dying worker loses


# --- The photos that a folder, table or shards hold. ---


class PhotoList(NamedTuple):
    """The photos of a folder, table or shards.

    root: The folder that names are relative to; "" for photos in tables and shards. names, stamps,
    captions: By photo; see `PhotoIndex`. upright, left_out: As in its record. source: Image-text
    data, if they are no folder of photos. source_rows: The row in it, by photo.
    """

    root: str
    names: Sequence[str]
    stamps: Sequence[str]
    captions: Sequence[str]
    upright: bool
    left_out: Mapping[str, int]
    source: Source | None = None
    source_rows: Sequence[int] = ()

    def image(self, row: int) -> Path | bytes:
        """Return the file of a photo, or its bytes where it lies in a table or shard."""
        if self.source is None:
            return Path(self.root, self.names[row])
        return self.source[self.source_rows[row]].image

    def named_image(self, row: int) -> tuple[str, Path | bytes]:
        """Return the name of a photo with its file or bytes."""
        return self.names[row], self.image(row)

    def place(self, row: int) -> Path | int:
        """Return the file of a photo, or its row in the data where it lies in a table or shard."""
        if self.source is None:
            return Path(self.root, self.names[row])
        image = self.source.bare(self.source_rows[row]).image
        return image if isinstance(image, Path) else self.source_rows[row]

    def columns(
        self, rows: Sequence[int], hashes: Mapping[int, str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Return names, stamps and captions of some rows. hashes: of the bytes, by row."""
        stamps = [f"{self.stamps[row]} {hashes[row]}" for row in rows]
        return [self.names[row] for row in rows], stamps, [self.captions[row] for row in rows]


def list_photos(request: Request) -> PhotoList:
    """List photos: of a folder with photos, otherwise of image-text data."""
    if (source := request.open_photos()) is not None:
        folder, names = Path(request.spec).absolute(), sorted(source.column("image"))
        stamps = [files.file_stamp(folder / name) for name in names]
        captions = ["" for _ in names]
        return PhotoList(str(folder), names, stamps, captions, source.upright, source.left_out)
    source = request.open()
    require(not source.mix, request.spec, "several data sets; make an index of each", UsageError)
    marks = source.fingerprint()
    root = str(marks.values.get("images folder", "/"))
    photos: dict[str, tuple[int, str]] = {}  # a photo that several rows show is one
    for row, (id, mark) in enumerate(zip(source.column("id"), marks.rows["images"])):
        image = source.bare(row).image
        if isinstance(image, Path):
            photos.setdefault(os.path.relpath(image, root), (row, files.file_stamp(image)))
        else:
            photos.setdefault(id, (row, str(mark)))
    rows, stamps_of_rows = zip(*photos.values())
    root = root if isinstance(source.bare(0).image, Path) else ""
    captions = [next(iter(texts), "") for texts in source.column("captions")]
    return PhotoList(
        root,
        [*photos],
        stamps_of_rows,
        [captions[row] for row in rows],
        source.upright,
        source.left_out,
        source,
        rows,
    )


# --- Their features, batch by batch. ---


def identity_of(encoder: ModelEncoder) -> dict[str, Any]:
    """Return all of a model that features depend on, JSON-ready."""
    from compoclip.evaluation.encoder import described  # which imports torch

    facts: dict[str, Any] = json.loads(json.dumps(described(encoder)))
    return {name: value for name, value in facts.items() if name not in ("base", "adapter")}


class EncodedPhotos(NamedTuple):
    """A batch of photos.

    rows: Those that could be read. features: (N, D), of these. hashes: Of their bytes, by row.
    unreadable: The reasons of the others, by row.
    """

    rows: list[int]
    features: Matrix
    hashes: dict[int, str]
    unreadable: dict[int, str]


def encode_photos(
    rows: Sequence[int],
    named_image: Callable[[int], tuple[str, Path | bytes]],
    encoder: ModelEncoder,
    at_once: int,
    readers: int,
    upright: bool,
) -> Generator[EncodedPhotos, None, None]:
    """Encode photos, `at_once` of them together.

    The rows alone decide which photos are encoded together, since the last bits of features depend
    on it: a photo that cannot be read leaves its batch smaller.

    Args:
        rows: The photos.
        named_image: Returns the name of a photo, and its file or bytes.
        encoder: The model.
        at_once: Size of the batches.
        readers: Number of threads that read.
        upright: Whether photos are turned as their EXIF orientation says.
    """
    from compoclip.evaluation.encode import read_images, readable

    hashes: dict[int, str] = {}

    def pixels(row: int) -> NDArray[np.uint8]:
        name, stored = named_image(row)
        hashes[row] = photo_hash(stored)
        return encoder.read_image.pixels(decode(stored, name=name, upright=upright))

    readings = read_images(pixels, rows, at_once, readers, processes=False)
    with encoder.evaluating():
        for start in range(0, len(rows), at_once):
            unreadable: dict[int, str] = {}
            batch = zip(rows[start : start + at_once], readings)
            images = dict(readable(batch, unreadable.__setitem__))
            features = np.zeros((0, 0), np.float32)
            if images:
                features = encoder.encode_images([*images.values()])
            hashes_of_batch = {row: hashes.pop(row) for row in images}
            yield EncodedPhotos([*images], features, hashes_of_batch, unreadable)


# --- The same by workers of a Ray cluster. ---


def encode_on_ray(
    photos: PhotoList,
    rows: Sequence[int],
    request: Request,
    encoder: ModelEncoder,
    at_once: int,
    readers: int,
    model: str,
) -> Generator[EncodedPhotos, None, None]:
    """Yield what `encode_photos` yields, computed by workers of a Ray cluster.

    Each worker loads the model, computes with as many threads as this process, and reserves as many
    cores; one that uses a GPU reserves a GPU and one core.

    Args:
        photos: The list of all photos.
        rows: The photos to encode.
        request: What `photos` lists.
        encoder: The model.
        at_once: As for `encode_photos`.
        readers: As for `encode_photos`.
        model: Its name, by which workers load it.

    Raises:
        CompoclipError: When the model of a worker is another one; and as `cluster.run`.
    """
    import torch

    device, threads = encoder.device.type, torch.get_num_threads()
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    needs = Needs(gpus=1) if gpus else Needs(threads)
    here = gpus or max(1, available_cores() // threads)
    encode = partial(
        _encode,
        request=request,
        model=model,
        device=device,
        precision=encoder.precision,
        identity=identity_of(encoder),
        at_once=at_once,
        readers=readers,
        threads=threads,
        upright=photos.upright,
    )
    size = _BATCHES * at_once
    parts = (rows[start : start + size] for start in range(0, len(rows), size))
    tasks = ({row: (photos.names[row], photos.place(row)) for row in part} for part in parts)
    results = run(encode, tasks, here, "ray", in_order=True, needs=needs)
    yield from chain.from_iterable(results)


def _encode(
    photos: Mapping[int, tuple[str, Path | int]],
    request: Request,
    model: str,
    device: str,
    precision: Precision,
    identity: Mapping[str, Any],
    at_once: int,
    readers: int,
    threads: int,
    upright: bool,
) -> list[EncodedPhotos]:
    """Encode photos in a worker, as the process that sent them would.

    photos: Row -> name, and file or row in the data. threads: Of matrix products, whose last bits
    depend on their number.
    """
    import torch

    torch.set_num_threads(threads)
    encoder = _encoder(model, device, precision)
    if identity_of(encoder) != identity:
        raise CompoclipError(
            f"{model}: another model on {platform.node()}; every machine of the cluster needs the "
            "same one"
        )

    def named_image(row: int) -> tuple[str, Path | bytes]:
        name, place = photos[row]
        return name, place if isinstance(place, Path) else _opened(request)[place].image

    return [*encode_photos([*photos], named_image, encoder, at_once, readers, upright)]


@lru_cache(1)
def _encoder(model: str, device: str, precision: Precision) -> ModelEncoder:
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model

    return ModelEncoder(load_model(model, device=device), precision)


_opened = lru_cache(1)(Request.open)
