"""Opening whatever image-text data a path names: one table of forms, each with its reader.

A form is recognised by its path, columns or fields, in the order of `FORMS`. Published data sets
have fields of their own and are read as they were stored; all other data are the user's own. The
meaning of the rows that readers add is decided in `table` and `splits`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compoclip.config import built, options_of, place_in, typed
from compoclip.data.image_names import is_read
from compoclip.data.options import DataOptions, Needs
from compoclip.data.places import mixture_of, require_there
from compoclip.data.published_rows import IN_JSON, KARPATHY, ORIGINAL, UNITS, is_blip, numbered
from compoclip.data.sources import Source
from compoclip.data.sources.labels import captioned_by_label
from compoclip.data.sources.mixture import WeightedMix
from compoclip.data.sources.paths import Data, holds_images, open_images, open_photos
from compoclip.data.sources.published import open_coco, open_flickr8k, open_rows
from compoclip.data.sources.shards import open_shards
from compoclip.data.sources.splits import part_of, share_of
from compoclip.data.sources.tables import (
    open_hugging_face,
    open_records,
    open_tables,
)
from compoclip.data.split_names import ALL, TRAIN, NoUseError, held_out_split, split_of
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import write_json
from compoclip.patterns import has_ending
from compoclip.typed import read_fields


@dataclass(frozen=True)
class Request(DataOptions):
    """Names image-text data; every process opens them for itself.

    Args:
        spec: The path; or several with their weights, `a.jsonl=0.7 b.tsv=0.3`. Options go to the
            data sets that have a use for them. A mixture is read upright unless all of its parts
            are in published formats.
        needs: What a row needs to become a sample: captions, for training; labels, as classes in
            Parquet, shards or folders have them; one of the two, where templates make captions of
            labels; or a photo alone.
    """

    spec: str
    needs: Needs = "captions"

    def open(self) -> Source:
        """Open the data. Raises as `open_source` does."""
        return open_source(**vars(self))

    def open_held_out(self) -> Source:
        """The source to measure on: unless a split is named, test or else val of the splits that
        the data name, and everything of data that name none. Raises as `open` does."""
        if self.split is not None:
            return self.open()
        source = replace(self, split=ALL, fraction=1.0).open()
        counts = source.split_counts()
        if any(counts):
            source = part_of(source, held_out_split(counts), self)
        return share_of(source, self.fraction)

    def is_photo_folder(self) -> bool:
        """Return whether the name is that of a folder with photos at any depth."""
        return bool(_PHOTOS.recognise(Data(self)))

    def open_photos(self) -> Source | None:
        """Open the photos of a folder, whatever else lies there; None for all other data.

        Unless a split is named these are all of its photos. They have no captions, so options that
        are of captions are refused. Raises as `open` does.
        """
        data = Data(replace(self, needs="photos", split=self.split or ALL))
        if not _PHOTOS.recognise(data):
            return None
        return _oriented(_open_form(_PHOTOS, data), data.request)

    def parts_of(self, whole: Source, splits: Sequence[str]) -> dict[str, Source]:
        """Return several splits of the data, the same as `open` returns for each.

        Args:
            whole: All of the data, whatever the fraction. They are opened again only where the name
                of a split decides which files are read, or how their rows are numbered.
            splits: Names of splits.
        """
        data = Data(self)
        by_name = data.remote and any(whole.split_counts())
        if data.folder:
            names = [entry.name for entry in Path(self.spec).iterdir()]
            by_name = any(name.startswith(tuple(splits)) or split_of(name) for name in names)
        if by_name or whole.mix or whole.selected:
            return {split: replace(self, split=split).open() for split in splits}
        return {split: share_of(part_of(whole, split, self), self.fraction) for split in splits}

    def refuse(self, kind: str, *names: str) -> None:
        """Raise UsageError for an option that was given but means nothing to a format."""
        for name in names:
            value = getattr(self, name)
            if value not in (None, ()) and (name, value) != ("split", ALL):
                raise NoUseError(name, f"{self.spec}: {kind} take no --{name.replace('_', '-')}")


def request_of(spec: str, options: DataOptions) -> Request:
    """Return what opens the data that `spec` names, of an object with these and other options."""
    values = {option.name: getattr(options, option.name) for option in fields(DataOptions)}
    return Request(spec, **values)


class OpenedPart(NamedTuple):
    """A split of the data of a file that is opened already."""

    file: Path
    split: str
    source: Source


def open_source(spec: str, **options: Any) -> Source:
    """Open the image-text source that a path, brace pattern or folder names; see FORMS.

    Args:
        spec: The path.
        **options: The other fields of `Request`.

    Raises:
        UsageError: For an unknown format, column or split, an option without use for the format,
            a path that is not local, or a folder of images that is missing.
        CompoclipError: For files that are missing or malformed.
    """
    request = Request(spec, **options)
    require_there(spec, request.images)
    if (weights := mixture_of(spec)) is not None:
        source = _open_mixture(weights, request)
    else:
        data = Data(request)
        form = next((form for form in FORMS if form.recognise(data)), None)
        if data.folder and (form is None or form.name == "folders of images"):
            _require_no_data_within(data)
        if form is None:
            _refuse_several(data)
            raise _unknown(spec)
        source = _open_form(form, data)
    return _oriented(source, request)


def _open_form(form: DataForm, data: Data) -> Source:
    """Open data of a form, by the options that every form obeys; refuse those without a use."""
    request = data.request
    request.refuse(form.name, *(option for option in _PARTLY if option not in form.uses))
    if request.needs == "photos":
        request.refuse(form.name, "templates")
    templates = None if form.keeps_splits else request.templates
    labelled = templates is not None and request.needs == "captions"
    if labelled:
        data.request = replace(request, needs="captions or labels")
    source = form.open(data)
    source.count(data.others)
    if labelled:
        source = captioned_by_label(source, request)
    if form.published:
        source.upright = False
    if not form.keeps_splits:
        source = part_of(source, request.split, request)
    return share_of(source, request.fraction)


def _oriented(source: Source, request: Request) -> Source:
    if request.orientation is not None:
        source.upright = request.orientation == "upright"
    return source


def _require_no_data_within(data: Data) -> None:
    """Raise UsageError for a folder whose folder of a split has tables or shards."""
    split = data.request.split
    folder = Path(data.request.spec, TRAIN if split in (None, ALL) else split)
    within = Data(replace(data.request, spec=str(folder)))
    captioned = within.metadata and data.request.needs == "captions"
    others = within.folder and not holds_images(folder) and (within.shards or within.tables)
    if captioned or others:
        raise UsageError(f"{data.request.spec}: its data are in {folder}; name that folder")


# --- Readers of forms that no other module has. ---


def _open_shards(data: Data) -> Source:
    shards, splits = data.choose(data.shards)
    return open_shards(shards, data.request.caption_column, data.request.needs, splits)


def _open_tables(data: Data) -> Source:
    files, splits = data.choose(data.tables)
    return (data.published_table or open_tables)(files, data.request, splits)


def _open_tokens(data: Data) -> Source:
    assert data.tokens is not None
    return open_flickr8k(data.tokens, data.request)


def _open_metadata(data: Data) -> Source:
    assert data.metadata is not None
    return open_tables([data.metadata], data.request)


def _open_layout(data: Data) -> Source:
    """Open rows of a JSON file that a published data set has."""
    layouts = (UNITS, *IN_JSON)
    layout = next((candidate for candidate in layouts if candidate.matches(data.first)), KARPATHY)
    return open_rows(layout, data.path, numbered(data.json, f"{data.path}, row"), data.request)


# --- The table of forms. ---

_COLUMNS = ("image_column", "caption_column")
_SOME = ("images", *_COLUMNS)
_PARTLY = (*_SOME, "exclude")
"""Options that not every form has a use for."""


@dataclass(frozen=True)
class DataForm:
    """A form in which data are written.

    Args:
        name: In messages about options.
        label: For messages that name the nearest forms, "" for one that another row shows.
        recognise: Return whether data are written so.
        open: Its reader.
        uses: The options among `_PARTLY` that it has a use for.
        published: Whether only published data sets are written so; images are then used as they
            are stored.
        keeps_splits: Whether it is a part of other data, which has been chosen.
    """

    name: str
    label: str
    recognise: Callable[[Data], object]
    open: Callable[[Data], Source]
    uses: Sequence[str] = ()
    published: bool = False
    keeps_splits: bool = False


FORMS = (
    DataForm(
        "data sets of Hugging Face",
        "data set of Hugging Face (hf:NAME/SPLIT)",
        lambda data: data.remote,
        lambda data: open_hugging_face(data.request),
        _SOME,
    ),
    DataForm(
        "webdataset shards",
        "webdataset shards (.tar, 'train-{000..099}.tar', or a folder of .tar)",
        lambda data: data.shards,
        _open_shards,
        ("caption_column",),
    ),
    DataForm(
        "folders with metadata",
        "folder of images with name.txt or metadata.jsonl beside them, or in folders of classes",
        lambda data: data.metadata,
        _open_metadata,
        _COLUMNS,
    ),
    DataForm(
        "token files",
        "Flickr8k token file (.txt with lines name.jpg#k<TAB>caption, or below image,caption), or "
        "Flickr30k's results.csv",
        lambda data: data.tokens and not (data.folder and data.tables),
        _open_tokens,
        ("images",),
        published=True,
    ),
    DataForm(
        "published tables",
        "training set as published (NegCLIP, TROHN, VisMin, DeGLA, SemCLIP, CS-CLIP, "
        "Flickr30k-Counterfactuals)",
        lambda data: data.published_table,
        _open_tables,
        _SOME,
        published=True,
    ),
    DataForm(
        "tables",
        "table (.csv, .tsv, .jsonl, .jsonl.gz, .parquet, or a folder of one of the last three)",
        lambda data: data.tables,
        _open_tables,
        _SOME,
    ),
    DataForm(
        "folders of images",
        "",
        lambda data: data.folder and holds_images(Path(data.request.spec)),
        lambda data: open_images(Path(data.request.spec), data.request),
        ("exclude",),
    ),
    DataForm(
        "selections",
        "selection of rows that compoclip data audit wrote",
        lambda data: KEY in data.keys,
        lambda data: _open_selection(data.path, data.json, data.request),
        keeps_splits=True,
    ),
    DataForm(
        "COCO annotations",
        "Karpathy or COCO caption JSON",
        lambda data: "annotations" in data.keys,
        lambda data: open_coco(data.path, data.json, data.request),
        ("images", "caption_column"),
        published=True,
    ),
    DataForm(
        "Karpathy's files",
        "",
        lambda data: "images" in data.keys and isinstance(data.json["images"], list),
        lambda data: open_rows(
            ORIGINAL,
            data.path,
            numbered(data.json["images"], f"{data.path}, image"),
            data.request,
        ),
        ("images",),
        published=True,
    ),
    DataForm(
        "published rows",
        "",
        lambda data: (
            is_blip(data.first) or any(layout.matches(data.first) for layout in (UNITS, *IN_JSON))
        ),
        _open_layout,
        ("images",),
        published=True,
    ),
    DataForm(
        "captions by photo",
        'JSON of rows, or of captions by photo ({"photo.jpg": ["one", "two"]})',
        lambda data: any(is_read(key) for key in data.keys),
        lambda data: open_records(
            data.path,
            [{"image": image, "caption": texts} for image, texts in data.json.items()],
            data.request,
        ),
        ("images",),
    ),
    DataForm(
        "JSON rows",
        "",
        lambda data: isinstance(data.json, list),
        lambda data: open_records(data.path, data.json, data.request),
        _SOME,
    ),
)

_PHOTOS = DataForm(
    "folders of photos",
    "",
    lambda data: data.photos[0],
    open_photos,
    ("exclude",),
)
"""A folder whose photos are wanted without captions, whatever tables or shards lie there."""


def _open_mixture(weights: Mapping[str, float], request: Request) -> Source:
    """Open several data sets; an option that none of them has a use for is refused."""
    refused: dict[str, list[NoUseError]] = {}

    def opened(spec: str) -> Source:
        options = {**vars(request), "spec": spec, "orientation": None}
        while True:
            try:
                return open_source(**options)
            except NoUseError as error:
                refused.setdefault(error.option, []).append(error)
                options[error.option] = None

    parts = {spec: opened(spec) for spec in weights}
    for errors in refused.values():
        if len(errors) == len(weights):
            raise errors[0]
    whole = math.fsum(weights.values())
    shares = (f"{weights[name] / whole:.4g} of {part.describe()}" for name, part in parts.items())
    mix = WeightedMix({name: len(part) for name, part in parts.items()}, weights)
    return Source.mixed(parts, " + ".join(shares), mix)


def _refuse_several(data: Data) -> None:
    """Raise UsageError for several files of a form that is read from one file."""
    if len(data.files) > 1:
        first = Data(replace(data.request, spec=str(data.path)))
        if form := next((form for form in FORMS if form.recognise(first)), None):
            problem = f"names {len(data.files)} files, and {form.name} are read from one; name one"
            raise UsageError(f"{data.request.spec}: {problem}")


def _unknown(spec: str) -> UsageError:
    if has_ending(Path(spec), ".pt", ".pth", ".pkl", ".pickle"):
        return UsageError(
            f"{spec}: a pickle may run anything, so none is opened as data; if it is CC-Neg's, "
            "write its training rows as a table once: compoclip data cc-neg"
        )
    if Path(spec).is_dir():
        return UsageError(
            f"{spec}: no photos, tables or shards in this folder; name the folder that holds them"
        )
    ending = Path(spec).suffix[1:]
    files = [form.label for form in FORMS if not form.label.startswith("folder")]
    nearest = [form for form in files if re.search(rf"\b{re.escape(ending)}\b", form, re.I)]
    forms = [*(nearest[:2] if ending else ()), "table of images and captions (.csv, .jsonl)"]
    return UsageError(f"{spec}: unknown format; the nearest to it are: {'; '.join(forms)}")


# --- A source without some of its samples: a file that names it and the ids to leave out. ---
#
#     {"selection_of": {"spec": "/data/trohn", "images": "/data/coco/train2017"},
#      "without": ["000000391895.jpg#0", ...], "because": "photos of the Karpathy test"}

KEY = "selection_of"
_SELECTION = {KEY: dict[str, object], "without": list[str], "because": str | None}
_REMEDY = "write it again: compoclip data audit --kept"


def _open_selection(path: Path, data: Mapping[str, Any], request: Request) -> Source:
    """Open what a selection names, without the samples that it leaves out."""
    if request.split not in (None, ALL):  # it may be a part of one already
        raise UsageError(f"{request.spec}: selections take no --split; leave it out")
    parts = read_fields(data, _SELECTION, str(path), _REMEDY, others=False)
    require("spec" in parts[KEY], path, f"no selection of a source; {_REMEDY}")
    whole = built(Request, typed(parts[KEY], options_of(Request), f"{path}: "))
    if Path(whole.spec).absolute() == path.absolute():
        raise UsageError(f"{path}: selects from itself; {_REMEDY}")
    templates = whole.templates if request.templates is None else request.templates
    source = replace(whole, needs=request.needs, templates=templates).open()
    left, ids = frozenset(parts["without"]), list(source.column("id"))
    if missing := left.difference(ids):
        raise CompoclipError(
            f"{path}: leaves out {min(missing)!r:.80}, unknown to {source.describe()}; {_REMEDY}"
        )
    rows = np.array([i for i, id in enumerate(ids) if id not in left], np.int64)
    require(len(rows), path, f"leaves out every sample; {_REMEDY}")
    because = str(parts["because"] or "sample that the selection leaves out")
    fewer = len(ids) - len(rows)
    taken = source.take(rows, f"{source.describe()} without {fewer} ({path})", {because: fewer})
    taken.selected = True
    return taken


def write_selection(path: Path, request: Request, without: Sequence[str], because: str) -> None:
    """Write a file that opens as `request` without some samples.

    request: a local path is written in full. without: ids of the samples. because: the reason.
    """
    options = {
        name: value for name, value in vars(request).items() if value not in (None, True, ())
    }
    options.pop("needs")
    named = {**options, "spec": Path(request.spec)}
    if request.templates is not None:  # perhaps a file
        named["templates"] = place_in(request.templates, Path.cwd())
    source = {k: str(v.absolute()) if isinstance(v, Path) else v for k, v in named.items()}
    write_json(path, {KEY: source, "because": because, "without": list(without)})
