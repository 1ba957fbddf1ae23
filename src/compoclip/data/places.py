"""The places that a name of data stands for, and whether they are there; nothing is read."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from compoclip.bounds import MAX_MIXTURE_WEIGHT
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.patterns import ROW_FILES, find_files, has_ending, require_local
from compoclip.typed import at_home

HUB, STREAM = "hf:", "hf-stream:"
TABLES = (".csv", ".tsv", *ROW_FILES)
PACKED = (".tar.gz", ".tgz")
"""Endings of compressed shards, which readers refuse with the remedy."""
ENDINGS = (*TABLES, ".json", ".txt", ".tar", *PACKED)
"""Endings of the names of data files."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # owner/name on the Hugging Face hub
_WEIGHTED = re.compile(r"(.+)=(\d+\.?\d*(?:[eE]-?\d+)?|\.\d+)")


def is_remote(spec: str) -> bool:
    """Return whether the library of Hugging Face opens what a name stands for."""
    return spec.startswith((HUB, STREAM)) and not spec.startswith(f"{HUB}//")


def named_files(spec: str) -> Sequence[Path]:
    """Return the files that are named one by one; none for a folder, and for remote data."""
    return () if is_remote(spec) or Path(spec).is_dir() else find_files(spec, ENDINGS)


def names_data(spec: str) -> bool:
    """Return whether a name is that of data files, and not of a folder, which may hold anything.

    Raises UsageError as `mixture_of` does.
    """
    if is_remote(spec) or mixture_of(spec) is not None:
        return True
    return any(file.is_file() for file in named_files(spec))


def mixture_of(spec: str) -> dict[str, float] | None:
    """Return the weights of several data sets; None for a single one.

    spec: `DATA=WEIGHT DATA=WEIGHT ...`, with shell quotes around names with spaces. Raises
    UsageError for a weight that is missing or out of range, a repeated data set, and a single data
    set with a weight.
    """
    if Path(spec).exists():
        return None
    try:
        words = list(map(at_home, shlex.split(spec)))
    except ValueError:
        return None
    matches = [_WEIGHTED.fullmatch(word) for word in words]
    if len(words) == 1 and matches[0]:
        raise UsageError(f"{words[0]}: a single data set takes no weight; write {matches[0][1]}")
    if len(words) < 2 or not (any(matches) or all(Path(word).exists() for word in words)):
        return None
    weights: dict[str, float] = {}
    places = set[str]()
    for word, match in zip(words, matches):
        if match is None or not 0 < float(match[2]) <= MAX_MIXTURE_WEIGHT:
            raise UsageError(
                f"{word}: each of several data sets needs a weight above 0 and up to "
                f"{MAX_MIXTURE_WEIGHT:,}, as in {words[0].partition('=')[0]}=0.5"
            )
        place = os.path.realpath(match[1])  # one file may have several names
        require(place not in places, match[1], "is there twice; give it one weight", UsageError)
        places.add(place)
        weights[match[1]] = float(match[2])
    return weights


def require_there(spec: str, images: Path | None = None) -> None:
    """Raise UsageError or CompoclipError unless data and the folder of their images are there.

    A data set of the hub is taken to be there.
    """
    if images is not None:
        require_local(images)
        if not images.is_dir():
            raise UsageError(
                f"{images}: no such folder; name the folder of the images with --images"
            )
    if not is_remote(spec):
        require_local(spec)
    weights = mixture_of(spec)
    if weights is not None:
        for part in weights:
            require_there(part)
        return
    if not is_remote(spec) and Path(spec).is_dir() and not any(Path(spec).iterdir()):
        raise CompoclipError(f"{spec}: an empty folder; name one with photos or data")
    files = named_files(spec)
    nothing = not (files or is_remote(spec) or Path(spec).is_dir())
    missing = next((file for file in files if not file.is_file()), Path(spec) if nothing else None)
    if missing and _HUB_ID.fullmatch(spec) and not has_ending(missing, *ENDINGS):
        raise CompoclipError(
            f"{spec}: not found; check the path. A Hugging Face data set is {HUB}{spec}/SPLIT, or "
            f"downloaded first (hf download {spec} --repo-type dataset --local-dir FOLDER)"
        )
    require(not missing, missing, "not found; check the path")
