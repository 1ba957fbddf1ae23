"""A directory that is complete or not there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from compoclip.errors import CompoclipError


@contextmanager
def whole_directory(directory: Path, marker: str, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory beside `directory`; move it into place when the block is done.

    An existing directory is replaced only with `overwrite` and if it holds the file `marker`, so
    that nothing else is ever deleted. Raises CompoclipError when the place is taken or writing
    fails; then what was there is still there.
    """
    directory = directory.absolute()
    mark = uuid.uuid4().hex[:8]
    temporary = directory.parent / f".{directory.name}.{mark}.tmp"
    retired = directory.parent / f".{directory.name}.{mark}.old"
    try:
        taken = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
        if taken and not (overwrite and (directory / marker).is_file()):
            remedy = "it is no checkpoint: " if overwrite else "ask to overwrite it or "
            raise CompoclipError(f"{directory}: already exists; {remedy}choose another place")
        temporary.mkdir(parents=True)
        yield temporary
        readable = temporary.stat().st_mode & 0o666
        for file in temporary.iterdir():
            file.chmod(readable)  # some writers make private files
            _sync(file)
        if taken:
            os.replace(directory, retired)
        os.replace(temporary, directory)
        _sync(directory.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CompoclipError(
            f"{directory}: cannot write the checkpoint ({reason}); "
            "free space or choose another place"
        ) from error
    finally:
        if retired.exists() and not directory.exists():
            os.replace(retired, directory)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
