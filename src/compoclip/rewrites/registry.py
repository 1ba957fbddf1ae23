"""Rewrites by name.

A new rewrite is one new file in this folder with a class that satisfies `Rewrite` or `PairRewrite`;
variants of it are instances at the top level of the file.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import lru_cache
from typing import cast

import compoclip.rewrites as package
from compoclip.errors import UsageError
from compoclip.rewrites.base import PairRewrite, Rewrite

_MEMBERS = ("name", "version", "keeps_meaning")


@lru_cache(maxsize=1)
def _found() -> tuple[dict[str, Rewrite], dict[str, PairRewrite]]:
    """The rewrites of one caption and of two, by name.

    They are one instance, with default settings, of every rewrite class in this package, and every
    instance that a module of it defines.
    """
    single: dict[str, Rewrite] = {}
    pairs: dict[str, PairRewrite] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        for value in vars(module).values():
            if not _is_rewrite(value):
                continue
            if inspect.isclass(value):
                if value.__module__ != module.__name__:
                    continue
                value = value()
            if len(inspect.signature(value).parameters) == 2:
                single[value.name] = cast(Rewrite, value)
            else:
                pairs[value.name] = cast(PairRewrite, value)
    return dict(sorted(single.items())), dict(sorted(pairs.items()))


def _is_rewrite(value: object) -> bool:
    """Whether it is a rewrite, or a class of which each instance is one."""
    kind = value if inspect.isclass(value) else type(value)
    if not kind.__module__.startswith(f"{package.__name__}."):
        return False
    return "__call__" in vars(kind) and all(
        isinstance(getattr(value, member, None), str | bool) for member in _MEMBERS
    )


def rewrite_names() -> tuple[str, ...]:
    """Names of the rewrites of one caption, in alphabetical order."""
    return tuple(_found()[0])


def pair_rewrite_names() -> tuple[str, ...]:
    """Names of the rewrites of two captions, in alphabetical order."""
    return tuple(_found()[1])


def get_rewrite(name: str) -> Rewrite:
    """The rewrite of that name. Raises UsageError, with the known names, for another one."""
    single, pairs = _found()
    rewrite = single.get(name)
    if rewrite is None and name in pairs:
        raise UsageError(f"the rewrite '{name}' takes two captions; use it where pairs are made")
    if rewrite is None:
        raise UsageError(f"no rewrite '{name}'; choose from: {', '.join(single)}")
    return rewrite


def get_pair_rewrite(name: str) -> PairRewrite:
    """The rewrite of two captions of that name. Raises UsageError for another one."""
    pairs = _found()[1]
    if name not in pairs:
        raise UsageError(f"no rewrite of two captions '{name}'; choose from: {', '.join(pairs)}")
    return pairs[name]
