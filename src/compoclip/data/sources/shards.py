"""Webdataset tar shards, read at random by offset; nothing is ever unpacked to disk."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compoclip.archives import read_at, whole_members
from compoclip.bounds import MAX_CAPTION_BYTES
from compoclip.console import track
from compoclip.data.columns import (
    EXTRA_NAMES,
    LABEL_COLUMNS,
    NEG_IMAGE,
    cell_captions,
    distinct_names,
    read_extras,
    read_label,
    read_split,
    usual_column,
    usual_names,
)
from compoclip.data.image_names import EXTENSIONS
from compoclip.data.options import Needs
from compoclip.data.prompts import listed_names
from compoclip.data.sources import ImageShard, Source, holds_any, replaced
from compoclip.data.sources.table import RowBuilder, finish
from compoclip.data.split_names import COLUMN
from compoclip.errors import CompoclipError, abridged, require
from compoclip.files import (
    cache_paths,
    encodable,
    file_stamp,
    load_arrays,
    parse_json,
    save_arrays,
    write_cache,
)
from compoclip.patterns import has_ending

# --- Members of a shard: which sample they belong to, and where its captions are. ---

BAD_JSON = "unreadable .json member"
BAD_TEXT = ".txt member that is not UTF-8"
BAD_NAME = "tar member whose name is not UTF-8"
SECOND = "second image, .txt or .json member of a sample"
TOO_LONG = f".txt or .json member of more than {MAX_CAPTION_BYTES >> 20} MiB"

TEXT_KINDS = ("txt", "json", "cls", "npy")
BAD_LABEL = ".npy member that is no vector of 0 and 1"
_KINDS = {"cap": "txt", "caption": "txt", "img": "jpg"}  # other names of kinds


def sample_key(member: str) -> tuple[str, str]:
    """Return the sample that a member belongs to, and what kind of member of it this is.

    Consecutive members that share folder and name up to the first dot are one sample; the rest of
    the name in small letters is the kind: "00/17.neg_image.jpg" is "neg_image.jpg" of "00/17". The
    key of hidden files, such as those that macOS adds, and of names that are no text is "".
    """
    if not encodable(member):
        return "", ""
    folder, _, base = member.rpartition("/")
    stem, _, extension = base.partition(".")
    kind = extension.lower()
    return (f"{folder}/{stem}" if folder and stem else stem), _KINDS.get(kind, kind)


def grouped(shard: Path) -> Iterator[tuple[str, list[tarfile.TarInfo]]]:
    """(key, members) of every sample of a tar, in order.

    What belongs to no sample (folders, links, hidden files, names that are no text) is a group with
    the key "", unless it lies between the members of one sample: that stays whole. Raises as
    `whole_members` does.
    """
    key = ""
    members: list[tarfile.TarInfo] = []
    others: list[tarfile.TarInfo] = []  # since the last member of the sample
    for member in whole_members(shard):
        plain = member.isreg() and member.sparse is None
        member_key = sample_key(member.name)[0] if plain else ""
        if not member_key:
            others.append(member)
            continue
        if member_key != key:
            yield from (group for group in ((key, members), ("", others)) if group[1])
            key, members, others = member_key, [], []
        members += [*others, member]
        others = []
    yield from (group for group in ((key, members), ("", others)) if group[1])


@dataclass
class SampleTexts:
    """The contents of the .txt and the .json member of a sample.

    text: of the .txt member. json, fields: the text of the .json member and the object in it, if it
    is one. cls: of the .cls member, which is the label, or the numbers of the ones in the vector of
    .npy.
    """

    text: str | None = None
    json: str | None = None
    cls: str | None = None
    fields: dict[str, Any] | None = None
    kinds: set[str] = field(default_factory=set)

    def take(self, shard: Path, kind: str, member: tarfile.TarInfo) -> str | None:
        """Read a member of one of `TEXT_KINDS`; return the reason for leaving it out."""
        if kind not in TEXT_KINDS:
            return None
        if member.size > MAX_CAPTION_BYTES:
            return TOO_LONG
        if kind in self.kinds:
            return SECOND
        self.kinds.add(kind)
        if kind == "npy":
            self.cls = _tags(read_at(shard, member.offset_data, member.size))
            return None if self.cls else BAD_LABEL
        try:
            text = read_at(shard, member.offset_data, member.size).decode("utf-8-sig")
            if kind == "json":  # with half characters, which UTF-8 cannot hold, it is damaged
                value = parse_json(text)
                self.fields = value if isinstance(value, dict) else None
        except ValueError:
            return BAD_JSON if kind == "json" else BAD_TEXT
        setattr(self, "text" if kind == "txt" else kind, text)
        return None

    def label(self, classes: Sequence[str]) -> str:
        """Return the label: the .cls member, or the first usual key of the .json member."""
        if self.cls is not None:
            text = self.cls.strip()
            return read_label(int(text) if text.isdecimal() and len(text) < 7 else text, classes)
        fields = self.fields or {}
        name = usual_column(LABEL_COLUMNS, fields)
        return read_label(fields[name], classes) if name else ""

    def captions(self, caption_key: str | None) -> list[Any]:
        """The caption values; `usable_texts` keeps the captions among them.

        caption_key: the name in the .json member; without it the .txt member comes first, then
        "caption" or "text" of the .json member.
        """
        if caption_key is None and self.text is not None:
            return [self.text]
        fields = self.fields or {}
        usual = usual_column(("caption", "text"), fields) if caption_key is None else caption_key
        return cell_captions(fields.get(usual) if usual is not None else None)


def _tags(data: bytes) -> str:
    """Return the places of the ones in a stored vector of 0 and 1, "" for anything else."""
    try:
        vector = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception:  # a damaged header fails in many ways
        return ""
    tags = isinstance(vector, np.ndarray) and vector.ndim == 1 and np.isin(vector, (0, 1)).all()
    return ",".join(map(str, np.flatnonzero(vector))) if tags else ""


def first_fields(shard: Path) -> dict[str, Any]:
    """Return the object in the .json member of the first sample of a shard, or none of its keys."""
    members = next((members for key, members in grouped(shard) if key), [])
    texts = SampleTexts()
    for member in members:
        if sample_key(member.name)[1] == "json" and member.isreg():
            texts.take(shard, "json", member)
    return texts.fields or {}


# --- The index of a tar shard: where each sample's image lies, its captions and extra columns. ---
#
# Made by reading the headers and caption members once, cached as an Arrow stream, and made anew
# when the shard's size or time of change differs.
#
# The extra columns (see `read_extras`) are keys of a sample's .json member. Its negative image is a
# member KEY.neg_image.jpg (or another kind of image), or the one that neg_image names. Row numbers
# in neg_image count the samples of all shards.

NOT_A_FILE = "tar member that is not a plain file"
NO_NEGATIVE_IMAGE = "negative image that is not in the shard"

_VERSION = 11
_SUFFIX = ".compoclip-index"
_ROWS, _LEFT_OUT = b"rows", b"left_out"  # metadata: of all samples; how many of what were left out


def _load(shard: Path, caption_key: str | None, classes: Sequence[str]) -> pa.Table:
    """The rows of a shard, with their numbers in a column "row"."""
    made_from = [_VERSION, file_stamp(shard), caption_key, *classes]
    for path in cache_paths(shard, _SUFFIX):
        cached = load_arrays(path, made_from)
        if cached is not None:
            return pa.ipc.open_stream(pa.py_buffer(cached["table"])).read_all()
    table = _scan(shard, caption_key, classes)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    arrays = {"table": np.frombuffer(sink.getvalue(), np.uint8)}
    write_cache(shard, _SUFFIX, lambda place: save_arrays(place, arrays, made_from))
    return table


def _scan(shard: Path, caption_key: str | None, classes: Sequence[str]) -> pa.Table:
    builder = RowBuilder(shard, shard)  # images are named as in the shard
    left_out, unread = builder.left_out, Counter[str]()
    distinct = distinct_names(classes)
    places: dict[str, str] = {}  # of every image, by the name of its member
    spare: list[str] = []  # images of samples that have one already
    samples: list[tuple[str, str, str, SampleTexts]] = []  # key, image, negative image, texts
    for key, members in grouped(shard):
        image, negative, texts = "", "", SampleTexts()
        for member in members:
            if not member.isreg() or member.sparse is not None:
                left_out[NOT_A_FILE] += not member.isdir()
                continue
            member_key, kind = sample_key(member.name)
            name = os.path.normpath(member.name)
            if not member_key:
                left_out[BAD_NAME] += not encodable(member.name)
                continue
            place = f"{member.offset_data}:{member.size}"
            pictured = kind.rpartition(".")[2] in EXTENSIONS
            if pictured:
                places[name] = place if member.size else ""
            if kind in EXTENSIONS and image:
                spare.append(name)
            elif kind in EXTENSIONS:
                image = place
            elif kind.startswith(f"{NEG_IMAGE}.") and pictured:
                negative = places[name]
            elif kind not in TEXT_KINDS:
                unread[kind] += 1
            elif (reason := texts.take(shard, kind, member)) is not None:
                left_out[reason] += 1
        if key:
            samples.append((key, image, negative, texts))
    named: set[str] = set()
    repeats: Counter[str] = Counter()
    for key, image, negative, texts in samples:
        repeats[key] += 1
        again = f"#{repeats[key]}" if repeats[key] > 1 else ""
        fields = texts.fields or {}
        usual = usual_names(tuple(fields), EXTRA_NAMES)
        fields |= {name: fields[column] for column, name in usual.items()}
        origin = f"{shard}, sample {key}"
        extras = read_extras(fields, origin, builder.path_of)
        other = extras.get("negative_image")
        if negative:
            extras["negative_image"] = negative
        elif other:
            named.add(other)
            extras["negative_image"] = places.get(other, "")
            left_out[NO_NEGATIVE_IMAGE] += other not in places
        captions, label = texts.captions(caption_key), texts.label(distinct)
        split = read_split(fields.get(COLUMN), origin)
        builder.add(key + again, image or None, captions, extras, origin, 0, label, split)
    left_out[SECOND] += len(spare) - len(named.intersection(spare))
    table = builder.table()
    counts = [+left_out, builder.lost, unread]
    meta = {_ROWS: str(builder.rows), _LEFT_OUT: json.dumps(counts)}
    return table.replace_schema_metadata(meta)


# --- The shards as a source. ---


def open_shards(
    shards: Sequence[Path],
    caption_key: str | None = None,
    needs: Needs = "captions",
    splits: Sequence[str] = (),
) -> Source:
    """Index the shards (once; the index is kept for the next run). Ids are "shard.tar/key".

    caption_key: name of the caption in .json members; without it .txt members come first, then
    "caption" or "text" of .json members. splits: of the shards; "" leaves it to a key "split" of
    .json members. Raises CompoclipError for a shard that is missing,
    truncated or no tar, and when no usable sample is left.
    """
    splits = splits or ["" for _ in shards]
    names = [shard.name for shard in shards]
    if len(set(names)) < len(names):  # told apart by their folder
        names = [shard.as_posix() for shard in shards]
    left_out, unread = Counter[str](), Counter[str]()
    lost: defaultdict[str, Counter[str]] = defaultdict(Counter)
    folders = (shards[0].parent, shards[0].parent.parent)
    classes = next(filter(None, map(listed_names, folders)), ())
    tables, first = [], 0
    for number, shard in enumerate(track(shards, "indexing shards", unit="shards")):
        table = _load(shard, caption_key, classes)
        meta = table.schema.metadata
        in_shard, in_rows, kinds = json.loads(meta[_LEFT_OUT])
        left_out.update(in_shard)
        unread.update(kinds)
        for split, counts in in_rows.items():
            lost[splits[number] or split].update(counts)
        place = pa.array(np.full(len(table), number, np.int32))
        ids = pc.binary_join_element_wise(
            pa.scalar(names[number], pa.large_string()),
            table["id"],
            pa.scalar("/", pa.large_string()),
        )
        changes = {"id": ids, "place": place, "negative_place": place}
        changes["row"] = pc.add(table["row"], first)
        if splits[number]:
            changes["split"] = pa.repeat(pa.scalar(splits[number], pa.large_string()), len(table))
        tables.append(replaced(table, changes).replace_schema_metadata())
        first += int(meta[_ROWS])
    key = f" (captions {caption_key!r})" if caption_key else ""
    description = f"webdataset shards {abridged([*map(str, shards)], 1)}{key}"
    places = [*map(ImageShard, shards)]
    table = pa.concat_tables(tables)
    texts = (table["label"], pc.list_flatten(table["captions"]))
    if unread and needs != "photos" and not any(map(holds_any, texts)):
        raise CompoclipError(
            f"{description}: no sample has both an image and a text. The members that were "
            f"found end in {', '.join(kind for kind, _ in unread.most_common(5))}. Name the image "
            f"KEY.jpg (or another image format) and its text KEY.{' or KEY.'.join(TEXT_KINDS)}, "
            "where KEY has no dot"
        )
    source = finish(table, places, description, left_out, lost, needs, {}, description)
    source.classes = classes
    return source


def require_shards(shards: Sequence[Path]) -> Sequence[Path]:
    """Return shards; raise CompoclipError for one that is missing or compressed."""
    for shard in shards:
        if not has_ending(shard, ".tar"):
            raise CompoclipError(f"{shard}: only plain .tar shards can be read; decompress it")
        require(shard.is_file(), shard, "shard not found; check the path or the pattern")
    return shards
