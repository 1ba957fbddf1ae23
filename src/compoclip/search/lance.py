"""An index in a LanceDB table: vectors stay on the disk, and updates write only what changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compoclip import files
from compoclip.data.vectors import Matrix, Rows, are_unit
from compoclip.errors import CompoclipError, optional, require

if TYPE_CHECKING:
    import pyarrow as pa

ABOUT = "compoclip-index.json"
AGAIN = "delete it and run compoclip index again"
_NOT_UNIT = f"a damaged index (a feature is not of unit length); {AGAIN}"
_TABLE, _TEXTS = "photos", ("name", "stamp", "caption")
_WRITTEN = 1 << 14  # photos that are written at once
_NAMED = 1000  # photos that one condition names
_SPARE = 16  # results more than wanted, for scores that differ in their last digits


def require_unit(vectors: Matrix, place: object) -> None:
    """Raise CompoclipError for vectors of an index that are not of unit length, such as those that
    a search returns or an update copies; place: of the index."""
    require(are_unit(vectors), place, _NOT_UNIT)


@contextmanager
def _one_line(folder: Path, *, writing: bool = False) -> Iterator[None]:
    """Turn what LanceDB raises in the block, errors of every kind, into one CompoclipError."""
    try:
        yield
    except CompoclipError:
        raise
    except Exception as error:
        if writing:
            raise files.unwritable(folder, error) from error
        raise CompoclipError(
            f"{folder}: a damaged index ({files.reason(error)}); {AGAIN}"
        ) from error


class TableTexts(Sequence[str]):
    """A column of texts that stays in Arrow's memory."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        """Return the text in a row, or the list of those in a slice."""
        value = self._column[row]
        return value.to_pylist() if isinstance(row, slice) else value.as_py()

    def __iter__(self) -> Iterator[str]:
        return iter(self._column.to_pylist())


class TableVectors:
    """(N, D) vectors of a table, which are read when they are needed.

    Args:
        folder: Of the index, for messages.
        table: The table, at one version.
        ids: (N,) what LanceDB calls each row.
    """

    def __init__(self, folder: Path, table: Any, ids: NDArray[np.uint64]) -> None:
        self._folder, self._table, self._ids = folder, table, ids
        self._order = np.argsort(ids)
        self.shape: tuple[int, int] = (len(ids), table.schema.field("vector").type.list_size)

    def __len__(self) -> int:
        """Return N."""
        return len(self._ids)

    def __getitem__(self, rows: slice | Sequence[int], /) -> Matrix:
        """Return the vectors in some rows."""
        ids, places = np.unique(self._ids[rows], return_inverse=True)
        if not len(ids):
            return np.zeros((0, self.shape[1]), np.float32)
        with _one_line(self._folder):
            query = self._table.take_row_ids(ids.tolist()).select(["vector"]).with_row_id()
            taken, vectors = self._read(query, len(ids))
        return vectors[np.argsort(taken)][places]

    def nearest(self, queries: Matrix, top: int) -> tuple[Rows, Matrix]:
        """Return the rows with the highest dot products and these, as the function `nearest`.

        The table finds the photos, and their scores are computed as those of an array are. A photo
        whose score equals the last one may be exchanged for it.
        """
        rows: list[Rows] = []
        scores: list[Matrix] = []
        for vector in queries:
            with _one_line(self._folder):
                query = self._table.search(vector, vector_column_name="vector")
                query = (
                    query.distance_type("dot").bypass_vector_index().select(["vector", "_distance"])
                )
                rows_read = min(top + _SPARE, len(self))
                ids, vectors = self._read(query.with_row_id(True).limit(rows_read), rows_read)
            places = self._order[np.searchsorted(self._ids[self._order], ids)]
            products = np.vecdot(vectors, vector)
            best = np.lexsort((places, -products))[:top]
            rows.append(places[best])
            scores.append(products[best])
        return np.stack(rows), np.stack(scores)

    def _read(self, query: Any, number: int) -> tuple[NDArray[np.uint64], Matrix]:
        """Return the ids and vectors of a query, which are so many unless vectors are null."""
        rows = query.to_arrow()
        flat = rows["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors = flat.reshape(-1, self.shape[1])
        require(len(vectors) == number and are_unit(vectors), self._folder, _NOT_UNIT)
        return rows["_rowid"].to_numpy(), vectors


def read_table(folder: Path) -> tuple[dict[str, Any], TableVectors, dict[str, TableTexts]]:
    """Return the record, the vectors and the columns of texts of a table, sorted by name.

    Raises CompoclipError for a damaged one, and without LanceDB.
    """
    import pyarrow as pa  # here: an index in a file is read without it
    import pyarrow.compute as pc

    lancedb = optional("lancedb", "lancedb", str(folder))
    again = "delete the index and run compoclip index again"
    about = files.read_json_object(folder / ABOUT, damaged=again)
    with _one_line(folder):
        table = lancedb.connect(str(folder)).open_table(_TABLE)
        table.checkout(table.version)  # whatever is written meanwhile
        rows = table.search().select([*_TEXTS]).with_row_id(True).limit(None).to_arrow()
        for name in _TEXTS:
            if rows[name].type not in (pa.string(), pa.large_string()) or rows[name].null_count:
                raise ValueError(f"not every row of {name!r} is a text")
        rows = rows.take(pc.sort_indices(rows["name"])).combine_chunks()
        vectors = TableVectors(folder, table, rows["_rowid"].to_numpy())
        texts = {name: TableTexts(pa.concat_arrays(rows[name].chunks)) for name in _TEXTS}
    return about, vectors, texts


class TableWriter:
    """Writes photos into a table batch by batch, those that changed and no others.

    Args:
        folder: The folder of the table; made by the first batch.
        about: The record of the index.
        stale: Names of photos to remove, when the first batch comes.
        anew: Begin with an empty table.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], stale: Sequence[str], anew: bool):
        self._folder, self._about, self._stale, self._anew = folder, about, stale, anew
        self._lancedb = optional("lancedb", "lancedb", "--to lancedb")
        self._table: Any = None
        self._waiting: list[pa.Table] = []

    def add(
        self, names: list[str], stamps: list[str], captions: list[str], vectors: Matrix
    ) -> None:
        """Add photos; names that are in the table already must be stale."""
        import pyarrow as pa

        vectors_column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.ravel()), vectors.shape[1]
        )
        texts = [pa.array(column, pa.large_string()) for column in (names, stamps, captions)]
        self._waiting.append(pa.table([*texts, vectors_column], names=[*_TEXTS, "vector"]))
        if sum(map(len, self._waiting)) >= _WRITTEN:
            self._write()

    def finish(self) -> None:
        """Write what is left, and the record."""
        self._write()
        with _one_line(self._folder, writing=True):
            self._table.optimize()
        save_about(self._folder, self._about)

    def _write(self) -> None:
        import pyarrow as pa

        with _one_line(self._folder, writing=True):
            if self._table is None:
                self._open()
            if self._waiting:
                self._table.add(pa.concat_tables(self._waiting))
        self._waiting = []

    def _open(self) -> None:
        """Open the table without what is stale, or make it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        database = self._lancedb.connect(str(self._folder))
        if self._anew:
            database.drop_table(_TABLE, ignore_missing=True)
            save_about(self._folder, self._about)
            self._table = database.create_table(_TABLE, schema=self._waiting[0].schema)
            return
        self._table = database.open_table(_TABLE)
        for part in range(math.ceil(len(self._stale) / _NAMED)):
            names = self._stale[part * _NAMED : (part + 1) * _NAMED]
            quoted = ", ".join("'{}'".format(name.replace("'", "''")) for name in names)
            self._table.delete(f"name IN ({quoted})")


def save_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the record of a table."""
    files.write_json(folder / ABOUT, about)
