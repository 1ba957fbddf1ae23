"""Tables of images and captions: CSV, TSV, JSON lines, Parquet and Hugging Face's data sets.

Of the latter, `hf:NAME/SPLIT`, NAME is a data set of the hub (`owner/name`, with a configuration
`owner/name:config`), which the `datasets` library downloads once and keeps, or a folder: one that
`save_to_disk` wrote, or one that `load_dataset` reads. The table stays in the library's
memory-mapped files; captions are read once, images when they are shown. Streams are refused: a
batch is a function of (seed, epoch, step), and a stream can be entered only by reading what came
before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

from compoclip.archives import EmbeddedImages
from compoclip.data.columns import (
    EXTRA_COLUMNS,
    NEG_IMAGE,
    as_text,
    cell_captions,
    pick_columns,
    read_extras,
    relative_image,
)
from compoclip.data.sources.splits import ALL, COLUMN, TRAIN, NoUseError, Split
from compoclip.data.sources.table import ImageColumn, RowBuilder, TableSource
from compoclip.errors import CompoclipError, UsageError, pip_install, require
from compoclip.files import unreadable
from compoclip.tables import (
    ROW_FILES,
    delimited_header,
    has_ending,
    holds_bytes,
    holds_text,
    opened_parquet,
    read_delimited,
    read_jsonl,
    read_rows,
)

HUB, STREAM = "hf:", "hf-stream:"


@dataclass
class _Rows:
    """Turns rows of a table into samples.

    Args:
        builder: Collects the samples.
        split: The split to read.
        renamed: Extra column -> its name in the file, if it has another one.
        lists: Whether neg_caption must be a list.
        images: Column of encoded images -> the number of its place, and whether a row has one.
    """

    builder: RowBuilder
    split: Split | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    lists: bool = False
    images: dict[str, tuple[int, Callable[[int], bool]]] = field(default_factory=dict)
    has_splits: bool = False

    def called(self, extra: str) -> str:
        """Return the name of an extra column in the file."""
        return self.renamed.get(extra, extra)

    def add(
        self,
        records: Iterable[tuple[str, Mapping[str, Any]]],
        columns: tuple[str, Sequence[str]],
        file: str,
        name: str,
    ) -> None:
        """Add rows, each with its place in the file, for messages, and its cells.

        columns: the image column, and the caption columns. file: for messages. name: begins the
        ids of rows with encoded images.
        """
        image, captions = columns
        builder, root = self.builder, self.builder.root
        other = self.called(NEG_IMAGE)
        for place, record in records:
            self.has_splits |= self.split is not None and COLUMN in record
            if self.has_splits and self.split:
                part = as_text(record.get(COLUMN))
                if not self.split.takes(None if part is None else str(part)):
                    builder.rows += 1
                    continue
            row, origin = builder.rows, f"{file}, {place}"
            if self.renamed:
                own = {extra: record.get(self.called(extra)) for extra in EXTRA_COLUMNS}
                record = {**record, **own}
            number = 0
            if image in self.images:
                number = self.images[image][0]
                id, path = f"{name}{place}", str(row)
            elif not isinstance(record.get(image), str):
                raise CompoclipError(f"{origin} has no image path in column {image!r}; fix it")
            else:
                path = relative_image(record[image], root, origin)
                id = f"{path}#{row}"
            extras = read_extras(record, root, origin, lists=self.lists)
            if other in self.images and self.images[other][1](row):
                extras |= {"negative_place": self.images[other][0], "negative_image": str(row)}
            texts = [text for column in captions for text in cell_captions(record.get(column))]
            builder.add(id, path, texts, extras, origin, number)


def open_table(
    files: Sequence[Path],
    images: Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split: str | None = None,
    renamed: Mapping[str, str] = MappingProxyType({}),
    quoting: bool = True,
    lists: bool = False,
    name: str = "",
) -> TableSource:
    """Open one or several tables of one kind and the same columns, as one source.

    The columns that `read_extras` knows are read as well; in Parquet neg_image may hold encoded
    images, too. Ids are "image#row", rows counted from 0 over all files as neg_image does, and
    "FILE, row N" of encoded images.

    files: .csv, .tsv, .jsonl, .jsonl.gz or .parquet. images: the folder that image paths are
    relative to, by default that of the first file. image_column: of paths; in Parquet also encoded
    bytes, or a struct with a field `bytes`. caption_column: one name or several joined by commas; a
    cell holds a caption or a list of them. Columns not named are guessed. split: of a table with a
    column "split", the rows that are read, see `Split`. renamed: what an extra column is called in
    the file. lists: neg_caption may be a list only. name: in the description, for a table with its
    columns.

    Raises UsageError for a column or split that is not there, CompoclipError for a file that is
    missing or malformed, an image path that leaves the folder, or when no sample is left.
    """
    builder = RowBuilder(files[0], images if images is not None else files[0].parent)
    rows = _Rows(builder, Split(split), renamed, lists)
    columns, held = {}, []
    records: Iterable[tuple[str, Mapping[str, Any]]]
    for file in files:
        names, kinds = _columns(file, quoting)
        columns[file] = pick_columns(names, image_column, caption_column, file)
        found = _held(file, kinds, columns[file], rows)
        if columns.keys() == {files[0]}:
            held = found
        elif found != held:
            raise CompoclipError(f"{file}: holds images in other columns than {files[0]}")
    for column in held:
        embedded = EmbeddedImages(files, column)
        builder.places.append(ImageColumn(column, embedded, embedded.stamp))
        present = embedded.present() if column == rows.called(NEG_IMAGE) else []
        rows.images[column] = (len(builder.places) - 1, present.__getitem__)
    unique = len({file.name for file in files}) == len(files)
    for file in files:
        wanted = {columns[file][0], *columns[file][1], COLUMN, *map(rows.called, EXTRA_COLUMNS)}
        if has_ending(file, *ROW_FILES):
            records = read_rows(file, wanted.difference(held))
        else:
            read = read_delimited(file, quoting=quoting)
            records = ((f"row {number}", row) for number, row in read)
        rows.add(records, columns[file], str(file), f"{file.name if unique else file}, ")
    chosen = rows.split
    assert chosen is not None
    if split not in (None, ALL) and not rows.has_splits:
        why = f"{files[0]}: tables take no --split without a column {COLUMN!r}"
        raise NoUseError("split", why)
    chosen.require(files[0])
    builder.left_out.update(chosen.left_out())
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    used = dict.fromkeys(each for image, texts in columns.values() for each in (image, *texts))
    what = f"table {files[0]}{more} (columns {', '.join(used)}){chosen}"
    return builder.build(f"{name} {files[0]}" if name else what)


def _columns(file: Path, quoting: bool) -> tuple[Sequence[str], Mapping[str, Any]]:
    """The columns of a file, and their kinds where it states them."""
    if has_ending(file, ".parquet"):
        with opened_parquet(file) as parquet:
            schema = parquet.schema_arrow
            return schema.names, dict(zip(schema.names, schema.types))
    if has_ending(file, *ROW_FILES):
        return [*next((row for _, row in read_jsonl(file)), {})], {}
    return delimited_header(file, quoting=quoting), {}


def _held(
    file: Path, kinds: Mapping[str, Any], columns: tuple[str, Sequence[str]], rows: _Rows
) -> list[str]:
    """The columns of encoded images, sorted. Raises UsageError for a column of another kind."""
    image, captions = columns
    names = {image, rows.called(NEG_IMAGE)}.intersection(kinds)
    held = sorted(name for name in names if holds_bytes(kinds[name]))
    if kinds and image not in held and not holds_text(kinds[image]):
        raise UsageError(f"{file}: column {image!r} holds {kinds[image]}, not image paths or bytes")
    for name in captions if kinds else ():
        if name in held or not holds_text(kinds[name], lists=True):
            raise UsageError(f"{file}: column {name!r} holds {kinds[name]}, not captions")
    return held


# --- Data sets of Hugging Face. ---

_AT_ONCE = 1024
_DICT, _ONE = "dataset_dict.json", "state.json"  # what `save_to_disk` leaves in a folder


def open_hugging_face(
    spec: str,
    images: Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split: str | None = None,
) -> TableSource:
    """Open a data set of the `datasets` library, with the columns that tables may have.

    spec: `hf:NAME/SPLIT`; without the split of a folder, `split` or "train" is read. images: the
    folder of a column of paths. Columns as for `open_table`.

    Raises UsageError for a stream, a name without a split, and a wrong column, CompoclipError when
    the library is not installed or cannot open the data set, and for rows that are malformed.
    """
    if spec.startswith(STREAM):
        name = spec.removeprefix(STREAM)
        raise UsageError(
            f"{spec}: a stream cannot be trained on: its samples have no numbers, which the order "
            f"of batches, --resume and --workers need; {HUB}{name} downloads the split once"
        )
    data = _loaded(spec, split)
    names = list(data.column_names)
    columns = pick_columns(names, image_column, caption_column, Path(spec))
    held = {name for name in (columns[0], NEG_IMAGE) if name in names and _pictured(data, name)}
    odd = next((name for name in columns[1] if name in held or _pictured(data, name)), None)
    require(odd is None, spec, f"column {odd!r} holds images, not captions", UsageError)
    problem = f"column {columns[0]!r} holds paths: say with --images to what folder"
    require(columns[0] in held or images is not None, spec, problem, UsageError)
    builder = RowBuilder(spec, images if images is not None else Path())
    rows = _Rows(builder)
    for name in sorted(held):
        # The state is that of the data set's files and of all that was done to them.
        builder.places.append(ImageColumn(name, _Cells(data, name, spec), str(data._fingerprint)))
        present: list[bool] = []  # of each row, whether it has an image
        if name == NEG_IMAGE:
            cells = data.select_columns([name]).with_format("arrow").iter(_AT_ONCE)
            present = [has for batch in cells for has in batch.column(0).is_valid().to_pylist()]
        rows.images[name] = (len(builder.places) - 1, present.__getitem__)
    wanted = [name for name in names if name in {columns[0], *columns[1], *EXTRA_COLUMNS} - held]
    batches = data.select_columns(wanted or names[:0]).with_format("arrow").iter(_AT_ONCE)
    cells = (
        (row for batch in batches for row in batch.to_pylist()) if wanted else repeat({}, len(data))
    )
    rows.add(((f"row {n}", each) for n, each in enumerate(cells, 1)), columns, spec, "")
    listed = ", ".join(dict.fromkeys((columns[0], *columns[1])))
    chosen = f", split {split}" if split else ""
    return builder.build(f"data set {spec}{chosen} (columns {listed})")


def _loaded(spec: str, split: str | None) -> Any:
    """The data set with its images as they are stored, not decoded."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise CompoclipError(
            f"{spec}: needs the datasets package: {pip_install('datasets')}"
        ) from error
    name, config, part = _parts(spec, split)
    shown = False
    try:
        if shown := library.is_progress_bar_enabled():
            library.disable_progress_bars()
        if (Path(name) / _DICT).is_file() or (Path(name) / _ONE).is_file():
            data = library.load_from_disk(name)
            if isinstance(data, Mapping):
                if part not in data:
                    raise UsageError(f"{spec}: no split {part!r}; it has: {', '.join(data)}")
                data = data[part]
        else:
            data = library.load_dataset(name, config, split=part)
        for column, feature in data.features.items():
            if isinstance(feature, library.Image):
                data = data.cast_column(column, library.Image(decode=False))
    except CompoclipError:
        raise
    except Exception as error:  # no network, no such name, no such split, a damaged file, ...
        reason = " ".join(str(error).split())[:300]
        raise CompoclipError(
            f"{spec}: cannot be opened ({type(error).__name__}: {reason}); check name and split "
            "(hf:NAME/SPLIT), and the network where it is not downloaded yet"
        ) from error
    finally:
        if shown:
            library.enable_progress_bars()
    return data


def _parts(spec: str, split: str | None) -> tuple[str, str | None, str]:
    """Name, configuration and split. Raises UsageError where there is no split."""
    rest = spec.removeprefix(HUB)
    require(split != ALL, spec, "name one split: hf:NAME/SPLIT", UsageError)
    if rest and Path(rest).is_dir():
        return rest, None, split or TRAIN
    if not split:
        rest, _, split = rest.rpartition("/")
        if not rest or not split:
            raise UsageError(f"{spec}: name data set and split: hf:NAME/SPLIT")
    name, colon, config = rest.rpartition(":")
    return (name, config, split) if colon else (rest, None, split)


def _pictured(data: Any, column: str) -> bool:
    feature = data.features[column]
    return hasattr(feature, "decode") or getattr(feature, "dtype", "").endswith("binary")


class _Cells:
    """The images of one column, by row: encoded, however they are stored."""

    def __init__(self, data: Any, column: str, spec: str) -> None:
        self._rows, self._column, self._spec = data.select_columns([column]), column, spec

    def __call__(self, image: str) -> bytes:
        """The encoded image of row `image`; no bytes when it has none, which decoding refuses."""
        cell = self._rows[int(image)][self._column]
        if not isinstance(cell, Mapping):
            return bytes(cell or b"")
        if cell.get("bytes") is None and cell.get("path"):
            try:
                return Path(cell["path"]).read_bytes()
            except OSError as error:
                remedy = f"open the data set {self._spec} anew"
                raise unreadable(Path(cell["path"]), error, remedy) from error
        return bytes(cell.get("bytes") or b"")
