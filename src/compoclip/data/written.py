"""Texts written beforehand for captions or images, read from files, looked up by caption or id.

- Positives and negatives of captions: {"caption", "positive", "negative"}, or one of the latter
  two, as `compoclip caption` writes them. Each is a text or a list; "None" and null mean no text.
- Bags of sentences of images (DAC): {"id", "sentences"} and optionally "negatives", one per
  sentence or null.
- Units and foils of captions (CS-CLIP), as published:

    {"sample_id", "original_caption", "image_path", "swap_negatives": [text, ...],
     "entities": [text, ...], "negative_entities": {entity: [{"negative", "change_type"}, ...]},
     "relations": [{"subject", "relation_type", "object", "negatives": [{...}, ...]}, ...]}

  The negatives of a relation are the same three texts; unchanged ones may be left out. An older
  archive calls the two keys of entities positive_components and negative_components.

The first two are JSON lines or Parquet, one file or several (see `row_files`). Units may also be a
JSON list, and are data to train on as well (`open_unit_file`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from compoclip.data.columns import relative_image, require_texts
from compoclip.data.sources.table import RowBuilder, TableSource
from compoclip.errors import CompoclipError, UsageError, shown
from compoclip.files import read_json
from compoclip.rewrites.base import Refused, Rewritten, fits_context
from compoclip.rewrites.units import UNIT_FOIL
from compoclip.tables import ROW_FILES, has_ending, read_records

CAPTION = "original_caption"
_ENTITIES = ("entities", "positive_components")
_FOILS = ("negative_entities", "negative_components")
_REMEDY = "is this CS-CLIP's training data?"
_TEXT = pa.large_string()
_PART = pa.struct([("text", _TEXT), ("name", _TEXT), ("foils", pa.large_list(_TEXT))])

Lists = tuple[Sequence[Any], Sequence[Any]]


class WrittenLists:
    """Two lists for each of many keys, such as captions, held compactly.

    Args:
        rows: Keys and their lists; those of one key add up, each entry once.
        entry: What the entries are: of texts None.
    """

    def __init__(
        self, rows: Iterable[tuple[str, Lists]], entry: Callable[..., Any] | None = None
    ) -> None:
        self._entry, self._index = entry, dict[str, int]()
        columns: tuple[list[list[Any]], ...] = ([], [])
        for key, lists in rows:
            place = self._index.setdefault(key, len(self._index))
            for column, entries in zip(columns, lists):
                if place == len(column):
                    column.append([])
                known = {each["text"] if entry else each for each in column[place]}
                fresh = (each for each in entries if (each["text"] if entry else each) not in known)
                column[place] += fresh
        kind = pa.large_list(_PART if entry else _TEXT)
        self._columns = [pa.array(column, kind) for column in columns]

    def __len__(self) -> int:
        return len(self._index)

    def find(self, key: str) -> tuple[list[Any], list[Any]] | None:
        """Return the lists of a key; None when the file does not have it."""
        row = self._index.get(key)
        if row is None:
            return None
        first, second = (column[row].as_py() for column in self._columns)
        if self._entry:
            first, second = ([self._entry(**each) for each in part] for part in (first, second))
        return first, second


def read_written_texts(path: Path) -> WrittenLists:
    """Read the positives and negatives of captions.

    Raises UsageError when no file is named, CompoclipError for one that is malformed.
    """
    if path == Path():
        raise UsageError(
            "this method needs a file of written texts (where it is composed: "
            '--set texts.written=FILE) with lines {"caption": ..., "positive": ...}'
        )

    def rows() -> Iterator[tuple[str, Lists]]:
        kinds = "positive", "negative"
        for origin, row in read_records(path):
            caption = row.get("caption")
            if not isinstance(caption, str) or not any(kind in row for kind in kinds):
                raise CompoclipError(
                    f'{origin}: needs "caption" and "positive" or "negative"; fix it'
                )
            found = []
            for kind in kinds:
                value, where = row.get(kind), f"{origin}: {kind!r}"
                texts = value if isinstance(value, list) else [] if value is None else [value]
                if not all(isinstance(text, str) for text in texts):
                    raise CompoclipError(f"{where} is neither a text nor a list of texts; fix it")
                require_texts(texts, where)
                # Language models answer "none" when there is nothing to write.
                found.append([t for t in texts if t.strip().strip(".").lower() != "none"])
            yield caption.strip(), (found[0], found[1])

    return WrittenLists(rows())


def read_bags(path: Path) -> WrittenLists:
    """Read the sentences of images, and the negative of each sentence, if the file has them.

    The id of a sample is what its source calls it; a bag may also go by that id without "#row", so
    that one file serves tables in any order.

    Raises UsageError when no file is named, CompoclipError for one that is malformed or holds an id
    twice.
    """
    if path == Path():
        raise UsageError(
            "this method needs a bag of sentences for each image: --bags FILE (where it is "
            "composed: --set texts.bags.file=FILE) with lines "
            '{"id": ..., "sentences": [...]}, or --bags captions: the other captions of the '
            "image"
        )

    def are(values: object, kind: Any) -> bool:
        return isinstance(values, list) and all(isinstance(each, kind) for each in values)

    def rows() -> Iterator[tuple[str, Lists]]:
        ids = set[str]()
        for origin, row in read_records(path):
            id: Any = row.get("id")
            sentences: Any = row.get("sentences")
            negatives: Any = row.get("negatives") or []
            if not isinstance(id, str | int) or not are(sentences, str):
                raise CompoclipError(f'{origin}: needs "id" and "sentences", a list of texts')
            if not are(negatives, str | None) or len(negatives) not in (0, len(sentences)):
                raise CompoclipError(
                    f'{origin}: "negatives" needs a text (or null) for each sentence'
                )
            if str(id) in ids:
                raise CompoclipError(f"{origin}: a second bag {str(id)!r}; remove one")
            ids.add(str(id))
            require_texts((*sentences, *filter(None, negatives)), origin)
            pairs = zip(sentences, negatives or [None] * len(sentences))
            kept = [(text.strip(), (no or "").strip()) for text, no in pairs if text.strip()]
            yield str(id), ([text for text, _ in kept], [no or None for _, no in kept])

    return WrittenLists(rows())


# --- Units and foils. ---


@dataclass(frozen=True)
class WrittenPart:
    """An entity or a relation of the file with its foils; see `UnitPart`."""

    text: str
    name: str
    foils: Sequence[str]

    def foil(self, rng: random.Random) -> Rewritten | Refused:
        """One of its foils."""
        if not self.foils:
            return Refused("none-written")
        return Rewritten(rng.choice(self.foils), UNIT_FOIL, False, "written", ())


def read_units(path: Path) -> WrittenLists:
    """Read the entities and relations of captions, with their foils.

    Args:
        path: The file.

    Returns:
        The `WrittenPart`s by caption.

    Raises:
        CompoclipError: For a file that is malformed.
    """
    rows = (
        (_caption(row, origin).strip(), (_entities(row, origin), _relations(row, origin)))
        for origin, row in _unit_records(path)
    )
    return WrittenLists(rows, WrittenPart)


def open_unit_file(path: Path, images: Path | None = None) -> TableSource:
    """Open the records as samples, with their swap negatives.

    Args:
        path: The file.
        images: The folder that `image_path` is relative to, by default that of the file.

    Returns:
        The source; ids are "image#row".

    Raises:
        CompoclipError: For a file that is malformed, or an image path that leaves the folder.
    """
    root = images if images is not None else path.parent
    builder = RowBuilder(path, root)
    for number, (origin, row) in enumerate(_unit_records(path)):
        image = row.get("image_path")
        _require(isinstance(image, str), f"{origin}: no 'image_path'")
        name = relative_image(str(image), root, origin)
        wrong = _texts(row.get("swap_negatives"), f"{origin}: 'swap_negatives'")
        extras = {"negatives": wrong} if wrong else {}
        builder.add(f"{name}#{number}", name, [_caption(row, origin)], extras, origin)
    return builder.build(f"units {path}")


def holds_units(data: object) -> bool:
    """Return whether the content of a JSON file holds units, by its first record."""
    return (
        isinstance(data, list) and bool(data) and isinstance(data[0], dict) and CAPTION in data[0]
    )


def _require(good: bool, wrong: str) -> None:
    """Raise CompoclipError that says what is wrong, unless it is good."""
    if not good:
        raise CompoclipError(f"{wrong}; {_REMEDY}")


def _unit_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where each record stands, for messages, and the record."""
    if has_ending(path, *ROW_FILES):
        yield from read_records(path)
        return
    data = read_json(path, damaged="fetch the file again")
    _require(isinstance(data, list), f"{path}: no list of records")
    for number, row in enumerate(data, 1):
        _require(isinstance(row, dict), f"{path}, row {number}: no record")
        yield f"{path}, row {number}", row


def _caption(row: Mapping[str, Any], origin: str) -> str:
    _require(isinstance(row.get(CAPTION), str), f"{origin}: no {CAPTION!r}")
    return str(row[CAPTION])


def _entities(row: Mapping[str, Any], origin: str) -> list[dict[str, Any]]:
    key, foils_key = (
        next((name for name in names if row.get(name) is not None), names[0])
        for names in (_ENTITIES, _FOILS)
    )
    foils = row.get(foils_key) or {}
    where = f"{origin}: {foils_key!r}"
    _require(isinstance(foils, dict), f"{where} is no object")
    parts = []
    for text in _texts(row.get(key), f"{origin}: {key!r}"):
        found = foils.get(text) or []
        objects = isinstance(found, list) and all(isinstance(each, dict) for each in found)
        _require(objects, f'{where}: expected objects with "negative"')
        negatives = _texts([each.get("negative") for each in found], where)
        parts.append(_part(text, text, negatives, origin))
    return parts


def _relations(row: Mapping[str, Any], origin: str) -> list[dict[str, Any]]:
    where, keys = f"{origin}: 'relations'", ("subject", "relation_type", "object")

    def sentence(relation: Any, otherwise: Mapping[str, Any]) -> str:
        """ "subject relation object"; what a negative leaves out is that of the relation."""
        if not isinstance(relation, dict):
            raise CompoclipError(f"{where}: {shown(relation)} is no object; {_REMEDY}")
        words = [relation.get(key, otherwise.get(key)) for key in keys]
        return " ".join(_texts(words, f"{where}: {', '.join(keys)}"))

    found = row.get("relations") or []
    _require(isinstance(found, list), f"{where} is no list")
    parts = []
    for relation in found:
        text = sentence(relation, {})
        negatives = relation.get("negatives") or []
        _require(isinstance(negatives, list), f"{where}: 'negatives' is no list")
        foils = [sentence(each, relation) for each in negatives]
        parts.append(_part(text, relation["subject"], foils, origin))
    return parts


def _part(text: str, name: str, foils: Sequence[str], origin: str) -> dict[str, Any]:
    require_texts((text, name, *foils), origin)
    different = [foil for foil in foils if foil.lower() != text.lower() and fits_context(foil)]
    return asdict(WrittenPart(text, name.split()[-1] if name.split() else name, different))


def _texts(value: Any, origin: str) -> list[str]:
    """The texts of a list, blanks at both ends removed, without empty ones."""
    found = [] if value is None else value
    texts = isinstance(found, list) and all(isinstance(each, str) for each in found)
    _require(texts, f"{origin}: expected texts")
    return [each.strip() for each in found if each.strip()]
