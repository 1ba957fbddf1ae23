"""Members of webdataset tar shards: which sample they belong to, and where its captions are."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from compoclip.errors import CompoclipError
from compoclip.files import unreadable

BAD_JSON = "unreadable .json member"
CAPTION_LIMIT = 1 << 20  # bytes; a longer .txt or .json member is no caption


def sample_key(member: str) -> tuple[str, str]:
    """The sample that a member belongs to, and what kind of member of it this is.

    Consecutive members that share folder and name up to the first dot are one sample; the rest of
    the name is the kind: "00/17.neg_image.jpg" is "neg_image.jpg" of "00/17". The key of hidden
    files, such as those that macOS adds, is "".
    """
    folder, _, base = member.rpartition("/")
    stem, _, extension = base.partition(".")
    return (f"{folder}/{stem}" if folder and stem else stem), extension


def sample_captions(text: str | None, fields: object, caption_key: str | None) -> list[str]:
    """The captions of a sample with this .txt member and this object in its .json member.

    caption_key: the name in the .json member; without it the .txt member comes first, then
    "caption" or "text" of the .json member.
    """
    if caption_key is None and text is not None:
        return [text]
    if not isinstance(fields, dict):
        return []
    keys = ("caption", "text") if caption_key is None else (caption_key,)
    value: object = next((fields[key] for key in keys if key in fields), [])
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, str)]


def whole_members(shard: Path, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """The members of a tar, in order, checking that it is whole up to its end mark.

    Raises CompoclipError for a file that is cut off or is no plain tar.
    """
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
    except OSError as error:
        raise unreadable(shard, error) from None
    file.seek(end)
    if len(file.read(512)) < 512:
        raise CompoclipError(f"{shard}: the tar file is cut off; fetch or make the shard again")
