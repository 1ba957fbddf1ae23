"""The captions that `compoclip caption` asks about: those of training data, or of a bare list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from compoclip.cli.rewrite_input import CaptionFile
from compoclip.console import note
from compoclip.data.columns import CAPTION_COLUMNS, IMAGE_COLUMNS
from compoclip.data.flickr8k import is_token_line
from compoclip.data.textfiles import delimited_header, read_jsonl, read_lines

Item = tuple[str, Sequence[str]]


def caption_items(data: str, column: str | None, split: str | None) -> Iterator[Item]:
    """(id, captions) of every sample, in order.

    data: what `train --data` takes, ids being those that training goes by; or a .txt file with one
    caption a line, or a .jsonl, .csv or .tsv file with captions and no images. Raises like the
    readers of each.
    """
    bare = _bare(Path(data), column)
    if bare is not None and split is None:
        for id, caption in bare:
            yield id, (caption.strip(),)
        return
    from compoclip.data.open_source import open_source

    source = open_source(data, caption_column=column, split=split)
    for reason, number in source.left_out.items():
        note(f"left out of the data: {number} x {reason}")
    yield from zip(source.ids(), source.caption_lists(), strict=True)


def _bare(path: Path, column: str | None) -> CaptionFile | None:
    """The file as a list of captions; None when it is (or should be) training data."""
    kind = path.suffix.lower()
    if not path.is_file() or kind not in (".txt", ".jsonl", ".csv", ".tsv"):
        return None
    if kind == ".txt":
        first = next((line for _, line in read_lines(path) if line.strip()), "")
        return None if is_token_line(first) else CaptionFile(path)
    if kind == ".jsonl":
        names = list(next((row for _, row in read_jsonl(path)), {}))
    else:
        names = delimited_header(path)
    if any(name in names for name in IMAGE_COLUMNS):
        return None
    return CaptionFile(path, column or next((c for c in CAPTION_COLUMNS if c in names), "caption"))
