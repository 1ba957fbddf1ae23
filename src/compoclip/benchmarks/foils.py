"""Foils: images of your own, each with a true caption and false ones, or with true and false
statements.

Read from all .csv, .tsv, .jsonl, .jsonl.gz, .json (a list) and .parquet files in `<root>/foils`, in
the order of their names (option `annotations`: one such file, or another folder). Columns, images
and empty cells are read as in data to train on (`data.columns`). A row, as in JSON lines:

    {"image": "photos/17.jpg", "caption": "a cup left of a plate",
     "negative_caption": "a cup right of a plate", "subtask": "left of", "skill": "spatial"}

negative_caption: a text, or a list of texts (in a cell of CSV written as JSON or Python does); more
of them in columns negative_caption_2, negative_caption_3, ... The caption has to score better than
all of them; a tie is wrong. Of several true captions, a list in caption, each is an item of its own
against the same negatives (ID, ID#2, ...).

A strict pair has the image of its one negative_caption as well, in negative_image:

    {"image": "photos/17.jpg", "caption": "a cup left of a plate",
     "negative_image": "photos/18.jpg", "negative_caption": "a cup right of a plate"}

It is right only if each image prefers its own caption and each caption its own image (metric
"group", chance 1/6), so that neither the text alone nor a liking for one image scores. "text" asks
for both images right, "image" for both captions (chance 1/4). Or, in all rows of all files:

    {"image": "photos/17.jpg", "caption": "the cup is left of the plate", "label": 1}

label: whether the statement is true, 1 or 0, true or false, yes or no. These are judged by the
area under the ROC curve of the cosine; where a sub-task NAME_dev stands beside NAME, it sets the
threshold for the accuracy of NAME and has no score of its own.

image: relative to `<root>` (argument `images`: to another folder); in Parquet also the encoded
picture. subtask: what is probed; the file's name without its suffix when absent. skill: one of
`case.SKILLS`, the same in all rows of a sub-task; optional. id: unique within the sub-task; when
absent, the file and the number of the row. Other keys become labels when they hold text, e.g.
"relation": "left of". The headline `macro` is the plain mean of the sub-tasks, `micro` the mean
over all items.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import SKILLS, Aggregate, Case, Form, ImageRef
from compoclip.benchmarks.reader import Loading, select
from compoclip.data.columns import (
    EMPTY_CELL,
    cell_captions,
    column_named,
    is_empty,
    read_flag,
    relative_image,
    require_texts,
    usual_names,
)
from compoclip.data.options import as_target_option, naming_options
from compoclip.data.places import TABLES
from compoclip.errors import CompoclipError, closest, require
from compoclip.patterns import files_in, has_ending
from compoclip.tables import delimited_header

_SUFFIXES = tuple(sorted((*TABLES, ".json")))
_PAIR = ("image", "caption", "negative_image", "negative_caption")
_COLUMNS = ("id", *_PAIR, "label", "subtask", "skill")
_CELLS = (*_PAIR, "label")  # of which a program may write nan for nothing
_MORE = re.compile(r"negative_caption_?[0-9]+")  # columns with further false captions
_MEND_ROW, _MEND_FILE = "fix the row", "fix the file"
_DEV = "_dev"
_MIXED = (
    "captions with a 'negative_caption', pairs with a 'negative_image' too, and statements with a "
    "'label' are different benchmarks; put each kind into a folder of its own"
)

Row = Mapping[str, Any]


def read(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    """Read foils as CHOOSE_TEXT, pairs as GROUP and statements as BINARY cases; see the module."""
    place = annotations or data.root / "foils"
    paths = [place]
    if place.is_dir():
        paths = files_in(place, *_SUFFIXES)
    require(paths, place, f"holds no {', '.join(_SUFFIXES)} file; put your rows there")
    data.files = {path.name: path for path in paths}
    data.stated = ["upright"]
    cases: list[Case] = []
    skills: dict[str, str | None] = {}
    ids: dict[str, set[object]] = {}
    places: dict[object, str] = {}
    for path in paths:
        for key, location, row, picture in _rows(path):
            stem = Path(path.stem).stem if has_ending(path, ".gz") else path.stem
            name = stem if row.get("subtask") is None else _text(row, "subtask", location)
            skill = None if row.get("skill") is None else _text(row, "skill", location)
            if skill is not None and skill not in SKILLS:
                hint = closest(skill, SKILLS)
                raise CompoclipError(f"{location}: unknown skill {skill!r:.60}; {hint}")
            earlier = skills.setdefault(name, skill)
            if earlier != skill:
                raise CompoclipError(
                    f"{location}: skill {skill!r}, but earlier rows of sub-task {name!r:.80} have "
                    f"{earlier!r}; give all rows of a sub-task the same skill"
                )
            seen_ids = ids.setdefault(name, set())
            has_id = row.get("id") is not None
            if has_id:
                key = files.identifier(row, "id", location, seen_ids, "number the rows anew")
            if picture is None:
                picture = _photo(data, row, "image", location)
            # Each caption is an item of its own; a missing one is named by `_case`.
            captions = cell_captions(row["caption"]) if "caption" in row else [None]
            require(captions, location, f"'caption' is an empty list; {_MEND_ROW}")
            for number, caption in enumerate(captions, start=1):
                item = f"{key}#{number}" if number > 1 else str(key)
                images: tuple[ImageRef, ...] = (replace(picture, upright=True),)
                if row.get("negative_image") is not None:
                    other = _photo(data, row, "negative_image", location)
                    images = (*images, replace(other, upright=True))
                case = _case({**row, "caption": caption}, name, item, images, location)
                require(not cases or case.form is cases[0].form, location, _MIXED)
                if not has_id:  # rows with ids are what their author says: two items
                    same = (name, case.images, case.texts, case.truth)
                    files.once(same, location, places, _MEND_FILE)
                cases.append(case)
    require(cases, paths[0], "no rows; add some")
    binary = cases[0].form is Form.BINARY
    dev = {name: f"{name}{_DEV}" for name in ids if binary and f"{name}{_DEV}" in ids}
    scored = [name for name in ids if name not in dev.values()]
    data.parts = select(data.about.id, scored, data.parts)
    data.tuned_on = {name: dev[name] for name in data.parts if name in dev}
    data.skills = {name: skill for name in data.parts if (skill := skills[name])}
    there = {(case.subtask, case.truth) for case in cases}
    for name in (*data.parts, *data.tuned_on.values()) if binary else ():
        truths = {truth for part, truth in there if part == name}
        files.require_both(truths, f"{paths[0].parent}: sub-task {name!r:.80}", "add some")
    balanced = [Aggregate((name,), macro_by="label", metric="accuracy") for name in data.tuned_on]
    if balanced:
        data.aggregates["balanced_accuracy"] = Aggregate(tuple(balanced))
    yield from cases


def _photo(data: Loading, row: Row, key: str, location: str) -> ImageRef:
    """Return the photo that a row names; without a folder of images it may lie anywhere."""
    root, name = data.images or data.root, _text(row, key, location)
    with naming_options(as_target_option):
        inside = relative_image(name, root, location, absolute=data.images is None)
    return ImageRef(root / inside)


@lru_cache(maxsize=64)
def _named(columns: tuple[str, ...]) -> Mapping[str, str]:
    """Return what columns in other capitals are called here, by the names that they have."""
    more = (column.strip().lower() for column in columns)
    return usual_names(columns, (*_COLUMNS, *filter(_MORE.fullmatch, more)))


def _is_nothing(name: str, cell: Any) -> bool:
    """Return whether a cell is empty; a text of blanks is a mistake that is named."""
    if name not in _CELLS and not _MORE.fullmatch(name):
        return cell is None
    return is_empty(cell) and not (isinstance(cell, str) and not cell.strip())


def _rows(path: Path) -> Iterator[tuple[str, str, Row, ImageRef | None]]:
    """Yield (id, file and row for messages, row, the picture if the file holds it)."""
    lines = has_ending(path, ".jsonl", ".jsonl.gz")
    columns: tuple[str, ...] = ()  # of a table
    in_file: list[ImageRef | None] = []
    if has_ending(path, ".parquet"):
        from compoclip.benchmarks.arrow_tables import opened_table, pictures  # with pyarrow

        files.require_size(path)
        with opened_table(path, _MEND_FILE) as (schema, _):
            columns = tuple(schema.names)
        image = column_named("image", columns) or "image"
        in_file = pictures(path, [image], {}, _MEND_FILE).get(image, [])
    elif has_ending(path, ".csv", ".tsv"):
        files.require_size(path)
        columns = tuple(delimited_header(path))
    if columns:
        names = [_named(columns).get(column, column) for column in columns]
        files.require_columns(path, names, ("image", "caption"), _MEND_FILE)
    kind = ".jsonl" if lines else ""
    rows = tables.read_annotations(path, (), "check the path", _MEND_FILE, kind=kind)
    for index, (key, location, value) in enumerate(rows):
        cells = files.record(value, location)
        usual = _named(columns or tuple(cells))
        row = {usual.get(name, name): cell for name, cell in cells.items()}
        if has_ending(path, ".csv", ".tsv"):
            row = {name: cell for name, cell in row.items() if cell}
        row = {name: cell for name, cell in row.items() if not _is_nothing(name, cell)}
        number = key if lines else index + 1
        yield f"{path.name}:{number}", location, row, in_file[index] if in_file else None


def _case(row: Row, subtask: str, key: str, images: tuple[ImageRef, ...], location: str) -> Case:
    caption = _text(row, "caption", location)
    more = [key for key, text in row.items() if _MORE.fullmatch(key) and text is not None]
    columns = (*_COLUMNS, *more)
    labels = {k: v for k, v in row.items() if k not in columns and isinstance(v, str) and v}
    negatives, label = row.get("negative_caption"), row.get("label")
    false = cell_captions(negatives)
    if (negatives is None and not more) is (label is None):
        near = next((k for k in row if k.lower().startswith("neg") and k not in columns), None)
        hint = f" (is {near!r:.40} the first?)" if near and label is None else ""
        raise CompoclipError(
            f"{location}: has {'neither' if label is None else 'both'} of 'negative_caption' "
            "(false captions) and 'label' (whether the caption is true); give one of them"
            f"{hint}"
        )
    case = Case(f"{subtask}/{key}", Form.CHOOSE_TEXT, images, (caption,), subtask)
    if label is not None:
        require(len(images) == 1, location, f"a statement has no 'negative_image'; {_MEND_ROW}")
        truth = read_flag(label)
        if truth is None:
            raise CompoclipError(
                f"{location}: 'label' must be 1 or 0, true or false, yes or no; {_MEND_ROW}"
            )
        labels["label"] = "true" if truth else "false"
        return replace(case, form=Form.BINARY, truth=int(bool(truth)), labels=labels)
    if negatives is not None and not (false and isinstance(negatives, str | list)):
        raise CompoclipError(
            f"{location}: 'negative_caption' must be a text or a list of texts; {_MEND_ROW}"
        )
    texts = [
        _nonempty(text, f"{location}: negative caption {k}")
        for k, text in enumerate((*false, *(row[key] for key in more)), start=1)
    ]
    if len(images) == 2:
        if len(texts) != 1:
            raise CompoclipError(
                f"{location}: a 'negative_image' shows what the one negative caption says, and has "
                f"{len(texts)} of them; {_MEND_ROW}"
            )
        case = replace(case, form=Form.GROUP)
    return replace(case, texts=(caption, *texts), labels=labels)


def _text(row: Row, key: str, location: str) -> str:
    if row.get(key) is None:
        there = ", ".join(f"{k!r:.40}" for k, v in list(row.items())[:20] if v is not None)
        raise CompoclipError(f"{location}: no {key!r}, only {there or 'nothing'}; {_MEND_ROW}")
    return _nonempty(row[key], f"{location}: {key!r}")


def _nonempty(cell: Any, location: str) -> str:
    text = files.nonempty(cell, location, _MEND_ROW)
    require(not is_empty(text), location, f"{text!r} is a {EMPTY_CELL}; {_MEND_ROW}")
    require_texts((text,), location)
    return text
