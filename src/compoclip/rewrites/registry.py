"""Rewrites by name. A new rewrite is one new file in this folder with a class that satisfies it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import lru_cache
from typing import cast

import compoclip.rewrites as package
from compoclip.errors import UsageError
from compoclip.rewrites.base import Rewrite

_MEMBERS = ("name", "version", "keeps_meaning")


@lru_cache(maxsize=1)
def _rewrites() -> dict[str, Rewrite]:
    """One instance, with default settings, of every rewrite class in this package."""
    found: dict[str, Rewrite] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        for value in vars(module).values():
            if not (inspect.isclass(value) and value.__module__ == module.__name__):
                continue
            if "__call__" in vars(value) and all(
                isinstance(getattr(value, member, None), str | bool) for member in _MEMBERS
            ):
                rewrite = cast(Rewrite, value())
                found[rewrite.name] = rewrite
    return dict(sorted(found.items()))


def rewrite_names() -> tuple[str, ...]:
    """All names, in alphabetical order."""
    return tuple(_rewrites())


def get_rewrite(name: str) -> Rewrite:
    """The rewrite of that name. Raises UsageError, with the known names, for another one."""
    rewrite = _rewrites().get(name)
    if rewrite is None:
        raise UsageError(f"no rewrite '{name}'; choose from: {', '.join(rewrite_names())}")
    return rewrite
