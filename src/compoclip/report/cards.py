"""One example on a card: photos, texts with what differs marked, and every model's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compoclip.benchmarks.case import Form
from compoclip.evaluation.groups import Part
from compoclip.report.diff import Piece, word_diff
from compoclip.report.looks import Look, Looker, changed_runs
from compoclip.report.pictures import Album, Picture
from compoclip.report.wording import cosine

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Text:
    """A text on a card. true: whether it fits the photo; None where that is not the question."""

    label: str
    pieces: tuple[Piece, ...]
    true: bool | None


@dataclass(frozen=True)
class Photo:
    """A photo on a card with what it is called and shows."""

    label: str
    alt: str
    picture: Picture


@dataclass(frozen=True)
class Line:
    """One model's scores, under the card's columns."""

    model: str
    scores: tuple[str, ...]
    right: bool


@dataclass(frozen=True)
class Card:
    """One item. won, lost: models that alone, against the base, are right or wrong. about: why it
    is shown, where it is not for that. looks: where models look for the words that differ."""

    benchmark: str
    subtask: str
    item: str
    photos: tuple[Photo, ...]
    texts: tuple[Text, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    won: tuple[str, ...]
    lost: tuple[str, ...]
    about: str = ""
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True)
class Desk:
    """What cards are made with: the photos and maps of the page, each embedded within a budget."""

    album: Album = field(default_factory=Album)
    looker: Looker = field(default_factory=Looker)


@dataclass(frozen=True)
class _Content:
    """images: (label, key). texts: (label, text, true). columns: (heading, place of the score)."""

    images: Sequence[tuple[str, str]]
    texts: Sequence[tuple[str, str, bool | None]]
    columns: Sequence[tuple[str, int]]


def card(
    part: Part,
    records: Mapping[str, Record],
    right: Mapping[str, bool],
    base: str,
    desk: Desk,
    reason: str = "",
) -> Card:
    """records: model -> its row of the per-item table; right: model -> whether it is right.
    reason: why it is shown, where it is not for models that differ."""
    content = _content(records, right, base)
    texts = _marked(content.texts)
    about = next((text for _, text, true in content.texts if true is not False), part.name)
    return Card(
        benchmark=part.benchmark,
        subtask=part.name,
        item=records[base]["item"],
        photos=tuple(
            Photo(label, f"{label} of the example “{about}”", desk.album.add(key))
            for label, key in content.images
        ),
        texts=texts,
        columns=tuple(heading for heading, _ in content.columns),
        lines=tuple(
            Line(m, tuple(_score(row, place) for _, place in content.columns), right[m])
            for m, row in records.items()
        ),
        won=tuple(m for m in records if right[m] and not right[base]),
        lost=tuple(m for m in records if right[base] and not right[m]),
        about=reason,
        looks=_looks(content, texts, desk),
    )


def _looks(content: _Content, texts: Sequence[Text], desk: Desk) -> tuple[Look, ...]:
    """Maps of what differs in the first text that has it, true ones first; of one photo alone."""
    if not desk.looker.models or len(content.images) != 1:
        return ()
    ordered = sorted(texts, key=lambda text: text.true is False)
    chosen = next((t for t in ordered if changed_runs(t.pieces)), None)
    if chosen is None:
        return ()
    return desk.looker.looks(desk.album.photo(content.images[0][1]), chosen.pieces)


def _score(record: Record, place: int) -> str:
    scores = record["scores"]
    return cosine(scores[place]) if place < len(scores) else "–"


def _content(records: Mapping[str, Record], right: Mapping[str, bool], base: str) -> _Content:
    row = records[base]
    images, texts = list(row["images"]), list(row["texts"])
    wrong = next((record for m, record in records.items() if not right[m]), row)
    match row["form"]:
        case Form.TRIPLE | Form.TEXT_ONLY:
            named = list(zip(("Caption", "Rewording", "Foil"), texts, (True, True, False)))
            columns = ("caption", "rewording", "foil")
            if row["form"] == Form.TEXT_ONLY:
                columns = ("caption–rewording", "caption–foil", "rewording–foil")
            shown = [("Photo", key) for key in images]
            return _Content(shown, named, [(c, k) for k, c in enumerate(columns)])
        case Form.GROUP:
            return _Content(
                [(f"Photo {k + 1}", key) for k, key in enumerate(images)],
                [(f"Text {k + 1}", text, None) for k, text in enumerate(texts)],
                [(f"photo {k // 2 + 1}, text {k % 2 + 1}", k) for k in range(4)],
            )
        case Form.CHOOSE_IMAGE:
            truth, rival = row["truth"], _rival(wrong)
            return _Content(
                [("Right photo", images[truth]), ("Wrong photo", images[rival])],
                [("Text", texts[0], None)],
                [("right photo", truth), ("wrong photo", rival)],
            )
        case Form.CHOOSE_TEXT:
            truth, rival = row["truth"], _rival(wrong)
            return _Content(
                [("Photo", images[0])],
                [("Caption", texts[truth], True), ("Foil", texts[rival], False)],
                [("caption", truth), ("foil", rival)],
            )
        case Form.BINARY:
            said = "True" if row["truth"] else "False"
            return _Content(
                [("Photo", images[0])], [(said, texts[0], bool(row["truth"]))], [("cosine", 0)]
            )
    return _ranked(row, wrong)


def _ranked(row: Record, wrong: Record) -> _Content:
    """Retrieval and classification: the right candidate and the rival that beat it."""
    columns = [("right one", 0), ("best rival", 1)]
    if len(row["texts"]) == 1 and len(wrong["images"]) > 1:  # found the wrong photo
        pair = [("Right photo", row["images"][0]), ("Wrong photo", wrong["images"][1])]
        return _Content(pair, [("Text", row["texts"][0], None)], columns)
    named: list[tuple[str, str, bool | None]] = [("Right", row["texts"][0], True)]
    named += [("Chosen", text, False) for text in wrong["texts"][1:2]]
    return _Content([("Photo", row["images"][0])], named, columns)


def _rival(record: Record) -> int:
    """The best candidate that is not the right one."""
    scores, truth = record["scores"], record["truth"]
    return max((k for k in range(len(scores)) if k != truth), key=lambda k: scores[k])


def _marked(texts: Sequence[tuple[str, str, bool | None]]) -> tuple[Text, ...]:
    """Texts with the words marked that differ from the first true (or only other) one."""
    plain = tuple(Text(label, (Piece(text, False),), true) for label, text, true in texts)
    if len(texts) < 2:
        return plain
    last = texts[-1][1]
    first, foil = word_diff(texts[0][1], last)
    marked = [first, *(word_diff(text, last)[0] for _, text, _ in texts[1:-1]), foil]
    return tuple(Text(label, pieces, true) for (label, _, true), pieces in zip(texts, marked))
