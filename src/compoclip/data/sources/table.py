"""How readers make a source: rows are collected, unusable ones counted, photos joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compoclip.data.columns import (
    EMPTY_CAPTION,
    NO_CAPTION,
    NO_LABEL,
    require_texts,
    usable_texts,
)
from compoclip.data.options import Needs
from compoclip.data.sources import EMPTY, SCHEMA, ImageFolder, Place, Source, renumbered, replaced
from compoclip.errors import CompoclipError, UsageError

EMPTY_NEGATIVE = "empty negative"
EMPTY_POSITIVE = "empty positive"
NO_NEIGHBOUR = "similar image that the data has not"
LABELS_ALONE = (
    "the data have labels, not captions; measure with them (compoclip evaluate --on "
    "zero_shot:NAME,images=FOLDER), or name a column of captions with --caption-column"
)

_CHUNK = 1 << 16
_WITH_ROWS = SCHEMA.append(pa.field("row", pa.int64()))  # the number that neighbours go by


class RowBuilder:
    """Collects rows; leaves out and counts unusable captions and samples.

    Rows of one image become one sample with all their captions and the id of the first row. If any
    row has more than captions, every row is a sample, so that its columns stay with its caption.

    Attributes:
        rows: Number of rows so far; readers also count rows that they leave out.
        places: Places of images: the folder, then the columns.
        left_out: Numbers of captions and samples that were left out, by reason.
    """

    def __init__(
        self, origin: object, root: Path, *columns: Place, needs: Needs = "captions"
    ) -> None:
        self.origin, self.root, self.needs = str(origin), root, needs
        self.places: list[Place] = [ImageFolder(root), *columns]
        self.left_out: Counter[str] = Counter()
        self.rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in _WITH_ROWS.names}
        self._has_extras, self._usable = False, 0

    def add(
        self,
        id: str,
        image: str,
        captions: Iterable[Any],
        extras: Mapping[str, Any] = MappingProxyType({}),
        origin: str = "",
        place: int = 0,
        label: str = "",
    ) -> None:
        """Add one row; leave out unusable captions, and a sample without what it needs.

        Neighbours of other rows refer to the number (from 0) of this call. image: its name in the
        place. captions: the values of the caption cells. label: the class. extras: other columns
        of `SCHEMA` that are not empty. origin: file and row for messages. Raises CompoclipError for
        texts that cannot be written as UTF-8.
        """
        kept = usable_texts(captions, EMPTY_CAPTION, self.left_out)
        usable = {"captions": bool(kept), "labels": bool(label), "photos": True}[self.needs]
        row = {**EMPTY, **(extras if kept else {}), "label": label}
        self._has_extras |= bool(extras) and bool(kept)
        self._usable += usable
        row["negatives"] = usable_texts(row["negatives"], EMPTY_NEGATIVE, self.left_out)
        row["positives"] = usable_texts(row["positives"], EMPTY_POSITIVE, self.left_out)
        row |= {"id": id, "place": place, "image": image, "captions": kept, "row": self.rows}
        single = (row[name] for name in ("id", "image", "negative_image", "group", "label"))
        require_texts((*single, *kept, *row["negatives"], *row["positives"]), origin or self.origin)
        for name, column in self._columns.items():
            column.append(row[name])
        self.rows += 1
        if len(self._columns["id"]) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        arrays = [pa.array(self._columns[field.name], field.type) for field in _WITH_ROWS]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=_WITH_ROWS))
        for column in self._columns.values():
            column.clear()

    def table(self) -> pa.Table:
        """Return the samples so far, with the number of their rows in a column "row"."""
        self._flush()
        table = pa.Table.from_batches(self._batches, _WITH_ROWS)
        number = np.arange(table.num_rows)  # of each row's image, in the order of appearance
        if not self._has_extras:
            number = table["image"].combine_chunks().dictionary_encode().indices.to_numpy()
        if len(number) and number.max() + 1 < len(number):
            # The first row of every image, with the captions of all of its rows.
            captions = table["captions"].combine_chunks()
            sizes = pc.list_value_length(captions).to_numpy()
            ends = np.bincount(number, weights=sizes).cumsum().astype(np.int64)
            texts = captions.take(pa.array(np.argsort(number, kind="stable"))).flatten()
            joined = pa.LargeListArray.from_arrays(pa.array([0, *ends.tolist()], pa.int64()), texts)
            first = table.take(pa.array(np.unique(number, return_index=True)[1]))
            table = replaced(first, {"captions": joined})
        if self.needs == "photos":
            return table
        labelled = pc.greater(pc.binary_length(table["label"]), 0)
        captioned = pc.greater(pc.list_value_length(table["captions"]), 0)
        usable = captioned if self.needs == "captions" else labelled
        lost = table.num_rows - (pc.sum(usable).as_py() or 0)
        if self.needs == "captions" and lost == table.num_rows and pc.any(labelled).as_py():
            raise UsageError(f"{self.origin}: {LABELS_ALONE}")
        self.left_out[NO_CAPTION if self.needs == "captions" else NO_LABEL] += lost
        return table.filter(usable)

    def build(self, description: str) -> Source:
        """Return the finished source. Raises CompoclipError when no sample is left."""
        table = self.table()
        if table.num_rows < self._usable:
            description += f", {table.num_rows:,} photos from {self._usable:,} rows"
        folder = {"images folder": str(self.root.absolute())}
        return finished(table, self.places, description, self.left_out, folder, self.origin)


def finished(
    table: pa.Table,
    places: Sequence[Place],
    description: str,
    left_out: Counter[str],
    made_from: Mapping[str, Any],
    origin: str,
) -> Source:
    """Return the source of a table with the number of each row, which neighbours go by.

    Raises CompoclipError, beginning with `origin`, when it has no row.
    """
    if not table.num_rows:
        counted = ", ".join(f"{reason}: {n}" for reason, n in left_out.items() if n)
        why = f" (left out: {counted})" if counted else ""
        raise CompoclipError(f"{origin}: no usable sample{why}")
    table, lost = renumbered(table, table["row"].to_numpy())
    left_out[NO_NEIGHBOUR] += lost
    table = table.drop_columns(["row"]).combine_chunks()
    return Source(table, places, description, left_out, made_from)
