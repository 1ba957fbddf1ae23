"""Webdataset tar shards: the fields go into the .json member of each sample."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any

from compoclip.corpora.job import PARSE, Counts, Job, Row, leave_out, row_of
from compoclip.corpora.splice import spliced
from compoclip.data.columns import encodable
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
from compoclip.errors import CompoclipError
from compoclip.files import unreadable
from compoclip.recordfile import json_bytes

_BATCH = 200


@dataclass
class _Sample:
    """The members of one sample; only small texts are held."""

    key: str
    members: list[tarfile.TarInfo] = field(default_factory=list)
    text: str | None = None
    json: str | None = None
    fields: Any = None
    has_text: bool = False
    damaged: bool = False


def check(source: Path, column: str | None) -> None:
    """Raise CompoclipError when the shard cannot be read; samples may differ in what they hold."""
    with _reading(source) as file:
        for _ in islice(whole_members(source, file), 1):
            pass


def transform(source: Path, target: Path, column: str | None, job: Job, counts: Counts) -> None:
    """Write `source` with the fields of the job in the .json member of every sample.

    A sample without one gets one behind its other members, if there is anything to say. All other
    members stay as they are. Captions are found as `train` finds them; `column` is their name in
    .json members. Samples are named "SHARD/KEY". Raises CompoclipError for a damaged shard, OSError
    when the target cannot be written.
    """
    with _reading(source) as file, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        samples = _samples(source, counts)
        while batch := list(islice(samples, _BATCH)):
            rows = [_row(sample, source, column, counts) for sample in batch]
            made = iter(job.make([row for row in rows if row is not None], counts))
            for sample, row in zip(batch, rows):
                added = None if row is None else next(made)
                for member in _changed(sample, added, source):
                    content, data = member
                    if data is None and content.isreg():
                        data = _content(source, file, content)
                    out.addfile(content, None if data is None else BytesIO(data))


def _row(sample: _Sample, source: Path, column: str | None, counts: Counts) -> Row | None:
    """What the job sees of a sample; None of one whose .json member cannot be added to, and of
    members that belong to no sample."""
    if not sample.key:
        return None
    if sample.damaged:
        counts["rows"] += 1
        leave_out(counts, BAD_JSON)
        return None
    fields = sample.fields if isinstance(sample.fields, dict) else {}
    texts = sample_captions(sample.text, fields, column)
    return row_of(f"{source.name}/{sample.key}", texts, fields.get(PARSE), counts)


def _changed(
    sample: _Sample, added: dict[str, Any] | None, source: Path
) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """The members of a sample as they are to be written, with new content where it changes."""
    for member in sample.members:
        if added is None or sample.json is None or not _is_json(member):
            yield member, None
            continue
        origin = f"{source}, sample {sample.key}"
        data = spliced(sample.json, sample.fields, added, origin)
        yield _sized(member, member.name, data), data
    if added is not None and any(added.values()) and sample.json is None:
        data = json_bytes(added)
        yield _sized(sample.members[-1], f"{sample.key}.json", data), data


def _sized(model: tarfile.TarInfo, name: str, data: bytes) -> tarfile.TarInfo:
    """A plain file with rights, owner and time of another member."""
    member = copy(model)
    member.name, member.size, member.type = name, len(data), tarfile.REGTYPE
    member.linkname, member.pax_headers = "", {}
    return member


def _samples(source: Path, counts: Counts) -> Iterator[_Sample]:
    sample: _Sample | None = None
    with _reading(source) as file, _reading(source) as contents:
        for member in whole_members(source, file):
            if member.sparse is not None:
                raise CompoclipError(f"{source}: {member.name!r} is a sparse file; pack it anew")
            plain = member.isreg()
            known = plain and encodable(member.name)
            leave_out(counts, BAD_NAME, plain - known)
            key = sample_key(member.name)[0] if known else ""
            if sample is None or sample.key != key:
                if sample is not None:
                    yield sample
                sample = _Sample(key)
            sample.members.append(member)
            if key:
                _take(sample, member, source, contents, counts)
    if sample is not None:
        yield sample


def _is_json(member: tarfile.TarInfo) -> bool:
    return member.isreg() and sample_key(member.name)[1].lower() == "json"


def _take(
    sample: _Sample, member: tarfile.TarInfo, source: Path, file: IO[bytes], counts: Counts
) -> None:
    kind = sample_key(member.name)[1].lower()
    if kind == "txt" and member.size > CAPTION_LIMIT:
        leave_out(counts, TOO_LONG)
    elif kind == "txt" and sample.has_text:
        leave_out(counts, SECOND)
    elif kind == "txt":
        sample.has_text = True
        sample.text = member_text(_content(source, file, member))
        leave_out(counts, BAD_TEXT, sample.text is None)
    elif kind == "json":
        small = member.size <= CAPTION_LIMIT and sample.json is None
        found = member_json(_content(source, file, member)) if small else None
        # Fields cannot go into a second .json member, or into one that is no object.
        sample.damaged |= found is None or not isinstance(found[1], dict)
        sample.json, sample.fields = found or (sample.json or "", None)


def _content(source: Path, file: IO[bytes], member: tarfile.TarInfo) -> bytes:
    try:
        file.seek(member.offset_data)
        data = file.read(member.size)
    except OSError as error:
        raise unreadable(source, error) from None
    if len(data) < member.size:
        raise CompoclipError(f"{source}: the tar file is cut off; fetch or make the shard again")
    return data


def _reading(source: Path) -> IO[bytes]:
    try:
        return source.open("rb")
    except OSError as error:
        raise unreadable(source, error) from None
