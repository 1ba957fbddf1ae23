"""The world in the official formats of further benchmarks, to try readers on whole files of them.

A writer is a module of this folder with `WRITES`, the benchmarks that it makes, and `build`, which
makes them as the exporters of `compoclip_world.export` do.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from compoclip_world.export.suite import BUILDERS as OWN
from compoclip_world.export.suite import Builder


def _found() -> dict[str, Builder]:
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    modules = [import_module(f"official.{name}") for name in names]
    return {name: module.build for module in modules for name in module.WRITES}


BUILDERS: dict[str, Builder] = {**OWN, **_found()}
