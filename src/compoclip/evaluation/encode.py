"""Encode each distinct image and each distinct token sequence once, over all benchmarks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from compoclip.benchmarks.case import Classification, ImageRef, Retrieval
from compoclip.benchmarks.coverage import Content
from compoclip.console import track
from compoclip.data.members import Members
from compoclip.errors import CompoclipError
from compoclip.evaluation.cache import FeatureCache, content_key, image_content_key
from compoclip.evaluation.encoder import Encoder, TextKey
from compoclip.evaluation.features import Features
from compoclip.evaluation.outcomes import Scores

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 1024
_KEYS_AT_ONCE = 4096


@dataclass(frozen=True)
class EncodeOptions:
    """batch_size: images or texts encoded at once. workers: threads that read images. max_bad:
    damaged images to leave out before giving up. cache: keep and reuse features on disk."""

    batch_size: int = 64
    workers: int = 2
    max_bad: int = 0
    cache: FeatureCache | None = None


def distinct_images(contents: Sequence[Content]) -> list[ImageRef]:
    """All images of some benchmarks, each photo and box once, in order of appearance."""
    seen: dict[ImageRef, None] = {}
    for content in contents:
        if isinstance(content, Retrieval | Classification):
            seen.update(dict.fromkeys(content.images))
        else:
            seen.update(dict.fromkeys(ref for case in content for ref in case.images))
    return list(seen)


def distinct_texts(contents: Sequence[Content]) -> list[str]:
    """All texts of some benchmarks, each string once, in order of appearance."""
    seen: dict[str, None] = {}
    for content in contents:
        if isinstance(content, Retrieval):
            seen.update(dict.fromkeys(content.texts))
        elif isinstance(content, Classification):
            seen.update(dict.fromkeys(text for prompts in content.prompts for text in prompts))
        else:
            seen.update(dict.fromkeys(text for case in content for text in case.texts))
    return list(seen)


def encode_contents(
    encoder: Encoder, contents: Sequence[Content], options: EncodeOptions | None = None
) -> Features:
    """Features of everything that `contents` mention, every image file of which must exist.

    Texts with the same tokens are encoded once and share a row. Texts go in order of length, so
    that batches hold little padding. What has been encoded is stored in the cache chunk by chunk,
    also when the run is interrupted. Raises CompoclipError for the first damaged image beyond
    `max_bad`, and when the model yields numbers that are not finite.
    """
    options = options or EncodeOptions()
    images, image_rows, bad = _encode_images(encoder, distinct_images(contents), options)
    texts, text_rows, truncated = _encode_texts(encoder, distinct_texts(contents), options)
    return Features(images, image_rows, texts, text_rows, bad, truncated)


def _encode_images(
    encoder: Encoder, refs: Sequence[ImageRef], options: EncodeOptions
) -> tuple[Scores, dict[ImageRef, int], dict[ImageRef, str]]:
    store = _Store("images", len(refs), options.cache)
    if options.cache is not None:
        key = partial(image_content_key, members=Members())
        hashes = _ahead(refs, key, options.workers, 256)
        store.reuse(list(track(hashes, "looking images up", len(refs), "images")))
    todo = store.missing()
    bad: dict[ImageRef, str] = {}

    def read(position: int) -> Any:
        try:
            return encoder.read_image(refs[position])
        except CompoclipError as error:
            return error

    with store:
        batch: list[tuple[int, Any]] = []
        window = max(2 * options.batch_size, options.workers)
        readings = zip(todo, _ahead(todo, read, options.workers, window))
        for position, image in track(readings, "encoding images", len(todo), "images"):
            if isinstance(image, CompoclipError):
                bad[refs[position]] = str(image)
                if len(bad) > options.max_bad:
                    raise CompoclipError(_too_many(image, options.max_bad))
                continue
            batch.append((position, image))
            if len(batch) == options.batch_size:
                _encode_batch(store, batch, encoder.encode_images)
                batch = []
        if batch:
            _encode_batch(store, batch, encoder.encode_images)
    rows = {ref: row for row, ref in enumerate(refs) if ref not in bad}
    return store.matrix(), rows, bad


def _encode_texts(
    encoder: Encoder, texts: Sequence[str], options: EncodeOptions
) -> tuple[Scores, dict[str, int], frozenset[str]]:
    rows: dict[bytes, int] = {}
    text_rows: dict[str, int] = {}
    truncated: set[str] = set()
    representatives: list[tuple[str, TextKey]] = []
    for start in range(0, len(texts), _KEYS_AT_ONCE):
        part = texts[start : start + _KEYS_AT_ONCE]
        for text, key in zip(part, encoder.text_keys(part)):
            row = rows.setdefault(key.key, len(rows))
            if row == len(representatives):
                representatives.append((text, key))
            text_rows[text] = row
            if key.truncated:
                truncated.add(text)
    store = _Store("texts", len(representatives), options.cache)
    if options.cache is not None:
        store.reuse([content_key(key.key) for _, key in representatives])
    by_length = [
        (representatives[p][1].length, representatives[p][1].key) for p in range(len(rows))
    ]
    todo = sorted(store.missing(), key=by_length.__getitem__)
    batches = [
        todo[start : start + options.batch_size]
        for start in range(0, len(todo), options.batch_size)
    ]
    with store:
        for batch in track(batches, "encoding texts", len(batches), "batches"):
            pairs = [(position, representatives[position][0]) for position in batch]
            _encode_batch(store, pairs, encoder.encode_texts)
    return store.matrix(), text_rows, frozenset(truncated)


class _Store:
    """Features by position, some taken from the cache, the new ones written to it in chunks."""

    def __init__(self, kind: str, count: int, cache: FeatureCache | None) -> None:
        self._kind = kind
        self._cache = cache
        self._features: list[Scores | None] = [None] * count
        self._keys: list[bytes] = []
        self._unsaved: list[int] = []

    def reuse(self, keys: list[bytes]) -> None:
        """Fill in what the cache holds under `keys`, one key a position."""
        self._keys = keys
        if self._cache is not None:
            for position, feature in self._cache.get(self._kind, keys).items():
                self._features[position] = feature

    def missing(self) -> list[int]:
        return [p for p, feature in enumerate(self._features) if feature is None]

    def add(self, positions: Sequence[int], features: Scores) -> None:
        for position, feature in zip(positions, features):
            self._features[position] = feature
        self._unsaved += positions
        if len(self._unsaved) >= CHUNK:
            self._save()

    def matrix(self) -> Scores:
        """(count, D); rows of positions without a feature are zero and unused."""
        known = next((f for f in self._features if f is not None), np.empty(0, np.float32))
        out = np.zeros((len(self._features), len(known)), dtype=np.float32)
        for position, feature in enumerate(self._features):
            if feature is not None:
                out[position] = feature
        return out

    def _save(self) -> None:
        rows = [(p, f) for p in self._unsaved if (f := self._features[p]) is not None]
        self._unsaved = []
        if self._cache is not None and rows:
            keys = [self._keys[position] for position, _ in rows]
            self._cache.put(self._kind, keys, np.stack([feature for _, feature in rows]))

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()


def _encode_batch(
    store: _Store,
    batch: Sequence[tuple[int, Any]],
    encode: Callable[[list[Any]], Scores],
) -> None:
    features = encode([each for _, each in batch])
    if len(features) != len(batch) or not np.isfinite(features).all():
        raise CompoclipError(
            "the model yields features that are not finite numbers; its weights are damaged, or "
            "training diverged"
        )
    store.add([position for position, _ in batch], features)


def _ahead(items: Sequence[T], read: Callable[[T], R], workers: int, window: int) -> Iterator[R]:
    """`map(read, items)` in threads, at most `window` results ahead of what was taken."""
    with ThreadPoolExecutor(max(1, workers)) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(read, item))
                if len(waiting) >= window:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _too_many(error: CompoclipError, max_bad: int) -> str:
    if max_bad == 0:
        return f"{error} (or leave damaged images out with --max-bad N)"
    return f"more than {max_bad} damaged images; the next is {error}"
