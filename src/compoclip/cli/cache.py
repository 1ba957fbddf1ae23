"""`compoclip cache`: what is kept between commands, how large it is, and its removal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compoclip.cli.options import parse
from compoclip.console import table, tell
from compoclip.errors import CompoclipError
from compoclip.files import cache_folder

_KINDS = {  # kind -> what it is
    "parses": "parses of captions, made anew when they are asked for",
    "features": "features of frozen towers, of train --cache-frozen without --features",
    "indexes": "where samples begin in large data files on read-only disks",
}


@dataclass(frozen=True)
class CacheOptions:
    """Show what compoclip keeps between commands, and how large it is; --clear removes it.

    Nothing of it is a result: what a command misses, it makes anew. Clear it while no command
    runs. It is in $XDG_CACHE_HOME/compoclip, else ~/.cache/compoclip; what a command was given a
    folder for (--features, --cache) is not in it.

    Args:
        clear: Remove it: parses, features or indexes alone, or all.
        json: Print JSON.
    """

    clear: Literal["parses", "features", "indexes", "all"] | None = None
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Print one row a kind, after removing what is asked for; returns the exit code."""
    options = parse(CacheOptions, "cache", argv)
    folder = cache_folder()
    found = {kind: _size(_kept(folder, kind)) for kind in _KINDS}
    cleared = [kind for kind in _KINDS if options.clear in (kind, "all")]
    for kind in cleared:
        for path in _kept(folder, kind):
            _remove(path)
    record = {"folder": str(folder), "bytes": found, "cleared": cleared}
    rows = [
        [kind, f"{size / 1e6:.1f} MB", "removed" if kind in cleared else "", _KINDS[kind]]
        for kind, size in found.items()
    ]
    total = f"{sum(found.values()) / 1e6:.1f} MB in {folder}"
    return tell(
        options.json,
        record,
        f"{table(rows, ['kind', 'size', 'state', 'holds'], left=4)}\n\n{total}",
    )


def _kept(folder: Path, kind: str) -> list[Path]:
    """The files and folders of a kind."""
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in there if _kind(path.name) == kind]


def _kind(name: str) -> str:
    if name.startswith("parses.sqlite"):  # and its log and index, beside it
        return "parses"
    return "features" if name == "features" else "indexes"


def _size(paths: Sequence[Path]) -> int:
    files = (each for path in paths for each in (path, *path.rglob("*")) if each.is_file())
    return sum(each.stat().st_size for each in files)


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise CompoclipError(
            f"{path}: cannot be removed ({error.strerror or error}); check its rights"
        ) from error
