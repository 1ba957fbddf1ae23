"""The index of a tar shard: where each sample's image lies, and its captions.

Made by reading the headers and caption members once; kept as an Arrow file, and made anew when
the shard's size or time of change differs.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa

from compoclip.data.cachefile import cache_paths, fingerprint, write_cache
from compoclip.data.rows import EMPTY_CAPTION, NO_CAPTION
from compoclip.errors import CompoclipError

NO_IMAGE = "sample without an image"
NOT_A_FILE = "tar member that is not a plain file"
BAD_JSON = "unreadable .json member"

IMAGE_EXTENSIONS = frozenset(
    ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "jp2")
)
_VERSION = 1
_CAPTION_LIMIT = 1 << 20  # bytes; a longer .txt or .json member is no caption
_SUFFIX = ".compoclip-index"
_SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("captions", pa.large_list(pa.large_string())),
    ]
)


@dataclass
class _Group:
    """The members of one sample met so far."""

    key: str
    image: tuple[int, int] | None = None
    text: str | None = None
    fields: object = None


def load_index(shard: Path, caption_key: str | None) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The samples of a shard (columns key, offset, size, captions) and what was left out.

    Raises CompoclipError when the shard cannot be read, is truncated or is no plain tar.
    """
    stamp = json.dumps([_VERSION, fingerprint(shard), caption_key])
    for path in cache_paths(shard, _SUFFIX):
        kept = _load(path, stamp)
        if kept is not None:
            return kept
    table, left_out = _scan(shard, caption_key)
    meta = {"stamp": stamp, "left_out": json.dumps(left_out)}
    table = table.replace_schema_metadata(meta)
    write_cache(shard, _SUFFIX, partial(_save, table))
    return table, left_out


def _save(table: pa.RecordBatch, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table)


def _load(path: Path, stamp: str) -> tuple[pa.RecordBatch, dict[str, int]] | None:
    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_file(file).get_batch(0)
    except (OSError, pa.ArrowException):
        return None
    meta = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if meta.get("stamp") != stamp:
        return None
    return table, json.loads(meta["left_out"])


def _scan(shard: Path, caption_key: str | None) -> tuple[pa.RecordBatch, dict[str, int]]:
    left_out: Counter[str] = Counter()
    columns: tuple[list[object], ...] = ([], [], [], [])
    repeats: Counter[str] = Counter()
    for group in _groups(shard, left_out):
        captions = _captions(group, caption_key)
        kept = [caption.strip() for caption in captions if caption.strip()]
        left_out[EMPTY_CAPTION] += len(captions) - len(kept)
        if group.image is None:
            left_out[NO_IMAGE] += 1
        elif not kept:
            left_out[NO_CAPTION] += 1
        else:
            repeats[group.key] += 1
            again = f"#{repeats[group.key]}" if repeats[group.key] > 1 else ""
            for column, value in zip(columns, (group.key + again, *group.image, kept)):
                column.append(value)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA), dict(+left_out)


def _captions(group: _Group, caption_key: str | None) -> list[str]:
    if caption_key is None and group.text is not None:
        return [group.text]
    if not isinstance(group.fields, dict):
        return []
    keys = ("caption", "text") if caption_key is None else (caption_key,)
    value: object = next((group.fields[key] for key in keys if key in group.fields), [])
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, str)]


def _groups(shard: Path, left_out: Counter[str]) -> Iterator[_Group]:
    """Consecutive members that share folder and name up to the first dot are one sample."""
    group: _Group | None = None
    with shard.open("rb") as file:
        for member in _members(shard, file):
            if member.isdir():
                continue
            if not member.isreg() or member.sparse is not None:
                left_out[NOT_A_FILE] += 1
                continue
            folder, _, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")
            if not stem:  # hidden files such as those that macOS adds
                continue
            key = f"{folder}/{stem}" if folder else stem
            if group is None or group.key != key:
                if group is not None:
                    yield group
                group = _Group(key)
            _take(group, member, extension.lower(), file, left_out)
    if group is not None:
        yield group


def _take(
    group: _Group, member: tarfile.TarInfo, extension: str, file: IO[bytes], left_out: Counter[str]
) -> None:
    if extension in IMAGE_EXTENSIONS and group.image is None:
        group.image = (member.offset_data, member.size)
    elif extension in ("txt", "json") and member.size <= _CAPTION_LIMIT:
        position = file.tell()
        file.seek(member.offset_data)
        text = file.read(member.size).decode("utf-8", "replace")
        file.seek(position)
        if extension == "txt":
            group.text = text
            return
        try:
            group.fields = json.loads(text)
        except (ValueError, RecursionError):
            left_out[BAD_JSON] += 1


def _members(shard: Path, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """The members of the tar, checking that it is whole up to its end mark."""
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // 512) * 512
                yield member
                tar.members = []  # type: ignore[attr-defined]  # the list would only take memory
    except tarfile.TarError as error:
        raise CompoclipError(
            f"{shard}: not a whole tar file ({error}); fetch or make the shard again"
        ) from None
    file.seek(end)
    if len(file.read(512)) < 512:
        raise CompoclipError(f"{shard}: the tar file is cut off; fetch or make the shard again")
