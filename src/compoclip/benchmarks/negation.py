"""CC-Neg (CoN-CLIP, Singh et al., WACV 2025), out of a file of torch.save; its code never runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Case, Form, ImageRef
from compoclip.benchmarks.reader import Loading
from compoclip.console import counted
from compoclip.data.columns import require_texts
from compoclip.errors import CompoclipError, require
from compoclip.files import reading
from compoclip.models.names import saved_by_torch

TEST_ROWS = 40_000


def cc_neg(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    """Yield the caption and the negation of each of the last rows."""
    path = annotations or data.root / "cc_neg" / "ccneg_preprocessed.pt"
    data.files["rows"] = path
    photos = data.photos("cc3m")
    paths, rows = _pickled(path)
    first = max(0, len(rows) - TEST_ROWS)
    data.left_out[f"rows before the last {TEST_ROWS:,}, which are for training"] += first
    for index in range(first, len(rows)):
        location = f"{path}: row {index}"
        name, *texts = _negated(paths[index], rows[index], location)
        image = ImageRef(files.image_path(photos, name, location))
        yield Case(f"{index}", Form.CHOOSE_TEXT, (image,), tuple(texts), "cc_neg")


def cc_neg_training(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of CC-Neg that are for training: all but the last 40,000.

    A row is {"filepath", "title", "neg_caption"}: the last two parts of a photo's path, its
    caption, and the negation alone in a list, as NegCLIP's tables have it.
    """
    paths, rows = _pickled(path)
    if len(rows) <= TEST_ROWS:
        raise CompoclipError(
            f"{path}: {len(rows):,} rows, of which the last {TEST_ROWS:,} are the test: none are "
            f"left to train on; {files.OFFICIAL}"
        )
    for index in range(len(rows) - TEST_ROWS):
        name, caption, negation = _negated(paths[index], rows[index], f"{path}: row {index}")
        yield {"filepath": name, "title": caption, "neg_caption": [negation]}


def _pickled(path: Path) -> tuple[list[Any], list[Any]]:
    problem = "is not plain data that torch.save wrote, and no code in it is run; "
    problem += files.OFFICIAL
    require(not path.is_file() or saved_by_torch(path), path, problem)
    import torch  # no other benchmark needs it

    with reading(path, files.OFFICIAL):
        try:
            value = torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # damage of any kind, and names of code
            raise CompoclipError(f"{path}: {problem}") from error
    paths, rows = (
        files.items(files.field(files.record(value, str(path)), key, str(path)), f"{path}: {key!r}")
        for key in ("image_paths", "annotations")
    )
    if len(paths) != len(rows):
        raise CompoclipError(
            f"{path}: {counted(len(paths), 'image path')} and {counted(len(rows), 'annotation')}; "
            f"{files.OFFICIAL}"
        )
    return list(paths), list(rows)


def _negated(path: Any, annotation: Any, location: str) -> tuple[str, str, str]:
    """Return the last two parts of a photo's path, its caption and the negation without commas."""
    row = files.record(annotation, location)
    metadata, negation = (
        files.record(files.field(row, key, location), f"{location}: {key!r}")
        for key in ("json", "sop_data")
    )
    texts = (
        files.text(metadata, "caption", location),
        files.text(negation, "negative-prompt", location).replace(",", ""),
    )
    name = files.nonempty(path, f"{location}: image path")
    require_texts((*texts, name), location)
    return ("/".join(PurePosixPath(name.replace("\\", "/")).parts[-2:]), *texts)
