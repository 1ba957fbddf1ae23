"""The files of a folder: one walk for every reader, which counts by reason what it passes over.

Every file below a folder, and every link to a folder, is either yielded or counted once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from compoclip.console import note_once
from compoclip.data.image_names import is_read, why_unread
from compoclip.files import encodable, unreadable

#: Folders and files that systems, network disks and archivers make, in small letters. Those whose
#: names begin with a dot are passed over as hidden.
SYSTEM_NAMES = frozenset(
    (
        *("@eadir", "@tmp", "#recycle", "#snapshot"),  # Synology
        *("@recycle", "@recently-snapshot", "@transcode"),  # QNAP
        *("__macosx", "network trash folder", "temporary items"),  # macOS
        *("$recycle.bin", "recycler", "recycled", "system volume information", "found.000"),
        *("thumbs.db", "ehthumbs.db", "desktop.ini"),  # Windows
        "lost+found",  # Linux
    )
)
SYSTEM = "file of the system (such as @eaDir, __MACOSX or Thumbs.db)"
HIDDEN = "hidden file"
EXCLUDED = "file that --exclude names"
LINKED_FOLDER = "link to a folder"
BROKEN_LINK = "link to a file that is missing"
NO_FILE = "pipe, socket or device"
NOT_UTF8 = "file whose name is not UTF-8"
CLOSED_FOLDER = "folder that cannot be listed"
NO_IMAGE_FILE = "file that is no image"
NO_LOSS = frozenset((HIDDEN, SYSTEM, EXCLUDED, NO_IMAGE_FILE))
"""Reasons to leave out what is none of the user's photos."""


def image_files(root: Path, left_out: Counter[str], exclude: Sequence[str] = ()) -> Iterator[str]:
    """Yield the paths of the images below a folder, as `walk`; other files are counted.

    Args:
        root: The folder.
        left_out: Is increased by what is passed over: reason -> number.
        exclude: As for `walk`.
    """
    for folder, names in walk(root, left_out, exclude):
        for name in names:
            if is_read(name):
                yield os.path.join(folder, name)
            else:
                left_out[why_unread(name) or NO_IMAGE_FILE] += 1


def walk(
    root: Path, left_out: Counter[str], exclude: Sequence[str] = (), linked_levels: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder below `root`, itself first as "", and the sorted names of its files.

    Folders are paths relative to `root`, in sorted order, each before its own folders. Links to
    files are followed.

    Args:
        root: The folder.
        left_out: Is increased by what is passed over: reason -> number of files.
        exclude: Glob patterns. One without a slash is compared with the name of every file and
            folder, one with a slash with paths relative to `root`; * stands for any characters. The
            files of a folder that a pattern names are passed over with it. A line says
            which pattern names nothing.
        linked_levels: Links to folders are followed in `root` (1), and in its folders (2), unless
            they lead to a folder that is walked anyway or leads to one. Other links are counted.

    Raises:
        CompoclipError: For a folder `root` that cannot be listed.
    """
    waiting, walked, unmatched = [""], {root.resolve()}, {*exclude}
    while waiting:
        folder = waiting.pop()
        level = len(Path(folder).parts)
        visited = walked if level < linked_levels else None
        folders, files = list_folder(root, left_out, exclude, folder, visited, unmatched)
        yield folder, files
        waiting += (os.path.join(folder, name) for name in reversed(folders))
    for pattern in sorted(unmatched):
        note_once(
            f"{root}: nothing there matches the pattern {pattern!r} of exclude; correct it, or put "
            "quotes around a pattern with blanks"
        )


def list_folder(
    root: Path,
    left_out: Counter[str],
    exclude: Sequence[str] = (),
    folder: str = "",
    visited: set[Path] | None = None,
    unmatched: set[str] | None = None,
) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the files in `root`/`folder`; see `walk`.

    visited: The folders that are walked with all below them; a link to another folder is followed
    and adds it. None follows no link. unmatched: Patterns that have named nothing yet; those that
    name something here are removed.
    """
    try:
        with os.scandir(root / folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as error:
        if not folder:
            raise unreadable(root, error, "check the folder") from error
        left_out[CLOSED_FOLDER] += 1
        return [], []
    folders: list[str] = []
    files: list[str] = []
    for entry in entries:
        path = os.path.join(folder, entry.name)
        patterns = [pattern for pattern in exclude if _names(pattern, entry.name, path)]
        reason = _why_passed_over(entry, bool(patterns), visited)
        if unmatched is not None and reason == EXCLUDED:
            unmatched.difference_update(patterns)
        if reason:
            inside = entry.is_dir(follow_symlinks=False)
            left_out[reason] += _count_files(entry.path) if inside else 1
        else:
            (folders if os.path.isdir(entry.path) else files).append(entry.name)
    return folders, files


def _names(pattern: str, name: str, path: str) -> bool:
    """Return whether a pattern of `walk` names a file or folder."""
    pattern = pattern.strip("/")
    return fnmatchcase(path if "/" in pattern else name, pattern)


def _why_passed_over(entry: os.DirEntry[str], excluded: bool, visited: set[Path] | None) -> str:
    """The reason why a file or folder is passed over; "" for one that is read."""
    if not encodable(entry.name):
        return NOT_UTF8
    if entry.name.startswith("."):
        return HIDDEN
    if entry.name.lower() in SYSTEM_NAMES:
        return SYSTEM
    if excluded:
        return EXCLUDED
    if os.path.isdir(entry.path):  # entry.is_dir() raises OSError for a link to itself
        followed = not entry.is_symlink() or _is_new(Path(entry.path).resolve(), visited)
        return "" if followed else LINKED_FOLDER
    if os.path.isfile(entry.path):
        return ""
    return BROKEN_LINK if entry.is_symlink() and not os.path.exists(entry.path) else NO_FILE


def _is_new(folder: Path, visited: set[Path] | None) -> bool:
    """Add a folder to those that are visited, unless it holds one of them or lies in one."""
    if visited is None:
        return False
    if any(folder.is_relative_to(other) or other.is_relative_to(folder) for other in visited):
        return False
    visited.add(folder)
    return True


def _count_files(folder: str) -> int:
    """The number of files and of links to folders below a folder."""
    return sum(
        len(files) + sum(os.path.islink(os.path.join(parent, name)) for name in folders)
        for parent, folders, files in os.walk(folder)
    )
