"""The index of a tar shard: where each sample's image lies, its captions and extra columns.

Made by reading the headers and caption members once; kept as an Arrow file, and made anew when
the shard's size or time of change differs.

The extra columns (see `read_extras`) are keys of a sample's .json member. Its negative image is a
member KEY.neg_image.jpg (or another kind of image), or the one that neg_image names. Row numbers
in neg_image count the samples of all shards.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa

from compoclip.data.cachefile import cache_paths, fingerprint, write_cache
from compoclip.data.columns import EMPTY_CAPTION, NO_CAPTION, encodable, usable_texts
from compoclip.data.decode import EXTENSIONS
from compoclip.data.extras import NEG_IMAGE, Extras, read_extras
from compoclip.data.rows import EMPTY_NEGATIVE
from compoclip.data.tarmembers import (
    BAD_JSON,
    BAD_NAME,
    BAD_TEXT,
    CAPTION_LIMIT,
    SECOND,
    TOO_LONG,
    member_json,
    member_text,
    sample_captions,
    sample_key,
    whole_members,
)

NO_IMAGE = "sample without an image"
NOT_A_FILE = "tar member that is not a plain file"
NO_NEGATIVE_IMAGE = "negative image that is not in the shard"

_VERSION = 3
_SUFFIX = ".compoclip-index"
_SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("captions", pa.large_list(pa.large_string())),
        ("negatives", pa.large_list(pa.large_string())),
        ("neighbours", pa.large_list(pa.int64())),
        ("negative_offset", pa.int64()),
        ("negative_size", pa.int64()),
        ("group", pa.large_string()),
        ("score", pa.float64()),
        ("image_score", pa.float64()),
        ("row", pa.int64()),
    ]
)
ROWS = b"rows"  # in the metadata: how many samples the shard has, with those left out
_NOWHERE = (0, 0)


@dataclass
class _Group:
    """The members of one sample met so far."""

    key: str
    image: tuple[int, int] | None = None
    negative: tuple[int, int] | None = None
    text: str | None = None
    fields: object = None
    seen: set[str] = field(default_factory=set)


def load_index(shard: Path, caption_key: str | None) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The samples of a shard (columns of `_SCHEMA`) and what was left out.

    offset, size: of the image; negative_size is 0 where there is no negative image. row: the number
    of the sample in the shard, those left out counted.

    Raises CompoclipError when the shard cannot be read, is truncated or is no plain tar.
    """
    stamp = json.dumps([_VERSION, fingerprint(shard), caption_key])
    for path in cache_paths(shard, _SUFFIX):
        kept = _load(path, stamp)
        if kept is not None:
            return kept
    table, left_out = _scan(shard, caption_key)
    meta = {"stamp": stamp, "left_out": json.dumps(left_out)}
    table = table.replace_schema_metadata({**table.schema.metadata, **meta})
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
    columns: tuple[list[object], ...] = tuple([] for _ in _SCHEMA.names)
    repeats: Counter[str] = Counter()
    places: dict[str, tuple[int, int]] = {}
    named: list[str] = []  # of each sample kept: the member that is its negative image, or ""
    spare: list[str] = []  # images of samples that have one already
    row = -1
    for row, group in enumerate(_groups(shard, left_out, places, spare)):
        captions = sample_captions(group.text, group.fields, caption_key)
        kept = usable_texts(captions, EMPTY_CAPTION, left_out)
        if group.image is None:
            left_out[NO_IMAGE] += 1
        elif not kept:
            left_out[NO_CAPTION] += 1
        else:
            repeats[group.key] += 1
            again = f"#{repeats[group.key]}" if repeats[group.key] > 1 else ""
            extras = _extras(group, shard)
            wrong = usable_texts(extras.negatives, EMPTY_NEGATIVE, left_out)
            named.append("" if group.negative else extras.negative_image)
            texts = (kept, wrong, list(extras.neighbours))
            variation = (extras.group, extras.score, extras.image_score)
            negative = group.negative or _NOWHERE
            values = (group.key + again, *group.image, *texts, *negative, *variation, row)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    offsets, sizes = (columns[_SCHEMA.get_field_index(f"negative_{n}")] for n in ("offset", "size"))
    for place, name in enumerate(named):
        if name:
            offsets[place], sizes[place] = places.get(name, _NOWHERE)
            left_out[NO_NEGATIVE_IMAGE] += name not in places
    left_out[SECOND] += len(spare) - len({*spare} & {*named})
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA)]
    table = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
    return table.replace_schema_metadata({ROWS: str(row + 1)}), dict(+left_out)


def _extras(group: _Group, shard: Path) -> Extras:
    fields = group.fields if isinstance(group.fields, dict) else {}
    return read_extras(fields, shard, f"{shard}, sample {group.key}")


def _groups(
    shard: Path, left_out: Counter[str], places: dict[str, tuple[int, int]], spare: list[str]
) -> Iterator[_Group]:
    """Consecutive members that share folder and name up to the first dot are one sample.

    places: gets offset and size of every image by the name of its member; spare: the names of
    images of samples that have one already.
    """
    group: _Group | None = None
    with shard.open("rb") as file:
        for member in whole_members(shard, file):
            if member.isdir():
                continue
            if not member.isreg() or member.sparse is not None:
                left_out[NOT_A_FILE] += 1
                continue
            if not encodable(member.name):
                left_out[BAD_NAME] += 1
                continue
            key, extension = sample_key(member.name)
            if not key:
                continue
            if group is None or group.key != key:
                if group is not None:
                    yield group
                group = _Group(key)
            name = os.path.normpath(member.name)
            if extension.rpartition(".")[2].lower() in EXTENSIONS:
                places[name] = (member.offset_data, member.size)
            if extension.lower() in EXTENSIONS and group.image is not None:
                spare.append(name)
            _take(group, member, extension.lower(), file, left_out)
    if group is not None:
        yield group


def _take(
    group: _Group, member: tarfile.TarInfo, extension: str, file: IO[bytes], left_out: Counter[str]
) -> None:
    if extension in EXTENSIONS:
        group.image = group.image or (member.offset_data, member.size)
    elif extension.startswith(f"{NEG_IMAGE}.") and extension.rpartition(".")[2] in EXTENSIONS:
        group.negative = (member.offset_data, member.size)
    elif extension not in ("txt", "json"):
        return
    elif member.size > CAPTION_LIMIT:
        left_out[TOO_LONG] += 1
    elif extension in group.seen:
        left_out[SECOND] += 1
    else:
        group.seen.add(extension)
        position = file.tell()
        file.seek(member.offset_data)
        data = file.read(member.size)
        file.seek(position)
        if extension == "txt":
            group.text = member_text(data)
            left_out[BAD_TEXT] += group.text is None
        else:
            found = member_json(data)
            group.fields = found and found[1]
            left_out[BAD_JSON] += found is None
