"""One call that opens whatever training data a path names."""

from __future__ import annotations

from pathlib import Path

from compoclip.data.coco import open_coco
from compoclip.data.flickr8k import is_token_line, open_flickr8k
from compoclip.data.folder import METADATA, open_folder
from compoclip.data.karpathy import open_karpathy
from compoclip.data.negclip_tsv import COLUMNS, open_negclip
from compoclip.data.paths import ROW_FILES, expand_braces, has_ending, rows_in
from compoclip.data.rows import RowSource
from compoclip.data.shards import ShardSource, find_shards
from compoclip.data.tables import open_table
from compoclip.data.tarindex import IMAGE_EXTENSIONS
from compoclip.data.textfiles import delimited_header, read_lines
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import read_json

FORMATS = (
    "table (.csv, .tsv, .jsonl, .jsonl.gz, .parquet, or a folder of one of the last three)",
    "NegCLIP table (.tsv with columns title, filepath, neg_caption)",
    "Karpathy or COCO caption JSON (.json)",
    "Flickr8k token file (.txt with lines name.jpg#k<TAB>caption)",
    "webdataset shards (.tar, 'train-{000..099}.tar', or a folder of .tar)",
    "folder of images with name.txt or metadata.jsonl beside them",
)


def open_source(
    spec: str,
    *,
    images: Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split: str | None = None,
) -> RowSource | ShardSource:
    """The image-text source that a path, brace pattern or folder names; see FORMATS.

    images: the folder image paths are relative to, by default that of the annotation file.
    image_column, caption_column: of tables (several caption columns joined by commas) and, for the
    caption, of .json members in shards; guessed when not given. split: for the formats that hold
    several: Karpathy JSON, Flickr8k, folders of shards or tables named "train-*".

    Raises UsageError for an unknown format, a wrong column or an option the format has no use
    for; CompoclipError for files that are missing or malformed.
    """
    table = {"image_column": image_column, "caption_column": caption_column}
    path = Path(spec)
    if spec.endswith((".tar", ".tar.gz", ".tgz")) or (
        path.is_dir() and next(path.glob("*.tar"), None)
    ):
        _refuse(spec, "webdataset shards", images=images, image_column=image_column)
        return ShardSource(find_shards(spec, split), caption_column)
    if path.is_dir():
        return _open_folder(path, images, image_column, caption_column, split)
    files = [path] if path.is_file() else [Path(name) for name in expand_braces(spec)]
    for file in files:
        if not file.is_file():
            raise CompoclipError(f"{file}: not found; check the path")
    usual = image_column in (None, "filepath") and caption_column in (None, "title")
    if len(files) == 1 and usual and _is_negclip(files[0]):
        _refuse(spec, "NegCLIP tables", split=split)
        return open_negclip(files[0], images)
    if has_ending(files[0], ".csv", ".tsv", *ROW_FILES):
        _refuse(spec, "tables", split=split)
        return open_table(files, images, **table)
    if has_ending(files[0], ".json") and len(files) == 1:
        _refuse(spec, "caption JSON", **table)
        return _open_json(files[0], images, split)
    if has_ending(files[0], ".txt") and len(files) == 1:
        first = next((line for _, line in read_lines(files[0]) if line.strip()), "")
        if is_token_line(first):
            _refuse(spec, "token files", **table)
            return open_flickr8k(files[0], images, split)
    raise _unknown(spec)


def _is_negclip(path: Path) -> bool:
    return has_ending(path, ".csv", ".tsv") and set(COLUMNS) <= set(delimited_header(path))


def _open_folder(
    path: Path,
    images: Path | None,
    image_column: str | None,
    caption_column: str | None,
    split: str | None,
) -> RowSource:
    if any((path / name).is_file() for name in METADATA):
        _refuse(str(path), "image folders", images=images, split=split)
        return open_folder(path, image_column, caption_column)
    tables = rows_in(path)
    if tables:
        chosen = [f for f in tables if split is None or f.name.startswith(split)]
        if not chosen:
            have = ", ".join(sorted({f.name.split("-")[0] for f in tables}))
            raise UsageError(f"{path}: no split {split!r}; it has: {have}")
        return open_table(chosen, images, image_column, caption_column)
    tokens = sorted(path.glob("*.token.txt"))
    if tokens:
        return open_flickr8k(tokens[0], images, split)
    if any(file.suffix[1:].lower() in IMAGE_EXTENSIONS for file in path.rglob("*.*")):
        _refuse(
            str(path),
            "image folders without metadata",
            images=images,
            split=split,
            image_column=image_column,
            caption_column=caption_column,
        )
        return open_folder(path)
    raise _unknown(str(path))


def _open_json(path: Path, images: Path | None, split: str | None) -> RowSource:
    data = read_json(path, damaged="fetch the file again")
    if isinstance(data, dict) and "annotations" in data:
        _refuse(str(path), "COCO annotations", split=split)
        return open_coco(path, images)
    return open_karpathy(path, images, split)


def _refuse(spec: str, kind: str, **options: object) -> None:
    """Raise UsageError for an option that was given but means nothing to this format."""
    given = [name.replace("_", "-") for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{spec}: {kind} take no --{given[0]}; leave it out")


def _unknown(spec: str) -> UsageError:
    return UsageError(f"{spec}: unknown format; known are: {'; '.join(FORMATS)}")
