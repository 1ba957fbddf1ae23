"""Sources of official files that need no permission, as a benchmark states them in `Meta.remote`.

Annotations in repositories are named at the commit whose bytes were checked (`Meta.hashes`), else
at the newest one. Without a known hash or md5, a fetched file is checked for its kind only and
reported as not verified. Only `compoclip data fetch` downloads files.
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
        target: Its path below the data root or, for an archive, the folder to unpack it into (a
            single top folder in the archive is dropped).
        url: Its address.
        size: Bytes, 0 if unknown.
        md5: Checksum of the file as published, "" if unknown.
        archive: Whether it is a .zip or .tar file.
        keys: Keys that each row must have, for a file without a known checksum.
    """

    target: str
    url: str
    size: int = 0
    md5: str = ""
    archive: bool = False
    keys: tuple[str, ...] = ()


def repository(name: str, commit: str = NEWEST) -> str:
    """Return the address below which GitHub serves the files of a repository.

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
