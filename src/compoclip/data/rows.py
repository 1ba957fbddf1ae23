"""The rows of an annotation file, held compactly, as a source of samples.

Every reader of annotation files fills a `RowBuilder`; what comes out is a `RowSource`. Texts live
in Arrow buffers, not Python objects: millions of captions stay small, and forked workers share
them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from compoclip.data.sample import Sample
from compoclip.errors import CompoclipError

NO_CAPTION = "sample without a caption"
EMPTY_CAPTION = "empty caption"
EMPTY_NEGATIVE = "empty negative"

_CHUNK = 1 << 16
_SCHEMA = pa.schema(
    [
        ("id", pa.large_string()),
        ("image", pa.large_string()),
        ("captions", pa.large_list(pa.large_string())),
        ("negatives", pa.large_list(pa.large_string())),
    ]
)


class Images(Protocol):
    """Finds the image that a row names."""

    def __call__(self, image: str) -> Path | bytes: ...


class FolderImages:
    """Images as files below a folder; rows name them by relative path."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, image: str) -> Path:
        return self.root / image


class RowSource:
    """Samples in the order of their rows.

    left_out: how many captions and samples the reader left out, by reason.
    """

    def __init__(
        self, table: pa.Table, images: Images, description: str, left_out: Mapping[str, int]
    ) -> None:
        columns = table.combine_chunks()
        self._ids, self._images, self._captions, self._negatives = (
            column.chunk(0) if column.num_chunks else pa.array([], column.type)
            for column in (columns[name] for name in _SCHEMA.names)
        )
        self._open = images
        self._description = description
        self.left_out: Mapping[str, int] = dict(left_out)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self._ids):
            raise IndexError(index)
        return Sample(
            id=self._ids[index].as_py(),
            image=self._open(self._images[index].as_py()),
            captions=tuple(self._captions[index].as_py()),
            negatives=tuple(self._negatives[index].as_py()),
        )

    def captions(self) -> Iterable[str]:
        """All captions in order, without touching the images."""
        for start in range(0, len(self._captions), _CHUNK):
            yield from self._captions.slice(start, _CHUNK).flatten().to_pylist()

    def describe(self) -> str:
        """Where the samples come from, for logs and results."""
        return self._description


class RowBuilder:
    """Collects rows, leaves out what cannot be used, and counts it."""

    def __init__(self, origin: Path | str) -> None:
        self.origin = str(origin)
        self.left_out: Counter[str] = Counter()
        self._batches: list[pa.RecordBatch] = []
        self._rows: tuple[list[Any], ...] = ([], [], [], [])

    def add(
        self, id: str, image: str, captions: Iterable[str], negatives: Iterable[str] = ()
    ) -> None:
        """Add one sample; blank captions are left out, and so is a sample that has no other."""
        kept = self._clean(captions, EMPTY_CAPTION)
        if not kept:
            self.left_out[NO_CAPTION] += 1
            return
        wrong = self._clean(negatives, EMPTY_NEGATIVE)
        for column, value in zip(self._rows, (id, image, kept, wrong)):
            column.append(value)
        if len(self._rows[0]) >= _CHUNK:
            self._flush()

    def _clean(self, texts: Iterable[str], reason: str) -> list[str]:
        stripped = [text.strip() for text in texts]
        kept = [text for text in stripped if text]
        if len(kept) < len(stripped):
            self.left_out[reason] += len(stripped) - len(kept)
        return kept

    def _flush(self) -> None:
        try:
            arrays = [pa.array(column, field.type) for column, field in zip(self._rows, _SCHEMA)]
        except (UnicodeEncodeError, pa.ArrowInvalid) as error:
            raise CompoclipError(
                f"{self.origin}: a caption or path is not valid text ({error}); mend the file"
            ) from None
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        self._rows = ([], [], [], [])

    def build(self, images: Images, description: str) -> RowSource:
        """The finished source. Raises CompoclipError when no sample is left."""
        self._flush()
        table = pa.Table.from_batches(self._batches, schema=_SCHEMA)
        if table.num_rows == 0:
            counted = ", ".join(f"{reason}: {n}" for reason, n in self.left_out.items())
            raise CompoclipError(
                f"{self.origin}: no usable sample" + (f" (left out: {counted})" if counted else "")
            )
        return RowSource(table, images, description, self.left_out)


def relative_image(image: str, root: Path, origin: str) -> str:
    """The image's path relative to `root`, refusing whatever leads out of it.

    Relative names may not climb above the root, absolute ones must lie in it. Links inside the
    root may point anywhere: whoever made the folder put them there. Raises CompoclipError naming
    `origin` (file and row) otherwise, or when the name is a URL.
    """
    if "://" in image:
        raise CompoclipError(f"{origin}: {image!r} is a URL; download the images first")
    if "\0" in image or not image.strip():
        raise CompoclipError(f"{origin}: the image path {image!r} is not usable; mend the file")
    normal = os.path.normpath(image)
    if os.path.isabs(normal):
        normal = os.path.relpath(normal, os.path.abspath(root))
    if normal == ".." or normal.startswith(".." + os.sep):
        raise CompoclipError(
            f"{origin}: image {image!r} lies outside {root}; pass --images with the folder that "
            "holds the images"
        )
    return normal
