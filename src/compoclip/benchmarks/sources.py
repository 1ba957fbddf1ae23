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

from compoclip.config import package_yaml


@dataclass(frozen=True)
class RemoteFile:
    """One file that can be fetched.

    target: its path below the data root or, for an archive (.zip or .tar), the folder to unpack it
    into; a single top folder in the archive is dropped. size: bytes, 0 if unknown. md5: as
    published, "" if unknown. keys: that each row must have, for a file without a
    known checksum. blake2b: of 128 bits, as in `Meta.hashes`.
    """

    target: str
    url: str
    size: int = 0
    md5: str = ""
    archive: bool = False
    keys: tuple[str, ...] = ()
    blake2b: str = ""

    @property
    def checksum(self) -> str:
        """Return which checksum decides whether a file is right, "" where none is known."""
        return "blake2b" if self.blake2b else "md5" if self.md5 else ""

    @property
    def checked_by(self) -> str:
        """Return the check that shows a fetched file to be the official one."""
        if self.checksum:
            return f"its {self.checksum} checksum"
        return "nothing, and plain http" if self.url.startswith("http://") else "nothing known"


@cache
def document() -> Mapping[str, Any]:
    """Return what `benchmarks.yaml` holds."""
    return package_yaml(Path(__file__).with_name("benchmarks.yaml"))


@cache
def shared() -> Mapping[str, RemoteFile]:
    """Return the photos and captions that several benchmarks use, by target."""
    return {target: remote_file(target, facts) for target, facts in document()["_shared"].items()}


def remote_file(target: str, facts: str | Mapping[str, Any], address: str = "") -> RemoteFile:
    """Return the source that a table states by its URL, or by the fields of `RemoteFile`.

    address: of the repository that a URL may name.
    """
    values = {"url": facts} if isinstance(facts, str) else facts
    url, keys = values["url"].format(repository=address), tuple(values.get("keys", ()))
    return RemoteFile(target, **{**values, "url": url, "keys": keys})
