"""Benchmarks by name, and the one path from "NAME:PART" to a loaded benchmark.

A benchmark is an entry of `benchmarks.yaml`. Other packages add theirs through the entry-point
group "compoclip.benchmarks", each entry naming a `CaseReader`, or a module with `META` and `load`.
A custom file holds either of these, and its path is its name.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compoclip import plugins
from compoclip.benchmarks import files
from compoclip.benchmarks.case import Benchmark, Content, Meta, present
from compoclip.benchmarks.entries import entries, official_meta
from compoclip.benchmarks.names import benchmark_names, unknown
from compoclip.benchmarks.reader import CaseReader, Loading, options_of
from compoclip.benchmarks.table import official_reader
from compoclip.config import typed
from compoclip.console import counted
from compoclip.errors import CompoclipError, UsageError
from compoclip.typed import read_fields

if TYPE_CHECKING:
    from compoclip.data.sources.open import OpenedPart

GROUP = "compoclip.benchmarks"


def meta(name: str) -> Meta:
    """Return the facts about a benchmark, without its files.

    Args:
        name: Its id, such as "sugarcrepe".

    Raises:
        UsageError: For an unknown name.
        CompoclipError: For a benchmark of another package that cannot be imported.
    """
    return official_meta(name) if name in entries() else reader(name).meta


def reader(name: str) -> CaseReader:
    """Return what reads a benchmark, also one in a file; arguments and errors as for `meta`."""
    if plugins.is_file(name):
        custom = plugins.chosen(
            name, _readers_in(name), "benchmarks", "a CaseReader, or META and load"
        )
        if custom.meta.id in benchmark_names():
            raise UsageError(
                f"{plugins.split(name)[0]}: '{custom.meta.id}' is a benchmark already; give yours "
                "another id"
            )
        return custom
    if name in entries():
        return official_reader(name)
    point = plugins.installed("benchmarks").get(name)
    if point is None:
        raise unknown(name)
    thing = plugins.imported(point, "benchmark")
    case_reader = thing if isinstance(thing, CaseReader) else _made_of(vars(thing))
    if case_reader is None:
        raise CompoclipError(
            f"entry point {point.value!r} of benchmark {name!r} must be a module with META and load"
        )
    return case_reader


def _made_of(defined: Mapping[str, Any]) -> CaseReader | None:
    about, load = defined.get("META"), defined.get("load")
    if not isinstance(about, Meta) or not callable(load):
        return None
    takes = {name: kind for name, kind in options_of(load).items() if name != "subtasks"}
    return CaseReader(about, partial(_loaded, load), takes=takes)


def _loaded(load: Callable[..., Benchmark], data: Loading, /, **options: Any) -> Benchmark:
    return load(data.root, data.images, subtasks=data.parts, **options)


def _readers_in(file: str) -> dict[str, CaseReader]:
    plugins.refresh(file)
    defined = plugins.parts_of(file)
    custom = [reader for reader in defined.values() if isinstance(reader, CaseReader)]
    if not custom and (from_module := _made_of(defined)):
        custom = [from_module]
    readers = {reader.meta.id: reader for reader in custom}
    for name in readers.keys() & entries().keys():
        if readers[name] is official_reader(name):  # which the file has imported
            del readers[name]
    return readers


def by_others(name: str) -> bool:
    """Return whether results of this name are of official items whose texts others wrote."""
    return any(
        name == key or (about.family and name in {f"{key}_{part}" for part in about.parts})
        for key, about in ((key, official_meta(key)) for key in entries())
        if about.by_others
    )


def benchmark_origin(name: str) -> str:
    """Return where a benchmark comes from, for lists: this package, another, or a file."""
    added = {} if name in entries() else plugins.installed("benchmarks")
    return plugins.origin(name, added.get(name))


def split_spec(spec: str) -> tuple[str, str]:
    """Return the name of a benchmark, and the parts behind it ("" for all).

    spec: "name" or "name:part[,part]", where a name may be a file, or "FILE.py:NAME" of several
    benchmarks in it.
    """
    name, _, tail = spec.partition(":")
    if not plugins.is_file(name):
        return name, tail
    first, _, rest = tail.partition(":")
    return (f"{name}:{first}", rest) if first in _readers_in(name) else (name, tail)


def require_loadable(spec: str, options: Mapping[str, Any]) -> tuple[CaseReader, tuple[str, ...]]:
    """Return the reader of "name:part[,part]" and the parts, "swap_*" not yet replaced by its own.

    Raise UsageError for unknown names, parts and options; arguments as for `load_benchmark`. No
    data are read.
    """
    name, tail = split_spec(spec)
    case_reader = reader(name)
    colon = spec.endswith(":") or tail
    parts = tuple(part.strip() for part in tail.split(",")) if colon else ()
    choices = ", ".join(case_reader.meta.parts)
    if not all(parts):
        raise UsageError(f"{spec!r}: expected name:part[,part]; parts: {choices}")
    if case_reader.meta.family and len(parts) != 1:
        raise UsageError(
            f"{spec!r}: {name} is a family, name one set as {name}:SET; sets: {choices}"
        )
    typed(options, case_reader.options, f"benchmark {name}: ")
    case_reader.chosen(parts)
    return case_reader, parts


def load_benchmark(
    spec: str,
    root: Path,
    images: Path | None = None,
    *,
    opened: OpenedPart | None = None,
    **options: Any,
) -> Benchmark:
    """Load a benchmark from the data root.

    If the root does not hold the official items (see `edition`), the name says so.

    Args:
        spec: "name" or "name:part[,part]", parts being sub-tasks, patterns of them ("swap_*"), or,
            for a family such as "retrieval:coco", the one set to load.
        root: Folder of all data, in the default layout.
        images: Folder of the photos if they are not in the default layout.
        opened: Captioned photos that are opened already, in place of `annotations`.
        **options: Options of the benchmark, see `CaseReader.options`.

    Raises:
        UsageError: For unknown names, parts or options.
        CompoclipError: For absent or malformed files.
    """
    case_reader, parts = require_loadable(spec, options)
    try:
        loaded = case_reader.load(root, images, subtasks=parts, opened=opened, **options)
    except CompoclipError as error:
        elsewhere = any(isinstance(value, Path) for value in options.values())
        absent = isinstance(error.__cause__, FileNotFoundError)
        if not absent or elsewhere or read_edition(root) is not None:
            raise
        raise CompoclipError(f"{error}. {how_to_get(spec, root)}") from error
    code = plugins.named_sources(plugins.sources_of(case_reader.read))
    if code:  # results of an earlier version of the file are not taken for those of this one
        hashed = {"data": loaded.data_hash.encode(), **{k: v.encode() for k, v in code.items()}}
        loaded = replace(loaded, data_hash=files.data_hash(hashed))
    edition = read_edition(root)
    if edition is None:
        return loaded
    return replace(loaded, name=f"{loaded.name}@{edition}", expected=loaded.content.counts())


def require_present(benchmark: Benchmark, allow_partial: bool) -> tuple[Content, tuple[str, ...]]:
    """Return what can be scored, and the names of the absent images; see `present`.

    Raise CompoclipError for incomplete data, unless that is allowed and some is there.
    """
    content, missing = present(benchmark)
    total, used = sum(benchmark.totals.values()), sum(content.counts().values())
    if used and (used == total or allow_partial):
        return content, missing
    name = benchmark.known_as or benchmark.name
    # an edition's and a user's items come from nowhere official
    official = name.partition(":")[0] in benchmark_names()
    source = f". {how_to_get(name, Path('ROOT'))}" if official else ""
    reason = "the annotation files are not complete"
    if missing:
        reason = f"{counted(len(missing), 'image')} missing, the first is {missing[0]}"
    rest = "get the rest"
    if missing and not used and not official:
        rest = "name the folder of the images with images=, or get the rest"
    part = ", or score the part with --allow-partial" if used else ""
    raise CompoclipError(
        f"{benchmark.name}: only {used} of {counted(total, 'item')} can be scored ({reason}); "
        f"{rest}{part}{source}"
    )


def how_to_get(spec: str, root: Path) -> str:
    """Return the command that downloads a benchmark's files, or where they come from."""
    name, part = split_spec(spec)
    about = meta(name)
    places = (*about.files, *about.images)
    if about.family:
        name, places = spec, about.of_set(part, places)
    if about.status not in ("gated", "gone") and not about.sources.keys().isdisjoint(places):
        return (
            f"`compoclip data fetch {name} --data {shlex.quote(str(root))}` downloads what is open"
        )
    return f"Official files: {about.source} ({about.access})"


# --- Data roots that hold other items in the official formats, such as a made world's. ---
#
# Such a root has a file `<root>/edition.json`: {"edition": "world"}. Its benchmarks are called
# "sugarcrepe@world" and so on, so that no report can take their numbers for the official ones, and
# their coverage is measured against the items that they list instead of the official counts.

EDITION = "edition.json"


def read_edition(root: Path) -> str | None:
    """Return the name of the edition below `root`; None where the files are the official ones."""
    path = root / EDITION
    if not path.is_file():
        return None
    record = files.read_json(path)
    name: str = read_fields(record, {"edition": str}, str(path), others=False)["edition"]
    if not name.replace("-", "").replace("_", "").isalnum():
        raise CompoclipError(f"{path}: edition {name!r:.80} may hold letters, digits, - and _ only")
    return name


SANITY_CHECKS = frozenset({"cc_neg"})
"""Benchmarks that a rule of thumb solves: measured, but left out of all means of benchmarks."""
