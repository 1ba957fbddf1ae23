"""The inputs of a product, part by part: is this the product of these inputs, and what differs?

Options and files are named values; columns of the data are a checksum of four bytes per row. Both
lie in one small file: within the folder of a run or pack, beside any other product (`make_once`).
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compoclip.console import counted, note
from compoclip.differences import differences_of, flat, listed
from compoclip.errors import CompoclipError
from compoclip.files import (
    bytes_hash,
    content_hash,
    read_arrays,
    reason,
    save_arrays,
    write_atomically,
)
from compoclip.version import __version__

FILE = "fingerprint.safetensors"
COLUMNS = ("captions", "negatives", "positives", "neighbours", "group", "score", "image_score")
"""Columns of a table of samples, in addition to ids and images."""
_VERSION = 1
_CHUNK = 1 << 14
_CONTENT = "content of the product"

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

    @property
    def digest(self) -> str:
        """Return a hash of all of it."""
        rows = (name.encode() + values.tobytes() for name, values in sorted(self.rows.items()))
        return bytes_hash(b"".join([json.dumps(flat(self.values)).encode(), *rows]))

    def save(self, folder: Path, name: str = FILE) -> None:
        """Write the fingerprint into a folder."""
        arrays: dict[str, NDArray[Any]] = {
            f"rows/{name}": values for name, values in self.rows.items()
        }
        arrays["values"] = np.frombuffer(json.dumps(flat(self.values)).encode(), np.uint8)
        write_atomically(folder / name, lambda place: save_arrays(place, arrays, _VERSION))

    @classmethod
    def load(cls, folder: Path, name: str = FILE) -> Fingerprint:
        """Return the fingerprint in a folder. Raises CompoclipError when it cannot be read."""
        try:
            arrays = read_arrays(folder / name, _VERSION)
            if arrays is None:
                raise ValueError("of another version of compoclip")
            values = json.loads(arrays.pop("values").tobytes())
            if not isinstance(values, dict):
                raise ValueError("its values have no names")
        except (OSError, ValueError, KeyError) as error:
            raise CompoclipError(
                f"{folder / name}: does not record what the folder was made from "
                f"({reason(error)}); choose another folder, or move this one"
            ) from error
        return cls(values, {name.removeprefix("rows/"): rows for name, rows in arrays.items()})

    def differences(self, now: Fingerprint, *, whole: bool = True) -> dict[str, str]:
        """Describe what differs in a later fingerprint, by name: "lr was 0.0005, is 0.0001".

        whole: also compare values that the later fingerprint lacks.
        """
        differences = differences_of(self.values, now.values, whole=whole)
        for name in dict.fromkeys([*self.rows, *now.rows]):
            one, other = self.rows.get(name), now.rows.get(name)
            if one is None or other is None:
                differences[name] = f"{name} are {'new' if one is None else 'gone'}"
            elif len(one) == len(other) and (n := int((one != other).sum())):
                differences[name] = f"{name} of {n} of {counted(len(one), 'row')} changed"
        return differences


def make_once(product: Path, inputs: Fingerprint, make: Callable[[], object]) -> bool:
    """Make a file or folder, unless it is there and the product of the same inputs.

    The inputs, the version of compoclip and the content of the product are recorded beside it. A
    product of other inputs is removed and made anew, and a line says what differs.

    Args:
        product: The file or folder.
        inputs: All that decides its content: options by value, files by content.
        make: Makes it; it must write atomically.

    Returns:
        Whether it was made.

    Raises:
        CompoclipError: Nothing says what the product was made from, or it was changed since.
    """
    name = f".{product.name}.inputs.safetensors"
    begun = Fingerprint({"compoclip": __version__, **inputs.values}, inputs.rows)
    if product.exists():
        recorded = Fingerprint.load(product.parent, name)
        content = recorded.values.get(_CONTENT, "")  # none of a product whose making was stopped
        if content and content != content_hash(product):
            raise CompoclipError(
                f"{product}: was changed after it was made; move it to another place, or choose "
                "another --out"
            )
        differences = recorded.differences(_with_content(begun, content))
        if content and not differences:
            return False
        if differences:
            note(f"{product}: made anew: {listed(differences)}")
        shutil.rmtree(product) if product.is_dir() else product.unlink()
    begun.save(product.parent, name)
    make()
    _with_content(begun, content_hash(product)).save(product.parent, name)
    return True


def _with_content(inputs: Fingerprint, content: str) -> Fingerprint:
    return Fingerprint({**inputs.values, _CONTENT: content}, inputs.rows) if content else inputs


def checksums(columns: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the checksum of every cell of columns of texts, numbers, or lists of them.

    columns: Arrow arrays, or sequences, by name; those without content are left out.
    """
    import pyarrow as pa  # here: the help of commands that record their inputs begins without it
    import pyarrow.compute as pc

    sums = {}
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
            sums[name] = rows
    return sums
