"""Finds recipes by name. A module of this package with a function `recipe` is a method."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from compoclip.errors import UsageError

if TYPE_CHECKING:
    from compoclip.methods.base import Method

_FOLDER = Path(__file__).parent


def method_names() -> list[str]:
    """Every method, as written on the command line (`fsc-clip`), sorted. Imports no recipe."""
    return [name for name, _ in _recipes()]


def method_summaries() -> dict[str, str]:
    """Name -> first line of the recipe's docstring, sorted by name. Imports no recipe."""
    return {
        name: inspect.cleandoc(ast.get_docstring(recipe) or "").partition("\n")[0]
        for name, recipe in _recipes()
    }


def load_recipe(name: str) -> Callable[..., Method]:
    """The recipe of a method: keyword arguments in, `Method` out.

    Raises UsageError, with the closest names, when there is no such method.
    """
    names = method_names()
    if name not in names:
        close = difflib.get_close_matches(name.replace("_", "-").lower(), names)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
        raise UsageError(f"no method '{name}'; {hint}")
    module = importlib.import_module(f"compoclip.methods.{name.replace('-', '_')}")
    recipe: Callable[..., Method] = module.recipe
    return recipe


def _recipes() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Method name and definition of its recipe, read from source so that torch stays out."""
    for module in sorted(pkgutil.iter_modules([str(_FOLDER)]), key=lambda m: m.name):
        tree = ast.parse((_FOLDER / f"{module.name}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "recipe":
                yield module.name.replace("_", "-"), node
