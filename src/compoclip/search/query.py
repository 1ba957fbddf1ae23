"""Exact search of an index: texts and images, and when nothing matches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compoclip.console import counted, note, prose
from compoclip.data.decode import decode
from compoclip.data.vectors import Matrix
from compoclip.errors import UsageError, require
from compoclip.models.plain_text import PlainText, PlainTower
from compoclip.models.tokenizer import Tokenizer
from compoclip.printed import Table
from compoclip.search.index import Calibration, PhotoIndex
from compoclip.search.modes import DEFAULT, Denial, negation_mode
from compoclip.search.negation import split_negation

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.search.modes import Encode

_BATCH = 64
_FEW = 256  # queries that are not worth the import of torch
_SPELLED = 0.05  # share of tokens that spell out words, from which a query's language is unknown


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
    part. denied: what the query denies. note: what makes the answer doubtful; "" for nothing.
    """

    query: str
    hits: tuple[Hit, ...]
    best: float
    matches: bool
    asked: str
    denied: tuple[str, ...] = ()
    note: str = ""

    def text(self) -> str:
        """Return the answer as a table."""
        hits = enumerate(self.hits, start=1)
        rows = [[str(rank), hit.photo, f"{hit.score:.4f}"] for rank, hit in hits]
        above = [self.query, self.note]
        if self.denied:
            above.append(f"asked for: {self.asked}; denied: {', '.join(self.denied)}")
        table = Table(rows, ["rank", "photo", "score"], left=2)
        below = "" if self.matches else f"nothing matches: the best cosine is {self.best:.3f}"
        lines = [prose(filter(None, above)), str(table), below]
        return "\n".join(filter(None, lines))


def parts_of(text: str, negation: str | float = DEFAULT) -> Denial:
    """Return the wanted and the denied part of a text; negation: as for `search`."""
    mode, _ = negation_mode(negation)
    return Denial(text, *split_negation(text)) if mode.splits else Denial(text, text)


def found_by(
    index: PhotoIndex,
    queries: Sequence[Denial],
    features: Matrix,
    top: int,
    encode: Encode,
    tokenizer: Tokenizer,
    negation: str | float = DEFAULT,
) -> list[Found]:
    """Return the answer to each query.

    Args:
        index: The photos.
        queries: By `parts_of`, and images.
        features: (Q, D) features of the wanted parts.
        top: Number of photos per query.
        encode: Returns the features of further texts.
        tokenizer: The tokenizer of the texts.
        negation: As for `search`.
    """
    mode, weight = negation_mode(negation)
    ranked, denying = features, [row for row, query in enumerate(queries) if query.denied]
    if denying and mode.vectors:
        ranked = features.copy()
        ranked[denying] = mode.vectors(
            [queries[row] for row in denying], features[denying], encode, weight
        )
    rows, scores = index.nearest(ranked, top)
    best = scores if ranked is features else index.nearest(features, 1)[1]
    limit = (index.about["calibration"] or {}).get("threshold", -np.inf)
    answers = []
    for query, query_rows, values, (highest, *_) in zip(
        queries, rows.tolist(), scores.tolist(), best.tolist()
    ):
        hits = tuple(Hit(row, index.names[row], value) for row, value in zip(query_rows, values))
        matches = query.is_image or highest >= limit  # captions have set the limit
        note = "" if query.is_image else language_note(tokenizer, query.text)
        answers.append(
            Found(query.text, hits, highest, matches, query.positive, query.denied, note)
        )
    return answers


def text_encoder(
    index: PhotoIndex,
    queries: Sequence[str | Path],
    model: str = "",
    device: str = "auto",
    rerank: str | None = None,
    negation: str | float = DEFAULT,
) -> PlainText | None:
    """Return the text tower alone, without torch, where a search needs no more of the model.

    So it is for some texts that are ranked by their cosines alone, if the model of the index has a
    tower that `PlainText` computes, and its files are as they were when the index was made. Else
    None: the search needs the model, and has the same results with it.

    Args:
        index: The photos.
        queries: Texts, and files of images.
        model: The model that the user names; "" for that of the index.
        device: The device that the user names.
        rerank: The score that orders the best photos anew.
        negation: As for `search`.
    """
    mode, _ = negation_mode(negation)
    if (
        not all(isinstance(query, str) for query in queries)
        or len(queries) > _FEW
        or model not in ("", index.about["model"])
        or device not in ("auto", "cpu")
        or rerank
        or mode.by_torch
        or not index.about["text_tower"]
    ):
        return None
    tower = PlainTower(**index.about["text_tower"])
    return PlainText(tower) if tower.unchanged else None


def search(
    index: PhotoIndex,
    encoder: ModelEncoder | PlainText,
    queries: Sequence[str | Path],
    top: int = 10,
    negation: str | float = DEFAULT,
) -> list[Found]:
    """Find the photos nearest to each query, by cosine.

    Args:
        index: The photos, encoded by the same model (`PhotoIndex.require`).
        encoder: The model, or for texts what `text_encoder` returned.
        queries: Texts, and files of images.
        top: Number of photos per query.
        negation: What denied words do, such as "a street without cars": a name of `MODES`, with
            ":WEIGHT" for a weight; a number w is short for "subtract:w", and 0 for "off".

    Raises:
        UsageError: For an empty text, and for an unknown mode or weight.
        CompoclipError: For an image that cannot be read.
    """
    parts = [
        parts_of(query, negation)
        if isinstance(query, str)
        else Denial(str(query), str(query), is_image=True)
        for query in queries
    ]
    texts = [part.positive for part in parts if not part.is_image]
    if not all(text.strip() for text in texts):
        raise UsageError("a query is empty; say what to look for")
    vectors: dict[str | Path, Matrix] = dict(zip(texts, encode_texts(encoder, texts)))
    for path in (query for query in queries if isinstance(query, Path)):
        assert not isinstance(encoder, PlainText), "images need the whole model"
        vectors[path] = encoder.images([decode(path, upright=index.about["upright"])])[0]
    features = np.stack(
        [
            vectors[part.positive if isinstance(query, str) else query]
            for part, query in zip(parts, queries)
        ]
    )
    encode = partial(encode_texts, encoder)
    return found_by(index, parts, features, top, encode, encoder.tokenizer, negation)


def language_note(tokenizer: Tokenizer, text: str) -> str:
    """Return a line that says that a text is in a language unknown to the tokenizer, or "".

    It says so if two tokens, and 5 % of all, spell out words (`Tokenizer.spelled`): of 26,200
    English captions two or three are so. Tokenizers that do not show it have no note.
    """
    spelling, tokens = tokenizer.spelled(text) or (0, 0)
    if spelling < max(2, _SPELLED * tokens):
        return ""
    return (
        f"the model may not know the language or a word of this text: its tokenizer spells it out "
        f"({spelling} of {counted(tokens, 'token')} have one letter or less); "
        "try common English words"
    )


def encode_texts(encoder: ModelEncoder | PlainText, texts: Sequence[str]) -> Matrix:
    """Return (N, D) features of any number of texts; a line counts those that are cut."""
    if not texts:
        return np.zeros((0, 0), np.float32)
    if cut := encoder.tokenizer.truncated(texts):
        note(f"{counted(cut, 'text')} beyond the model's context, cut there")
    parts = [encoder.encode_texts(texts[k : k + _BATCH]) for k in range(0, len(texts), _BATCH)]
    return np.concatenate(parts)


def calibrate(
    index: PhotoIndex, encoder: ModelEncoder, request: Request, quantile: float = 0.05
) -> PhotoIndex:
    """Find the score below which nothing matches, from captions the model was not trained on.

    Search each caption with and without its photo in the index: the threshold is a quantile of the
    best scores with the photo. The result's `about["calibration"]` has the fields of `Calibration`.

    Args:
        index: The photos.
        encoder: Their model.
        request: Captions of photos in the index; other photos are left out. Of data with splits
            those of the test or else the val split are taken, unless the request names one.
        quantile: Share of captions with their photo that are to fall below the threshold.

    Raises:
        CompoclipError: For data that cannot be read, or has no photo of the index.
    """
    source, root = request.open_held_out(), index.about["root"]
    paths = [os.path.abspath(Path(root, name)) if root else name for name in index.names]
    places = {path: row for row, path in enumerate(paths)}
    pairs: list[tuple[str, int | None]] = []
    for sample in map(source.bare, range(len(source))):
        name = os.path.abspath(sample.image) if isinstance(sample.image, Path) else sample.id
        pairs += [(caption, places.get(name)) for caption in sample.captions]
    indexed = [(caption, place) for caption, place in pairs if place is not None]
    require(indexed, request.spec, "none of its photos is in the index; name others")
    texts, photo_rows = zip(*indexed)
    rows, scores = index.nearest(encode_texts(encoder, texts), 2)
    without = np.where(rows == np.array(photo_rows)[:, None], -np.inf, scores).max(axis=1)
    threshold = float(np.quantile(scores[:, 0], quantile))
    missed, noticed = (float((best < threshold).mean()) for best in (scores[:, 0], without))
    calibration = Calibration(threshold, len(texts), missed, noticed, len(pairs) - len(indexed))
    return replace(index, about={**index.about, "calibration": asdict(calibration)})
