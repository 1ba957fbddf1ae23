"""`compoclip cache`: size and removal of cached files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compoclip.cli.options import Outcome, Printing
from compoclip.console import table
from compoclip.errors import CompoclipError
from compoclip.files import cache_folder, reason

_KINDS = {  # kind -> what it is
    "parses": "parses of captions, made anew when they are asked for",
    "features": "features of frozen towers, of train --cache-frozen without --features",
    "indexes": "where samples begin in large data files on read-only disks",
}


@dataclass(frozen=True)
class CacheOptions(Printing):
    """Show the size of the cache; --clear empties it.

    The cache holds no results; commands compute missing entries again. Clear it while no command
    runs. It is in $XDG_CACHE_HOME/compoclip, else ~/.cache/compoclip. Folders given to a command
    (--features, --cache) are not part of it.

    Args:
        clear: Entries to remove: parses, features, indexes or all.
    """

    clear: Literal["parses", "features", "indexes", "all"] | None = None


def main(options: CacheOptions) -> Outcome:
    """Print one row per kind, after removing what is asked for; returns the exit code."""
    folder = cache_folder()
    places: dict[str, list[Path]] = {kind: [] for kind in _KINDS}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        # parses.sqlite has its log and index beside it
        known = "parses" if path.name.startswith("parses.sqlite") else path.name
        places[known if known in ("parses", "features") else "indexes"].append(path)
    sizes = {}
    for kind, paths in places.items():
        files = (each for path in paths for each in (path, *path.rglob("*")) if each.is_file())
        sizes[kind] = sum(each.stat().st_size for each in files)
    cleared = [kind for kind in _KINDS if options.clear in (kind, "all")]
    for path in (each for kind in cleared for each in places[kind]):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise CompoclipError(
                f"{path}: cannot be removed ({reason(error)}); check its rights"
            ) from error
    record = {"folder": str(folder), "bytes": sizes, "cleared": cleared}
    rows = [
        [kind, f"{size / 1e6:.1f} MB", "removed" if kind in cleared else "", _KINDS[kind]]
        for kind, size in sizes.items()
    ]
    shown = table(rows, ["kind", "size", "state", "holds"], left=4)
    total = f"{sum(sizes.values()) / 1e6:.1f} MB in {folder}"
    return record, f"{shown}\n\n{total}"
