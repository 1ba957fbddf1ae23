"""Finds recipes by name. A public function that returns a `Method` is one."""

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
    return sorted(name for name, _, _ in _recipes())


def method_summaries() -> dict[str, str]:
    """Name -> first line of the recipe's docstring, sorted by name. Imports no recipe."""
    return {
        name: inspect.cleandoc(ast.get_docstring(recipe) or "").partition("\n")[0]
        for name, _, recipe in sorted(_recipes(), key=lambda found: found[0])
    }


def load_recipe(name: str) -> Callable[..., Method]:
    """The recipe of a method: keyword arguments in, `Method` out.

    Raises UsageError, with the closest names, when there is no such method.
    """
    modules = {found: module for found, module, _ in _recipes()}
    if name not in modules:
        names = sorted(modules)
        close = difflib.get_close_matches(name.replace("_", "-").lower(), names)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
        raise UsageError(f"no method '{name}'; {hint}")
    module = importlib.import_module(f"compoclip.methods.{modules[name]}")
    recipe: Callable[..., Method] = getattr(module, name.replace("-", "_"))
    return recipe


def _recipes() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Method name, module and definition of each recipe, read from source: torch stays out."""
    for module in sorted(pkgutil.iter_modules([str(_FOLDER)]), key=lambda m: m.name):
        tree = ast.parse((_FOLDER / f"{module.name}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and _is_recipe(node):
                yield node.name.replace("_", "-"), module.name, node


def _is_recipe(function: ast.FunctionDef) -> bool:
    """Whether it is public, returns a `Method`, and takes keyword arguments alone."""
    made = function.returns is not None and ast.unparse(function.returns) == "Method"
    return made and not function.name.startswith("_") and not function.args.args
