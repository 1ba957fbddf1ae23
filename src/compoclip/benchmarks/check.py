"""Check which files of a benchmark a data root holds, and which are missing: `data check`.

Nothing is changed. Files are looked up where `Meta` says and compared with the official bytes where
their hash is known; items and photos are counted by loading the benchmark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compoclip.archives import Members
from compoclip.benchmarks.case import Benchmark, ImageRef, Meta, present
from compoclip.benchmarks.registry import load_benchmark, meta, read_edition, split_spec
from compoclip.console import counted, track
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import file_hash

_LISTED = 20


@dataclass(frozen=True)
class FileState:
    """An annotation file, or a pattern of files, below the root.

    state: "official" (the known bytes), "present" (bytes not known), "differs" (other than the
    known bytes), "archive" (an archive that may hold it is there) or "missing". bytes: its size.
    """

    path: str
    state: str
    bytes: int = 0


@dataclass(frozen=True)
class Count:
    """Things there, of those that should be."""

    here: int
    expected: int


@dataclass(frozen=True)
class Check:
    """The files of one benchmark that are present.

    items: sub-task -> items that the files list, of the official number (or of their own where that
    is not known). images: folder -> distinct photos there, of those that items ask for. missing,
    damaged: names of the first 20 absent or undecodable photos, beside the number of all; damaged
    are looked for on demand only. left_out: see `Benchmark`. problems: what keeps the benchmark
    from being whole, one line each.
    """

    benchmark: str
    files: tuple[FileState, ...]
    items: Mapping[str, Count] = field(default_factory=dict)
    images: Mapping[str, Count] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    missing_count: int = 0
    damaged: tuple[str, ...] = ()
    damaged_count: int = 0
    decoded: bool = False
    left_out: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Return whether the benchmark can be measured as a whole."""
        return not self.problems


def check(
    spec: str,
    root: Path,
    images: Path | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    decoding: bool = False,
) -> Check:
    """Look up all that `spec` needs; arguments as for `load_benchmark`.

    decoding: also decode every photo (and crop it where the benchmark does). Where the benchmark
    as a whole cannot be loaded, what is there of its parts is counted.
    """
    options = options or {}
    name, chosen = split_spec(spec)
    about = meta(name)
    loaded: list[Benchmark] = []
    errors: list[str] = []
    parts = [f"{spec}:{part}" for part in about.parts]
    for target in (spec, *(() if chosen else parts)):
        try:
            loaded.append(load_benchmark(target, root, images, **options))
        except UsageError:
            raise
        except CompoclipError as error:
            errors.append(str(error))
        if target == spec and loaded:
            break
    # The whole fails for the first reason of its parts.
    problems = list(dict.fromkeys(errors[1:] or errors))
    elsewhere = any(isinstance(value, Path) for value in options.values())
    left_out: Counter[str] = Counter()
    items: dict[str, Count] = {}
    for benchmark in loaded:
        left_out.update(benchmark.left_out)
        here = benchmark.content.counts()
        for part in {**benchmark.expected, **here}:
            count = here.get(part, 0)
            items[part] = Count(count, benchmark.expected.get(part, count))
    for part, number in items.items():
        if number.here < number.expected:
            problems.append(f"{part}: {number.here:,} of {counted(number.expected, 'item')}")
        if number.here > number.expected:
            hint = f"the official files hold {number.expected}; is a file there twice?"
            problems.append(f"{part}: {counted(number.here, 'item')}, {hint}")
    refs = list(dict.fromkeys(ref for benchmark in loaded for ref in benchmark.content.images))
    absent = {name for benchmark in loaded for name in present(benchmark)[1]}
    missing = sorted(absent)
    damaged: dict[str, None] = {}  # once for all boxes of a photo
    members = Members()
    there = [ref for ref in refs if ref.photo not in absent] if decoding else []
    for ref in track(there, "decoding", unit="photos"):
        try:
            ref.decoded(members)
        except CompoclipError as error:
            damaged[str(error)] = None
    for names, state in ((missing, "missing"), ([*damaged], "damaged")):
        if names:
            problems.append(f"{counted(len(names), 'photo')} {state}, the first is {names[0]}")
    return Check(
        benchmark=loaded[0].name if loaded else spec,
        files=() if elsewhere else file_states(about, root, chosen),
        items=items,
        images=_photos(refs, absent, about, root, images),
        missing=tuple(missing[:_LISTED]),
        missing_count=len(missing),
        damaged=tuple([*damaged][:_LISTED]),
        damaged_count=len(damaged),
        decoded=decoding,
        left_out=dict(left_out),
        problems=tuple(problems),
    )


def file_states(about: Meta, root: Path, part: str = "") -> tuple[FileState, ...]:
    """Return the annotation files of a benchmark below `root`; of a family those of set `part`.

    Optional ones are listed where they are there, and so are those of a set of which some are: its
    files stand for one another.
    """
    required, more = about.files, about.optional
    if about.family:
        required, more = about.of_set(part, required), about.of_set(part, more)
    archived = any(path for pattern in about.archives for path in root.glob(pattern))
    official = read_edition(root) is None
    states = []
    for file in (*required, *(name for name in more if (root / name).is_file())):
        place = about.place(root, file)
        if place is None:
            states.append(FileState(file, "archive" if archived else "missing"))
            continue
        listed = root.glob(place) if "*" in place else [root / place]
        paths = [path for path in listed if path.is_file()]
        published = about.hashes.get(file) if official and "*" not in place else None
        right = published is not None and file_hash(paths[0]) == published
        state = "present" if published is None else "official" if right else "differs"
        states.append(FileState(place, state, sum(path.stat().st_size for path in paths)))
    present = tuple(file for file in states if file.state != "missing")
    return present if about.family and present else tuple(states)


def _photos(
    refs: Sequence[ImageRef], absent: Set[str], about: Meta, root: Path, images: Path | None
) -> dict[str, Count]:
    """Return folder -> photos there, of those that items ask for."""
    folders = sorted((root / name for name in about.images), key=lambda path: -len(path.parts))
    if images is not None:
        folders.insert(0, images)

    def folder(path: Path) -> str:
        return str(next((parent for parent in folders if path.is_relative_to(parent)), path.parent))

    photos = {ref.photo: ref.path for ref in refs}
    expected = Counter(folder(path) for path in photos.values())
    here = Counter(folder(path) for name, path in photos.items() if name not in absent)
    return {name: Count(here[name], n) for name, n in sorted(expected.items())}
