"""Whether a place can be written, asked before the work rather than after it."""

from __future__ import annotations

import os
from pathlib import Path

from compoclip.errors import CompoclipError


def require_writable(folder: Path) -> None:
    """Raise CompoclipError unless `folder` is, or can be made, a folder that takes files.

    Makes nothing, so that a run that fails before it has something to write leaves no trace.
    """
    place = folder.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        reason = f"{place} is not a folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        reason = f"no permission to write in {place}"
    else:
        return
    raise CompoclipError(f"{folder}: cannot be written ({reason}); choose another --out")
