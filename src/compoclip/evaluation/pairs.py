"""Scores of pairs in place of cosines: `evaluate --score`.

Only the pairs of a benchmark's items are scored, each distinct one once. Scores are cached as
features are.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from compoclip import plugins
from compoclip.archives import Members
from compoclip.benchmarks.case import Benchmark, Content, ImageRef, Retrieval
from compoclip.captions.parser import parse_many, provenance
from compoclip.captions.subgraphs import decompose, phrase, worded
from compoclip.captions.types import Caption
from compoclip.console import counted, track
from compoclip.data.decode import opened
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.embedder import ExternalEncoder, by_image
from compoclip.evaluation.encode import (
    Damaged,
    EncodeOptions,
    FeatureCache,
    FeatureStore,
    batched,
    by_content,
    by_tokens,
    content_key,
    encode_contents,
    read_images,
    readable,
)
from compoclip.evaluation.encoder import Encoder, ImageReader, Pending
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import EncodedFeatures, Scores, cosines
from compoclip.evaluation.scores import COSINE, PARTS, require_score

_GRID = 3  # windows of half the sides, in so many rows and columns
_REMEDY = "correct the file"
Pairs = Mapping[tuple[int, int], tuple[ImageRef, str]]
"""(row of an image, row of a text) -> an image and a text at these rows."""


@dataclass(frozen=True)
class PairScore:
    """A way to score pairs.

    name: as in results, "itm" or "my_score.py". read_image: reads an image for `match`. match: N
    images, equal ones together, and N texts -> (N,). about: what the scores depend on besides the
    model; part of the identity.
    """

    name: str
    read_image: Callable[[ImageRef], Any]
    match: Callable[[Sequence[Any], Sequence[str]], Scores]
    about: Mapping[str, Any]


def score_of(name: str, encoder: Encoder) -> PairScore | None:
    """Find how a model's pairs are scored; None for cosines of features.

    name: one of `SCORES`, FILE.py or FILE.py:NAME; "" for the model's own way. Raises UsageError
    for an unknown score and a file that defines none or several, CompoclipError for one that cannot
    be read or run.
    """
    require_score(name)
    name = name or (encoder.score if isinstance(encoder, ExternalEncoder) else COSINE)
    if name == COSINE:
        return None
    if plugins.is_file(name):
        return _custom(name, encoder)
    about = provenance() if name == PARTS else {}
    return PairScore(name, encoder.read_image, partial(encoder.match, score=name), about)


def _custom(name: str, encoder: Encoder) -> PairScore:
    plugins.refresh(name)
    module = plugins.parts_of(name)
    functions = {
        key: value
        for key, value in module.items()
        if inspect.isfunction(value)
        and value.__module__ == module["__name__"]
        and not key.startswith("_")
        and len(inspect.signature(value).parameters) == 3
    }
    function = plugins.chosen(name, functions, "scores", "a function of model, image and texts")
    path, member = plugins.split(name)
    model = encoder.model if isinstance(encoder, ExternalEncoder) else encoder

    def one(image: Any, texts: list[str]) -> Scores:
        with plugins.fence(str(path), _REMEDY), np.errstate(over="ignore"):
            scores = np.asarray(function(model, image, texts), dtype=np.float32)
        if scores.shape != (len(texts),):
            raise CompoclipError(
                f"{path}: {counted(len(texts), 'text')} got scores of shape "
                f"{scores.shape}; {_REMEDY}"
            )
        if not np.isfinite(scores).all():
            raise CompoclipError(f"{path}: a score is no finite number of float32; {_REMEDY}")
        return scores

    about = plugins.named_sources(plugins.sources_of(function))
    name = ":".join(filter(None, (path.name, member)))
    return PairScore(name, ImageReader(), partial(by_image, one), about)


def require_pairs(benchmarks: Sequence[Benchmark], score: str) -> None:
    """Raise UsageError, naming the benchmark, unless all its items consist of few pairs."""
    for benchmark in benchmarks:
        if not all(FORMS[form].in_pairs for form in benchmark.content.forms):
            raise UsageError(
                f"{benchmark.name}: --score {score} scores the pairs of items (choice, group, "
                "triple); measure retrieval, classification and texts alone with --score cosine"
            )


def score_contents(
    encoder: Encoder, score: PairScore, contents: Sequence[Content], options: EncodeOptions
) -> tuple[EncodedFeatures, float]:
    """Score the pairs of all items, each distinct one once; share the work among ranks.

    contents: cases whose images exist. Returns the scores, all of them on rank 0, and the pairs
    scored per second. Raises CompoclipError for images damaged beyond `max_bad`, and when the model
    or a file fails.
    """
    refs = list(dict.fromkeys(ref for content in contents for ref in content.images))
    words = list(dict.fromkeys(text for content in contents for text in content.texts))
    ranks, readers = options.ranks, options.readers(encoder.device)
    image_keys, image_rows = by_content(refs, readers, ranks)
    text_keys, text_rows, truncated = by_tokens(encoder, words)
    needed = {
        (image_rows[ref], text_rows[text]): (ref, text)
        for content in contents
        for case in content.cases
        for ref in case.images
        for text in case.texts
    }
    damaged = Damaged(image_rows, options)
    start = time.monotonic()
    if score.name == PARTS:
        with ranks.agreed():
            matches, done = _parts(encoder, needed, damaged, options)
        damaged.share()
    else:
        keys = [content_key(image_keys[i], text_keys[t][1].key) for i, t in needed]
        cache = FeatureCache(options.cache, encoder) if options.cache else None
        if cache is not None:
            cache.add("pairs", {"score": score.name, **score.about})
        store = FeatureStore("pairs", keys, cache, ranks, encoder.device)
        with encoder.evaluating():
            at_once = options.images_at_once(encoder.device)
            done = _scored(score, needed, store, damaged, at_once, readers)
        damaged.share()
        store.share()
        matches = dict(zip(needed, store.matrix[:, 0].tolist())) if store.matrix.size else {}
    rows = {ref: row for ref, row in image_rows.items() if ref not in damaged.reasons}
    none = np.zeros((0, 0), dtype=np.float32)
    features = EncodedFeatures(none, rows, none, text_rows, damaged.reasons, truncated, matches)
    return features, done / max(time.monotonic() - start, 1e-9)


def _scored(
    score: PairScore,
    needed: Pairs,
    store: FeatureStore,
    damaged: Damaged,
    at_once: int,
    readers: int,
) -> int:
    pairs = list(needed)
    todo = store.todo(at_once, key=lambda row: pairs[row])
    groups = [list(group) for _, group in groupby(todo, key=lambda row: pairs[row][0])]
    refs = [needed[pairs[group[0]]][0] for group in groups]
    readings = read_images(score.read_image, refs, at_once, readers, processes=False)
    tracked = track(zip(groups, readings), "scoring pairs", len(groups), "images")
    pictures = readable(tracked, lambda group, reason: damaged.add(pairs[group[0]][0], reason))
    stream = ((row, image) for group, image in pictures for row in group)

    def scored() -> Iterator[tuple[list[int], Pending]]:
        for rows, images in batched(stream, at_once):
            scores = score.match(images, [needed[pairs[row]][1] for row in rows])
            yield rows, partial(np.expand_dims, scores, 1)

    return store.fill(scored())


# --- Parts: units of the caption against windows of the image. ---


def caption_parts(caption: Caption) -> tuple[str, ...]:
    """Return what a caption names, in its words: objects with attributes, relations; at least
    itself."""
    graph = worded(caption)
    bare = [node.name for node in graph.objects if not node.attributes]
    return tuple(dict.fromkeys([*bare, *map(phrase, decompose(graph))])) or (caption.text,)


def image_parts(ref: ImageRef, members: Members) -> tuple[ImageRef, ...]:
    """Return an image and then nine overlapping windows of half its width and height.

    members: the archives that images lie in. Raises CompoclipError for a missing or damaged file.
    """
    left, upper, right, lower = ref.box or (0, 0, 0, 0)
    if ref.box is None:
        with opened(ref.stored(members), ref.photo, upright=ref.upright) as image:
            right, lower = image.size
    width, height = (right - left) / 2, (lower - upper) / 2
    if min(width, height) < 2:
        return (ref,)
    step = _GRID - 1
    corners = [
        (left + width * column / step, upper + height * row / step)
        for row in range(_GRID)
        for column in range(_GRID)
    ]
    return (ref, *(replace(ref, box=(x, y, x + width, y + height)) for x, y in corners))


def _parts(
    encoder: Encoder, needed: Pairs, damaged: Damaged, options: EncodeOptions
) -> tuple[dict[tuple[int, int], float], int]:
    r"""The mean over units u of max over windows v of cos(u, v), of every pair; their number.

    After Miranda et al., Adding simple structure at inference improves vision-language
    compositionality, arXiv 2506.09691 (2025).
    """
    windows: dict[int, tuple[ImageRef, ...]] = {}
    members = Members()
    for row, ref in {row: ref for (row, _), (ref, _) in needed.items()}.items():
        try:
            windows[row] = image_parts(ref, members)
        except CompoclipError as error:
            damaged.add(row, str(error))
    words = list(dict.fromkeys(text for _, text in needed.values()))
    units = {caption.text: caption_parts(caption) for caption in parse_many(words)}
    refs = tuple(ref for group in windows.values() for ref in group)
    phrases = tuple(unit for parts in units.values() for unit in parts)
    features = encode_contents(encoder, [Retrieval(refs, phrases, pairs=())], options)
    for row, group in windows.items():
        if reason := next((features.bad[ref] for ref in group if ref in features.bad), ""):
            damaged.add(row, reason)
    matches: dict[tuple[int, int], float] = {}
    bad = {row for ref, row in damaged.rows.items() if ref in damaged.reasons}
    for (row, column), (_, text) in needed.items() if options.ranks.first else ():
        if row not in bad:
            views = features.image_index(windows[row])
            read = features.text_index(units[text])
            grid = np.broadcast_arrays(views[None, :], read[:, None])
            best = cosines(features.images, grid[0], features.texts, grid[1]).max(axis=1)
            matches[row, column] = float(best.mean(dtype=np.float64))
    return matches, len(matches)
