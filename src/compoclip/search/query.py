"""Exact search of an index: texts and images, negations, and when nothing matches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from compoclip.captions.lists import WORDS
from compoclip.captions.parser import parse
from compoclip.console import counted, note, table
from compoclip.data.decode import decode
from compoclip.data.images.neighbours import Matrix, nearest
from compoclip.data.sources.open import Request
from compoclip.errors import UsageError, require
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.search.index import PhotoIndex

_BATCH = 64

# --- What a query denies. ---

_LINKS = ("or", "nor", "and", "of")  # between noun phrases that are denied together
_ENDS = (".", "!", "?", ";", ",", "but")  # of what a negation reaches
_DANGLING = ("ADP", "AUX", "CCONJ", "PRON", "SCONJ", "PUNCT")  # "with" no hat, "who is" not old


def split_negation(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a text such as "a man without a hat or glasses on a bike" into the wanted and the
    negated part, here "a man on a bike" and ("a hat", "glasses").

    "without", "no", "not" and the like deny the noun phrases behind them that "or", "and" and "of"
    join, or else the words up to the end of the clause. A text that denies nothing, or asks for
    nothing else, is returned as it is.

    Args:
        text: The query.
    """
    denied: list[str] = []
    while split := _split_once(text):
        text, more = split
        denied += more
    return text, tuple(denied)


def _split_once(text: str) -> tuple[str, list[str]] | None:
    caption = parse(text)
    tokens, lows = caption.tokens, [token.text.lower() for token in caption.tokens]
    negations = WORDS["negations"]
    at = next((k for k, low in enumerate(lows) if low in negations or low.endswith("n't")), None)
    if at is None:
        return None
    end = next((k for k in range(at, len(lows)) if lows[k] in _ENDS), len(lows))
    spans: list[tuple[int, int]] = []
    for chunk in caption.chunks:
        start, stop = max(chunk.first, at + 1), chunk.stop
        if start < stop <= end and not spans:
            spans = [(at + 1, stop)]
        elif spans and stop <= end and start == spans[-1][1] + 1 and lows[start - 1] in _LINKS:
            first = spans.pop()[0] if lows[start - 1] == "of" else start
            spans.append((first, stop))
    spans = spans or [(at + 1, end)]
    before, after = at, spans[-1][1]
    while before and tokens[before - 1].pos in _DANGLING:
        before -= 1
    while not before and after < len(tokens) and tokens[after].pos in _DANGLING:
        after += 1

    def words(first: int, stop: int) -> str:
        return text[tokens[first].start : tokens[stop - 1].end] if first < stop else ""

    rest = f"{words(0, before)} {words(after, len(tokens))}".replace(" ,", ",").strip(" ,.;")
    denied = [part for part in (words(*span) for span in spans) if part]
    return (rest, denied) if rest and denied else None


# --- Queries and what they find. ---


@dataclass(frozen=True)
class Hit:
    """A found photo: its row and name in the index, and the score that ranks it."""

    row: int
    photo: str
    score: float


@dataclass(frozen=True)
class Found:
    """The answer to one query, a text or the path of an image.

    hits: photos, the best first. best: the highest cosine with the wanted part. matches: whether
    that is as high as usual where a photo matches; True without calibration. asked: the wanted
    part. denied: what the query denies.
    """

    query: str
    hits: tuple[Hit, ...]
    best: float
    matches: bool
    asked: str
    denied: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the answer as a table."""
        hits = enumerate(self.hits, start=1)
        rows = [[str(rank), hit.photo, f"{hit.score:.4f}"] for rank, hit in hits]
        lines = [self.query, table(rows, ["rank", "photo", "score"], left=2)]
        if self.denied:
            lines.insert(1, f"asked for: {self.asked}; denied: {', '.join(self.denied)}")
        if not self.matches:
            lines.append(f"nothing matches: the best cosine is {self.best:.3f}")
        return "\n".join(lines)


def found_by(
    index: PhotoIndex,
    queries: Sequence[str],
    vectors: Matrix,
    top: int,
    ranked: Matrix | None = None,
) -> list[Found]:
    """Return the answer to each of (Q, D) vectors; ranked: vectors to rank by in their place."""
    rows, scores = nearest(index.features, vectors if ranked is None else ranked, top)
    best = scores if ranked is None else nearest(index.features, vectors, 1)[1]
    limit = (index.about["calibration"] or {}).get("threshold", -np.inf)
    answers = []
    for query, query_rows, values, (highest, *_) in zip(
        queries, rows.tolist(), scores.tolist(), best.tolist()
    ):
        hits = tuple(Hit(row, index.names[row], value) for row, value in zip(query_rows, values))
        answers.append(Found(query, hits, highest, highest >= limit, query))
    return answers


def search(
    index: PhotoIndex,
    encoder: ModelEncoder,
    queries: Sequence[str | Path],
    top: int = 10,
    negation: float = 0.25,
) -> list[Found]:
    """Find the photos nearest to each query, by cosine.

    Args:
        index: The photos, encoded by the same model (`PhotoIndex.require`).
        encoder: The model.
        queries: Texts, and files of images.
        top: Number of photos per query.
        negation: Weight w of the negated part: photos are ranked by the cosine with the wanted
            part minus w times the cosine with the negated part. 0 uses the text unchanged.

    Raises:
        UsageError: For an empty text.
        CompoclipError: For an image that cannot be read.
    """
    split = [
        split_negation(query) if negation and isinstance(query, str) else (query, ())
        for query in queries
    ]
    texts = [text for rest, denied in split for text in (rest, *denied) if isinstance(text, str)]
    if not all(text.strip() for text in texts):
        raise UsageError("a query is empty; say what to look for")
    vectors: dict[str | Path, Matrix] = dict(zip(texts, encode_texts(encoder, texts)))
    for path in (query for query in queries if isinstance(query, Path)):
        image = decode(path, upright=index.about["upright"])
        vectors[path] = encoder.encode_images([encoder.read_image.pixels(image)])[0]
    plain = np.stack([vectors[rest] for rest, _ in split])
    ranked = plain.copy()
    for row, (_, denied) in zip(ranked, split):
        row -= negation * sum((vectors[part] for part in denied), 0 * row)
    anew = ranked if any(denied for _, denied in split) else None
    answers = found_by(index, [*map(str, queries)], plain, top, anew)
    return [
        replace(
            answer, asked=str(rest), denied=denied, matches=answer.matches or isinstance(rest, Path)
        )
        for answer, (rest, denied) in zip(answers, split)
    ]


def encode_texts(encoder: ModelEncoder, texts: Sequence[str]) -> Matrix:
    """Return (N, D) features of any number of texts; a line counts those that are cut."""
    if not texts:
        return np.zeros((0, 0), np.float32)
    if cut := sum(key.truncated for key in encoder.text_keys(texts)):
        note(f"{counted(cut, 'text')} beyond the model's context, cut there")
    with encoder.evaluating():
        parts = [encoder.encode_texts(texts[k : k + _BATCH]) for k in range(0, len(texts), _BATCH)]
    return np.concatenate(parts)


def calibrate(
    index: PhotoIndex, encoder: ModelEncoder, request: Request, quantile: float = 0.05
) -> PhotoIndex:
    """Find the score below which nothing matches, from captions the model was not trained on.

    Search each caption with and without its photo in the index: the threshold is a quantile of the
    best scores with the photo. The result's `about["calibration"]` has "threshold"; "captions",
    their number; "missed" and "noticed", the shares with and without their photo that fall below;
    "left_out", captions whose photo is not in the index.

    Args:
        index: The photos.
        encoder: Their model.
        request: Captions of photos in the index; other photos are left out.
        quantile: Share of captions with their photo that are to fall below the threshold.

    Raises:
        CompoclipError: For data that cannot be read, or has no photo of the index.
    """
    source, root = request.open(), index.about["root"]
    paths = [os.path.abspath(Path(root, name)) if root else name for name in index.names]
    places = {path: row for row, path in enumerate(paths)}
    pairs: list[tuple[str, int | None]] = []
    for sample in map(source.bare, range(len(source))):
        name = os.path.abspath(sample.image) if isinstance(sample.image, Path) else sample.id
        pairs += [(caption, places.get(name)) for caption in sample.captions]
    indexed = [(caption, place) for caption, place in pairs if place is not None]
    require(indexed, request.spec, "none of its photos is in the index; name others")
    texts, photo_rows = zip(*indexed)
    rows, scores = nearest(index.features, encode_texts(encoder, texts), 2)
    without = np.where(rows == np.array(photo_rows)[:, None], -np.inf, scores).max(axis=1)
    threshold = float(np.quantile(scores[:, 0], quantile))
    calibration = {
        "threshold": threshold,
        "captions": len(texts),
        "missed": float((scores[:, 0] < threshold).mean()),
        "noticed": float((without < threshold).mean()),
        "left_out": len(pairs) - len(indexed),
    }
    return replace(index, about={**index.about, "calibration": calibration})
