"""Members of webdataset tar shards: which sample they belong to, and where its captions are."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from compoclip.data.members import forward
from compoclip.data.textfiles import parse_json
from compoclip.errors import CompoclipError
from compoclip.files import unreadable

BAD_JSON = "unreadable .json member"
BAD_TEXT = ".txt member that is not UTF-8"
BAD_NAME = "tar member whose name is not UTF-8"
SECOND = "second image, .txt or .json member of a sample"
CAPTION_LIMIT = 1 << 20  # bytes; a longer .txt or .json member is no caption
TOO_LONG = f".txt or .json member of more than {CAPTION_LIMIT >> 20} MiB"


def sample_key(member: str) -> tuple[str, str]:
    """The sample that a member belongs to, and what kind of member of it this is.

    Consecutive members that share folder and name up to the first dot are one sample; the rest of
    the name is the kind: "00/17.neg_image.jpg" is "neg_image.jpg" of "00/17". The key of hidden
    files, such as those that macOS adds, is "".
    """
    folder, _, base = member.rpartition("/")
    stem, _, extension = base.partition(".")
    return (f"{folder}/{stem}" if folder and stem else stem), extension


def member_text(data: bytes) -> str | None:
    """The text of a .txt member, None when it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def member_json(data: bytes) -> tuple[str, Any] | None:
    """The text of a .json member and the value in it, None when it is damaged.

    A value with half characters, which JSON can spell and UTF-8 cannot hold, is damaged.
    """
    try:
        text = data.decode("utf-8-sig")
        value = parse_json(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return text, value


def sample_captions(text: str | None, fields: object, caption_key: str | None) -> list[Any]:
    """The captions of a sample with this .txt member and this object in its .json member.

    caption_key: the name in the .json member; without it the .txt member comes first, then
    "caption" or "text" of the .json member. `usable_texts` keeps the captions among them.
    """
    if caption_key is None and text is not None:
        return [text]
    if not isinstance(fields, dict):
        return []
    keys = ("caption", "text") if caption_key is None else (caption_key,)
    value: object = next((fields[key] for key in keys if key in fields), None)
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def whole_members(shard: Path, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """The members of a tar, in order, checking that it is whole up to its end mark.

    Raises CompoclipError for a file that is cut off or is no plain tar.
    """
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in forward(tar):
                end = member.offset_data + -(-member.size // 512) * 512
                yield member
                tar.members = []  # type: ignore[attr-defined]  # the list would only take memory
    except tarfile.TarError as error:
        raise CompoclipError(
            f"{shard}: not a whole tar file ({error}); fetch or make the shard again"
        ) from None
    except OSError as error:
        raise unreadable(shard, error) from None
    file.seek(end)
    if len(file.read(512)) < 512:
        raise CompoclipError(f"{shard}: the tar file is cut off; fetch or make the shard again")
