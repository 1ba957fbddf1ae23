"""Splits of the data: the training split is read unless the user names another one.

Readers say of every row which split it is of, by a column, a field, a folder or the name of a file;
`part_of` decides for all of them. `--split all` reads everything, test data included. Data without
splits are split by a hash of the photo.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from compoclip.console import counted, note, track
from compoclip.data.decode import decode
from compoclip.data.options import DataOptions
from compoclip.data.sources import Source
from compoclip.data.split_names import (
    ALL,
    COLUMN,
    TEST,
    TRAIN,
    VAL,
    NoUseError,
    others_left_out,
    require_split,
)
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import (
    bytes_hash,
    cache_folder,
    load_arrays,
    reason,
    save_arrays,
    write_atomically,
)


def part_of(source: Source, split: str | None, options: DataOptions) -> Source:
    """Return a split of opened data.

    Args:
        source: All of the data, which are read once for all their splits.
        split: A name, "all", or None for everything where the data name no splits, else "train".
        options: State the hash of data without splits.

    Raises:
        UsageError: For a split that the data do not have, and a share outside (0, 0.5).
    """
    counts = source.split_counts()
    if split == ALL or (split is None and not any(counts)):
        return source
    if not any(counts):
        if split is not None and split.lower() in (TRAIN, VAL, TEST):
            return by_hash(source, split.lower(), options.held_out, options.split_seed)
        raise NoUseError(
            "split", f"{source.describe()}: names no splits, so takes no --split {split}"
        )
    members = require_split(split, counts, source.describe())
    rows = np.flatnonzero(np.isin(list(source.column(COLUMN)), members))
    more = f", split {split or TRAIN}" if len(members) < len(counts) else ""
    left_out = {} if split else others_left_out(counts, members, "sample")
    return source.take(rows, source.describe() + more, left_out, splits=members)


def by_hash(source: Source, split: str, share: float, seed: int) -> Source:
    """Return a split ("train", "val" or "test") of data without splits.

    A hash of the seed, the size and the first bytes of a photo's file decides. All rows and copies
    of a photo are in one split, re-encoded and scaled copies included, and adding other photos
    moves none. share: of the photos in each of val and test. Raises UsageError for a share outside
    (0, 0.5), and for an empty split.
    """
    if not 0 < share < 0.5:
        raise UsageError(f"--held-out {share:g}: must lie between 0 and 0.5")
    numbers, copies = hash_numbers(source, seed)
    parts = np.select([numbers < share, numbers < 2 * share], [VAL, TEST], TRAIN)
    rows = np.flatnonzero(parts == split)
    photos = f"{len(rows):,} of {counted(len(source), 'photo')}"
    title = f"split {split}: {photos}, by a hash of the photo"
    if copies:
        title += f" ({copies:,} re-encoded or scaled copies go with their original)"
    if not len(rows):
        raise UsageError(f"{source.describe()}, {title}; raise --held-out {share:g}")
    return source.take(rows, f"{source.describe()}, {title}", {})


def share_of(source: Source, fraction: float) -> Source:
    """Return the samples with the smallest hash of their id: a share of all, rounded.

    A smaller share is a part of a larger one. Raises UsageError for a share outside (0, 1], and for
    one that holds no sample.
    """
    if not 0 < fraction <= 1:
        raise UsageError(f"--fraction {fraction:g}: must be above 0 and at most 1")
    if fraction == 1:
        return source
    number = round(fraction * len(source))
    samples = f"{number:,} of {counted(len(source), 'sample')}"
    title = f"{source.describe()}, {samples} by a hash of the id"
    if not number:
        raise UsageError(f"{title}; raise --fraction {fraction:g}")
    hashes = np.array([_digest(str(id).encode()) for id in source.column("id")], np.uint64)
    rows = np.sort(np.argsort(hashes, kind="stable")[:number])
    left_out = {f"sample outside the fraction {fraction:g} of the data": len(source) - number}
    return source.take(rows, title, left_out, made_from={"fraction": fraction})


# --- Copies of photos. ---
#
# Byte-equal copies have the same size and first bytes. Re-encoded and scaled copies have nearly
# equal small images: the correlation of a copy (JPEG quality 30 to 90, a third to twice the size)
# with its original is at least 0.988 over photos of Flickr8k, that of two different ones of 6,540
# photos at most 0.962. Copies of small or flat images may be missed: satellite tiles of 64 pixels
# scaled to a third have 0.74.

_HEAD = 1 << 16  # bytes of a photo that decide its split; photos alike in these go together
_SIDE = 16  # pixels of the small images that are compared
_LEAST = (128, 128)  # pixels that a JPEG is decoded to at least
_ALIKE = 0.98  # correlation of the small images of copies
_FLAT = 2.0  # standard deviation, of 255, below which an image has nothing to compare
_MOST_PHOTOS = 100_000  # that are compared: each is decoded once, which takes 5 ms
_MOST_COPIES = 50  # of a photo; more are photos of one kind, such as drawn scenes
_VERSION = 1


def hash_numbers(source: Source, seed: int) -> tuple[NDArray[np.float64], int]:
    """Return a number from 0 to 1 for the photo of each sample, and how many photos are copies.

    It is the number of the photo's bytes; copies have that of the one whose digest is smallest, so
    that other photos do not change it. The numbers are computed once per source.
    """
    if seed not in source.hashes:
        numbers = np.empty(len(source))
        digests = np.empty(len(source), np.uint64)
        for index in range(len(source)):
            head = _head(source[index].image)
            numbers[index], digests[index] = _number(seed, head), _digest(head)
        labels = _copies(source, digests)
        order = np.lexsort((digests, labels))  # the smallest digest of each group first
        first = np.unique(labels[order], return_index=True)[1]
        copies = len(np.unique(digests)) - len(first)
        source.hashes[seed] = numbers[order[first]][labels], copies
    return source.hashes[seed]


def _head(image: Path | bytes) -> bytes:
    """Size and first bytes of a photo, or the name of an unreadable file."""
    if isinstance(image, bytes):
        return b"%d " % len(image) + image[:_HEAD]
    try:
        with image.open("rb") as file:
            return b"%d " % image.stat().st_size + file.read(_HEAD)
    except OSError:  # decoding reports it
        return b"0 " + os.fsencode(image.name)


def _number(seed: int, head: bytes) -> float:
    return _digest(b"%d " % seed + head) / 2**64


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


def _copies(source: Source, digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of the group of each sample: samples whose photos are copies of each other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    photos, first, labels = np.unique(digests, return_index=True, return_inverse=True)
    if len(photos) > _MOST_PHOTOS:
        note(f"with more than {_MOST_PHOTOS:,} photos, only identical files are put into one split")
        return labels
    pairs = _pairs(_small_images(source, photos, first))
    edges = coo_array((np.ones(len(pairs)), pairs.T), (len(photos),) * 2)
    groups = connected_components(edges, directed=False)[1].astype(np.int64)
    # A larger group holds photos of one kind, not copies: they are split one by one.
    crowds = np.bincount(groups)[groups] > _MOST_COPIES
    groups[crowds] = len(photos) + np.flatnonzero(crowds)
    return np.unique(groups, return_inverse=True)[1][labels]


def _pairs(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Pairs of rows whose small images correlate.

    A coarser image of fewer numbers finds candidates: averaging brings no two images apart.
    """
    from scipy.spatial import cKDTree

    pixels = images.astype(np.float32)
    pixels -= pixels.mean((1, 2), keepdims=True)  # of each colour: one tint makes no copies
    flat = pixels.reshape(len(images), -1)
    norm = np.linalg.norm(flat, axis=1)
    rows = np.flatnonzero(norm > _FLAT * np.sqrt(flat.shape[1]))
    if len(rows) < 2:
        return np.empty((0, 2), np.int64)
    unit = flat[rows] / norm[rows, None]
    part = _SIDE // 4
    blocks = unit.reshape(len(rows), 4, part, 4, part, 3)
    coarse = blocks.sum((2, 4, 5)).reshape(len(rows), -1) / np.sqrt(3 * part**2)  # orthonormal
    tree, radius = cKDTree(coarse), np.sqrt(2 - 2 * _ALIKE)
    if tree.count_neighbors(tree, radius) > _MOST_COPIES * len(rows):
        note("nearly all photos look alike, so only identical files are put into one split")
        return np.empty((0, 2), np.int64)
    near = tree.query_pairs(radius, output_type="ndarray")
    alike = [
        pairs[np.einsum("ij,ij->i", unit[pairs[:, 0]], unit[pairs[:, 1]]) >= _ALIKE]
        for pairs in np.array_split(near, len(near) // 4096 + 1)
    ]
    return np.asarray(rows[np.concatenate(alike)], np.int64)


def _small_images(
    source: Source, photos: NDArray[np.uint64], first: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The small image of each photo, black for one that cannot be read; cached by digest."""
    name = bytes_hash(source.describe().encode())
    path = cache_folder() / "copies" / f"{name}.safetensors"
    cached = load_arrays(path, _VERSION)
    small_images = dict(zip(cached["digests"].tolist(), cached["images"])) if cached else {}

    def small(index: int) -> NDArray[np.uint8]:
        try:
            image = decode(source[index].image, min_size=_LEAST, upright=source.upright)
        except CompoclipError:  # training reports it
            return np.zeros((_SIDE, _SIDE, 3), np.uint8)
        return np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))

    todo = [
        (key, index)
        for key, index in zip(photos.tolist(), first.tolist())
        if key not in small_images
    ]
    if todo:
        with ThreadPoolExecutor() as pool:
            images = pool.map(small, [index for _, index in todo])
            tracked = track(images, "looking for copies of photos", len(todo), "photos")
            small_images |= zip([key for key, _ in todo], tracked)
    stacked = np.stack([small_images[key] for key in photos.tolist()])
    if todo:
        arrays = {"digests": photos, "images": stacked}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda place: save_arrays(place, arrays, _VERSION))
        except (OSError, CompoclipError) as error:
            note(f"{path}: not cached ({reason(error)}); photos are compared again the next time")
    return stacked
