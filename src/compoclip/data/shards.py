"""Webdataset tar shards, read at random by offset; nothing is ever unpacked to disk."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from compoclip.console import track
from compoclip.data.paths import expand_braces
from compoclip.data.sample import Sample
from compoclip.data.tarindex import load_index
from compoclip.errors import CompoclipError, UsageError


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
        table = self._tables[shard]
        row = index - (self._ends[shard] - table.num_rows)
        key, offset, size, captions = (table.column(i)[row].as_py() for i in range(4))
        return Sample(
            id=f"{self._names[shard]}/{key}",
            image=_read(self._shards[shard], offset, size),
            captions=tuple(captions),
        )

    def captions(self) -> Iterable[str]:
        """All captions in order, without touching the images."""
        for table in self._tables:
            yield from table.column("captions").flatten().to_pylist()

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


def find_shards(spec: str, split: str | None = None) -> list[Path]:
    """The tar files that `spec` means: one .tar, a brace pattern of them, or a folder of them.

    split: of a folder, only the shards whose names begin with it ("train" takes train-000.tar).
    Raises UsageError for a split that the folder has not, CompoclipError when there is no shard or
    one of them is missing or compressed.
    """
    folder = Path(spec)
    if folder.is_dir():
        shards = sorted(folder.glob("*.tar"))
        if not shards:
            raise CompoclipError(f"{spec}: no .tar file in this folder; check the path")
        chosen = [shard for shard in shards if split is None or shard.name.startswith(split)]
        if not chosen:
            have = ", ".join(sorted({shard.name.split("-")[0] for shard in shards}))
            raise UsageError(f"{spec}: no shard of split {split!r}; names begin with: {have}")
        return chosen
    if split is not None:
        raise UsageError(f"{spec}: only a folder of shards has splits; leave out --split")
    shards = [folder] if folder.is_file() else [Path(name) for name in expand_braces(spec)]
    for shard in shards:
        if shard.suffix != ".tar":
            raise CompoclipError(f"{shard}: only plain .tar shards can be read; decompress it")
        if not shard.is_file():
            raise CompoclipError(f"{shard}: shard not found; check the path or the pattern")
    return shards
