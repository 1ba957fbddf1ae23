"""Units and foils that were written for captions beforehand: the training data of CS-CLIP.

A JSON list, or the same objects one a line (.jsonl), or as Parquet, as published:

    {"sample_id", "original_caption", "image_path", "swap_negatives": [text, ...],
     "entities": [text, ...], "negative_entities": {entity: [{"negative", "change_type"}, ...]},
     "relations": [{"subject", "relation_type", "object", "negatives": [{...}, ...]}, ...]}

The negatives of a relation are the same three texts, of which those that stay may be left out. An
older archive says positive_components and negative_components for the two keys of entities. Several
records may have the same image, or the same caption, whose units add up.

The file is read for its units by caption (`WrittenUnits`), and as data to train on
(`open_unit_file`), with the swap negatives as those that came with the data.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from compoclip.data.columns import relative_image, require_texts
from compoclip.data.sources.table import RowBuilder, TableSource
from compoclip.errors import CompoclipError, shown
from compoclip.files import read_json
from compoclip.rewrites.base import Refused, Rewritten, fits_context
from compoclip.rewrites.units import UNIT_FOIL
from compoclip.tables import ROW_FILES, has_ending, read_records

CAPTION = "original_caption"
_ENTITIES = ("entities", "positive_components")
_FOILS = ("negative_entities", "negative_components")
_NO_FOIL = "none-written"
_REMEDY = "is this CS-CLIP's training data?"
_PAIRS = pa.large_list(pa.struct([("text", pa.large_string()), ("name", pa.large_string()),
                                  ("foils", pa.large_list(pa.large_string()))]))  # fmt: skip


@dataclass(frozen=True)
class WrittenPart:
    """An entity or a relation of the file with its foils; see `UnitPart`."""

    text: str
    name: str
    foils: tuple[str, ...]

    def foil(self, rng: random.Random) -> Rewritten | Refused:
        """One of its foils."""
        if not self.foils:
            return Refused(_NO_FOIL)
        return Rewritten(rng.choice(self.foils), UNIT_FOIL, False, "written", ())


class WrittenUnits:
    """Units by caption, held compactly."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises CompoclipError for one that is malformed."""
        self.path = path
        self._index: dict[str, int] = {}
        columns: tuple[list[list[WrittenPart]], ...] = ([], [])
        for origin, row in unit_records(path):
            place = self._index.setdefault(_caption(row, origin).strip(), len(self._index))
            for column, parts in zip(columns, (_entities(row, origin), _relations(row, origin))):
                if place == len(column):
                    column.append([])
                known = {part.text for part in column[place]}
                column[place] += [part for part in parts if part.text not in known]
        self._entities, self._relations = (
            pa.array([[vars(part) for part in parts] for parts in column], _PAIRS)
            for column in columns
        )

    def __len__(self) -> int:
        """Number of captions the file has units for."""
        return len(self._index)

    def find(self, caption: str) -> tuple[Sequence[WrittenPart], Sequence[WrittenPart]] | None:
        """The entities and the relations of a caption; None when the file does not have it."""
        row = self._index.get(caption)
        if row is None:
            return None
        entities, relations = (
            [WrittenPart(each["text"], each["name"], tuple(each["foils"])) for each in found]
            for found in (self._entities[row].as_py(), self._relations[row].as_py())
        )
        return entities, relations


def open_unit_file(path: Path, images: Path | None = None) -> TableSource:
    """The records as samples, with their swap negatives.

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
    for number, (origin, row) in enumerate(unit_records(path)):
        image = row.get("image_path")
        if not isinstance(image, str):
            raise CompoclipError(f"{origin}: no 'image_path'; {_REMEDY}")
        name = relative_image(image, root, origin)
        wrong = _texts(row.get("swap_negatives"), f"{origin}: 'swap_negatives'")
        extras = {"negatives": wrong} if wrong else {}
        builder.add(f"{name}#{number}", name, [_caption(row, origin)], extras, origin)
    return builder.build(f"units {path}")


def holds_units(data: object) -> bool:
    """Whether the content of a JSON file is of this format, by its first record."""
    return (
        isinstance(data, list) and bool(data) and isinstance(data[0], dict) and CAPTION in data[0]
    )


def unit_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each record stands, for messages, and the record. Raises CompoclipError."""
    if has_ending(path, *ROW_FILES):
        yield from read_records(path)
        return
    data = read_json(path, damaged="fetch the file again")
    if not isinstance(data, list):
        raise CompoclipError(f"{path}: no list of records; {_REMEDY}")
    for number, row in enumerate(data, 1):
        if not isinstance(row, dict):
            raise CompoclipError(f"{path}, row {number}: no record; {_REMEDY}")
        yield f"{path}, row {number}", row


def _caption(row: Mapping[str, Any], origin: str) -> str:
    caption = row.get(CAPTION)
    if not isinstance(caption, str):
        raise CompoclipError(f"{origin}: no {CAPTION!r}; {_REMEDY}")
    return caption


def _entities(row: Mapping[str, Any], origin: str) -> list[WrittenPart]:
    key, foils_key = (
        next((name for name in names if row.get(name) is not None), names[0])
        for names in (_ENTITIES, _FOILS)
    )
    foils: Any = row.get(foils_key) or {}
    if not isinstance(foils, dict):
        raise CompoclipError(f"{origin}: {foils_key!r} is no object; {_REMEDY}")
    return [
        _part(text, text, _negatives(foils.get(text), f"{origin}: {foils_key!r}"), origin)
        for text in _texts(row.get(key), f"{origin}: {key!r}")
    ]


def _negatives(value: object, origin: str) -> list[str]:
    """The texts of [{"negative": text, ...}, ...]."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise CompoclipError(f'{origin}: expected objects with "negative"; {_REMEDY}')
    return _texts([each.get("negative") for each in found], origin)


def _relations(row: Mapping[str, Any], origin: str) -> list[WrittenPart]:
    where = f"{origin}: 'relations'"
    found: Any = row.get("relations") or []
    if not isinstance(found, list):
        raise CompoclipError(f"{where} is no list; {_REMEDY}")
    parts = []
    for relation in found:
        text = _sentence(relation, {}, where)
        negatives = relation.get("negatives") or []
        if not isinstance(negatives, list):
            raise CompoclipError(f"{where}: 'negatives' is no list; {_REMEDY}")
        foils = [_sentence(each, relation, where) for each in negatives]
        parts.append(_part(text, relation["subject"], foils, origin))
    return parts


def _sentence(relation: object, otherwise: Mapping[str, Any], origin: str) -> str:
    """ "subject relation object" of a record; what it leaves out is that of another one."""
    if not isinstance(relation, dict):
        raise CompoclipError(f"{origin}: {shown(relation)} is no object; {_REMEDY}")
    keys = ("subject", "relation_type", "object")
    words = [relation.get(key, otherwise.get(key)) for key in keys]
    return " ".join(_texts(words, f"{origin}: subject, relation_type, object"))


def _part(text: str, name: str, foils: Sequence[str], origin: str) -> WrittenPart:
    require_texts((text, name, *foils), origin)
    different = (foil for foil in foils if foil.lower() != text.lower() and fits_context(foil))
    return WrittenPart(text, name.split()[-1] if name.split() else name, tuple(different))


def _texts(value: object, origin: str) -> list[str]:
    """The texts of a list, blanks at both ends removed, without empty ones."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CompoclipError(f"{origin}: expected texts; {_REMEDY}")
    return [each.strip() for each in found if each.strip()]
