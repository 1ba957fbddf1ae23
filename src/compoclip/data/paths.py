"""Paths as data files write them: many as one pattern, and images below a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from compoclip.errors import CompoclipError, UsageError

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+:/|pipe:", re.IGNORECASE)
_LIMIT = 1_000_000
ROW_FILES = (".parquet", ".jsonl", ".jsonl.gz")


def expand_braces(pattern: str) -> list[str]:
    """The names a shell-like brace pattern stands for, first group slowest.

    "a-{000..002}.tar" counts, keeping leading zeros; "{train,val}.tar" lists; groups may be
    repeated but not nested. Raises UsageError for other braces.
    """
    *groups, end = _GROUP.split(pattern)
    plain, inner = [*groups[::2], end], groups[1::2]
    if any("{" in part or "}" in part for part in plain):
        raise UsageError(f"{pattern}: unmatched brace in the pattern")
    names = [plain[0]]
    for group, rest in zip(inner, plain[1:]):
        choices = _choices(group, pattern)
        if len(names) * len(choices) > _LIMIT:
            raise UsageError(
                f"{pattern}: stands for more than {_LIMIT:,} names; write a shorter one"
            )
        names = [name + choice + rest for name in names for choice in choices]
    return names


def _choices(inner: str, pattern: str) -> list[str]:
    """What stands between two braces."""
    numbers = _RANGE.fullmatch(inner)
    if numbers is not None:
        first, last = int(numbers.group(1)), int(numbers.group(2))
        width = max(map(len, numbers.groups())) if inner.startswith("0") else 0
        if not first <= last < first + _LIMIT:
            raise UsageError(f"{pattern}: the range {{{inner}}} is empty or too long")
        return [f"{number:0{width}d}" for number in range(first, last + 1)]
    if "," in inner:
        return inner.split(",")
    raise UsageError(f"{pattern}: {{{inner}}} is neither a range like 000..099 nor a list")


def require_local(spec: str | Path) -> None:
    """Raise UsageError for what is no path on this machine: a URL, or a command to read from."""
    text = str(spec)
    if _REMOTE.match(text):
        # A Path holds one slash where the URL has two.
        shown = text if "://" in text else text.replace(":/", "://", 1)
        raise UsageError(
            f"{shown}: not supported: data is read from files on this machine; download it first"
        )


def row_files(spec: str | Path) -> list[Path]:
    """The files of rows that `spec` means: one, a brace pattern, or all of a folder.

    Raises CompoclipError for a folder without such files, UsageError as `rows_in` does.
    """
    folder = Path(spec)
    if not folder.is_dir():
        return [folder] if folder.is_file() else [Path(name) for name in expand_braces(str(spec))]
    files = rows_in(folder)
    if not files:
        raise CompoclipError(f"{folder}: holds no {', '.join(ROW_FILES)} file; check the path")
    return files


def rows_in(folder: Path) -> list[Path]:
    """The files of rows in a folder and in its folder "data", as on the Hugging Face hub, by name.

    They are of one of the kinds `ROW_FILES`; raises UsageError when there are several.
    """
    files = sorted(
        file
        for place in (folder, folder / "data")
        for file in (place.iterdir() if place.is_dir() else ())
        if has_ending(file, *ROW_FILES) and not file.name.startswith(".")
    )
    kinds = sorted({str(ending_of(file.name, ROW_FILES)) for file in files})
    if len(kinds) > 1:
        raise UsageError(
            f"{folder}: holds files of several kinds ({', '.join(kinds)}); name those you mean, as "
            "in 'part-{000..099}.jsonl'"
        )
    return files


def ending_of(name: str, endings: Iterable[str]) -> str | None:
    """Which of the endings a file name has, in letters of any case."""
    return next((ending for ending in endings if name.lower().endswith(ending)), None)


def has_ending(file: Path, *endings: str) -> bool:
    """Whether the name ends with one of these."""
    return ending_of(file.name, endings) is not None


def relative_image(image: str, root: Path, origin: str) -> str:
    """The image's path relative to `root`, refusing whatever leads out of it.

    Relative names may not climb above the root, absolute ones must lie in it. Links inside the
    root may point anywhere: whoever made the folder put them there. Raises CompoclipError naming
    `origin` (file and row) otherwise, or when the name is a URL.
    """
    if "://" in image:
        raise CompoclipError(f"{origin}: {image!r} is a URL; download the images first")
    if "\0" in image or not image.strip():
        raise CompoclipError(f"{origin}: the image path {image!r} is not usable; mend the file")
    normal = os.path.normpath(image)
    if os.path.isabs(normal):
        normal = os.path.relpath(normal, os.path.abspath(root))
    if normal == ".." or normal.startswith(".." + os.sep):
        raise CompoclipError(
            f"{origin}: image {image!r} lies outside {root}; pass --images with the folder that "
            "holds the images"
        )
    return normal
