"""Encoded images inside Parquet and Arrow files, read at random.

Parquet compresses rows in groups, so that reading one image costs a group. The image column is
therefore copied once into an Arrow file, which is mapped into memory and read at any row.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compoclip.arrow_files import arrow_table, has_image, opened_parquet
from compoclip.console import note
from compoclip.files import cache_paths, file_stamp, reason, write_cache

_SUFFIX = ".compoclip-images"
_VERSION = 2
_ROWS = 64  # images per Arrow batch: bounds the memory of the copy


class EmbeddedImages:
    """The images of one column of Parquet files, by row number over all files.

    Attributes:
        stamp: Stamps of the files.
    """

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self._files, self._column = files, column
        self.stamp = " ".join(map(file_stamp, files))
        self._open_all()

    def __call__(self, image: str) -> bytes:
        """Return the encoded image of row `image`, b"" without one; remake a damaged copy."""
        for again in (True, False):
            row = int(image)
            batch = bisect_right(self._ends, row)
            images, checksums = self._batches[batch].columns
            place = row - (self._ends[batch] - len(images))
            value: bytes = images[place].as_py() or b""
            if zlib.crc32(value) == checksums[place].as_py():
                break
            if again:
                self._open_all(again=True)
        return value

    def located(self, row: int) -> tuple[Path, int]:
        """Return the file that holds a row, and the row's number in it."""
        file = bisect_right(self._last, row)
        return self._files[file], row - (self._last[file - 1] if file else 0)

    def present(self) -> list[bool]:
        """Return for each row whether it has an image; none is read."""
        return [has for batch in self._batches for has in has_image(batch.column(0)).to_pylist()]

    def _open_all(self, again: bool = False) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._last: list[int] = []  # rows up to the end of each file
        for file in self._files:
            self._batches += _copied(file, self._column, again)
            self._last.append(sum(map(len, self._batches)))
        self._ends = list(accumulate(len(batch) for batch in self._batches))

    def __reduce__(self) -> Any:
        return EmbeddedImages, (self._files, self._column)  # the batches are mapped into memory


def _copied(file: Path, column: str, again: bool = False) -> list[pa.RecordBatch]:
    """The images of `file` and their checksums, mapped from an Arrow file that is made if needed.

    again: make it in any case.
    """
    stamp = json.dumps([_VERSION, file_stamp(file), column])
    # Each column has a file of its own.
    suffix = f"{_SUFFIX}-{hashlib.blake2b(column.encode(), digest_size=4).hexdigest()}"
    for path in () if again else cache_paths(file, suffix):
        try:
            return _opened(path, stamp)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, pa.ArrowException) as error:
            note(f"{path}: {reason(error)}")
    times = "once more" if again else "once"
    note(f"copying the images of {file.name} {times}, for random access")

    def images() -> Iterator[pa.Array]:  # keeps reading errors apart from writing errors
        with opened_parquet(file) as parquet:
            for batch in parquet.iter_batches(_ROWS, columns=[column]):
                values = batch.column(0)
                if pa.types.is_dictionary(values.type):
                    values = values.dictionary_decode()
                yield _bytes_of(values).cast(pa.large_binary())

    def write(target: Path) -> None:
        fields = [("image", pa.large_binary()), ("crc32", pa.uint32())]
        schema = pa.schema(fields, metadata={"stamp": stamp})
        with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for values in images():
                checksums = [zlib.crc32(image.as_py() or b"") for image in values]
                columns = [values, pa.array(checksums, pa.uint32())]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    return _opened(write_cache(file, suffix, write), stamp)


def arrow_images(path: Path, column: str) -> Callable[[str], bytes]:
    """Return what reads the image of a row of an Arrow file, b"" without one."""
    images = _bytes_of(arrow_table(path).column(column))
    return lambda row: bytes(images[int(row)].as_py() or b"")


def _bytes_of(images: Any) -> Any:
    """The encoded images of a column, which may be a struct."""
    return pc.struct_field(images, "bytes") if pa.types.is_struct(images.type) else images


def _opened(path: Path, stamp: str) -> list[pa.RecordBatch]:
    """Raises OSError, or ValueError for a file that is damaged or of another stamp."""
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if (reader.schema.metadata or {}).get(b"stamp") != stamp.encode():
        raise ValueError("was made from another state of the data")
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    for batch in batches:
        batch.validate(full=True)  # else a damaged one is read beyond its end
    return batches
