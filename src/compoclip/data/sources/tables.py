"""Tables of images and captions: CSV, TSV, JSON, JSON lines, Parquet, Hugging Face's data sets.

Of the latter, `hf:NAME/SPLIT`, NAME is a data set of the hub (`owner/name`, with a configuration
`owner/name:config`), which the `datasets` library downloads once and caches, or a folder: one that
`save_to_disk` wrote, or one that `load_dataset` reads. The table stays in the library's
memory-mapped files; captions are read once, images when they are shown. Streams are refused: a
batch is a function of (seed, epoch, step), and a stream can be entered only by reading what came
before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from compoclip.arrow_files import has_image, holds_bytes, holds_text, opened_parquet, require_texts
from compoclip.data.columns import (
    EXTRA_NAMES,
    LABEL_COLUMNS,
    NEG_IMAGE,
    cell_captions,
    class_names,
    column_named,
    distinct_names,
    pick_columns,
    read_extras,
    read_label,
    read_split,
    usual_column,
    usual_names,
)
from compoclip.data.places import HUB, STREAM
from compoclip.data.sources import ImageColumn, Source
from compoclip.data.sources.table import RowBuilder
from compoclip.data.split_names import ALL, COLUMN, TRAIN, require_split, rows_decide
from compoclip.embedded_images import EmbeddedImages
from compoclip.errors import CompoclipError, UsageError, abridged, optional, require
from compoclip.files import reading, reason
from compoclip.patterns import has_ending
from compoclip.records import Enough, columns_of, json_columns, read_rows

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request

_Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Rows with their place in the file, for messages."""


@dataclass(frozen=True)
class RowTable:
    """One table: a file, or a part of a data set.

    Args:
        name: The file, for messages.
        columns: The names of its columns.
        rows: Its rows, given the columns to read.
        kinds: The Arrow types of the columns, where the table states them.
        split: The split that the name of the table stands for, or "".
        classes: Column -> the names of its numbers, where the table states them.
    """

    name: object
    columns: Sequence[str]
    rows: Callable[[set[str]], _Rows]
    kinds: Mapping[str, Any] = field(default_factory=dict)
    split: str = ""
    classes: Callable[[str], tuple[str, ...]] = lambda column: ()

    def embedded(self, image: str, captions: Sequence[str], negative: str) -> list[str]:
        """Return the columns of encoded images, sorted. Raise UsageError for other kinds."""
        names = {image, negative}.intersection(self.kinds)
        embedded = sorted(name for name in names if holds_bytes(self.kinds[name]))
        if self.kinds and image not in embedded and not holds_text(self.kinds[image]):
            raise UsageError(
                f"{self.name}: column {image!r} holds {self.kinds[image]}, not image paths or bytes"
            )
        for name in captions if self.kinds else ():
            require_texts(name, self.kinds[name], self.name, images=name in embedded)
        return embedded


def table_of(
    file: Path, quoting: bool = True, split: str = "", enough: Enough = lambda names: True
) -> RowTable:
    """Return the table in a .csv, .tsv, .jsonl, .jsonl.gz or .parquet file.

    enough: says when the columns of JSON lines will do; by default those of the first row do.
    """
    if has_ending(file, ".parquet"):
        with opened_parquet(file) as parquet:
            schema = parquet.schema_arrow
        kinds = dict(zip(schema.names, schema.types))
        rows = partial(read_rows, file)
        return RowTable(file, schema.names, rows, kinds, split, partial(class_names, schema))
    rows = partial(read_rows, file, quoting=quoting)
    return RowTable(file, columns_of(file, enough, quoting), rows, split=split)


def _enough_for(request: Request, path: object) -> Enough:
    """Say when the columns of JSON rows have the image and all texts that a request may read."""

    def enough(names: Collection[str]) -> bool:
        image, caption = request.image_column, request.caption_column
        _, captions = pick_columns(names, image, caption, path, request.needs)
        label = usual_column(LABEL_COLUMNS, names) is not None
        if request.needs == "labels":
            return label
        if request.needs == "captions or labels":
            return bool(captions) and label
        return request.needs == "photos" or bool(captions)

    return enough


def read_tables(
    tables: Sequence[RowTable],
    request: Request,
    folder: Path | None,
    images: Callable[[str], EmbeddedImages | _Cells],
    title: str,
    renamed: Mapping[str, str] = MappingProxyType({}),
    lists: bool = False,
    published: bool = False,
) -> Source:
    """Read one or several tables of the same columns, as one source.

    The columns that `read_extras` knows are read as well; neg_image may hold encoded images, too.
    Ids are "image#row", rows counted from 0 over all tables as neg_image does, and "FILE, row N" of
    encoded images.

    Args:
        tables: The tables.
        request: Its image column has paths, encoded bytes or a struct with a field `bytes`; a cell
            of a caption column holds a caption or a list of them.
        folder: What paths are relative to where the request names no folder; None for nothing.
        images: Opens the images of a column of all tables.
        title: Begins the description of the source, which lists the image and caption columns.
        renamed: What an extra column is called in the tables.
        lists: Whether neg_caption may be a list only.
        published: Whether the columns are known, and not listed.

    Raises:
        UsageError: For a column that is not there.
        CompoclipError: For a malformed row, an image path that leaves the folder, and when no
            sample is left.
    """
    first = tables[0]
    builder = RowBuilder.of_paths(first.name, request, folder or Path())
    negative = renamed.get(NEG_IMAGE, NEG_IMAGE)
    negative = column_named(negative, first.columns) or negative
    columns: list[tuple[str, tuple[str, ...]]] = []
    embedded: list[str] = []
    for table in tables:
        image, captions = pick_columns(
            table.columns,
            request.image_column,
            request.caption_column,
            table.name,
            request.needs,
            table.kinds,
        )
        columns.append((image, captions))
        in_table = table.embedded(image, captions, negative)
        if not (image in in_table or request.images or folder):
            encoded = sorted(
                column
                for column, kind in table.kinds.items()
                if column not in captions and holds_bytes(kind)
            )
            hint = f", or name what has images with --image-column {encoded[0]}" if encoded else ""
            raise UsageError(
                f"{table.name}: column {image!r} holds paths: say with --images to what folder"
                f"{hint}"
            )
        if in_table != embedded and table is not first:
            raise CompoclipError(f"{table.name}: holds images in other columns than {first.name}")
        embedded = in_table
    present: dict[str, tuple[int, Sequence[bool]]] = {}
    for column in embedded:
        opened = images(column)
        builder.places.append(ImageColumn(column, opened))
        present[column] = (len(builder.places) - 1, opened.present())
    label = usual_column(LABEL_COLUMNS, [name for table in tables for name in table.columns])
    if "labels" in request.needs and request.caption_column:
        label, columns = request.caption_column, [(image, ()) for image, _ in columns]
    classes = first.classes(label) if label else ()
    distinct = distinct_names(classes)
    short = [Path(str(table.name)).name for table in tables]
    unique = len(set(short)) == len(short)
    for table, (image, captions), name in zip(tables, columns, short):
        usual = usual_names(tuple(table.columns), EXTRA_NAMES, tuple(renamed.items()))
        extras = {*EXTRA_NAMES, *usual}
        names = {image, *captions, *extras, *([label] if label else [])} - {*embedded}
        prefix = f"{name if unique else table.name}, " if isinstance(table.name, Path) else ""
        split_names = table.classes(column_named(COLUMN, table.columns) or COLUMN)
        for place, record in table.rows(names):
            row, origin = builder.rows, f"{table.name}, {place}"
            if image in present:
                number, has = present[image]
                id, path = f"{prefix}{place}", str(row) if has[row] else None
            else:
                number, path = 0, builder.path_of(record.get(image), origin)
                id = f"{path}#{row}"
            if usual:
                more = {name: record.get(column) for column, name in usual.items()}
                record = {**record, **more}
            cells = read_extras(record, origin, builder.path_of, lists=lists)
            if negative in present and present[negative][1][row]:
                cells |= {"negative_place": present[negative][0], "negative_image": str(row)}
            texts = [text for column in captions for text in cell_captions(record.get(column))]
            split = table.split or read_split(record.get(COLUMN), origin, split_names)
            named = read_label(record.get(label), distinct) if label else ""
            builder.add(id, path, texts, cells, origin, number, named, split)
    head = "a header" if has_ending(Path(str(first.name)), ".csv", ".tsv") else "columns"
    require(builder.rows, first.name, f"has {head} and no rows; add rows, or name another file")
    used = dict.fromkeys(name for image, texts in columns for name in (image, *texts))
    source = builder.build(title if published else f"{title} (columns {', '.join(used)})")
    source.classes = classes
    return source


def open_tables(
    files: Sequence[Path],
    request: Request,
    splits: Sequence[str] = (),
    name: str = "",
    **options: Any,
) -> Source:
    """Open files as `read_tables` does. splits: of the files. name: of a published table."""
    splits = splits or ["" for _ in files]
    tables = [
        table_of(file, request.quoting, split, _enough_for(request, file))
        for file, split in zip(files, splits)
    ]
    title = f"{name} {files[0]}" if name else f"table {abridged([*map(str, files)], 1)}"
    images, folder = partial(EmbeddedImages, files), files[0].parent
    return read_tables(tables, request, folder, images, title, published=bool(name), **options)


def open_records(path: Path, rows: Sequence[Any], request: Request) -> Source:
    """Open rows of a JSON file: objects with the columns that tables may have."""
    require(rows, path, "has no rows; add rows, or name another file")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise CompoclipError(
                f"{path}, row {number}: is no object with an image and captions; fix it"
            )
    columns = json_columns(rows, _enough_for(request, path))
    numbered = [(f"row {number}", row) for number, row in enumerate(rows, 1)]
    table = RowTable(path, columns, lambda names: numbered)
    images = partial(EmbeddedImages, [path])
    return read_tables([table], request, path.parent, images, f"table {path}")


# --- Data sets of Hugging Face. ---

_AT_ONCE = 1024


def open_hugging_face(request: Request) -> Source:
    """Open a data set of the `datasets` library, with the columns that tables may have.

    request: its spec is `hf:NAME/SPLIT`. Without the split of a folder the parts of the data are
    its splits.

    Raises UsageError for a stream, a name without a split, and a wrong column, CompoclipError when
    the library is not installed or cannot open the data set, and for rows that are malformed.
    """
    spec = request.spec
    if spec.startswith(STREAM):
        name = spec.removeprefix(STREAM)
        raise UsageError(
            f"{spec}: a stream cannot be trained on, because batches, --resume and --workers need "
            f"access by index; {HUB}{name} downloads the split once"
        )
    parts = _loaded(spec, request.split)
    tables = [_table(spec, data, split) for split, data in parts.items()]
    images = partial(_Cells, [*parts.values()], spec)
    return read_tables(tables, request, None, images, f"data set {spec}")


def _table(spec: str, data: Any, split: str) -> RowTable:
    schema = data.features.arrow_schema

    def rows(selected: set[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        names = [name for name in schema.names if name in selected]
        batches = data.select_columns(names).with_format("arrow").iter(_AT_ONCE) if names else ()
        cells = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(cells if names else repeat({}, len(data)), 1):
            yield f"{split if split != TRAIN else ''} row {number}".strip(), row

    def classes(column: str) -> tuple[str, ...]:
        return tuple(getattr(data.features.get(column), "names", None) or ())

    kinds = dict(zip(schema.names, schema.types))
    return RowTable(spec, schema.names, rows, kinds, split, classes)


def _loaded(spec: str, split: str | None) -> dict[str, Any]:
    """The parts of a data set by split, "" where it is one; images are as stored, not decoded."""
    library: Any = optional("datasets", "datasets", spec)
    name, config, part = _parts(spec, split)
    enabled = False
    try:
        if enabled := library.is_progress_bar_enabled():
            library.disable_progress_bars()
        # What `save_to_disk` leaves in a folder.
        if any((Path(name) / file).is_file() for file in ("dataset_dict.json", "state.json")):
            data = library.load_from_disk(name)
        else:
            data = library.load_dataset(name, config, split=part)
        parts: dict[str, Any] = {"": data}
        if isinstance(data, Mapping):
            first: Any = next(iter(data.values()), None)
            if rows_decide(data, lambda: column_named(COLUMN, first.features) is not None):
                parts = {"": first}
            else:
                members = [*data] if split == ALL else require_split(split, data, spec)
                parts = {member: data[member] for member in members}
        for member, data in parts.items():
            for column, feature in data.features.items():
                if isinstance(feature, library.Image):
                    data = data.cast_column(column, library.Image(decode=False))
            parts[member] = data
    except CompoclipError:
        raise
    except Exception as error:  # no network, no such name, no such split, a damaged file, ...
        raise CompoclipError(
            f"{spec}: cannot be opened ({type(error).__name__}: {reason(error)}); check name and "
            "split (hf:NAME/SPLIT), and the network if it is not downloaded yet"
        ) from error
    finally:
        if enabled:
            library.enable_progress_bars()
    return parts


def _parts(spec: str, split: str | None) -> tuple[str, str | None, str | None]:
    """Name, configuration and split, None for all. Raises UsageError where there is no split."""
    rest = spec.removeprefix(HUB)
    if rest and Path(rest).is_dir():
        return rest, None, None
    part = None
    if not split or rest.count("/") > 1:
        rest, _, part = rest.rpartition("/")
        require(rest and part, spec, "name data set and split: hf:NAME/SPLIT", UsageError)
    name, _, config = rest.partition(":")
    return name, config or None, part


class _Cells:
    """The images of one column, by row over all parts: encoded, however they are stored."""

    def __init__(self, parts: Sequence[Any], spec: str, column: str) -> None:
        self._parts, self._spec = [part.select_columns([column]) for part in parts], spec
        self._column = column
        # The state of the data set's files and of all that was done to them.
        self.stamp = " ".join(str(part._fingerprint) for part in parts)

    def located(self, row: int) -> tuple[Path, int]:
        """Refuse to name the library's file; benchmarks need one."""
        raise UsageError(
            f"{self._spec}: is measured from files alone; save it as Parquet (Dataset.to_parquet) "
            "first"
        )

    def present(self) -> list[bool]:
        """Return for each row whether it has an image."""
        batches = (b for part in self._parts for b in part.with_format("arrow").iter(_AT_ONCE))
        return [has for batch in batches for has in has_image(batch.column(0)).to_pylist()]

    def __call__(self, image: str) -> bytes:
        """The encoded image of row `image`; no bytes when it has none, which decoding refuses."""
        row = int(image)
        for part in self._parts:
            if row < len(part):
                break
            row -= len(part)
        cell = part[row][self._column]
        if not isinstance(cell, Mapping):
            return bytes(cell or b"")
        if cell.get("bytes") is None and cell.get("path"):
            with reading(Path(cell["path"]), f"open the data set {self._spec} anew"):
                return Path(cell["path"]).read_bytes()
        return bytes(cell.get("bytes") or b"")
