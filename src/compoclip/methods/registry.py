"""What makes a function a recipe, and how recipes are found by name."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, get_type_hints

from compoclip import own
from compoclip.errors import CompoclipError, UsageError

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
        return _recorded(function(*args, **kwargs), function, bound.arguments)

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
            return replace(_recorded(method, function, bound.arguments), name=name)

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


def _recorded(
    method: Method, function: Callable[..., Method], arguments: Mapping[str, Any]
) -> Method:
    """The method with its hyper-parameters and the source that made it, if not the package's.

    Those of the optimiser are recorded by themselves.
    """
    settings = {name: value for name, value in arguments.items() if name != "optim"}
    made_in = {**method.made_in, **own.sources_of(function)}
    return replace(method, settings=settings, made_in=made_in)


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
    return sorted({*(name for name, _, _ in _recipes()), *own.installed("methods")})


def method_summaries() -> dict[str, str]:
    """Name -> first line of the recipe's docstring, sorted by name. Imports no recipe.

    Of a method that another package adds it says which package.
    """
    added = {name: f"(of {own.origin(each)})" for name, each in own.installed("methods").items()}
    summaries = {
        name: inspect.cleandoc(ast.get_docstring(recipe) or "").partition("\n")[0]
        for name, _, recipe in _recipes()
    }
    return dict(sorted({**added, **summaries}.items()))


def method_origin(name: str) -> str:
    """Where a method comes from: "compoclip", a package with its version, or a file.

    Args:
        name: As for `load_recipe`.

    Returns:
        The origin, for lists.
    """
    if own.is_file(name):
        return str(own.split(name)[0])
    is_own = name in {found for found, _, _ in _recipes()}
    return own.origin(None if is_own else own.installed("methods").get(name))


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
        CompoclipError: When the file, or the package that adds the method, cannot be read or run.
    """
    if own.is_file(name):
        return _from_file(name)
    modules = {found: module for found, module, _ in _recipes()}
    if name in modules:
        module = importlib.import_module(f"compoclip.methods.{modules[name]}")
        found: Callable[..., Method] = getattr(module, name.replace("-", "_"))
        return found
    added = own.installed("methods")
    if name in added:
        found = own.imported(added[name], "method")
        if not callable(found):
            raise CompoclipError(
                f"entry point {added[name].value!r} of method {name!r} must name a function under "
                "@recipe"
            )
        return found
    names = sorted({*modules, *added})
    close = difflib.get_close_matches(name.replace("_", "-").lower(), names)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    raise UsageError(f"no method '{name}'; {hint}")


def _recipes() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Method name, module and definition of each recipe, read from source: torch stays out."""
    for module in sorted(pkgutil.iter_modules([str(_FOLDER)]), key=lambda m: m.name):
        for node in _in_source((_FOLDER / f"{module.name}.py").read_bytes()):
            yield node.name.replace("_", "-"), module.name, node


@functools.lru_cache(maxsize=256)  # every look at a recipe asks for all of them
def _in_source(source: bytes) -> tuple[ast.FunctionDef, ...]:
    """The recipes that a source defines."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return tuple(node for node in functions if any(map(_makes_one, node.decorator_list)))


def _from_file(name: str) -> Callable[..., Method]:
    """The recipe in a file of the user's own, which is run."""
    own.refresh(name)
    defined = own.parts_of(name)
    path, wanted = own.split(name)
    names = [node.name for node in _in_source(path.read_bytes())]
    recipes = {each: defined[each] for each in names if each in defined}
    spelled = f"{path}:{wanted.replace('-', '_')}"
    found: Callable[..., Method]
    found = own.chosen(spelled, recipes, "recipes", "a function under @recipe")
    return found


def _makes_one(decorator: ast.expr) -> bool:
    """Whether it is `@recipe` or `@variant(...)`."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id in (recipe.__name__, variant.__name__)
