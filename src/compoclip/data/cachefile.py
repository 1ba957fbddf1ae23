"""Where what was computed about a data file is kept: beside it, else in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from compoclip.errors import CompoclipError
from compoclip.files import replacing, unreadable


def fingerprint(path: Path) -> str:
    """Size and modification time of a file: a cache made from another state of it is stale."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return f"{status.st_size}-{status.st_mtime_ns}"


def cache_folder() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME/compoclip, else ~/.cache/compoclip."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compoclip"


def cache_paths(path: Path, suffix: str) -> tuple[Path, Path]:
    """Where the cache of `path` may lie: a hidden file beside it, or in the cache folder."""
    digest = hashlib.blake2b(os.fsencode(path.absolute()), digest_size=16).hexdigest()
    return (
        path.with_name(f".{path.name}{suffix}"),
        cache_folder() / f"{path.name[:80]}-{digest}{suffix}",
    )


def write_cache(path: Path, suffix: str, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary file, then move it to the first place that takes it.

    Atomic: readers see the whole file or none. Raises CompoclipError when no place can be written.
    """
    reasons = []
    for target in cache_paths(path, suffix):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as temporary:
                write(temporary)
            return target
        except OSError as error:
            reasons.append(f"{target.parent}: {error.strerror or error}")
    raise CompoclipError(
        f"{path}: nowhere to keep its index ({'; '.join(reasons)}); free space, or set "
        "XDG_CACHE_HOME to a folder that can be written"
    )
