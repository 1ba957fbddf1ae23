"""Where official files that anybody may fetch come from: what a benchmark states in `Meta.remote`.

Annotations of repositories are named at the commit whose bytes were checked (`Meta.hashes`), or at
the newest one where none was. Where neither a hash nor an md5 is known, a fetched file is checked
for its kind alone and reported as not verified. Nothing here is fetched unless `compoclip data
fetch` is told to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

NEWEST = "HEAD"


@dataclass(frozen=True)
class RemoteFile:
    """One file that can be fetched.

    Args:
        target: The file below the data root that it becomes or, for an archive, the folder that it
            is unpacked into (a folder that holds the whole archive is dropped).
        url: Its address.
        size: Bytes, 0 if unknown.
        md5: Checksum of the file as published, "" if unknown.
        archive: It is a .zip or .tar file.
        keys: What each row must have, for a file that no checksum identifies.
    """

    target: str
    url: str
    size: int = 0
    md5: str = ""
    archive: bool = False
    keys: tuple[str, ...] = ()


def repository(name: str, commit: str = NEWEST) -> str:
    """The address below which GitHub serves the files of a repository.

    Args:
        name: "owner/name".
        commit: The commit to take them from; by default the newest one.
    """
    return f"https://raw.githubusercontent.com/{name}/{commit}"


@cache
def document() -> Mapping[str, Any]:
    """Return what `benchmarks.yaml` holds."""
    text = Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


@cache
def shared() -> Mapping[str, RemoteFile]:
    """Return the photos and captions that several benchmarks use, by target."""
    listed = document()["_shared"].items()
    keys = {target: tuple(each.get("keys", ())) for target, each in listed}
    return {target: RemoteFile(target, **{**each, "keys": keys[target]}) for target, each in listed}
