"""Webdataset tar shards, read at random by offset; nothing is ever unpacked to disk."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compoclip.console import track
from compoclip.data.paths import expand_braces
from compoclip.data.rows import NO_NEIGHBOUR, any_of
from compoclip.data.sample import Sample
from compoclip.data.tarindex import ROWS, load_index
from compoclip.errors import CompoclipError

_TEXTS = ("captions", "negatives", "neighbours")
_READ = ("key", "offset", "size", *_TEXTS, "negative_offset", "negative_size", "group")


class ShardSource:
    """Samples of tar shards in shard order. Ids are "shard.tar/key".

    left_out: how many captions, samples and members were left out, by reason.
    """

    def __init__(self, shards: Sequence[Path], caption_key: str | None = None) -> None:
        """Index the shards (once; the index is kept, see `tarindex`).

        caption_key: name of the caption in .json members; without it .txt members come first,
        then "caption" or "text" of .json members. Raises CompoclipError for a shard that is
        missing, truncated or no tar, and when no usable sample is left.
        """
        self._shards = tuple(shards)
        self._caption_key = caption_key
        self._tables: list[pa.RecordBatch] = []
        left_out: Counter[str] = Counter()
        for shard in track(self._shards, "indexing shards", unit="shards"):
            table, missing = load_index(shard, caption_key)
            self._tables.append(table)
            left_out.update(missing)
        self._ends = list(accumulate(table.num_rows for table in self._tables))
        self.left_out: Mapping[str, int] = dict(left_out)
        if not len(self):
            counted = ", ".join(f"{reason}: {n}" for reason, n in left_out.items())
            raise CompoclipError(f"{self.describe()}: no usable sample (left out: {counted})")
        self._rows, unknown = self._numbered()
        if unknown:
            self.left_out = {**self.left_out, NO_NEIGHBOUR: unknown}
        names = [shard.name for shard in self._shards]
        # Shards of one name in different folders are told apart by their folder.
        unique = len(set(names)) == len(names)
        self._names = names if unique else [shard.as_posix() for shard in self._shards]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self._ends, index)
        table, path = self._tables[shard], self._shards[shard]
        place = index - (self._ends[shard] - table.num_rows)
        row = {name: table.column(name)[place].as_py() for name in _READ}
        negative = None
        if row["negative_size"]:
            negative = _read(path, row["negative_offset"], row["negative_size"])
        return Sample(
            id=f"{self._names[shard]}/{row['key']}",
            image=_read(path, row["offset"], row["size"]),
            captions=tuple(row["captions"]),
            negatives=tuple(row["negatives"]),
            neighbours=self._positions(row["neighbours"], index),
            negative_image=negative,
            group=row["group"],
        )

    def _numbered(self) -> tuple[NDArray[np.int64], int]:
        """The row number of every sample over all shards, if any names others by theirs.

        And how often a row is named that was left out or does not exist.
        """
        if "neighbours" not in self.brings():
            return np.empty(0, np.int64), 0
        first, parts = 0, []
        for table in self._tables:
            parts.append(table.column("row").to_numpy() + first)
            first += int(table.schema.metadata[ROWS])
        rows = np.concatenate(parts)
        named = [table.column("neighbours").flatten().to_numpy() for table in self._tables]
        return rows, int((~np.isin(np.concatenate(named), rows)).sum())

    def _positions(self, rows: Sequence[int], index: int) -> tuple[int, ...]:
        """The samples of these rows, without those left out and the sample itself."""
        found = np.searchsorted(self._rows, rows).tolist()
        known = (at for at, row in zip(found, rows) if at < len(self) and self._rows[at] == row)
        return tuple(at for at in known if at != index)

    def ids(self) -> list[str]:
        """The id of every sample, in order, without touching the images."""
        return [
            f"{name}/{key}"
            for name, table in zip(self._names, self._tables)
            for key in table.column("key").to_pylist()
        ]

    def captions(self) -> Iterable[str]:
        """All captions in order, without touching the images."""
        for table in self._tables:
            yield from table.column("captions").flatten().to_pylist()

    def caption_lists(self) -> Iterable[tuple[str, ...]]:
        """The captions of each sample in order, without touching the images."""
        for table in self._tables:
            yield from map(tuple, table.column("captions").to_pylist())

    def brings(self) -> frozenset[str]:
        """Which of "negatives", "neighbours", "negative_image", "group" any sample has."""
        found: frozenset[str] = frozenset()
        for table in self._tables:
            sizes = {
                "negatives": table.column("negatives").value_lengths(),
                "neighbours": table.column("neighbours").value_lengths(),
                "negative_image": table.column("negative_size"),
                "group": pc.binary_length(table.column("group")),
            }
            found |= any_of(sizes)
        return found

    def groups(self) -> tuple[list[str], list[float | None]]:
        """The group of every sample ("" for none), and its score, if any."""
        return self._all("group"), self._all("score")

    def image_scores(self) -> list[float | None]:
        """The score of every sample's image, if any."""
        return self._all("image_score")

    def _all(self, column: str) -> list[Any]:
        return [cell for table in self._tables for cell in table.column(column).to_pylist()]

    def describe(self) -> str:
        """Where the samples come from, for logs and results."""
        more = f" and {len(self._shards) - 1} more" if len(self._shards) > 1 else ""
        key = f" (captions {self._caption_key!r})" if self._caption_key else ""
        return f"webdataset shards {self._shards[0]}{more}{key}"


def _read(shard: Path, offset: int, size: int) -> bytes:
    try:
        with shard.open("rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise CompoclipError(f"{shard}: {error.strerror}; is the disk still there?") from None
    if data is None or len(data) < size:
        raise CompoclipError(f"{shard}: shorter than when it was indexed; fetch the shard again")
    return data


def find_shards(spec: str) -> list[Path]:
    """The tar files that `spec` means: one .tar, a brace pattern of them, or a folder of them.

    Raises CompoclipError when there is no shard or one of them is missing or compressed.
    """
    folder = Path(spec)
    if folder.is_dir():
        shards = sorted(folder.glob("*.tar"))
        if not shards:
            raise CompoclipError(f"{spec}: no .tar file in this folder; check the path")
        return shards
    shards = [folder] if folder.is_file() else [Path(name) for name in expand_braces(spec)]
    for shard in shards:
        if shard.suffix != ".tar":
            raise CompoclipError(f"{shard}: only plain .tar shards can be read; decompress it")
        if not shard.is_file():
            raise CompoclipError(f"{shard}: shard not found; check the path or the pattern")
    return shards
