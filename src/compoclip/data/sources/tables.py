"""Tables of images and captions: CSV, TSV, JSON lines, Parquet and Hugging Face's data sets.

Of the latter, `hf:NAME/SPLIT`, NAME is a data set of the hub (`owner/name`, with a configuration
`owner/name:config`), which the `datasets` library downloads once and caches, or a folder: one that
`save_to_disk` wrote, or one that `load_dataset` reads. The table stays in the library's
memory-mapped files; captions are read once, images when they are shown. Streams are refused: a
batch is a function of (seed, epoch, step), and a stream can be entered only by reading what came
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from compoclip.archives import EmbeddedImages
from compoclip.data.columns import (
    EXTRA_COLUMNS,
    LABEL_COLUMNS,
    NEG_IMAGE,
    as_text,
    cell_captions,
    class_names,
    pick_columns,
    read_extras,
    read_label,
    relative_image,
    usual_column,
)
from compoclip.data.sources import ImageColumn, Source
from compoclip.data.sources.splits import ALL, COLUMN, TRAIN, NoUseError, Split
from compoclip.data.sources.table import RowBuilder
from compoclip.errors import CompoclipError, UsageError, optional, require
from compoclip.files import reading, reason
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

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request

HUB, STREAM = "hf:", "hf-stream:"
_Columns = tuple[str, Sequence[str]]
"""The image column, and the caption columns."""


@dataclass
class _Rows:
    """Turns rows of a table into samples.

    renamed: extra column -> its name in the file, if it has another one. lists: whether neg_caption
    must be a list. images: column of encoded images -> the number of its place, and whether a row
    has one.
    """

    builder: RowBuilder
    split: Split
    renamed: Mapping[str, str] = field(default_factory=dict)
    lists: bool = False
    images: dict[str, tuple[int, Callable[[int], bool]]] = field(default_factory=dict)
    has_splits: bool = False
    label: str | None = None
    classes: tuple[str, ...] = ()

    def held(self, origin: object, kinds: Mapping[str, Any], columns: _Columns) -> list[str]:
        """Return the columns of encoded images, sorted. Raise UsageError for other kinds."""
        image, captions = columns
        names = {image, self.renamed.get(NEG_IMAGE, NEG_IMAGE)}.intersection(kinds)
        held = sorted(name for name in names if holds_bytes(kinds[name]))
        if kinds and image not in held and not holds_text(kinds[image]):
            what = f"column {image!r} holds {kinds[image]}, not image paths or bytes"
            raise UsageError(f"{origin}: {what}")
        for name in captions if kinds else ():
            if name in held or not holds_text(kinds[name], lists=True):
                what = "images" if holds_bytes(kinds[name]) else kinds[name]
                raise UsageError(f"{origin}: column {name!r} holds {what}, not captions")
        return held

    def hold(
        self, columns: Iterable[str], opened: Callable[[str], EmbeddedImages | _Cells]
    ) -> None:
        """Add the places of the columns of encoded images."""
        for column in columns:
            images = opened(column)
            self.builder.places.append(ImageColumn(column, images))
            other = column == self.renamed.get(NEG_IMAGE, NEG_IMAGE)
            present = images.present() if other else []
            self.images[column] = (len(self.builder.places) - 1, present.__getitem__)

    def wanted(self, columns: _Columns) -> set[str]:
        """Return the columns to read, besides those of encoded images."""
        extras = (self.renamed.get(extra, extra) for extra in EXTRA_COLUMNS)
        labels = {self.label} if self.label else set()
        return {columns[0], *columns[1], COLUMN, *extras, *labels}.difference(self.images)

    def add(
        self,
        records: Iterable[tuple[str, Mapping[str, Any]]],
        columns: _Columns,
        file: object,
        name: str,
    ) -> None:
        """Add rows, each with its place in the file, for messages, and its cells.

        file: for messages. name: begins the ids of rows with encoded images.
        """
        image, captions = columns
        builder, root = self.builder, self.builder.root
        other = self.renamed.get(NEG_IMAGE, NEG_IMAGE)
        for place, record in records:
            self.has_splits |= COLUMN in record
            if self.has_splits:
                part = as_text(record.get(COLUMN))
                if not self.split.takes(None if part is None else str(part)):
                    builder.rows += 1
                    continue
            row, origin = builder.rows, f"{file}, {place}"
            if self.renamed:
                own = {extra: record.get(self.renamed.get(extra, extra)) for extra in EXTRA_COLUMNS}
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
            label = read_label(record.get(self.label), self.classes) if self.label else ""
            builder.add(id, path, texts, extras, origin, number, label)


def open_table(
    files: Sequence[Path],
    asked: Request,
    renamed: Mapping[str, str] = MappingProxyType({}),
    lists: bool = False,
    name: str = "",
) -> Source:
    """Open one or several tables of one kind and the same columns, as one source.

    The columns that `read_extras` knows are read as well; in Parquet neg_image may hold encoded
    images, too. Ids are "image#row", rows counted from 0 over all files as neg_image does, and
    "FILE, row N" of encoded images.

    files: .csv, .tsv, .jsonl, .jsonl.gz or .parquet. asked: its image column has paths or, in
    Parquet, encoded bytes or a struct with a field `bytes`; a cell of a caption column holds a
    caption or a list of them; its split is that of a column "split". renamed: what an extra column
    is called in the file. lists: neg_caption may be a list only. name: in the description, for a
    table with its columns.

    Raises UsageError for a column or split that is not there, CompoclipError for a file that is
    missing or malformed, an image path that leaves the folder, or when no sample is left.
    """
    first = files[0]
    root = asked.images if asked.images is not None else first.parent
    builder = RowBuilder(first, root, needs=asked.needs)
    rows = _Rows(builder, Split(asked.split), renamed, lists)
    columns: dict[Path, _Columns] = {}
    held: list[str] = []
    for file in files:
        names, kinds = columns_of(file, asked.quoting)
        named = asked.image_column, asked.caption_column
        columns[file] = pick_columns(names, *named, file, asked.needs)
        rows.label = rows.label or usual_column(LABEL_COLUMNS, names)
        rows.classes = rows.classes or _stated_classes(file, rows.label)
        found = rows.held(file, kinds, columns[file])
        same = found == held or file == first
        require(same, file, f"holds images in other columns than {first}")
        held = found
    rows.hold(held, partial(EmbeddedImages, files))
    unique = len({file.name for file in files}) == len(files)
    for file in files:
        records: Iterable[tuple[str, Mapping[str, Any]]]
        if has_ending(file, *ROW_FILES):
            records = read_rows(file, rows.wanted(columns[file]))
        else:
            read = read_delimited(file, quoting=asked.quoting)
            records = ((f"row {number}", row) for number, row in read)
        rows.add(records, columns[file], file, f"{file.name if unique else file}, ")
    if asked.split not in (None, ALL) and not rows.has_splits:
        raise NoUseError("split", f"{first}: tables take no --split without a column {COLUMN!r}")
    rows.split.require(first)
    builder.left_out.update(rows.split.left_out())
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    used = dict.fromkeys(each for image, texts in columns.values() for each in (image, *texts))
    what = f"table {first}{more} (columns {', '.join(used)}){rows.split}"
    source = builder.build(f"{name} {first}" if name else what)
    source.classes = rows.classes
    return source


def _stated_classes(file: Path, label: str | None) -> tuple[str, ...]:
    """Return the names of the labels that a Parquet file states."""
    if label is None or not has_ending(file, ".parquet"):
        return ()
    with opened_parquet(file) as parquet:
        return class_names(parquet.schema_arrow, label)


def columns_of(file: Path, quoting: bool = True) -> tuple[Sequence[str], Mapping[str, Any]]:
    """Return the columns of a file, and their kinds where it states them."""
    if has_ending(file, ".parquet"):
        with opened_parquet(file) as parquet:
            schema = parquet.schema_arrow
            return schema.names, dict(zip(schema.names, schema.types))
    if has_ending(file, *ROW_FILES):
        return [*next((row for _, row in read_jsonl(file)), {})], {}
    return delimited_header(file, quoting=quoting), {}


# --- Data sets of Hugging Face. ---

_AT_ONCE = 1024


def open_hugging_face(asked: Request) -> Source:
    """Open a data set of the `datasets` library, with the columns that tables may have.

    asked: its spec is `hf:NAME/SPLIT`; without the split of a folder, `split` or "train" is read.

    Raises UsageError for a stream, a name without a split, and a wrong column, CompoclipError when
    the library is not installed or cannot open the data set, and for rows that are malformed.
    """
    spec, images = asked.spec, asked.images
    if spec.startswith(STREAM):
        name = spec.removeprefix(STREAM)
        raise UsageError(
            f"{spec}: a stream cannot be trained on: its samples have no numbers, which the order "
            f"of batches, --resume and --workers need; {HUB}{name} downloads the split once"
        )
    data = _loaded(spec, asked.split)
    schema = data.features.arrow_schema
    named = asked.image_column, asked.caption_column
    columns = pick_columns(schema.names, *named, Path(spec), asked.needs)
    root = images if images is not None else Path()
    label = usual_column(LABEL_COLUMNS, schema.names)
    classes = tuple(getattr(data.features.get(label), "names", None) or ())
    builder = RowBuilder(spec, root, needs=asked.needs)
    rows = _Rows(builder, Split(ALL), label=label, classes=classes)
    held = rows.held(spec, dict(zip(schema.names, schema.types)), columns)
    problem = f"column {columns[0]!r} holds paths: say with --images to what folder"
    require(columns[0] in held or images is not None, spec, problem, UsageError)
    rows.hold(held, partial(_Cells, data, spec))
    wanted = [name for name in schema.names if name in rows.wanted(columns)]
    batches = data.select_columns(wanted).with_format("arrow").iter(_AT_ONCE) if wanted else ()
    cells = (row for batch in batches for row in batch.to_pylist())
    numbered = enumerate(cells if wanted else repeat({}, len(data)), 1)
    rows.add(((f"row {number}", row) for number, row in numbered), columns, spec, "")
    listed = ", ".join(dict.fromkeys((columns[0], *columns[1])))
    chosen = f", split {asked.split}" if asked.split else ""
    source = builder.build(f"data set {spec}{chosen} (columns {listed})")
    source.classes = classes
    return source


def _loaded(spec: str, split: str | None) -> Any:
    """The data set with its images as they are stored, not decoded."""
    library: Any = optional("datasets", "datasets", spec)
    name, config, part = _parts(spec, split)
    shown = False
    try:
        if shown := library.is_progress_bar_enabled():
            library.disable_progress_bars()
        # What `save_to_disk` leaves in a folder.
        if any((Path(name) / file).is_file() for file in ("dataset_dict.json", "state.json")):
            data = library.load_from_disk(name)
            if isinstance(data, Mapping):
                problem = f"no split {part!r}; it has: {', '.join(data)}"
                require(part in data, spec, problem, UsageError)
                data = data[part]
        else:
            data = library.load_dataset(name, config, split=part)
        for column, feature in data.features.items():
            if isinstance(feature, library.Image):
                data = data.cast_column(column, library.Image(decode=False))
    except CompoclipError:
        raise
    except Exception as error:  # no network, no such name, no such split, a damaged file, ...
        raise CompoclipError(
            f"{spec}: cannot be opened ({type(error).__name__}: {reason(error)}); check name and "
            "split (hf:NAME/SPLIT), and the network where it is not downloaded yet"
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
        require(rest and split, spec, "name data set and split: hf:NAME/SPLIT", UsageError)
    name, _, config = rest.partition(":")
    return name, config or None, split


class _Cells:
    """The images of one column, by row: encoded, however they are stored."""

    def __init__(self, data: Any, spec: str, column: str) -> None:
        self._rows, self._column, self._spec = data.select_columns([column]), column, spec
        # The state of the data set's files and of all that was done to them.
        self.stamp = str(data._fingerprint)

    def present(self) -> list[bool]:
        """Return for each row whether it has an image."""
        batches = self._rows.with_format("arrow").iter(_AT_ONCE)
        return [has for batch in batches for has in batch.column(0).is_valid().to_pylist()]

    def __call__(self, image: str) -> bytes:
        """The encoded image of row `image`; no bytes when it has none, which decoding refuses."""
        cell = self._rows[int(image)][self._column]
        if not isinstance(cell, Mapping):
            return bytes(cell or b"")
        if cell.get("bytes") is None and cell.get("path"):
            with reading(Path(cell["path"]), f"open the data set {self._spec} anew"):
                return Path(cell["path"]).read_bytes()
        return bytes(cell.get("bytes") or b"")
