"""Data sets of Hugging Face's `datasets` library: `hf:NAME/SPLIT`.

NAME is a data set of the hub (`owner/name`, with a configuration `owner/name:config`), which the
library downloads once and keeps, or a folder: one that `save_to_disk` wrote, or one that
`load_dataset` reads. The table stays in the library's memory-mapped files; captions are read once,
images when they are shown.

Streams are refused. A batch is a function of (seed, epoch, step) here, so that a run can be resumed
anywhere and read by any number of workers; a stream is shuffled within a buffer only, in an order
that depends on how its files are dealt to workers, and can be entered only by reading what came
before.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from compoclip.data.extras import EXTRA_COLUMNS, NEG_IMAGE, read_extras
from compoclip.data.sources.rows import ALL, TRAIN, RowBuilder, RowSource
from compoclip.data.sources.tables import ColumnImages
from compoclip.data.textfiles import cell_captions, pick_columns, relative_image
from compoclip.errors import CompoclipError, UsageError, pip_install

HUB, STREAM = "hf:", "hf-stream:"
_AT_ONCE = 1024
_DICT, _ONE = "dataset_dict.json", "state.json"  # what `save_to_disk` leaves in a folder


def open_hugging_face(
    spec: str,
    images: Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split: str | None = None,
) -> RowSource:
    """Open a data set of the `datasets` library.

    Args:
        spec: `hf:NAME/SPLIT`; without the split of a folder, `split` or "train" is read.
        images: Folder that image paths are relative to, for a column of paths.
        image_column: Images, encoded bytes or paths; guessed when not given.
        caption_column: One name or several joined by commas; a cell holds one caption or a list of
            them. Guessed when not given.
        split: In place of the one in `spec`.

    Returns:
        The rows; their columns may also be those that tables may have (`neg_caption`, ...).

    Raises:
        UsageError: For a stream, a name without a split, and a wrong column.
        CompoclipError: When the library is not installed or cannot open the data set, and for rows
            that are malformed.
    """
    if spec.startswith(STREAM):
        name = spec.removeprefix(STREAM)
        raise UsageError(
            f"{spec}: a stream cannot be trained on: its samples have no numbers, which the order "
            f"of batches, --resume and --workers need; {HUB}{name} downloads the split once"
        )
    data = _opened(spec, split)
    names = list(data.column_names)
    image, captions = pick_columns(names, image_column, caption_column, Path(spec))
    held = {name for name in (image, NEG_IMAGE) if name in names and _holds_images(data, name)}
    odd = next((name for name in captions if name in held or _holds_images(data, name)), None)
    if odd is not None:
        raise UsageError(f"{spec}: column {odd!r} holds images, not captions")
    if image not in held and images is None:
        raise UsageError(f"{spec}: column {image!r} holds paths: say with --images to what folder")
    root = images if images is not None else Path()
    builder = RowBuilder(spec)
    builder.columns = (image, *captions)
    wanted = [name for name in names if name in {image, *captions, *EXTRA_COLUMNS} - held]
    present = _present(data, NEG_IMAGE) if NEG_IMAGE in held else None
    for row, record in enumerate(_records(data, wanted)):
        origin = f"{spec}, row {row + 1}"
        texts = [text for name in captions for text in cell_captions(record[name])]
        if image in held:
            id, shown = f"row {row + 1}", f"{image}:{row}"
        elif not isinstance(record[image], str):
            raise CompoclipError(f"{origin} has no image path in column {image!r}; mend it")
        else:
            shown = relative_image(record[image], root, origin)
            id = f"{shown}#{row}"
        extras = read_extras(record, root, origin)
        if present is not None and present(row):
            extras = replace(extras, negative_image=f"{NEG_IMAGE}:{row}")
        builder.add(id, shown, texts, extras, origin)
    opened = ColumnImages(root, {name: _Column(data, name, spec) for name in sorted(held)})
    columns = ", ".join(dict.fromkeys(builder.columns))
    chosen = f", split {split}" if split else ""
    return builder.build(opened, f"data set {spec}{chosen} (columns {columns})")


def _opened(spec: str, split: str | None) -> Any:
    """The data set with its images as they are stored, not decoded."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise CompoclipError(
            f"{spec}: needs the datasets package: {pip_install('datasets')}"
        ) from error
    name, config, part = _parts(spec, split)
    try:
        with _quiet(library):
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
    return data


def _parts(spec: str, split: str | None) -> tuple[str, str | None, str]:
    """Name, configuration and split. Raises UsageError where there is no split."""
    rest = spec.removeprefix(HUB)
    if split == ALL:
        raise UsageError(f"{spec}: name one split: hf:NAME/SPLIT")
    folder = bool(rest) and Path(rest).is_dir()
    if not folder and not split:
        rest, _, split = rest.rpartition("/")
        if not rest or not split:
            raise UsageError(f"{spec}: name data set and split: hf:NAME/SPLIT")
    name, colon, config = rest.rpartition(":") if not folder else (rest, "", "")
    return (name, config, split or TRAIN) if colon else (rest, None, split or TRAIN)


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """No progress bars of the library."""
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bars()


def _holds_images(data: Any, column: str) -> bool:
    feature = data.features[column]
    return hasattr(feature, "decode") or getattr(feature, "dtype", "").endswith("binary")


def _records(data: Any, columns: Collection[str]) -> Iterator[dict[str, Any]]:
    """The rows, of these columns alone."""
    if not columns:
        yield from ({} for _ in range(len(data)))
        return
    for batch in data.select_columns(list(columns)).with_format("arrow").iter(_AT_ONCE):
        yield from batch.to_pylist()


def _present(data: Any, column: str) -> Callable[[int], bool]:
    """Tells of a row whether it has an image in a column."""
    found: list[bool] = []
    for batch in data.select_columns([column]).with_format("arrow").iter(_AT_ONCE):
        found += batch.column(0).is_valid().to_pylist()
    return found.__getitem__


class _Column:
    """The images of one column, by row: encoded, however they are stored."""

    def __init__(self, data: Any, column: str, spec: str) -> None:
        self._rows, self._column, self._spec = data.select_columns([column]), column, spec
        self.stamp = str(data._fingerprint)  # of the data set's files and all that was done to them

    def __call__(self, image: str) -> bytes:
        """The encoded image of row `image`; no bytes when it has none, which decoding refuses."""
        cell = self._rows[int(image)][self._column]
        if not isinstance(cell, Mapping):
            return bytes(cell or b"")
        if cell.get("bytes") is None and cell.get("path"):
            try:
                return Path(cell["path"]).read_bytes()
            except OSError as error:
                raise CompoclipError(
                    f"{self._spec}, row {int(image) + 1}: {cell['path']}: cannot be read "
                    f"({error.strerror}); open the data set anew"
                ) from error
        return bytes(cell.get("bytes") or b"")
