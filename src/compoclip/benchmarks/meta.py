"""What is known about a benchmark without reading a single file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

STATUSES = ("open", "partly gated", "gated", "partly dead", "gone")
"""Open to all; a part or all of it behind terms or a form; a part or all of it no longer there."""


@dataclass(frozen=True)
class Meta:
    """Facts about a benchmark, for listings and for people who must obtain it.

    id: the name to load it by, equal to its module's name. title: its published name. citation:
    the paper. source: where the official files come from. licence: of the annotations. status:
    whether they can be had, one of `STATUSES`. access: what a person must do, "open" for nothing.
    files: annotation files under the data root, or patterns each of which must match a file.
    elsewhere: file or pattern -> where else below the root the reader looks for it, and first.
    optional: files that are read where they are there, but may lack.
    archives: patterns of archives under the root, one of which may stand for all the files. images:
    image folders under the data root. parts: sub-tasks, or named sets of a family, that a spec
    `id:part` may select. family: True when a spec must name exactly one part. requires: option
    that a target must state, "" for none. chance: expected
    score of guessing, "sub-task" or "sub-task/metric" -> value, sub-task "" for all. skills:
    sub-task -> skill of `skills.SKILLS`. expected: items of the official files by sub-task.
    hashes: file under the root -> blake2b (128 bit) of the official bytes, where known.
    part_folders: set of a family -> its folder under the root, where that has another name.
    same_rows_as: another benchmark whose items this one edits under the same ids, "" for none.
    """

    id: str
    title: str
    citation: str
    source: str
    licence: str
    access: str
    files: tuple[str, ...]
    images: tuple[str, ...]
    parts: tuple[str, ...]
    chance: Mapping[str, float]
    skills: Mapping[str, str]
    expected: Mapping[str, int] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    family: bool = False
    archives: tuple[str, ...] = ()
    requires: str = ""
    status: str = "open"
    same_rows_as: str = ""
    part_folders: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def place(self, root: Path, file: str) -> str | None:
        """Where one of the files (or of those of a pattern) lies below `root`; None for nowhere."""
        for each in (self.elsewhere.get(file, file), file):
            if any(root.glob(each)) if "*" in each else (root / each).is_file():
                return each
        return None

    def of_set(self, part: str, paths: Iterable[str]) -> tuple[str, ...]:
        """Those of `paths`, files or folders, that belong to one set of a family."""
        folder = self.part_folders.get(part, part)
        return tuple(
            path.replace("/NAME", f"/{part}")
            for path in paths
            if path.startswith(f"{folder}/") or "/NAME/" in f"{path}/"
        )
