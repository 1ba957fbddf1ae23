"""Bags of sentences that describe images densely, from a file beside the data (DAC)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from compoclip.data.columns import require_texts
from compoclip.data.textfiles import read_records
from compoclip.errors import CompoclipError, UsageError

_SCHEMA = pa.schema(
    [
        ("sentences", pa.large_list(pa.large_string())),
        ("negatives", pa.large_list(pa.large_string())),
    ]
)


@dataclass(frozen=True)
class Sentence:
    """One sentence of a bag and its negative, if the file has one."""

    text: str
    negative: str | None = None


class Bags:
    """Sentences by sample id, held compactly.

    The id of a sample is what its source calls it; a bag may also go by that id without "#row", so
    that one file serves tables in any order.
    """

    def __init__(self, path: Path) -> None:
        """Read `path`, JSON lines or Parquet, one file or several (see `row_files`): {"id",
        "sentences"} and optionally "negatives" (null for none).

        Raises UsageError when no file is named, CompoclipError for one that is malformed or holds
        an id twice.
        """
        if path == Path():
            raise UsageError(
                "this method needs a bag of sentences for each image: --bags FILE (where it is "
                "composed: --set texts.bags.file=FILE) with lines "
                '{"id": ..., "sentences": [...]}, or --bags captions: the other captions of the '
                "image"
            )
        self.path = path
        self._index: dict[str, int] = {}
        columns: tuple[list[Any], list[Any]] = ([], [])
        for origin, row in read_records(path):
            id, sentences, negatives = _bag(row, origin)
            if self._index.setdefault(id, len(self._index)) != len(columns[0]):
                raise CompoclipError(f"{origin}: a second bag {id!r}; remove one")
            columns[0].append(sentences)
            columns[1].append(negatives)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA)]
        self._sentences, self._negatives = arrays

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        """The ids, in the order of the file."""
        return iter(self._index)

    def find(self, id: str) -> list[Sentence] | None:
        """The bag of a sample, None when the file has none."""
        row = self._index.get(id)
        if row is None:
            row = self._index.get(id.rpartition("#")[0])
        if row is None:
            return None
        sentences = self._sentences[row].as_py()
        negatives = self._negatives[row].as_py() or [None] * len(sentences)
        return [Sentence(text, negative) for text, negative in zip(sentences, negatives)]


def _bag(row: dict[str, Any], origin: str) -> tuple[str, list[str], list[str | None]]:
    """The id, the sentences that are not blank, and their negatives (or none at all)."""
    id: Any = row.get("id")
    sentences: Any = row.get("sentences")
    negatives: Any = row.get("negatives") or []
    if not isinstance(id, str | int) or not _texts(sentences, str):
        raise CompoclipError(f'{origin}: needs "id" and "sentences", a list of texts')
    if not _texts(negatives, str | None) or len(negatives) not in (0, len(sentences)):
        raise CompoclipError(f'{origin}: "negatives" needs a text (or null) for each sentence')
    require_texts((*sentences, *filter(None, negatives)), origin)
    kept = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    return (
        str(id),
        [sentences[i].strip() for i in kept],
        [(negatives[i] or "").strip() or None for i in kept] if negatives else [],
    )


def _texts(value: object, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)
