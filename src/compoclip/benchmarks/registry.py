"""Benchmarks by name: every `Reader` in a file of this package is one.

Adding a benchmark is adding one such file. Other packages add theirs through the entry-point group
"compoclip.benchmarks", each entry naming a `Reader`, or a module with `META` and `load`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from compoclip import benchmarks as package
from compoclip.benchmarks import files
from compoclip.benchmarks.case import Benchmark, Meta
from compoclip.benchmarks.files import close
from compoclip.benchmarks.reader import Reader
from compoclip.benchmarks.zero_shot import ELEVATER, IMAGENET, SHIFTS
from compoclip.errors import CompoclipError, UsageError

GROUP = "compoclip.benchmarks"


@cache
def _own() -> dict[str, Reader]:
    names = [f"{package.__name__}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    return {value.meta.id: value for value in values if isinstance(value, Reader)}


def _foreign() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def benchmark_names() -> tuple[str, ...]:
    """Sorted names of all benchmarks, own and installed; installed ones are not imported."""
    return tuple(sorted({*_own(), *_foreign()}))


def meta(name: str) -> Meta:
    """What is known about a benchmark without its files.

    Args:
        name: Its id, such as "sugarcrepe".

    Raises:
        UsageError: For an unknown name.
        CompoclipError: For a benchmark of another package that cannot be imported.
    """
    return reader(name).meta


def reader(name: str) -> Reader:
    """What reads a benchmark; arguments and errors as for `meta`."""
    own = _own()
    if name in own:
        return own[name]
    point = _foreign().get(name)
    if point is None:
        raise UsageError(f"no benchmark {name!r}; {close(name, benchmark_names())}")
    try:
        found = point.load()
    except Exception as error:  # whatever a foreign module raises, the user must learn whose it is
        raise CompoclipError(
            f"benchmark {name!r} of entry point {point.value!r} cannot be imported: {error}; "
            "update or uninstall that package"
        ) from error
    if isinstance(found, Reader):
        return found
    about, load = getattr(found, "META", None), getattr(found, "load", None)
    if not isinstance(about, Meta) or not callable(load):
        raise CompoclipError(
            f"entry point {point.value!r} of benchmark {name!r} must be a module with META and load"
        )
    return Reader(about, load)


def load_benchmark(spec: str, root: Path, images: Path | None = None, **options: Any) -> Benchmark:
    """Load a benchmark from the data root.

    A root that holds other than the official items (see `edition`) gives the benchmark its own
    name.

    Args:
        spec: "name" or "name:part[,part]", parts being sub-tasks, patterns of them ("swap_*"), or,
            for a family such as "retrieval:coco", the one set to load.
        root: Folder of all data, in the default layout.
        images: Where the photos lie when not in the default layout.
        **options: Options of the benchmark, see `option_types`.

    Raises:
        UsageError: For unknown names, parts or options.
        CompoclipError: For absent or malformed files.
    """
    name, colon, tail = spec.partition(":")
    found = reader(name)
    parts = tuple(part.strip() for part in tail.split(",")) if colon else ()
    known = ", ".join(found.meta.parts)
    if colon and not all(parts):
        raise UsageError(f"{spec!r}: expected name:part[,part]; parts: {known}")
    if found.meta.family and len(parts) != 1:
        raise UsageError(f"{spec!r}: {name} is a family, name one set as {name}:SET; sets: {known}")
    for option in options:
        if option not in found.options:
            hint = close(option, found.options)
            raise UsageError(f"benchmark {name} has no option {option!r}; {hint}")
    loaded = found.load(root, images, subtasks=parts, **options)
    edition = read_edition(root)
    return loaded if edition is None else as_edition(loaded, edition)


def option_types(name: str) -> dict[str, str]:
    """Options of a benchmark -> their types as written, e.g. {"annotations": "Path | None"}.

    Args:
        name: Its id. Errors are those of `meta`.
    """
    return reader(name).options


# --- Data roots that hold other items in the official formats, such as a made world's. ---
#
# Such a root has a file `<root>/edition.json`: {"edition": "world"}. Its benchmarks are called
# "sugarcrepe@world" and so on, so that no report can take their numbers for the official ones, and
# their coverage is measured against the items that they list instead of the official counts.

EDITION = "edition.json"


def read_edition(root: Path) -> str | None:
    """Name of the edition below `root`; None where the files are the official ones.

    Raises CompoclipError when the file is malformed or the name has other characters than letters,
    digits, "-" and "_".
    """
    path = root / EDITION
    if not path.is_file():
        return None
    name = files.text(files.record(files.read_json(path), str(path)), "edition", str(path))
    if not name.replace("-", "").replace("_", "").isalnum():
        raise CompoclipError(f"{path}: edition {name!r:.80} may hold letters, digits, - and _ only")
    return name


def as_edition(benchmark: Benchmark, name: str) -> Benchmark:
    """The benchmark renamed "<name>@<edition>", expecting exactly the items that it lists."""
    return replace(benchmark, name=f"{benchmark.name}@{name}", expected=benchmark.content.counts())


SANITY_CHECKS = frozenset({"cc_neg"})
"""Benchmarks that a rule of thumb solves: measured, but part of no mean of benchmarks."""

# --- Benchmarks that the literature reports together, by one name. ---

SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "comp": (
            "aro",
            "crepe_prod",
            "eqben",
            "imagecode",
            "sugarcrepe",
            "svo_probes",
            "valse",
            "vl_checklist",
            "whatsup",
            "winoground",
            "spec",
        ),
        "elevater": tuple(f"zero_shot:{name}" for name in (*ELEVATER, *IMAGENET)),
        "elevater_20": tuple(f"zero_shot:{name}" for name in ELEVATER),
        "imagenet_shifts": tuple(f"zero_shot:{name}" for name in SHIFTS),
        "retrieval_3": ("retrieval:coco", "retrieval:flickr30k", "retrieval:coco_cf"),
    }
)
"""Suite -> what `load_benchmark` is asked for. comp, retrieval_3: of FSC-CLIP (Oh et al., EMNLP
2024); elevater: the 21 sets of its zero-shot mean, elevater_20 without ImageNet-1K. The average of
vl_compo itself is over twelve: comp without spec, with colorswap and mmvp_vlm."""
