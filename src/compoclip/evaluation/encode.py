"""Encode each distinct image and token sequence once over all benchmarks."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from compoclip.archives import Members
from compoclip.benchmarks.case import Content, ImageRef
from compoclip.console import counted, track
from compoclip.data.decode import stored_bytes
from compoclip.data.vectors import require_one_width
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import Encoder, Pending, TextKey, described, require_finite
from compoclip.evaluation.items import EncodedFeatures, Scores
from compoclip.files import Arrays, load_arrays, save_arrays, write_atomically
from compoclip.models.config import Tower
from compoclip.ranks import SINGLE, Ranks
from compoclip.workers import Workers, own_cores

# --- Encoded features on disk: an interrupted or repeated evaluation encodes nothing twice. ---

KEY_BYTES = 16
_LAYOUT = "2"  # raised when features of the same model and input would come out different
_TOWERS: dict[str, Tower] = {"images": "image", "texts": "text"}


def content_key(*parts: bytes) -> bytes:
    """Return a hash of KEY_BYTES bytes over all parts."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def image_content_key(ref: ImageRef, members: Members) -> bytes:
    """Return the key of an image: its bytes, the box, whether squashed, mirrored or turned."""
    data = stored_bytes(ref.stored(members))
    changes = {b"squash": ref.squash, b"mirror": ref.mirror, b"upright": ref.upright}
    applied = [change for change, applies in changes.items() if applies]
    return content_key(data, repr(ref.box).encode(), *applied)


class FeatureCache:
    """Float32 features of one model below `folder`, looked up by content key.

    `kind` is "images", "texts", or "pairs" (once added), whose features are scores (N, 1). Models
    that share a tower share its features. Each `put` adds one file atomically, so several runs may
    share a folder.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._folder = folder
        self._folders: dict[str, Path] = {}
        self._described = described(encoder)
        for kind, tower in _TOWERS.items():
            self.add(kind, {"weights": encoder.tower_weights(tower)})

    def add(self, kind: str, about: Mapping[str, Any]) -> None:
        """Hold features of a kind; about: what they depend on besides the model."""
        facts = self._described | dict(about)
        relevant = {k: v for k, v in facts.items() if k not in ("base", "adapter")}
        text = json.dumps([_LAYOUT, relevant], sort_keys=True)
        name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self._folders[kind] = self._folder / name / kind

    def find(self, kind: str, keys: Sequence[bytes]) -> Iterator[tuple[list[int], Scores]]:
        """Yield (positions in `keys`, features (n, D)) of the stored keys, file by file."""
        positions: dict[bytes, list[int]] = {}
        for position, key in enumerate(keys):
            positions.setdefault(key, []).append(position)
        for path in sorted(self._folders[kind].glob("*.safetensors")):
            stored = load_arrays(path, kind)
            names = [row.tobytes() for row in stored["keys"]] if stored else []
            pairs = [(p, row) for row, name in enumerate(names) for p in positions.get(name, ())]
            if stored and pairs:
                yield [p for p, _ in pairs], stored["features"][[row for _, row in pairs]]

    def put(self, kind: str, keys: Sequence[bytes], features: Scores) -> None:
        """Store features (N, D) under their keys. Raises CompoclipError when the disk refuses."""
        packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)
        path = self._folders[kind] / f"{content_key(*keys).hex()}.safetensors"
        arrays: Arrays = {"keys": packed, "features": features.astype(np.float32, copy=False)}
        write_atomically(path, lambda place: save_arrays(place, arrays, kind))


# --- What is not there yet is encoded. ---

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 1024
"""Number of new features after which they are written to the cache,"""
SAVE_SECONDS = 30.0
"""or seconds since the last write: the most that a killed run loses."""
_KEYS_AT_ONCE = 4096
_SHARED_AT_ONCE = 8192
THREADS = 8
"""Readers above which threads block each other: a twelfth of the work is serial."""
PROCESSES_FROM = 16_384
"""Images above which more processes than that are worth the seconds of their start."""
_READ_AT_ONCE = 16


@dataclass(frozen=True)
class EncodeOptions:
    """Settings of the encoding.

    Args:
        batch_size: Images or texts encoded at once; None is 64, on a GPU 512 or 1,024.
        workers: Threads that read images; None is 2, for a GPU one per core.
        max_bad: Largest number of damaged images to leave out.
        cache: Folder of cached features.
        ranks: The processes that share the work; rank 0 gets all features.
        processes: Whether processes may read instead of threads, if many images are read for a
            GPU. They import the main module again, so a script needs
            `if __name__ == "__main__"`.
    """

    batch_size: int | None = None
    workers: int | None = None
    max_bad: int = 0
    cache: Path | None = None
    ranks: Ranks = SINGLE
    processes: bool = False

    def images_at_once(self, device: torch.device) -> int:
        """Return the number of images of a batch."""
        return self.batch_size or (512 if device.type == "cuda" else 64)

    def texts_at_once(self, device: torch.device) -> int:
        """Return the number of texts of a batch."""
        return self.batch_size or (1024 if device.type == "cuda" else 64)

    def readers(self, device: torch.device) -> int:
        """Return the number of workers that read images."""
        return self.workers or (own_cores() if device.type == "cuda" else 2)


def encode_contents(
    encoder: Encoder, contents: Sequence[Content], options: EncodeOptions | None = None
) -> EncodedFeatures:
    """Encode every distinct image and text of some benchmarks once; every image file must exist.

    Images with equal bytes and box share a row, and so do texts with equal tokens. Texts are
    encoded in order of length, so that batches hold little padding. Features are cached chunk by
    chunk, also when the run is interrupted. Of several ranks, rank 0 returns all features, the
    others their share. Raises CompoclipError when an image is damaged beyond `max_bad`, or a
    feature is not finite.
    """
    options = options or EncodeOptions()
    cache = FeatureCache(options.cache, encoder) if options.cache else None
    refs = list(dict.fromkeys(ref for content in contents for ref in content.images))
    words = list(dict.fromkeys(text for content in contents for text in content.texts))
    with encoder.evaluating():
        images, image_rows, bad = _encode_images(encoder, refs, options, cache)
        texts, text_rows, truncated = _encode_texts(encoder, words, options, cache)
    if options.ranks.first:  # which has all of them
        require_one_width(images, texts, encoder.identity.to_json()["architecture"])
    return EncodedFeatures(images, image_rows, texts, text_rows, bad, truncated)


class Damaged:
    """Images that cannot be used, and how many of them are too many.

    reasons: image -> the errors of all references to it.
    """

    def __init__(self, rows: Mapping[ImageRef, int], options: EncodeOptions) -> None:
        self.rows, self.reasons = rows, dict[ImageRef, str]()
        self._photos: set[str] = set()
        self._limit, self._ranks = options.max_bad, options.ranks
        self._sharing: dict[int, list[ImageRef]] = {}
        for ref, row in rows.items():
            self._sharing.setdefault(row, []).append(ref)

    def reference(self, row: int) -> ImageRef:
        """Return a reference to the image of a row."""
        return self._sharing[row][0]

    def add(self, row: int, damage: str) -> None:
        """Note that an image is damaged. Raises CompoclipError when too many are."""
        refs = self._sharing[row]
        self.reasons.update(dict.fromkeys(refs, damage))
        self._photos.update(ref.photo for ref in refs)
        if len(self._photos) > self._limit:
            raise CompoclipError(
                f"more than {counted(self._limit, 'damaged image')}; the next is {damage}"
                if self._limit
                else f"{damage} (or leave damaged images out with --max-bad N)"
            )

    def share(self) -> None:
        """Tell all ranks."""
        if self._ranks.world > 1:
            local = [[self.rows[ref], reason] for ref, reason in self.reasons.items()]
            for others in self._ranks.exchange(local):
                for row, reason in others:
                    self.add(row, reason)


def _encode_images(
    encoder: Encoder,
    refs: Sequence[ImageRef],
    options: EncodeOptions,
    cache: FeatureCache | None,
) -> tuple[Scores, dict[ImageRef, int], dict[ImageRef, str]]:
    """Return features of the distinct images, the row of each reference, and damaged ones."""
    ranks, readers = options.ranks, options.readers(encoder.device)
    at_once = options.images_at_once(encoder.device)
    keys, row_of = by_content(refs, readers, ranks)
    damaged = Damaged(row_of, options)
    store = FeatureStore("images", keys, cache, ranks, encoder.device)
    todo = store.todo(at_once)

    many = readers > THREADS and len(todo) >= PROCESSES_FROM
    processes = options.processes and encoder.device.type == "cuda" and many
    todo_refs = [damaged.reference(row) for row in todo]
    readings = read_images(encoder.read_image, todo_refs, at_once, readers, processes)
    tracked = track(zip(todo, readings), "encoding images", len(todo), "images")
    batches = batched(readable(tracked, damaged.add), at_once)
    store.fill((rows, encoder.start_images(images)) for rows, images in batches)
    damaged.share()
    store.share()
    bad = damaged.reasons
    return store.matrix, {ref: row for ref, row in row_of.items() if ref not in bad}, bad


def by_content(
    refs: Sequence[ImageRef], workers: int, ranks: Ranks = SINGLE
) -> tuple[list[bytes], dict[ImageRef, int]]:
    """Return the keys of the distinct images, and the index of the image of each reference.

    Copies of a photo at several paths are one image. Every unreadable file is a separate image. The
    ranks share the reading.
    """
    members = Members()

    def key(ref: ImageRef) -> bytes:
        try:
            return image_content_key(ref, members)
        except CompoclipError:  # reading it for the model says what is wrong
            return content_key(b"unreadable", repr(ref).encode())

    rows: dict[bytes, int] = {}
    row_of: dict[ImageRef, int] = {}
    part = refs[ranks.rank :: ranks.world]
    hashes = list(track(ahead(part, key, workers, 256), "looking images up", len(part), "images"))
    if ranks.world > 1:
        parts = ranks.exchange([name.hex() for name in hashes])
        hashes = [bytes.fromhex(parts[k % ranks.world][k // ranks.world]) for k in range(len(refs))]
    for ref, name in zip(refs, hashes):
        row_of[ref] = rows.setdefault(name, len(rows))
    return list(rows), row_of


def _encode_texts(
    encoder: Encoder,
    texts: Sequence[str],
    options: EncodeOptions,
    cache: FeatureCache | None,
) -> tuple[Scores, dict[str, int], frozenset[str]]:
    distinct, text_rows, truncated = by_tokens(encoder, texts)
    keys = [content_key(key.key) for _, key in distinct]
    store = FeatureStore("texts", keys, cache, options.ranks, encoder.device)
    size = options.texts_at_once(encoder.device)
    todo = store.todo(size, key=lambda p: (distinct[p][1].length, distinct[p][1].key))
    batches = [todo[start : start + size] for start in range(0, len(todo), size)]
    store.fill(
        (batch, encoder.start_texts([distinct[position][0] for position in batch]))
        for batch in track(batches, "encoding texts", len(batches), "batches")
    )
    store.share()
    return store.matrix, text_rows, truncated


def by_tokens(
    encoder: Encoder, texts: Sequence[str]
) -> tuple[list[tuple[str, TextKey]], dict[str, int], frozenset[str]]:
    """Group texts that the model reads alike.

    Returns the first text of each group with its key; text -> number of its group; the texts that
    the model cuts.
    """
    rows: dict[bytes, int] = {}
    text_rows: dict[str, int] = {}
    truncated: set[str] = set()
    distinct: list[tuple[str, TextKey]] = []
    for start in range(0, len(texts), _KEYS_AT_ONCE):
        part = texts[start : start + _KEYS_AT_ONCE]
        for text, key in zip(part, encoder.text_keys(part)):
            row = text_rows[text] = rows.setdefault(key.key, len(rows))
            if row == len(distinct):
                distinct.append((text, key))
            if key.truncated:
                truncated.add(text)
    return distinct, text_rows, frozenset(truncated)


class FeatureStore:
    """Features by row: read from the cache, or encoded and then written to it in parts.

    A batch is fetched from the GPU after the next one has started, so that the GPU never waits.
    Rank 0 reads the cache and tells the other ranks what is missing. Each rank writes what it
    encodes. matrix: (rows, D), zero without a feature.
    """

    def __init__(
        self,
        kind: str,
        keys: Sequence[bytes],
        cache: FeatureCache | None,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self.matrix: Scores = np.zeros((len(keys), 0), dtype=np.float32)
        self._stored = np.zeros(len(keys), dtype=bool)
        self._lag = 1 if device.type == "cuda" else 0
        self._ranks, self._kind, self._keys, self._cache = ranks, kind, keys, cache
        self._new: list[int] = []
        self._unsaved: list[int] = []
        self._saved_at = time.monotonic()
        if cache is not None and ranks.first:
            for rows, features in cache.find(kind, keys):
                self._put(rows, features)

    def todo(self, size: int, key: Callable[[int], Any] | None = None) -> list[int]:
        """Return the rows that this rank encodes, by `key`: every world-th batch of those missing.

        size: rows of a batch.
        """
        missing: list[int] = np.flatnonzero(~self._stored).tolist()
        if self._ranks.world > 1:
            missing = self._ranks.exchange(missing)[0]
        world, rank = self._ranks.world, self._ranks.rank
        rows = sorted(missing, key=key)
        return [row for k, row in enumerate(rows) if k // size % world == rank]

    def fill(self, batches: Iterable[tuple[list[int], Pending]]) -> int:
        """Take new features of rows; write them down when there are many, after a while, and at
        the end. Return their number. An error on one rank is raised on all."""
        started: deque[tuple[list[int], Pending]] = deque()
        with self._ranks.agreed():
            try:
                for batch in batches:
                    started.append(batch)
                    if len(started) > self._lag:
                        self._take(*started.popleft())
            finally:
                try:
                    for batch in started:
                        self._take(*batch)
                finally:
                    self._save()
        return len(self._new)

    def _take(self, rows: list[int], pending: Pending) -> None:
        features = pending()
        require_finite(features)
        self._put(rows, features)
        self._new += rows
        self._unsaved += rows
        late = time.monotonic() - self._saved_at > SAVE_SECONDS
        if len(self._unsaved) >= CHUNK or late:
            self._save()

    def share(self) -> None:
        """Give rank 0 what the others encoded."""
        if self._ranks.world == 1:
            return
        sizes = self._ranks.exchange([len(self._new), self.matrix.shape[1]])
        counts, width = [size[0] for size in sizes], max(size[1] for size in sizes)
        self._put([], np.zeros((0, width), dtype=np.float32))  # room, where nothing was encoded
        for start in range(0, max(counts), _SHARED_AT_ONCE):
            part = [min(max(n - start, 0), _SHARED_AT_ONCE) for n in counts]
            rows = np.array(self._new[start : start + _SHARED_AT_ONCE], dtype=np.int64)
            places = self._ranks.all_gather(torch.from_numpy(rows), part)
            features = self._ranks.all_gather(torch.from_numpy(self.matrix[rows]), part)
            if self._ranks.first:
                self._put(places.tolist(), features.numpy())

    def _put(self, rows: Sequence[int], features: Scores) -> None:
        if not self.matrix.shape[1]:  # the width was not known before
            self.matrix = np.zeros((len(self._keys), features.shape[1]), dtype=np.float32)
        self.matrix[rows] = features.reshape(len(rows), features.shape[1])
        self._stored[rows] = True

    def _save(self) -> None:
        rows, self._unsaved = self._unsaved, []
        self._saved_at = time.monotonic()
        if self._cache is not None and rows:
            self._cache.put(self._kind, [self._keys[row] for row in rows], self.matrix[rows])


_Found = tuple[Any, str | None]  # what `Encoder.read_image` returned, or what is wrong


def readable(
    readings: Iterable[tuple[T, _Found]], damaged: Callable[[T, str], object]
) -> Iterator[tuple[T, Any]]:
    """Yield the images that could be read, with their keys; `damaged` gets key and error of others.

    readings: keys with what `read_images` yields.
    """
    for key, (image, damage) in readings:
        if damage is None:
            yield key, image
        else:
            damaged(key, damage)


def batched(stream: Iterable[tuple[int, T]], size: int) -> Iterator[tuple[list[int], list[T]]]:
    """Yield the rows and the values of up to `size` pairs at a time."""
    pairs = iter(stream)
    while batch := list(islice(pairs, size)):
        yield [row for row, _ in batch], [value for _, value in batch]


def read_images(
    read_image: Callable[[T], Any], refs: Sequence[T], at_once: int, workers: int, processes: bool
) -> Iterator[_Found]:
    """Read images with so many processes or threads, some batches of `at_once` images ahead.

    Yields for each reference in order the image, or None and the error of the file.
    """
    read, size = partial(_read, read_image), _READ_AT_ONCE if processes else 1
    parts = [refs[k : k + size] for k in range(0, len(refs), size)]
    if processes:
        with Workers(workers) as pool:
            yield from chain.from_iterable(pool.map(read, parts))
        return
    window = max(2 * at_once, workers)
    yield from chain.from_iterable(ahead(parts, read, workers, window))


def _read(read: Callable[[T], Any], refs: Sequence[T]) -> list[_Found]:
    readings: list[_Found] = []
    for ref in refs:
        try:
            readings.append((read(ref), None))
        except CompoclipError as error:
            readings.append((None, str(error)))
    return readings


def ahead(items: Sequence[T], read: Callable[[T], R], workers: int, window: int) -> Iterator[R]:
    """Yield `map(read, items)`, computed in threads at most `window` items before it is needed."""
    pool = ThreadPoolExecutor(max(1, workers))
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Collected as garbage, this can run in a thread that is being started and holds a lock
        # that joining another thread needs.
        pool.shutdown(wait=False, cancel_futures=True)
