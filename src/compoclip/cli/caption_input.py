"""Captions from whatever file or folder a user points at."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compoclip.data.textfiles import read_jsonl, read_lines
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import read_json


def read_captions(path: Path) -> list[str]:
    """Captions in file order.

    .txt: one a line, blank lines skipped. .jsonl: objects. .json: a list or an object of objects
    or strings (SugarCrepe), or JSON lines (SugarCrepe++). A folder: its .json, .jsonl and .txt
    files by name. Of an object every field with "caption" in its name counts, true and false
    captions alike. Raises CompoclipError when nothing is found.
    """
    captions = list(_captions(path))
    if not captions:
        raise CompoclipError(f"{path}: no captions found (fields named *caption* or text lines)")
    return captions


def world_captions(count: int = 2000) -> list[str]:
    """Captions of made scenes, four a scene, for a machine without real ones."""
    from compoclip.world.captions import captions_for
    from compoclip.world.sampling import scene_for
    from compoclip.world.scene import WorldConfig

    config = WorldConfig()
    return [
        caption.text
        for index in range(count // 4)
        for caption in captions_for(scene_for(config, 0, "train", index), config, 0, index, 4)
    ]


def drawn_captions(path: Path | None, count: int, seed: int, remedy: str) -> list[str]:
    """`count` captions of a file or folder, or of the world, drawn without replacement.

    remedy: the options to lower. Raises UsageError when there are not as many.
    """
    captions = read_captions(path) if path else world_captions()
    if len(captions) < count:
        raise UsageError(
            f"{path or 'the world'}: {len(captions)} captions, fewer than the {count} asked for; "
            f"lower {remedy}"
        )
    return random.Random(seed).sample(captions, count)


def _captions(path: Path) -> Iterator[str]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.suffix in (".json", ".jsonl", ".txt") and file.is_file():
                yield from _captions(file)
    elif path.suffix == ".jsonl":
        for _, row in read_jsonl(path):
            yield from _of_row(row)
    elif path.suffix == ".json":
        data = _document(path)
        for row in data.values() if isinstance(data, dict) else data:
            yield from _of_row(row)
    else:
        yield from (line for _, line in read_lines(path) if line.strip())


def _document(path: Path) -> Any:
    try:
        return read_json(path, damaged="mend the file")
    except CompoclipError:
        lines = list(read_jsonl(path))  # some publishers name JSON lines .json
        return [row for _, row in lines]


def _of_row(row: Any) -> Iterator[str]:
    if isinstance(row, str):
        yield row
    elif isinstance(row, dict):
        for key, value in row.items():
            if "caption" in key:
                yield from (v for v in _listed(value) if isinstance(v, str) and v.strip())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
