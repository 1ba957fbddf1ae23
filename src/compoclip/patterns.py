"""The files that one name stands for: a path, a brace or glob pattern, or a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from glob import glob, has_magic
from pathlib import Path

from compoclip.bounds import MAX_PATTERN_NAMES
from compoclip.errors import UsageError

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+:/|pipe:", re.IGNORECASE)
ROW_FILES = (".parquet", ".jsonl", ".jsonl.gz")
SHARD_FILES = (*ROW_FILES, ".tar")


def expand_braces(pattern: str) -> list[str]:
    """Expand a shell-like brace pattern, the first group slowest.

    "a-{000..002}.tar" counts, keeping leading zeros; "{train,val}.tar" lists; groups cannot be
    nested. Raises UsageError for other braces.
    """
    *groups, end = _GROUP.split(pattern)
    plain, inner = [*groups[::2], end], groups[1::2]
    if {"{", "}"}.intersection("".join(plain)):
        raise UsageError(f"{pattern}: unmatched brace in the pattern")
    names = [plain[0]]
    for group, rest in zip(inner, plain[1:]):
        choices: Sequence[str] = group.split(",")
        if numbers := _RANGE.fullmatch(group):
            first, last = map(int, numbers.groups())
            width = max(map(len, numbers.groups())) if group.startswith("0") else 0
            if not first <= last < first + MAX_PATTERN_NAMES:
                raise UsageError(f"{pattern}: the range {{{group}}} is empty or too long")
            choices = [f"{number:0{width}d}" for number in range(first, last + 1)]
        if not numbers and "," not in group:
            raise UsageError(f"{pattern}: {{{group}}} is neither a range like 000..099 nor a list")
        if not len(names) * len(choices) <= MAX_PATTERN_NAMES:
            raise UsageError(
                f"{pattern}: stands for more than {MAX_PATTERN_NAMES:,} names; write a shorter one"
            )
        names = [name + choice + rest for name in names for choice in choices]
    return names


def require_local(spec: str | Path) -> None:
    """Raise UsageError for anything but a local path: a URL, or a command to read from."""
    text = str(spec)  # a Path holds one slash where the URL has two
    if _REMOTE.match(text):
        spelled = text if "://" in text else text.replace(":/", "://", 1)
        raise UsageError(
            f"{spelled}: not supported: data is read from files on this machine; download it first"
        )


def find_files(spec: str | Path, endings: Sequence[str]) -> list[Path]:
    """Return the files that `spec` means: one, those of a brace or glob pattern, or of a folder.

    Of a folder they are the files with one of the endings, by name, or those of its folder "data",
    as on the Hugging Face hub. Files that a brace pattern lists may be missing. Raises UsageError
    for files of several kinds.
    """
    path = Path(spec)
    if path.is_dir():
        files = files_of_folder(path, endings)
    elif path.exists():
        files = [path]
    else:
        files = []
        for name in expand_braces(str(spec)):
            matches = (file for file in sorted(glob(name)) if ending_of(file, endings))
            files += map(Path, matches if has_magic(name) else [name])
    kinds = sorted({ending_of(file.name, endings) or file.suffix for file in files})
    if len(kinds) >= 2:
        raise UsageError(
            f"{spec}: holds files of several kinds ({', '.join(kinds)}); name those you mean, as "
            f"in 'part-{{000..099}}{''.join(kinds[-1:])}'"
        )
    return files


def files_of_folder(folder: Path, endings: Sequence[str]) -> list[Path]:
    """Return the files that the name of a folder means, of any kind: in it or its folder "data"."""
    places = (place for place in (folder, folder / "data") if place.is_dir())
    return next(filter(None, (files_in(place, *endings) for place in places)), [])


def shards_of_folder(folder: Path) -> list[Path]:
    """Return the tar files among the files that the name of a folder means."""
    return [file for file in files_of_folder(folder, SHARD_FILES) if has_ending(file, ".tar")]


def is_pattern(spec: str) -> bool:
    """Return whether a name stands for files by braces or wildcards."""
    return ("{" in spec or has_magic(spec)) and not Path(spec).exists()


def files_in(folder: Path, *endings: str) -> list[Path]:
    """Return what a folder holds with one of these endings, by name; hidden files are none."""
    files = (file for file in sorted(folder.iterdir()) if has_ending(file, *endings))
    return [file for file in files if not file.name.startswith(".")]


def ending_of(name: str, endings: Iterable[str]) -> str | None:
    """Return the ending that a file name has, ignoring case; None for another one."""
    return next((ending for ending in endings if name.lower().endswith(ending)), None)


def has_ending(file: Path, *endings: str) -> bool:
    """Return whether the name has one of these endings, ignoring case."""
    return ending_of(file.name, endings) is not None


def names_shards(source: str) -> bool:
    """Return whether a text names shards (a folder, a file or pattern that ends like a shard) and
    is no caption."""
    try:
        if source.strip() and Path(source).is_dir():
            return True
    except (OSError, ValueError):  # too long or with odd bytes
        return False
    try:
        names = expand_braces(source)
    except UsageError:  # braces of a caption
        names = [source]
    names += [file for name in names if has_magic(name) for file in glob(name)]
    plain = not any(map(str.isspace, source))
    there = (name for name in names if plain or Path(name).exists())
    return any(ending_of(name, SHARD_FILES) for name in there)
