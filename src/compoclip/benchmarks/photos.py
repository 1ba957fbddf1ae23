"""Photos whose official annotations name them by a key, not by a file: found by their stem."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from compoclip import files

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")


def by_stem(folders: Sequence[Path]) -> Mapping[str, Path]:
    """Stem -> image file, over all `folders` that exist.

    Of several files with one stem the one in the earlier folder is taken, then that whose suffix
    comes first in `SUFFIXES`. Raises CompoclipError for a folder that cannot be read.
    """
    found: dict[str, tuple[int, int, Path, str]] = {}
    for place, folder in enumerate(folders):
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise files.unreadable(folder, error) from error
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix.lower() not in SUFFIXES:
                continue
            entry = (place, SUFFIXES.index(suffix.lower()), folder, name)
            if stem not in found or entry < found[stem]:
                found[stem] = entry
    return {stem: folder / name for stem, (_, _, folder, name) in found.items()}
