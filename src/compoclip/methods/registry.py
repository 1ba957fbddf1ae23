"""What makes a function a recipe, and how recipes are found by name."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, get_type_hints

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unreadable

if TYPE_CHECKING:
    from compoclip.methods.base import Method

P = ParamSpec("P")
_FOLDER = Path(__file__).parent


# --- Recipes: functions that return a `Method`, and variants that state what differs. ---


def recipe(function: Callable[P, Method]) -> Callable[P, Method]:
    """Make a function a recipe: what it is called with is recorded in `Method.settings`.

    The name of the function is that of the method, `fsc_clip` for `compoclip train fsc-clip`; the
    first line of its docstring is the summary, its parameters are the options.

    Args:
        function: Returns a `Method`; takes keyword arguments with defaults alone, each described
            under `Args:`, the last of them `optim`.

    Returns:
        The recipe, with the signature and docstring of the function.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Method:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return replace(function(*args, **kwargs), settings=_settings(bound.arguments))

    return made


def variant(
    of: Callable[..., Method], **defaults: Any
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Make a function a recipe that is another one with other defaults, and perhaps more options.

    The function states what differs: it takes the method that the other recipe makes, and options
    of its own by keyword, and returns the method changed. It is called what the function is called.
    The result has the options of both, with their descriptions; the function may describe one of
    the other recipe anew. Options of its own stand behind the last one that has another default.

    Args:
        of: The recipe to start from.
        **defaults: Its options with other defaults.

    Returns:
        A decorator, which gives the recipe.
    """
    usual = inspect.signature(of).parameters
    changed = [
        each.replace(default=defaults.get(each.name, each.default)) for each in usual.values()
    ]
    own_place = 1 + max((i for i, name in enumerate([*usual][:-1]) if name in defaults), default=-1)

    def decorate(function: Callable[..., Method]) -> Callable[..., Method]:
        _, *own = inspect.signature(function).parameters.values()
        hints = {**get_type_hints(of), **get_type_hints(function)}
        parameters = [*changed[:own_place], *own, *changed[own_place:]]
        name = function.__name__.replace("_", "-")

        def made(**options: Any) -> Method:
            bound = inspect.Signature(parameters).bind(**options)
            bound.apply_defaults()
            method = of(**{each: bound.arguments[each] for each in usual})
            method = function(method, **{each.name: bound.arguments[each.name] for each in own})
            return replace(method, name=name, settings=_settings(bound.arguments))

        made.__name__ = made.__qualname__ = function.__name__
        made.__module__ = function.__module__
        made.__doc__ = _described(of, function, [each.name for each in parameters])
        made.__annotations__ = {each.name: hints[each.name] for each in parameters}
        made.__annotations__["return"] = hints["return"]
        made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(annotation=hints[each.name]) for each in parameters],
            return_annotation=hints["return"],
        )
        return made

    return decorate


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A method's own hyper-parameters; those of the optimiser are recorded by themselves."""
    return {name: value for name, value in arguments.items() if name != "optim"}


def _described(of: Callable[..., Method], function: Callable[..., Method], names: list[str]) -> str:
    """The docstring of a function with the descriptions of all options, its own or the others'."""
    _, usual = _documented(of)
    about, own = _documented(function)
    entries = {**usual, **own}
    listed = textwrap.indent("\n".join(entries[name] for name in names), "    ")
    return textwrap.indent(f"{about}\n\nArgs:\n{listed}\n", "    ").lstrip()


def _documented(function: Callable[..., Method]) -> tuple[str, dict[str, str]]:
    """A docstring without its arguments, and the lines that describe each of them."""
    about, _, listed = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    entries = re.split(r"^(?=\w+: )", textwrap.dedent(listed), flags=re.MULTILINE)
    return about, {entry.partition(":")[0]: entry.rstrip() for entry in entries if entry}


# --- Finding them by name, without importing any: torch stays out of a list of methods. ---


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

    Args:
        name: As written on the command line; or the path of a Python file of one's own with a
            recipe in it, FILE.py, or FILE.py:NAME of several.

    Returns:
        The function, whose signature holds the method's options.

    Raises:
        UsageError: With the closest names, when there is no such method, and when the file has no
            such recipe.
        CompoclipError: When the file cannot be read or run.
    """
    file, _, wanted = name.partition(":")
    if file.endswith(".py"):
        return _from_file(Path(file), wanted)
    modules = {found: module for found, module, _ in _recipes()}
    if name not in modules:
        names = sorted(modules)
        close = difflib.get_close_matches(name.replace("_", "-").lower(), names)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
        raise UsageError(f"no method '{name}'; {hint}")
    module = importlib.import_module(f"compoclip.methods.{modules[name]}")
    found: Callable[..., Method] = getattr(module, name.replace("-", "_"))
    return found


def _recipes() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Method name, module and definition of each recipe, read from source: torch stays out."""
    for module in sorted(pkgutil.iter_modules([str(_FOLDER)]), key=lambda m: m.name):
        for node in _in_file(_FOLDER / f"{module.name}.py"):
            yield node.name.replace("_", "-"), module.name, node


def _in_file(path: Path) -> list[ast.FunctionDef]:
    """The recipes that a file defines."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if any(map(_makes_one, node.decorator_list))]


def _from_file(path: Path, wanted: str) -> Callable[..., Method]:
    """The recipe in a file of the user's own, which is run."""
    try:
        names = [node.name for node in _in_file(path)]
    except OSError as error:
        raise unreadable(path, error) from None
    except (SyntaxError, ValueError) as error:
        raise CompoclipError(f"{path}: not Python ({error}); mend the file") from None
    name = wanted.replace("-", "_") or (names[0] if len(names) == 1 else "")
    if name not in names:
        have = ", ".join(f"{path}:{each}" for each in names) or "none, a function under @recipe"
        raise UsageError(f"{path}: name one of its recipes; it has: {have}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # a .py file has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CompoclipError(f"{path}: {type(error).__name__}: {reason}; mend the file") from error
    found: Callable[..., Method] = getattr(module, name)
    return found


def _makes_one(decorator: ast.expr) -> bool:
    """Whether it is `@recipe` or `@variant(...)`."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id in (recipe.__name__, variant.__name__)
