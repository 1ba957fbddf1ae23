"""Texts written beforehand for captions or images, read from files, looked up by caption or id.

- Positives and negatives of captions: {"caption", "positive", "negative"}, or one of the latter
  two, as `compoclip caption` writes them. Each is a text or a list; null, blanks and the words for
  them (None, nan) mean no text.
- Bags of sentences of images (DAC): {"id", "sentences"} and optionally "negatives", one per
  sentence or null.
- Units and foils of captions (CS-CLIP), as published:

    {"sample_id", "original_caption", "image_path", "swap_negatives": [text, ...],
     "entities": [text, ...], "negative_entities": {entity: [{"negative", "change_type"}, ...]},
     "relations": [{"subject", "relation_type", "object", "negatives": [{...}, ...]}, ...]}

  The negatives of a relation are the same three texts; unchanged ones may be left out. An older
  archive calls the two keys of entities positive_components and negative_components.

The first two are JSON lines or Parquet, one file or several (see `patterns.find_files`). Units may
also be a JSON list, and are data to train on as well (`published_rows.UNITS`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from compoclip.captions.clip_text import fits_context
from compoclip.data.columns import UNIT_CAPTION, is_empty, require_texts, usual_names
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import read_json
from compoclip.patterns import ROW_FILES, has_ending
from compoclip.records import read_records
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.units import UNIT_FOIL
from compoclip.typed import read_fields

_ENTITIES = ("entities", "positive_components")
_FOILS = ("negative_entities", "negative_components")
_RELATION = dict.fromkeys(("subject", "relation_type", "object"), str)
_FOIL = {"negative": str | None}
_UNITS: Mapping[str, Any] = {
    UNIT_CAPTION: str,
    **dict.fromkeys(_ENTITIES, list[str] | None),
    **dict.fromkeys(_FOILS, dict[str, list[object] | None] | None),
    "relations": list[object] | None,
}
_REMEDY = "is this CS-CLIP's training data?"
_TEXT = pa.large_string()
_PART = pa.struct([("text", _TEXT), ("name", _TEXT), ("foils", pa.large_list(_TEXT))])

NONE_WRITTEN = "none-written"

Lists = tuple[Sequence[Any], Sequence[Any]]


class WrittenLists:
    """Two lists per key, such as a caption, stored compactly.

    The lists of one key are joined, without repetitions. entry: the class of the entries; None for
    texts.
    """

    def __init__(
        self, rows: Iterable[tuple[str, Lists]], entry: Callable[..., Any] | None = None
    ) -> None:
        self._entry, self._index = entry, dict[str, int]()
        columns: tuple[list[list[Any]], ...] = ([], [])

        def text_of(element: Any) -> str | None:
            text: str | None = element["text"] if entry else element
            return text

        for key, lists in rows:
            place = self._index.setdefault(key, len(self._index))
            for column, entries in zip(columns, lists):
                if place == len(column):
                    column.append([])
                texts = set(map(text_of, column[place]))
                column[place] += [element for element in entries if text_of(element) not in texts]
        kind = pa.large_list(_PART if entry else _TEXT)
        self._columns = [pa.array(column, kind) for column in columns]

    def __len__(self) -> int:
        return len(self._index)

    def find(self, key: str) -> tuple[list[Any], list[Any]] | None:
        """Return the lists of a key; None for an unknown key."""
        row = self._index.get(key)
        if row is None:
            return None
        first, second = (column[row].as_py() for column in self._columns)
        if self._entry:
            first, second = ([self._entry(**fields) for fields in part] for part in (first, second))
        return first, second


def read_written_texts(path: Path) -> WrittenLists:
    """Read the positives and negatives of captions.

    Raises UsageError without a file, CompoclipError for a malformed one.
    """
    if path == Path():
        raise UsageError(
            "this method needs a file of written texts (--set texts.written=FILE, if it was added "
            'with --texts) with lines {"caption": ..., "positive": ...}'
        )

    def rows() -> Iterator[tuple[str, Lists]]:
        kinds = dict.fromkeys(("positive", "negative"), str | list[str] | None)
        for origin, row in _named_records(path, ("caption", *kinds)):
            fields = read_fields(row, {"caption": str, **kinds}, origin, "fix it")
            if kinds.keys().isdisjoint(row):
                raise CompoclipError(f'{origin} needs "positive" or "negative"; fix it')
            values = (fields[kind] for kind in kinds)
            texts = [[value] if isinstance(value, str) else value or [] for value in values]
            require_texts((*texts[0], *texts[1]), origin)
            # Language models answer "None." when there is nothing to write.
            cleaned = [
                [text for text in group if not is_empty(text.strip().strip("."))] for group in texts
            ]
            yield fields["caption"].strip(), (cleaned[0], cleaned[1])

    return WrittenLists(rows())


def _named_records(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of the files, whose columns have these names, ignoring case."""
    for origin, row in read_records(path):
        usual = usual_names(tuple(row), names)
        yield origin, {usual.get(column, column): cell for column, cell in row.items()}


def read_bags(path: Path) -> WrittenLists:
    """Read the sentences of images and, if the file has them, the negatives of the sentences.

    Ids are those of the samples, or the same without "#row", so that one file serves tables in any
    order. Raises UsageError without a file, CompoclipError for a malformed one or a repeated id.
    """
    if path == Path():
        raise UsageError(
            "this method needs a bag of sentences for each image: --bags FILE (--set "
            "texts.bags.file=FILE, if it was added with --texts) with lines "
            '{"id": ..., "sentences": [...]}, or --bags captions for its other captions'
        )
    kinds = {"id": str | int, "sentences": list[str], "negatives": list[str | None] | None}

    def rows() -> Iterator[tuple[str, Lists]]:
        ids = set[str]()
        for origin, row in _named_records(path, tuple(kinds)):
            fields = read_fields(row, kinds, origin, "fix it")
            id, sentences, negatives = (fields[kind] for kind in kinds)
            if len(negatives or ()) not in (0, len(sentences)):
                raise CompoclipError(f"{origin}: 'negatives' needs one per sentence; fix it")
            require(str(id) not in ids, origin, f"a second bag {str(id)!r}; remove one")
            ids.add(str(id))
            require_texts((*sentences, *filter(None, negatives or ())), origin)
            pairs = zip(sentences, negatives or repeat(None))
            cleaned = [
                (text.strip(), None if is_empty(no) else (no or "").strip())
                for text, no in pairs
                if not is_empty(text)
            ]
            yield str(id), ([text for text, _ in cleaned], [no for _, no in cleaned])

    return WrittenLists(rows())


# --- Units and foils. ---


@dataclass(frozen=True)
class WrittenPart:
    """An entity or a relation of the file with its foils; see `UnitPart`."""

    text: str
    name: str
    foils: Sequence[str]

    def foil(self, rng: random.Random) -> Rewritten | Refused:
        """Sample one of its foils."""
        if not self.foils:
            return Refused(NONE_WRITTEN)
        return Rewritten(rng.choice(self.foils), UNIT_FOIL, False, "written", ())


def read_units(path: Path) -> WrittenLists:
    """Read the entities and relations of captions, with their foils.

    Args:
        path: The file.

    Raises:
        CompoclipError: For a file that is malformed.
    """

    def rows() -> Iterator[tuple[str, Lists]]:
        for origin, row in _unit_records(path):
            read_fields(row, {UNIT_CAPTION: str}, origin, _REMEDY)
            filled = {name: value for name, value in row.items() if value not in (None, [], {})}
            units = read_fields(filled, _UNITS, origin, _REMEDY)
            yield units[UNIT_CAPTION].strip(), (_entities(units, origin), _relations(units, origin))

    return WrittenLists(rows(), WrittenPart)


def _unit_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if has_ending(path, *ROW_FILES):
        yield from read_records(path)
        return
    data = read_json(path, damaged="fetch the file again")
    require(isinstance(data, list), path, f"no list of records; {_REMEDY}")
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(data, 1))


def _entities(units: Mapping[str, Any], origin: str) -> list[dict[str, Any]]:
    texts, foils = (next(filter(None, map(units.get, names)), ()) for names in (_ENTITIES, _FOILS))
    parts = []
    for text in filter(None, map(str.strip, texts)):
        entries = (foils.get(text) if foils else None) or ()
        negatives = [
            read_fields(entry, _FOIL, f"{origin}: {text!r}", _REMEDY)["negative"]
            for entry in entries
        ]
        parts.append(_part(text, text, negatives, origin))
    return parts


def _relations(units: Mapping[str, Any], origin: str) -> list[dict[str, Any]]:
    def sentence(relation: Mapping[str, Any]) -> str:
        fields = read_fields(relation, _RELATION, f"{origin}: 'relations'", _REMEDY)
        return " ".join(filter(None, (fields[key].strip() for key in _RELATION)))

    parts = []
    for relation in units["relations"] or ():
        text = sentence(relation)
        kinds = {"negatives": list[dict[str, object]] | None}
        negatives = read_fields(relation, kinds, f"{origin}: 'relations'", _REMEDY)["negatives"]
        changed = [sentence({**relation, **change}) for change in negatives or ()]
        parts.append(_part(text, relation["subject"], changed, origin))
    return parts


def _part(text: str, name: str, foils: Iterable[str | None], origin: str) -> dict[str, Any]:
    texts = [foil.strip() for foil in foils if foil and foil.strip()]
    require_texts((text, name, *texts), origin)
    different = [foil for foil in texts if foil.lower() != text.lower() and fits_context(foil)]
    return asdict(WrittenPart(text, name.split()[-1] if name.split() else name, different))
