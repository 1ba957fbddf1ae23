"""Results, runs and bundles that other commands wrote: checks that they are there.

`load_results`, `write_bundle` and `verify_bundle` make these checks. They are here because the
modules of those import what takes a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compoclip.archives import is_archive
from compoclip.errors import CompoclipError, require
from compoclip.files import read_json
from compoclip.models.names import INSIDE

SCHEMA = 2
"""Format version of results, raised when numbers of earlier files do not compare with new ones."""
REMEDY = "name the folders that evaluate wrote, or evaluate again"
"""Remedy for a malformed result file."""
BUNDLE = "bundle.json"


def result_files(path: Path) -> list[Path]:
    """Return the file of a result, or those of a folder and the folders below it, sorted.

    Raises CompoclipError when there is none.
    """
    if not path.is_file() and not path.is_dir():
        raise CompoclipError(f"{path}: no such file or folder; give what evaluate wrote (--out)")
    below = sorted(path.rglob("*.json"))
    visible = [file for file in below if "/." not in f"/{file.relative_to(path).as_posix()}"]
    files = [path] if path.is_file() else visible
    require(files, path, "holds no results; give what evaluate wrote (--out)")
    return files


def read_result(file: Path) -> dict[str, Any]:
    """Return what a result file holds; raise CompoclipError for one of another version."""
    data = read_json(file, damaged=REMEDY)
    version = data.get("schema") if isinstance(data, dict) else None
    if version != SCHEMA:
        raise CompoclipError(
            f"{file}: not a result file of this version (schema {version}, expected {SCHEMA}); "
            f"{REMEDY}"
        )
    result: dict[str, Any] = data
    return result


def require_results(path: Path) -> None:
    """Raise CompoclipError unless there are results, the first of them of this version."""
    read_result(result_files(path)[0])


def model_of(run: Path) -> Path:
    """Return the folder of the model, or the adapter, that a run has written.

    Raises CompoclipError when there is neither.
    """
    written = next((run / name for name in INSIDE if (run / name).is_dir()), None)
    if written is None:
        raise CompoclipError(f"{run}: holds no model; give the folder of a finished run")
    return written


def require_bundle(path: Path) -> None:
    """Raise CompoclipError unless a folder holds a bundle, or a file is an archive."""
    if path.is_dir():
        require((path / BUNDLE).is_file(), path / BUNDLE, "no such file; check the path")
        return
    require(
        is_archive(path),
        path,
        "is no bundle; name the folder or archive that compoclip bundle wrote",
    )
