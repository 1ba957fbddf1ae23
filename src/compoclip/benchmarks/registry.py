"""Benchmarks by name: every module of this package that has `META` and `load` is one.

Adding a benchmark is adding one such file. Other packages add theirs through the entry-point group
"compoclip.benchmarks", each entry naming a module with the same two members.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import compoclip.benchmarks as package
from compoclip.benchmarks.case import Benchmark
from compoclip.benchmarks.edition import as_edition, read_edition
from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.parts import close
from compoclip.errors import CompoclipError, UsageError

GROUP = "compoclip.benchmarks"


def _is_benchmark(module: ModuleType) -> bool:
    return isinstance(getattr(module, "META", None), Meta) and callable(
        getattr(module, "load", None)
    )


def _own() -> dict[str, ModuleType]:
    names = [
        info.name for info in pkgutil.iter_modules(package.__path__) if info.name != "registry"
    ]
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if _is_benchmark(module)}


def _foreign() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def benchmark_names() -> tuple[str, ...]:
    """Sorted names of all benchmarks, own and installed; installed ones are not imported."""
    return tuple(sorted({*_own(), *_foreign()}))


def meta(name: str) -> Meta:
    """What is known about a benchmark without its files. Raises UsageError for unknown names."""
    found: Meta = _module(name).META
    return found


def _module(name: str) -> ModuleType:
    own = _own()
    if name in own:
        return own[name]
    point = _foreign().get(name)
    if point is None:
        raise UsageError(f"no benchmark {name!r}; {close(name, benchmark_names())}")
    try:
        module = point.load()
    except Exception as error:  # whatever a foreign module raises, the user must learn whose it is
        raise CompoclipError(
            f"benchmark {name!r} of entry point {point.value!r} cannot be imported: {error}; "
            "update or uninstall that package"
        ) from error
    if not isinstance(module, ModuleType) or not _is_benchmark(module):
        raise CompoclipError(
            f"entry point {point.value!r} of benchmark {name!r} must be a module with META and load"
        )
    return module


def load_benchmark(spec: str, root: Path, images: Path | None = None, **options: Any) -> Benchmark:
    """Load the benchmark that `spec` names from the data root.

    spec: "name" or "name:part[,part]", parts being sub-tasks, patterns of them ("swap_*"), or, for
    a family such as "retrieval:coco", the one set to load. images: where the photos lie when not
    in the default layout. options: further arguments of the benchmark's own `load`. A root that
    holds other than the official items (see `edition`) gives the benchmark its own name.
    Raises UsageError for unknown names, parts or options, CompoclipError for bad files.
    """
    name, colon, tail = spec.partition(":")
    module = _module(name)
    parts = tuple(part.strip() for part in tail.split(",")) if colon else ()
    if colon and not all(parts):
        raise UsageError(f"{spec!r}: expected name:part[,part]; parts: {_parts(module.META)}")
    if module.META.family and len(parts) != 1:
        raise UsageError(
            f"{spec!r}: {name} is a family, name one set as {name}:SET; sets: {_parts(module.META)}"
        )
    known = option_types(name)
    for option in options:
        if option not in known:
            raise UsageError(f"benchmark {name} has no option {option!r}; {close(option, known)}")
    loaded: Benchmark = module.load(root, images, subtasks=parts, **options)
    edition = read_edition(root)
    return loaded if edition is None else as_edition(loaded, edition)


def option_types(name: str) -> dict[str, str]:
    """Options of a benchmark's `load` -> their annotations, e.g. {"annotations": "Path | None"}.

    Raises UsageError for unknown names.
    """
    return {
        key: str(parameter.annotation)
        for key, parameter in inspect.signature(_module(name).load).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and key != "subtasks"
    }


def _parts(found: Meta) -> str:
    return ", ".join(found.parts)
