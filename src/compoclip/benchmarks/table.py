"""The benchmarks of `benchmarks.yaml`: which columns of which files make an item.

The head of that file explains the keys of an entry. For anything else an entry names a function
("module:function" of this package):

- `edit(rows, data, **options)` gets the rows of all files and yields those that become items;
- `read(data, **options)` yields the cases of a benchmark without such files, or returns its set;
- `more_rules(data)` returns the rules that depend on the items.

Keyword-only arguments of the first two are options of the benchmark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from compoclip.archives import read_members
from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Case, Form, ImageRef, Meta, TiePolicy
from compoclip.benchmarks.entries import (
    Entry,
    File,
    entries,
    files_of,
    hook,
    official_meta,
    rules_of,
)
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.reader import CaseReader, Loading, options_of
from compoclip.bounds import MAX_ANNOTATION_BYTES
from compoclip.config import Option
from compoclip.console import counted
from compoclip.data.image_names import is_read
from compoclip.data.split_names import held_out_split, members_of, named_splits
from compoclip.errors import CompoclipError, closest, require
from compoclip.patterns import files_in, find_files, has_ending


@cache
def official_reader(name: str) -> CaseReader:
    """Return the reader of a benchmark of the package."""
    return reader_of(official_meta(name), entries()[name])


def reader_of(about: Meta, entry: Entry) -> CaseReader:
    """Return the reader of a benchmark that an entry (`benchmarks.yaml`) describes.

    The functions that the entry names are imported. about: the facts of the entry.
    """
    names = ("annotations", *(f"{place}_images" for place in _further_places(entry)))
    takes = {name: Option(name, Path | None, None) for name in names}
    if "edit" in entry:
        takes |= options_of(hook(entry["edit"]))
    whole = hook(entry["read"]) if "read" in entry else None
    ties = entry.get("ties", "strict")
    ties = {"": ties} if isinstance(ties, str) else ties
    return CaseReader(
        about,
        whole or partial(_cases, entry),
        rules=partial(rules_of, entry),
        headline=entry.get("headline", "micro"),
        ties={part: TiePolicy(policy) for part, policy in ties.items()},
        usual=tuple(entry.get("usual", ())),
        empty=entry.get("empty", f"no rows of PARTS; {files.OFFICIAL}"),
        takes=None if whole else takes,
    )


def _further_places(entry: Entry) -> dict[str, str]:
    """Return the places of photos in addition to the main one; an option moves each."""
    return {name: place for name, place in entry.get("places", {}).items() if name != "images"}


# --- Rows: what a file holds of one or more items. ---


@dataclass(slots=True)
class Row:
    """A row of a table while it becomes an item. A hook may change any of it.

    location: file and row, for messages. key: its place in the file as ids have it (line, key of an
    object, else index from 0); number: from 1. part: the sub-task. path: the file, or the archive
    that holds it. table: keys of the entry for this file. names: what templates may name. cells:
    the values are texts, with numbers and lists written in them. pictures: column -> picture in the
    file itself. images: () for those that the columns name. folder: template of the folder of the
    photos, "" for that of the table. labels: in addition to those of the table.
    """

    values: Mapping[str, Any]
    location: str
    key: str
    number: int
    part: str
    path: Path
    table: Entry
    names: Mapping[str, str]
    cells: bool = False
    pictures: Mapping[str, ImageRef] = field(default_factory=dict)
    images: tuple[ImageRef, ...] = ()
    folder: str = ""
    truth: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def require(self, good: object, problem: str) -> None:
        """Raise CompoclipError naming file and row unless `good`."""
        require(good, self.location, problem)

    def value(self, column: str) -> tuple[Any, str]:
        """Return what a column holds, and its name for messages; an absent one is refused.

        "a.b" is the value b of the object a, "a.0" the first of the list a.
        """
        first, *steps = column.split(".")
        location = f"{self.location}: {first!r}"
        value = files.field(self.values, first, self.location)
        for step in steps:
            if step.isdigit():
                listed = files.items(value, location)
                require(int(step) < len(listed), location, f"the list is empty; {files.OFFICIAL}")
                value = listed[int(step)]
            else:
                value = files.field(files.record(value, location), step, location)
                location = f"{location}: {step!r}"
        return value, location

    def text(self, column: str) -> str:
        """Return the text of a column, see `value`; a blank one is refused."""
        if "." not in column:  # nearly all, and faster
            return files.text(self.values, column, self.location)
        return files.nonempty(*self.value(column))

    def texts(self, column: str) -> list[str]:
        """Return the text of a column, or all of its list: "a*", or "a*5" for just five."""
        name, star, count = column.partition("*")
        if not star:
            return [self.text(name)]
        value, location = self.value(name)
        if self.cells:
            texts = list(tables.texts(self.values, name, self.location))
        else:
            listed = enumerate(files.items(value, location))
            texts = [files.nonempty(text, f"{location}: text {k}") for k, text in listed]
        self.require(
            not count or len(texts) == int(count),
            f"{name!r} must hold {counted(int(count or 0), 'text')}, not {len(texts)}; "
            f"{files.OFFICIAL}",
        )
        return texts

    def flag(self, column: str) -> bool:
        """Return whether a cell says True (or 1); anything but True, False, 1 and 0 is refused."""
        value, _ = self.value(column)
        flag = files.truth(value)
        self.require(flag is not None, f"{column!r} must be True or False, found {value!r:.40}")
        return bool(flag)

    def float(self, column: str) -> float:
        """Return the number of a column; anything else is refused."""
        value, location = self.value(column)
        if self.cells:
            with suppress(ValueError):
                value = float(value)
        last = column.rpartition(".")[2]
        return files.number({last: value}, last, location.removesuffix(f": {last!r}"))


def _rows(
    entry: Entry, data: Loading, annotations: Path | None, names: Mapping[str, str]
) -> Iterator[Row]:
    """Yield the rows of all files of the wanted sub-tasks, and of those that set thresholds."""
    parts = [name for part in data.parts for name in (part, data.tuned_on.get(part)) if name]
    listed: dict[str, File] = {}
    for part in parts:
        for file in files_of(entry, part, names):
            listed.setdefault(file.place, file)
    packed = {}
    if entry.get("archive"):
        file_names = {place: PurePosixPath(place).name for place in listed}
        place = annotations or data.root / entry.get("folder", PurePosixPath(entry["file"]).parent)
        if place.is_dir() and not any((place / name).is_file() for name in file_names.values()):
            zips = files_in(place, ".zip")
            examples = " and ".join(path.name for path in zips[:2])
            require(len(zips) < 2, place, f"holds {len(zips)} archives, {examples}; keep one")
            place = zips[0] if zips else place
        if has_ending(place, ".zip"):
            members = read_members(place, file_names, MAX_ANNOTATION_BYTES)
            packed = {key: (place, *member) for key, member in members.items()}
    by_hash: dict[str, ImageRef] = {}
    for file in listed.values():
        paths = _paths(file, data, annotations)
        for path, more in paths:
            all_names = {**file.names, **more}
            name = file.table.get("hashed_as", "{part}") if len(paths) == 1 else "{path}"
            name = name.format_map({**all_names, "path": path.name})
            archive, location, content = packed.get(file.place, (path, str(path), None))
            data.files[name] = path if content is None else content
            empty = True
            for row in _read(file, archive, location, content, by_hash):
                empty = False
                row.names = all_names
                yield row
            require(not empty, location, f"no rows; {files.OFFICIAL}")


def _paths(
    file: File, data: Loading, annotations: Path | None
) -> list[tuple[Path, dict[str, str]]]:
    """Return the paths of a file, of several shards or numbers, and what these add to the names."""
    table = file.table
    folder = data.root / table.get("folder", "")
    if annotations and "folder" in table:
        folder = annotations
    path = annotations if annotations and "folder" not in table else folder / file.place
    if table.get("shards"):
        place = annotations or path.parent
        shards = [place] if place.is_file() else sorted(place.glob("*.arrow"))
        shards = shards or sorted(place.glob("data/*.arrow")) or _held_out(place)
        if not shards and "*" in path.name:
            raise CompoclipError(
                f"{place}: does not exist, or has no .arrow or .parquet file; put the file there"
            ) from FileNotFoundError(place)
        return [(shard, {}) for shard in shards or [path]]
    if "{number}" in file.place:
        pattern = re.compile(re.escape(file.place).replace(r"\{number\}", r"(\d{1,3})"))
        glob = file.place.replace("{number}", "*")
        by_number: dict[int, Path] = {}
        for path in sorted(folder.rglob(glob)):
            if match := pattern.fullmatch(path.name):
                earlier = by_number.setdefault(int(match[1]), path)
                require(earlier == path, path, f"{earlier} has the same name; keep one of them")
        if not by_number:
            raise CompoclipError(
                f"{folder}: no {glob} below it; put the official files there, or select other parts"
            ) from FileNotFoundError(folder)
        return [(path, {"number": str(k)}) for k, path in sorted(by_number.items())]
    if "elsewhere" in table:
        other = folder / table["elsewhere"].format_map(file.names)
        path = other if other.is_file() else path
    return [(path, {})]


def _held_out(folder: Path) -> list[Path]:
    """Return the Parquet files of the split to measure on, else all."""
    listed = find_files(folder, (".parquet",)) if folder.is_dir() else []
    splits = named_splits([path.name for path in listed], None)
    members = members_of(held_out_split(splits) or "", splits) or splits
    return [path for path, split in zip(listed, splits) if split in members]


def _read(
    file: File, path: Path, name: str, content: bytes | None, by_hash: dict[str, ImageRef]
) -> Iterator[Row]:
    """Yield the rows of one file; the pictures in it are added to `by_hash`."""
    table, part = file.table, file.names["part"]
    hint = table.get("parts_hint")
    inside = has_ending(path, ".arrow", ".parquet")
    kind = path.suffix.lower() if inside else PurePosixPath(file.place).suffix
    if content is not None:
        rows = tables.json_rows(files.parse_json(content, name), name)
    else:
        select = f"put the official file there or select the parts you have, e.g. {hint}"
        remedy = select if hint else ""
        columns, delimiter = table.get("columns", ()), table.get("delimiter", "")
        rows = tables.read_annotations(path, columns, remedy, kind=kind, delimiter=delimiter)
    photos = table.get("photos", ())
    pictured: dict[str, list[ImageRef | None]] = {}
    if inside:
        from compoclip.benchmarks.arrow_tables import pictures  # with pyarrow

        pictured = pictures(path, photos, by_hash, gaps=table.get("gaps", False))
    absent = min({*photos} - {*pictured}, default="") if inside and table.get("pictured") else ""
    if absent:
        raise CompoclipError(
            f"{path}: {absent!r} holds no encoded pictures; get the dataset page's table"
        )
    for number, (key, location, value) in enumerate(rows, 1):
        if names := table.get("values"):
            value = dict(zip(names, files.items(value, location, names)))
        refs = {column: listed[number - 1] for column, listed in pictured.items()}
        yield Row(
            files.record(value, location),
            location,
            str(key),
            number,
            part,
            path,
            table,
            file.names,
            cells=kind == ".csv",
            pictures={column: ref for column, ref in refs.items() if ref is not None},
        )


# --- Items: the images, texts, truth and labels of a row. ---


class _Folders:
    """The photos of a benchmark: where those lie that its rows name."""

    def __init__(self, entry: Entry, data: Loading, moved: Mapping[str, Any]) -> None:
        default = entry.get("places", {}).get("images", next(iter(data.about.images), ""))
        self._places = {"images": data.images or data.root / default}
        for name, template in _further_places(entry).items():
            below = Path(template.format_map(self._places))
            self._places[name] = moved.get(name) or (
                below if "{images}" in template else data.root / below
            )
        self._flat = (data.images,) if data.images and entry.get("flat") else ()
        self._stems = cache(by_stem)
        self._last: tuple[Mapping[str, str], str, tuple[Path, ...]] = ({}, "", ())

    def of(self, row: Row) -> tuple[ImageRef, ...]:
        """Return the images of an item, in the order of the columns."""
        table = row.table
        box = None
        if keys := table.get("box"):
            box = files.box({key: row.float(key) for key in keys}, row.location, keys)
        images = []
        for column in table.get("photos", ()):
            if column in row.pictures:
                images.append(row.pictures[column])
                continue
            if "digits" in table.get("named", {}):  # then numbers are ids
                names = [files.identifier(row.values, column, row.location, set())]
            else:
                names = row.texts(column)
            images += [ImageRef(self._path(row, name), box) for name in names]
        return tuple(images)

    def _path(self, row: Row, name: str) -> Path:
        how = row.table.get("named", {})
        if "last" in how:
            name = "/".join(PurePosixPath(name.replace("\\", "/")).parts[-how["last"] :])
        name = name.zfill(how.get("digits", 0))
        if "suffix" in how and not is_read(name):
            name += how["suffix"]
        if row.names is not self._last[0] or row.folder != self._last[1]:  # not as the row before
            listed = row.folder or row.table.get("photos_in", "{images}")
            names = {**row.names, **self._places}
            templates = [listed] if isinstance(listed, str) else listed
            folders = tuple(Path(template.format_map(names)) for template in templates)
            self._last = row.names, row.folder, self._flat or folders
        folders = self._last[2]
        if how.get("stem") and (path := self._stems(folders).get(PurePosixPath(name).stem)):
            return path
        return files.image_path(folders[0], name, row.location)


def _cases(entry: Entry, data: Loading, /, **options: Any) -> Iterator[Case]:
    """Yield the cases of a benchmark, see the head of `benchmarks.yaml`."""
    annotations = options.get("annotations")
    data.joint = dict(entry.get("joint", {}))
    data.tuned_on = {p: dev for p, dev in entry.get("tuned_on", {}).items() if p in data.parts}
    stated = data.about.expected
    data.expected |= {part: stated[part] for part in data.tuned_on.values() if part in stated}
    moved = {place: options.pop(f"{place}_images", None) for place in _further_places(entry)}
    folders = _Folders(entry, data, moved)
    names = {key: value for key, value in options.items() if isinstance(value, str)}
    rows = _rows(entry, data, annotations, names)
    if "edit" in entry:
        edit = hook(entry["edit"])
        if "annotations" not in options_of(edit):
            options.pop("annotations", None)
        rows = edit(rows, data, **options)
    parts = [*data.about.parts, *entry.get("tuned_on", {}).values()]
    counts: Counter[str] = Counter()
    ids: dict[Path, set[object]] = {}
    places: dict[object, str] = {}
    for row in rows:
        table = row.table
        for column, choices in table.get("among", {}).items():
            value = row.text(column)
            if value not in choices:
                raise _unknown(row, f"{column!r} {value!r:.40}", value, choices)
        part = _part(row, parts)
        key = row.key
        if "key" in table:
            seen_ids = ids.setdefault(row.path, set())
            key = files.identifier(row.values, table["key"], row.location, seen_ids)
        named = {**row.names, "part": part, "key": key, "row": row.number, "count": counts[part]}
        counts[part] += 1
        form = Form(table["form"])
        images = row.images or folders.of(row)
        texts = tuple(text for column in table["texts"] for text in row.texts(column))
        truth = row.truth
        if column := table.get("truth"):
            count = len(texts) if form is Form.CHOOSE_TEXT else len(images)
            place = row.float(column)
            row.require(
                count >= 2 and place in range(count),
                f"{column!r} {place:g} is no place among {counted(count, 'candidate')}; expected "
                "at least two and the number of the right one, from 0",
            )
            truth = int(place)
        name = table.get("id", "{part}/{key}").format_map(named)
        case = Case(name, form, images, texts, part, truth, {**_labels(row), **row.labels})
        if table.get("unique"):
            files.once((part, case.images, case.texts, case.truth), row.location, places)
        yield case


def _part(row: Row, parts: Sequence[str]) -> str:
    """Return the sub-task of a row: that of its file, or what its columns say."""
    template = row.table.get("part")
    if template is None:
        return row.part
    columns = re.findall(r"\{(\w+)\}", template)
    values = {column: row.text(column).strip().lower() for column in columns}
    part = str(template.format_map({**row.names, **values}))
    if part not in parts:
        cells = ", ".join(f"{column!r} {row.text(column)!r:.40}" for column in columns)
        raise _unknown(row, cells, part, parts)
    return part


def _unknown(row: Row, cells: str, name: str, names: Iterable[str]) -> CompoclipError:
    return CompoclipError(f"{row.location}: {cells} is unknown; {closest(name, names)}")


def _labels(row: Row) -> dict[str, str]:
    """Return the labels of the table: "a" a column, "a?" one that may be absent or empty, "a*" a
    list joined by "_", "{a}" a name."""
    labels = {}
    for label, column in row.table.get("labels", {}).items():
        if "{" in column:
            labels[label] = column.format_map(row.names)
        elif not column.endswith("?"):
            labels[label] = "_".join(row.texts(column))
        elif row.values.get(column[:-1]) not in (None, ""):
            labels[label] = str(row.values[column[:-1]])
    return labels
