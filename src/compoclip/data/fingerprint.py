"""What a run or a pack was made from, part by part, so that a difference can be named.

Options and files are named values; columns of the data are a checksum of four bytes per row. Both
lie in one small file beside what was made from them.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
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
"""The columns of a table of samples, beside their ids and images."""
_VERSION = 1
_CHUNK = 1 << 14
_HASH = re.compile(r"(?=.*\d)[0-9a-f]{12,}")
_MOST_TOLD = 6

Rows = NDArray[np.uint32]


@dataclass(frozen=True)
class Fingerprint:
    """The parts of what something was made from.

    Args:
        values: Name -> value, JSON-ready. Mappings are taken apart: {"lora": {"rank": 4}} is the
            value "lora.rank".
        rows: Column of the data -> a checksum per row; a column without any content is left out.
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
        """Name what differs from this fingerprint in a later one.

        Args:
            now: The later one.
            whole: Compare all values, not those of the later one alone.

        Returns:
            The name of each part that differs -> the difference, "lr was 0.0005, is 0.0001".
        """
        before, after = _flat(self.values), json.loads(json.dumps(_flat(now.values)))
        told = {
            name: _difference(name, before.get(name), after.get(name))
            for name in dict.fromkeys([*(before if whole else ()), *after])
            if before.get(name) != after.get(name)
        }
        for name in dict.fromkeys([*self.rows, *now.rows]):
            one, other = self.rows.get(name), now.rows.get(name)
            if one is None or other is None:
                told[name] = f"{name} are {'new' if one is None else 'gone'}"
            elif len(one) == len(other) and (n := int((one != other).sum())):
                told[name] = f"{name} of {n} of {len(one)} rows changed"
        return told

    def take(self, kept: NDArray[np.int64]) -> Fingerprint:
        """Return the fingerprint of some of the rows."""
        return Fingerprint(self.values, {name: rows[kept] for name, rows in self.rows.items()})

    @classmethod
    def joined(cls, parts: Mapping[str, Fingerprint], sizes: Sequence[int]) -> Fingerprint:
        """Return the fingerprint of several data sets, one behind the other."""
        names = dict.fromkeys(name for part in parts.values() for name in part.rows)
        rows = {
            name: np.concatenate(
                [
                    part.rows.get(name, np.zeros(size, np.uint32))
                    for part, size in zip(parts.values(), sizes)
                ]
            )
            for name in names
        }
        return cls({name: part.values for name, part in parts.items()}, rows)


def listed(differences: Mapping[str, str]) -> str:
    """Return differences as one line."""
    lines = list(differences.values())
    more = f" and {len(lines) - _MOST_TOLD} more" if len(lines) > _MOST_TOLD else ""
    return "; ".join(lines[:_MOST_TOLD]) + more


def checksums(columns: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the checksum of every cell of columns of texts, numbers, or lists of them.

    Args:
        columns: Arrow arrays, or sequences, by name.

    Returns:
        The checksums, without the columns that have no content.
    """
    arrow = (pa.Array, pa.ChunkedArray)
    found = {
        name: _checksums(column if isinstance(column, arrow) else pa.array(column))
        for name, column in columns.items()
    }
    return {name: rows for name, rows in found.items() if rows.any()}


def file_stamp(path: str) -> str:
    """Return size and modification time of a file, "missing" without one."""
    try:
        status = os.stat(path)
    except OSError:
        return "missing"
    return f"{status.st_size}-{status.st_mtime_ns}"


def _checksums(column: pa.Array | pa.ChunkedArray) -> Rows:
    rows = np.zeros(len(column), np.uint32)
    for start in range(0, len(column), _CHUNK):
        texts = _texts(column.slice(start, _CHUNK)).to_pylist()
        rows[start : start + _CHUNK] = [zlib.crc32(text) if text else 0 for text in texts]
    return rows


def _texts(cells: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Cells as bytes, the parts of a list joined."""
    if pa.types.is_list(cells.type) or pa.types.is_large_list(cells.type):
        cells = pc.binary_join(cells.cast(pa.list_(pa.string())), "\x1f")
    elif not pa.types.is_large_string(cells.type):
        cells = cells.cast(pa.large_string())
    return cells.cast(pa.large_binary())


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _difference(name: str, before: Any, now: Any) -> str:
    values = [each for each in (before, now) if each is not None]
    if all(isinstance(each, str) and _HASH.fullmatch(each) for each in values):
        return f"{name} {'changed' if len(values) == 2 else 'is new' if now else 'is gone'}"
    was, now = ("none" if each is None else str(each)[:80] for each in (before, now))
    return f"{name} was {was}, is {now}"
