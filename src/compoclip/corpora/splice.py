"""Adding fields to a JSON object without touching what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compoclip.errors import CompoclipError
from compoclip.recordfile import json_bytes


def spliced(text: str, fields: Mapping[str, Any], added: Mapping[str, Any], origin: str) -> bytes:
    """The JSON object `text`, whose value is `fields`, with the fields `added` at its end.

    The bytes of the object stay as they are. Raises CompoclipError naming `origin` when it has one
    of the added fields already.
    """
    twice = next((name for name in added if name in fields), None)
    if twice is not None:
        raise taken(twice, origin)
    head = text.strip()[:-1].rstrip().encode()
    return head + (b", " if fields else b"") + json_bytes(dict(added))[1:]


def taken(name: str, origin: str) -> CompoclipError:
    """The error to raise for a row that has an added field already."""
    return CompoclipError(f"{origin}: has a field {name!r} already; rename or remove it")
