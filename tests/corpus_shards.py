"""Small corpora in every kind of shard, and what is in them."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from build import tables
from build.photos import plain

CAPTIONS = (
    "a red car above a blue bus",
    "two cats on a small table",
    "",
    "a man in a hat walks a dog on the beach",
    "a dog",
    "a café table with a white cup and a black plate",
)


def captions(shard: int) -> list[str]:
    """The captions of a shard, no two shards alike."""
    return [f"{text} {shard}" if text else "" for text in CAPTIONS]


def write_parquet(path: Path, texts: Sequence[Any], **columns: Sequence[Any]) -> Path:
    """Write captions of files, four in a row group."""
    names = [f"{i}.jpg" for i in range(len(texts))]
    table = {"filepath": names, **columns, "caption": texts}
    return tables.write_parquet(path, table, row_group_size=4)


def write_jsonl(path: Path, texts: Sequence[Any]) -> Path:
    """Write captions of images, with a weight."""
    rows = ({"image": f"{i}.jpg", "caption": text, "weight": 1.50} for i, text in enumerate(texts))
    return tables.write_jsonl(path, rows)


def jpeg() -> bytes:
    return plain("red", format="JPEG")


def write_tar(path: Path, texts: Sequence[str], members: Sequence[tuple[str, bytes]] = ()) -> Path:
    """Write captions by turns in .txt members, in .json members, and in both."""
    image, samples = jpeg(), []
    for i, text in enumerate(texts):
        fields = json.dumps({"caption": text, "n": 1.50}).encode()
        samples.append((f"{i:04d}.jpg", image))
        if i % 3 != 1:
            samples.append((f"{i:04d}.txt", text.encode()))
        if i % 3:
            samples.append((f"{i:04d}.json", fields))
    return tables.write_tar(path, [*samples, *members])


def corpus(folder: Path, kind: str, shards: int = 3) -> Path:
    """A folder of shards of a kind."""
    folder.mkdir()
    for shard in range(shards):
        path = folder / f"{shard:03d}{kind}"
        if kind == ".parquet":
            write_parquet(path, captions(shard))
        elif kind == ".tar":
            write_tar(path, captions(shard))
        else:
            write_jsonl(path, captions(shard))
    return folder


def tar_members(path: Path) -> list[tuple[str, int, bytes]]:
    """(name, time, content) of all plain files."""
    with tarfile.open(path) as tar:
        files = [(m, tar.extractfile(m)) for m in tar if m.isreg()]
        return [(m.name, int(m.mtime), file.read()) for m, file in files if file is not None]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a shard, of a tar the objects of its .json members with their key."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".tar":
        members = [(n, d) for n, _, d in tar_members(path) if n.endswith(".json")]
        return [{"key": name[:-5], **json.loads(data)} for name, data in members]
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file below a folder, by its relative path."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes
