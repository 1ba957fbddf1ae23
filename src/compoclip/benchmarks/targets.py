"""Targets of `--on`: benchmarks with their places and options, or whole suites.

A target is `SPEC[,KEY=VALUE]...`, for example

    sugarcrepe
    sugarcrepe:swap_*
    retrieval:coco,root=/data
    sugarcrepe,annotations=/data/sugarcrepe,images=/data/coco/val2017
    ./my_benchmark.py,root=/data
    retrieval:captions.csv,images=photos,split=test
    retrieval:shards-{00..09}.tar
    rewrites:captions.csv,images=photos
    zero_shot:labels.csv,images=photos
    probe:labels.csv,images=photos

    zero_shot:trip,images=photos,exclude='my drafts' *.gif

with the keys `root` (data root, default layout), `images` (photo folder), `id` (name in the
results) and the options of the benchmark's reader. Of an option with several values blanks separate
them, and shell quotes hold one with blanks together. A suite is a folder with a `suite.json`

    {"benchmarks": [{"name": "sugarcrepe", "root": "data", "images": "photos",
                     "id": "my-sugarcrepe", "options": {"annotations": "captions"}}]}

whose paths are relative to it (all keys but "name" are optional), or a data root in the default
layout, which stands for every benchmark with complete annotation files. A folder with the name of
a benchmark is written with its path, ./sugarcrepe. `all` is the data root itself. The suites of
`benchmarks.suites` (`elevater`, `comp`, ...) have names:

    elevater,root=/data
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_origin

from compoclip.benchmarks.case import Benchmark, Meta
from compoclip.benchmarks.names import ALL, SUITES, benchmark_names
from compoclip.benchmarks.reader import OWN
from compoclip.benchmarks.registry import (
    load_benchmark,
    meta,
    reader,
    require_loadable,
    split_spec,
)
from compoclip.config import of_text, place_in
from compoclip.console import note
from compoclip.data.options import as_target_option, naming_options
from compoclip.data.places import named_files, require_there
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import read_json
from compoclip.patterns import has_ending, is_pattern
from compoclip.plugins import is_file
from compoclip.typed import at_home, kind_named, read_fields

SUITE = "suite.json"
_CAPTIONED = {"retrieval": f"retrieval:{OWN}", "rewrites": "rewrites"}
FILES = {**_CAPTIONED, **{name: f"{name}:{OWN}" for name in ("zero_shot", "probe")}}
"""Benchmarks that are made of a file, NAME:FILE -> what is loaded with it as `annotations`."""

_COMMA = re.compile(r",(?![^{}]*\})")
"""A comma that parts options of a target, not one within the braces of a pattern."""

_ENTRY: Mapping[str, Any] = {
    "name": str,
    **dict.fromkeys(("root", "images", "id"), str | None),
    "options": dict | None,
}
_SUITE: Mapping[str, Any] = {"benchmarks": list, "name": str | None, "made_by": dict | None}


@dataclass(frozen=True)
class Target:
    """A benchmark to load. spec: as for `load_benchmark`. id: name in the results if it differs."""

    spec: str
    root: Path
    images: Path | None = None
    id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UsageError or CompoclipError for a part, an option or a place that is not there.

        These are checks that loading makes as well, before it imports what reads data.
        """
        require_loadable(self.spec, self.options)
        place = self.options.get("annotations")
        if place is None or self.spec not in FILES.values():
            return
        from compoclip.benchmarks.photo_set import is_training_data

        if self.spec in _CAPTIONED.values() or is_training_data(place):
            with naming_options(as_target_option):
                require_there(str(place), self.images)

    def load(self) -> Benchmark:
        """Read the benchmark. Raises as `load_benchmark` does."""
        benchmark = load_benchmark(self.spec, self.root, self.images, **self.options)
        if not self.id:
            return benchmark
        return replace(benchmark, name=self.id, known_as=benchmark.name)


def parse_targets(texts: Sequence[str], root: Path, images: Path | None = None) -> list[Target]:
    """Parse the values of `--on` in the forms that this module describes; default root and photos.

    Raises UsageError for a malformed target, CompoclipError for a malformed suite.
    """
    _require_no_file(root)
    targets: list[Target] = []
    for text in texts:
        path = root if text == ALL else Path(text)
        if text == ALL and not root.is_dir():
            raise UsageError(f"{root}: no such folder; say with --data where the benchmarks lie")
        if not text.isprintable():
            raise UsageError(f"{text!r:.200}: is not the name of a benchmark or folder")
        if text == ALL or _is_folder(text):
            targets += read_suite(path / SUITE) if (path / SUITE).is_file() else find_in(path)
        elif path.name == SUITE or (has_ending(path, ".json") and os.path.isfile(path)):
            targets += read_suite(path)
        else:
            targets += _parse(text, root, images)
    return targets


def _is_folder(text: str) -> bool:
    """Return whether a target is a folder and not the name of a benchmark or of a suite."""
    named = text in SUITES or text in benchmark_names()
    return not named and os.path.isdir(text)  # False also for what no file system takes as a name


def _parse(text: str, root: Path, images: Path | None) -> list[Target]:
    spec: list[str] = []
    settings: dict[str, str] = {}
    for part in _COMMA.split(text):
        key, equals, value = part.partition("=")
        if not equals:
            spec.append(part)
            continue
        if not key or not value or key in settings:
            raise UsageError(f"{text}: '{part}' is not KEY=VALUE, or the key is there twice")
        settings[key] = value
    require(spec, text, "names no benchmark; put one first", UsageError)
    if file := file_of(spec[0]):
        settings.setdefault("annotations", file)
        spec[0] = FILES[spec[0].partition(":")[0]]
    suite, colon, _ = spec[0].partition(":")
    whole = suite in SUITES or _is_folder(suite) or os.path.basename(suite) == SUITE
    if colon and whole:
        names = ", ".join(SUITES.get(suite, ())) or f"NAME,root={suite.removesuffix(SUITE)}"
        raise UsageError(f"{text}: a suite has no parts; name a benchmark: {names}")
    folder = "/" in spec[0] or spec[0].startswith(".")
    if not is_file(spec[0]) and folder:
        raise UsageError(f"{text}: no such folder; give a benchmark's name or a suite folder")
    place = _path(settings.pop("root", root))
    photos, name = settings.pop("images", None), settings.pop("id", None)
    joined = ",".join(spec)
    if joined in SUITES and (photos or name):
        raise UsageError(f"{text}: a suite takes neither images= nor id=; name one benchmark")
    return [
        Target(
            spec=benchmark,
            root=place,
            images=_path(photos) if photos else images,
            id=name,
            options=_options(benchmark, settings, Path(), text),
        )
        for benchmark in SUITES.get(joined, (joined,))
    ]


def file_of(text: str) -> str:
    """Return the file (or folder) that a target "NAME:FILE" is made of; "" for any other, and where
    the benchmark has a part of that name."""
    name, _, rest = _COMMA.split(text)[0].partition(":")
    if name not in FILES or rest in ("", *meta(name).parts):
        return ""
    path = at_home(rest)
    # NAME,images=FOLDER, where a folder NAME is
    named = name in ("zero_shot", "probe") and "/" not in rest
    if is_pattern(path):
        return rest if any(file.is_file() for file in named_files(path)) else ""
    return rest if os.path.isfile(path) or (os.path.exists(path) and not named) else ""


def _path(text: str | Path) -> Path:
    """Return a path as people write it, "~" for their home."""
    path = Path(at_home(str(text)))
    if not all(len(part.encode()) <= 255 for part in path.parts):
        raise UsageError(f"{text!s:.200}: longer than the name of a file can be")
    return path


def read_suite(path: Path) -> list[Target]:
    """Return the benchmarks that a suite file lists."""
    data = read_json(path, damaged="give a suite file, or the folder that holds one")
    remedy = 'expected {"benchmarks": [{"name": ...}, ...]}'
    targets, folder = [], path.parent
    listed = read_fields(data, _SUITE, str(path), remedy, others=False)["benchmarks"]
    for number, row in enumerate(listed, start=1):
        location = f"{path}: benchmark {number}"
        entry = read_fields(row, _ENTRY, location, remedy, others=False)
        name, place, images, id, options = (entry[key] for key in _ENTRY)
        options = _options(name, options or {}, folder, location)
        photos = folder / _path(images) if images else None
        targets.append(Target(name, folder / _path(place or "."), photos, id, options))
    require(targets, path, remedy)
    return targets


def find_in(root: Path) -> list[Target]:
    """Return every benchmark whose annotation files lie below `root` in the default layout.

    A note names one that has only some of its files, or that needs an option.
    """
    specs: list[str] = []
    for about in map(meta, benchmark_names()):
        sets, absent, begun = _there(about, root)
        specs += sets
        if absent:
            if begun:
                reason = f"{root / absent[0]} is not there; name the parts you want"
                note(f"{about.id}: left out, {reason}")
        elif about.requires:
            note(f"{about.id}: left out, it needs {about.requires}=...; name it with that option")
        elif not about.family:
            specs.append(about.id)
    if not specs:
        raise CompoclipError(
            f"{root}: holds neither {SUITE} nor a benchmark in the default layout; name benchmarks "
            "and their places instead"
        )
    return [Target(spec, root) for spec in specs]


def named_or_present(names: Sequence[str], root: Path, images: Path | None) -> list[Target]:
    """Return what `names` name; without names every benchmark that has a file below `root`."""
    if names:
        return parse_targets(names, root, images)
    require(root.exists(), root, "not found; check the path")
    _require_no_file(root)
    specs: list[str] = []
    for about in map(meta, benchmark_names()):
        sets, _, begun = _there(about, root)
        specs += sets
        if begun and not about.requires:
            specs.append(about.id)
    if not specs:
        raise CompoclipError(
            f"{root}: no file of any benchmark; name benchmarks and their places, or see compoclip "
            "data ls"
        )
    return [Target(spec, root, images) for spec in specs]


def _require_no_file(root: Path) -> None:
    """Raise UsageError for a file instead of the folder that holds benchmarks."""
    if root.is_file():
        raise UsageError(f"{root}: is a file; say with --data in what folder the benchmarks lie")


def _there(about: Meta, root: Path) -> tuple[list[str], Sequence[str], bool]:
    """Return the sets of a family below `root`, the absent files, and whether any file is present.

    A family has sets alone. Where a benchmark has a folder, only files in that folder count.
    """
    if about.family:
        folders = [root / name.removesuffix("/NAME") for name in about.images if "NAME" in name]
        listed = (path for folder in folders if folder.is_dir() for path in folder.iterdir())
        sets = {path.name for path in listed if path.is_dir()}
        for part in about.parts:
            if any(about.place(root, file) for file in about.of_set(part, about.files)):
                sets.add(part)
        return [f"{about.id}:{part}" for part in sorted(sets)], (), False
    if any(about.place(root, archive) for archive in about.archives):
        return [], (), True
    absent = [file for file in about.files if about.place(root, file) is None]
    in_folder = [file for file in about.files if file.startswith(f"{about.id}/")]
    return [], absent, any(file not in absent for file in in_folder or about.files)


def _options(spec: str, settings: Mapping[str, Any], base: Path, location: str) -> dict[str, Any]:
    """Return texts as what the reader's options are: paths below `base`, numbers, yes or no."""
    options = dict(settings)
    for name, option in reader(split_spec(spec)[0]).options.items():
        value, kind = settings.get(name), option.plain
        if not isinstance(value, str):
            continue
        try:
            if kind is Path:
                options[name] = base / _path(value)
            elif get_origin(kind) is tuple:
                options[name] = tuple(shlex.split(value))
            else:
                options[name] = option.at_home(of_text(value, option.kind))
        except ValueError:
            problem = f"must be {kind_named(kind)}, not '{value:.40}'"
            if get_origin(kind) is tuple:
                problem = f"has a quote that is not closed: {value:.40}"
            raise UsageError(f"{location:.200}: {name} {problem}") from None
        if option.usage.place and base != Path() and options[name] is not None:
            options[name] = place_in(options[name], base)
    return options
