"""The meaning of rows, for every reader: which become samples, which are left out, and why.

Readers add rows; what a row without an image, a caption or a label means, and that rows of one
photo are one sample, is decided here alone. Splits are decided by `splits.part_of`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compoclip.console import counted, left_out_listed
from compoclip.data.columns import (
    EMPTY_CAPTION,
    NO_CAPTION,
    NO_IMAGE,
    NO_LABEL,
    as_text,
    is_empty,
    relative_image,
    require_texts,
    usable_texts,
)
from compoclip.data.options import Needs
from compoclip.data.sources import (
    EMPTY,
    NO_NEIGHBOUR,
    SCHEMA,
    SEVERAL,
    ImageFolder,
    Place,
    Source,
    renumbered,
    replaced,
)
from compoclip.errors import CompoclipError, UsageError, typed_repr

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request

EMPTY_NEGATIVE = "empty negative"
EMPTY_POSITIVE = "empty positive"
LABELS_ALONE = (
    'the data have labels, not captions; make captions of them with --templates "a photo of a {}."'
    ", measure with them (compoclip evaluate --on zero_shot:NAME,images=FOLDER), or name a column "
    "of captions with --caption-column"
)

_CHUNK, _TEXT = 1 << 16, pa.large_string()
_WITH_ROWS = SCHEMA.append(pa.field("row", pa.int64()))  # the number that neighbours go by

Lost = Mapping[str, Counter[str]]
"""Split -> reason -> number of captions and samples of its rows that are left out."""


class RowBuilder:
    """Collects rows; leaves out and counts unusable captions and samples.

    Rows of one image become one sample with all their captions and the id of the first row. If any
    row has more than captions, every row is a sample, so that its columns stay with its caption.

    Attributes:
        rows: Number of rows so far.
        places: Places of images: the folder, then the columns.
        left_out: Numbers of what is left out and belongs to no row, by reason.
        lost: The same of rows, by their split.
    """

    def __init__(
        self,
        origin: object,
        root: Path,
        *columns: Place,
        needs: Needs = "captions",
        absolute: bool = False,
    ) -> None:
        self.origin, self.root, self.needs = str(origin), root, needs
        self._absolute = absolute
        self.places: list[Place] = [ImageFolder(root), *columns]
        self.left_out: Counter[str] = Counter()
        self.lost: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in _WITH_ROWS.names}
        self._has_extras, self._usable = False, 0

    @classmethod
    def of_paths(
        cls, origin: object, request: Request, folder: Path, *columns: Place
    ) -> RowBuilder:
        """Return a builder for photos in the folder of the request or, without one, anywhere.

        folder: what relative paths then start from.
        """
        root, absolute = request.images or folder, request.images is None
        return cls(origin, root, *columns, needs=request.needs, absolute=absolute)

    def path_of(self, cell: Any, origin: str) -> str | None:
        """Return the path of the image that a cell names, None for an empty cell.

        Raises CompoclipError, naming `origin`, for what is no path of an image.
        """
        cell = as_text(cell)
        if is_empty(cell):
            return None
        if not isinstance(cell, str):
            raise CompoclipError(
                f"{origin}: {typed_repr(cell)} is not the path of an image; fix it"
            )
        return relative_image(cell, self.root, origin, absolute=self._absolute)

    def add(
        self,
        id: str,
        image: str | None,
        captions: Iterable[Any],
        extras: Mapping[str, Any] = MappingProxyType({}),
        origin: str = "",
        place: int = 0,
        label: str = "",
        split: str = "",
    ) -> None:
        """Add one row; leave out unusable captions, and a sample without an image.

        Neighbours of other rows refer to the number (from 0) of this call. image: its name in the
        place, None for none. captions: the values of the caption cells. label: the class. split:
        "" where the data name none. extras: other columns of `SCHEMA` that are not empty. origin:
        file and row for messages. Raises CompoclipError for texts that cannot be written as UTF-8.
        """
        self.rows += 1
        lost = self.lost[split]
        if image is None:
            lost[NO_IMAGE] += 1
            return
        usable = usable_texts(captions, EMPTY_CAPTION, lost)
        row = {**EMPTY, **(extras if usable else {}), "label": label, "split": split}
        self._has_extras |= bool(extras) and bool(usable)
        self._usable += bool(usable or (label and self.needs == "captions or labels"))
        row["negatives"] = usable_texts(row["negatives"], EMPTY_NEGATIVE, lost)
        row["positives"] = usable_texts(row["positives"], EMPTY_POSITIVE, lost)
        row |= {"id": id, "place": place, "image": image, "captions": usable, "row": self.rows - 1}
        single = (
            row[name] for name in ("id", "image", "negative_image", "group", "label", "split")
        )
        texts = (*single, *usable, *row["negatives"], *row["positives"])
        require_texts(texts, origin or self.origin)
        for name, column in self._columns.items():
            column.append(row[name])
        if len(self._columns["id"]) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        arrays = [pa.array(self._columns[field.name], field.type) for field in _WITH_ROWS]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=_WITH_ROWS))
        for column in self._columns.values():
            column.clear()

    def table(self) -> pa.Table:
        """Return the rows so far, those of one photo joined, with their number in column "row"."""
        self._flush()
        table = pa.Table.from_batches(self._batches, _WITH_ROWS)
        number = np.arange(table.num_rows)  # of each row's image, in the order of appearance
        if not self._has_extras:
            images = table["image"].combine_chunks()
            if len(self.lost) > 1:  # a photo may be in several splits
                splits = table["split"].combine_chunks()
                images = pc.binary_join_element_wise(images, splits, pa.scalar("\x1f", _TEXT))
            number = images.dictionary_encode().indices.to_numpy()
        if len(number) and number.max() + 1 < len(number):
            # The first row of every image, with the captions of all of its rows.
            order = pa.array(np.argsort(number, kind="stable"))

            def joined(values: Any, sizes: Any) -> Any:
                ends = np.bincount(number, weights=sizes).cumsum().astype(np.int64)
                return pa.LargeListArray.from_arrays(pa.array([0, *ends.tolist()]), values)

            captions = table["captions"].combine_chunks()
            sizes = pc.list_value_length(captions).to_numpy()
            changes = {"captions": joined(captions.take(order).flatten(), sizes)}
            if self.needs == "captions or labels":
                labels = joined(table["label"].combine_chunks().take(order), None)
                labels = pc.binary_join(labels, pa.scalar(SEVERAL, _TEXT))
                changes["label"] = pc.utf8_trim(labels, SEVERAL)
            first = table.take(pa.array(np.unique(number, return_index=True)[1]))
            table = replaced(first, changes)
        return table

    def build(self, description: str) -> Source:
        """Return the finished source. Raises CompoclipError when no sample is left."""
        table = self.table()
        if self.needs.startswith("captions") and table.num_rows < self._usable:
            photos = counted(table.num_rows, "photo")
            description += f", {photos} from {counted(self._usable, 'row')}"
        folder = {"images folder": str(self.root.absolute())}
        counts = self.left_out, self.lost
        return finish(table, self.places, description, *counts, self.needs, folder, self.origin)


def finish(
    table: pa.Table,
    places: Sequence[Place],
    description: str,
    left_out: Counter[str],
    lost: Lost,
    needs: Needs,
    made_from: Mapping[str, Any],
    origin: str,
) -> Source:
    """Return the source of rows that have what a sample needs; count the others.

    table: with the number of each row in a column "row", which neighbours go by. Raises
    CompoclipError, beginning with `origin`, when it has no such row.
    """
    if needs != "photos":
        labelled = pc.greater(pc.binary_length(table["label"]), 0)
        captioned = pc.greater(pc.list_value_length(table["captions"]), 0)
        usable = captioned if needs == "captions" else labelled
        if needs == "captions or labels":
            usable = pc.or_(captioned, labelled)
        without = table.filter(pc.invert(usable))
        if needs == "captions" and len(without) == len(table) and pc.any(labelled).as_py():
            raise UsageError(f"{origin}: {LABELS_ALONE}")
        lost = {split: Counter(counts) for split, counts in lost.items()}
        for count in pc.value_counts(without["split"]).to_pylist():
            reasons = lost.setdefault(count["values"], Counter())
            reasons[NO_LABEL if needs == "labels" else NO_CAPTION] += count["counts"]
        table = table.filter(usable)
        if needs == "captions":  # whose labels nobody reads
            table = replaced(table, {"label": pa.repeat(pa.scalar("", _TEXT), len(table))})
    if not table.num_rows:
        counts = sum(lost.values(), Counter(left_out))
        remedy = ""
        if NO_CAPTION in counts:
            remedy = "; write captions in a table, or those of photo.jpg in photo.txt beside it"
        elif NO_LABEL in counts:
            remedy = "; call the column of labels label or class, or sort photos into class folders"
        raise CompoclipError(f"{origin}: no usable sample{left_out_listed(counts)}{remedy}")
    table, unknown = renumbered(table, table["row"].to_numpy())
    left_out = left_out + Counter({NO_NEIGHBOUR: unknown})
    table = table.drop_columns(["row"]).combine_chunks()
    pa.default_memory_pool().release_unused()  # twice as much as the table, which is there to stay
    return Source(table, places, description, left_out, made_from, lost=lost)
