"""The inputs of a run or pack, part by part, so that a difference can be named.

Options and files are named values; columns of the data are a checksum of four bytes per row. Both
lie in one small file beside what was made from them.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compoclip.errors import CompoclipError
from compoclip.files import read_arrays, reason, save_arrays, write_atomically

FILE = "fingerprint.safetensors"
COLUMNS = ("captions", "negatives", "positives", "neighbours", "group", "score", "image_score")
"""Columns of a table of samples, in addition to ids and images."""
_VERSION = 1
_CHUNK = 1 << 14
_HASH = re.compile(r"(?=.*\d)[0-9a-f]{12,}")
_MOST_LISTED = 6

Rows = NDArray[np.uint32]


@dataclass(frozen=True)
class Fingerprint:
    """The parts of what something was made from.

    values: name -> value, JSON-ready; mappings are taken apart: {"lora": {"rank": 4}} is the value
    "lora.rank". rows: column of the data -> a checksum per row; a column without any content is
    left out.
    """

    values: Mapping[str, Any]
    rows: Mapping[str, Rows] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the fingerprint into a folder, as FILE."""
        arrays: dict[str, NDArray[Any]] = {f"rows/{name}": each for name, each in self.rows.items()}
        arrays["values"] = np.frombuffer(json.dumps(_flat(self.values)).encode(), np.uint8)
        write_atomically(folder / FILE, lambda place: save_arrays(place, arrays, _VERSION))

    @classmethod
    def load(cls, folder: Path) -> Fingerprint:
        """Return the fingerprint in a folder. Raises CompoclipError when it cannot be read."""
        try:
            arrays = read_arrays(folder / FILE, _VERSION)
            if arrays is None:
                raise ValueError("of another version of compoclip")
        except (OSError, ValueError) as error:
            raise CompoclipError(
                f"{folder / FILE}: does not say what the folder was made from ({reason(error)}); "
                "choose another folder, or remove this one"
            ) from error
        values = json.loads(arrays.pop("values").tobytes())
        return cls(values, {name.removeprefix("rows/"): each for name, each in arrays.items()})

    def differences(self, now: Fingerprint, *, whole: bool = True) -> dict[str, str]:
        """Describe what differs in a later fingerprint, by name: "lr was 0.0005, is 0.0001".

        whole: also compare values that the later fingerprint lacks.
        """
        before, after = _flat(self.values), json.loads(json.dumps(_flat(now.values)))
        found: dict[str, str] = {}
        for name in dict.fromkeys([*(before if whole else ()), *after]):
            was, is_now = before.get(name), after.get(name)
            if was == is_now:
                continue
            values = [each for each in (was, is_now) if each is not None]
            if all(isinstance(each, str) and _HASH.fullmatch(each) for each in values):
                what = "changed" if len(values) == 2 else "is new" if is_now else "is gone"
                found[name] = f"{name} {what}"
            else:
                was, is_now = ("none" if v is None else str(v)[:80] for v in (was, is_now))
                found[name] = f"{name} was {was}, is {is_now}"
        for name in dict.fromkeys([*self.rows, *now.rows]):
            one, other = self.rows.get(name), now.rows.get(name)
            if one is None or other is None:
                found[name] = f"{name} are {'new' if one is None else 'gone'}"
            elif len(one) == len(other) and (n := int((one != other).sum())):
                found[name] = f"{name} of {n} of {len(one)} rows changed"
        return found


def listed(differences: Mapping[str, str]) -> str:
    """Return differences as one line."""
    lines = list(differences.values())
    more = f" and {len(lines) - _MOST_LISTED} more" if len(lines) > _MOST_LISTED else ""
    return "; ".join(lines[:_MOST_LISTED]) + more


def checksums(columns: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the checksum of every cell of columns of texts, numbers, or lists of them.

    columns: Arrow arrays, or sequences, by name; those without content are left out.
    """
    found = {}
    for name, column in columns.items():
        cells = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
        rows = np.zeros(len(cells), np.uint32)
        for start in range(0, len(cells), _CHUNK):
            part = cells.slice(start, _CHUNK)
            if pa.types.is_list(part.type) or pa.types.is_large_list(part.type):
                part = pc.binary_join(part.cast(pa.list_(pa.string())), "\x1f")
            elif not pa.types.is_large_string(part.type):
                part = part.cast(pa.large_string())
            texts = part.cast(pa.large_binary()).to_pylist()
            rows[start : start + _CHUNK] = [zlib.crc32(text) if text else 0 for text in texts]
        if rows.any():
            found[name] = rows
    return found


def file_stamp(path: str) -> str:
    """Return size and modification time of a file, "missing" without one."""
    try:
        status = os.stat(path)
    except OSError:
        return "missing"
    return f"{status.st_size}-{status.st_mtime_ns}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
