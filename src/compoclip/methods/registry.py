"""Recipes: the decorators, and the look-up by name."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from compoclip import plugins
from compoclip.config import Names, Option, described
from compoclip.data.text_names import OF_DATA, WRITTEN
from compoclip.errors import CompoclipError, UsageError, closest
from compoclip.methods.settings import SUFFIX, unknown

if TYPE_CHECKING:
    from compoclip.methods.base import Method, Optim

_OPTIM = "optim"  # a parameter of recipes that is not an option: those of the run stand for it


@dataclass(frozen=True)
class RecipeCard:
    """A recipe without its code.

    Args:
        about: Its docstring up to `Args:`.
        options: Its parameters, by name.
        defaults: The method's values of options of the run (`lr`, `epochs`, ..., `crop`).
        parts: The names that --set takes in its parts: those of loss terms in `terms`.
    """

    about: str
    options: Mapping[str, Option]
    defaults: Mapping[str, Any]
    parts: Mapping[str, Sequence[str]]

    @property
    def terms(self) -> Sequence[str]:
        """Return the names of its loss terms."""
        return self.parts["terms"]

    @property
    def summary(self) -> str:
        """Return the first line."""
        return self.about.partition("\n")[0]


class Recipe:
    """A function that makes a `Method`, with its options; made by `recipe` and `variant`.

    Args:
        function: Takes the options by keyword.
        options: By name.
    """

    __name__: str

    def __init__(self, function: Callable[..., Method], options: Mapping[str, Option]) -> None:
        functools.update_wrapper(self, function)
        self.options = options
        self._function = function

    def __call__(self, *, optim: Optim | None = None, **values: Any) -> Method:
        """Make the method: named, without terms of weight 0, its options and sources recorded.

        Args:
            optim: Replaces the method's optimiser settings.
            **values: Options of the recipe. Raises TypeError for an unknown one.
        """
        for name in values:
            if name not in self.options:
                raise TypeError(f"{self.__name__} has no option '{name}'")
        values = {name: values.get(name, option.default) for name, option in self.options.items()}
        from compoclip.methods.base import listed_differences  # which imports torch

        method, name = self._function(**values), self.__name__.replace("_", "-")
        ours = self.__module__.startswith(f"{__package__}.")
        return replace(
            method,
            name=method.name or name,
            differences=(ours and listed_differences().get(name)) or method.differences,
            losses=tuple(term for term in method.losses if term.weight),
            optim=optim or method.optim,
            settings=values,
            made_in={**method.made_in, **plugins.sources_of(self._function)},
        )

    @property
    def card(self) -> RecipeCard:
        """Return what help and lists say of it."""
        about = f"{inspect.getdoc(self._function) or ''}\n".partition("\nArgs:")[0].strip()
        method = self()
        defaults = {**asdict(method.optim), "crop": method.crop}
        return RecipeCard(about, self.options, defaults, method.settable)


def recipe(function: Callable[..., Method]) -> Recipe:
    """Turn a function into a recipe; its arguments are recorded in `Method.settings`.

    The function's name is the method's, `fsc_clip` for `compoclip train fsc-clip`; the first line
    of its docstring is the summary, its parameters are the options.

    Args:
        function: Returns a `Method`; takes only keyword arguments with defaults, each described
            under `Args:`. An argument `optim` gets the optimiser and is not an option.
    """
    return Recipe(function, _options(function))


def variant(
    of: Recipe, optim: Optim | None = None, **defaults: Any
) -> Callable[[Callable[..., Method]], Recipe]:
    """Turn a function into a recipe that changes another one's defaults, and may add options.

    The function takes the other recipe's method, and further options by keyword, and returns the
    changed method. Its docstring may describe options of the other recipe again.

    Args:
        of: The recipe to start from.
        optim: Optimiser settings that differ.
        **defaults: New defaults for options of the other recipe.
    """

    def decorate(function: Callable[..., Method]) -> Recipe:
        added, help_of = _options(function), described(function.__doc__ or "")
        usual = {
            name: replace(
                option,
                default=defaults.get(name, option.default),
                help=help_of.get(name, option.help),
            )
            for name, option in of.options.items()
        }

        @functools.wraps(function)
        def build(**values: Any) -> Method:
            method = of(optim=optim, **{name: values[name] for name in usual})
            method = function(method, **{name: values[name] for name in added})
            return replace(method, name="")

        return Recipe(build, usual | added)

    return decorate


def _options(function: Callable[..., Method]) -> dict[str, Option]:
    hints = get_type_hints(function, include_extras=True)
    help_of = described(function.__doc__ or "")
    return {
        name: Option(name, hints[name], parameter.default, help_of.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != _OPTIM
    }


# --- Finding them by name. `recipes.json` describes them, so that help imports no torch. ---

_KINDS = {kind.__name__: kind for kind in (float, int, bool, str)}


@functools.cache
def _recipes() -> dict[str, Any]:
    """Return the package's recipes by name, as `scripts/list_recipes.py` writes them."""
    recipes: dict[str, Any] = json.loads(Path(__file__).with_name("recipes.json").read_bytes())
    return recipes


def recipe_card(name: str) -> RecipeCard:
    """Describe the recipe of a method; imports no recipe of the package.

    Raises:
        CompoclipError: As `load_recipe` does.
    """
    if name not in _recipes():
        return load_recipe(name).card
    entry = _recipes()[name]
    options = {key: Option(key, _kind(kind), *rest) for key, kind, *rest in entry["options"]}
    return RecipeCard(entry["about"], options, entry["defaults"], entry["parts"])


def _kind(stated: str | list[str]) -> Any:
    """Return the type of an option: choices, a plain type, or a text that names something."""
    if isinstance(stated, list):
        return Literal[tuple(stated)]
    return _KINDS.get(stated) or Annotated[str, Names(stated)]


def recipes_of(module: Mapping[str, Any]) -> dict[str, Recipe]:
    """Return the recipes that a module defines, by name; not those that it imports.

    Args:
        module: The names of the module, as `vars` gives them.
    """
    recipes = {name: value for name, value in module.items() if isinstance(value, Recipe)}
    here = module["__name__"]
    return {k: v for k, v in recipes.items() if (v.__module__, v.__name__) == (here, k)}


def method_names() -> list[str]:
    """Return every method, as written on the command line (`fsc-clip`), sorted."""
    return sorted({*_recipes(), *plugins.installed("methods")})


def is_method(name: str) -> bool:
    """Return whether a method has this name; other packages are asked last."""
    return name in _recipes() or name in plugins.installed("methods")


def method_summaries() -> dict[str, str]:
    """Return name -> first line of the recipe's docstring, sorted by name. Imports no recipe.

    The summary of a method from another package names the package.
    """
    added = {
        name: f"(of {plugins.origin(name, point)})"
        for name, point in plugins.installed("methods").items()
    }
    return dict(sorted((added | {name: recipe_card(name).summary for name in _recipes()}).items()))


def method_origin(name: str) -> str:
    """Return the origin of a method: "compoclip", a package with its version, or a file.

    Args:
        name: As for `load_recipe`.
    """
    added = {} if name in _recipes() else plugins.installed("methods")
    return plugins.origin(name, added.get(name))


def require_method(name: str) -> None:
    """Raise UsageError for an unknown method, with the closest names, CompoclipError for a file
    that is absent."""
    if plugins.is_file(name):
        plugins.require_file(name)
    elif not is_method(name):
        raise UsageError(f"no method '{name}'; {closest(name, method_names())}")


def load_recipe(name: str) -> Recipe:
    """Load the recipe of a method: options by keyword in, `Method` out.

    Args:
        name: Name on the command line; or the path of a Python file with a recipe, FILE.py, or
            FILE.py:NAME if it has several.

    Raises:
        UsageError: For an unknown method, with the closest names, and a file without the recipe.
        CompoclipError: When the file, or the package of the method, cannot be read or run.
    """
    require_method(name)
    if plugins.is_file(name):
        plugins.refresh(name)
        recipes = recipes_of(plugins.parts_of(name))
        path, recipe_name = plugins.split(name)
        spelled = f"{path}:{recipe_name.replace('-', '_')}"
        return plugins.chosen(spelled, recipes, "recipes", "a function under @recipe")
    if name in _recipes():
        module = importlib.import_module(f"compoclip.methods.{_recipes()[name]['module']}")
        loaded = getattr(module, name.replace("-", "_"))
    else:
        loaded = plugins.imported(plugins.installed("methods")[name], "method")
    if not isinstance(loaded, Recipe):
        raise CompoclipError(f"method {name!r} must name a function under @recipe, not {loaded!r}")
    return loaded


# --- Names of methods and of their parts, judged by themselves within milliseconds. Whether the
# parts fit each other shows when `compose` puts them together. ---

FROM_FILES = (*OF_DATA, *WRITTEN)
"""Texts that --texts takes and no rewrite makes."""
TERMS = ("all-images", "similarity")
"""Loss terms of no method."""


def method_named(name: str, label: str = "method", others: Sequence[str] = ()) -> str:
    """Return the full name of a method, of which "-clip" may be left out.

    Raise UsageError for an unknown name, with the closest ones. label: what is asked for, and
    others: names besides those of methods, for the message.
    """
    for full in (name, f"{name}{SUFFIX}"):
        if full in method_names():
            return full
    raise unknown(label, name, [*method_names(), *others])


def require_texts(name: str) -> None:
    """Raise UsageError for +NAME of --texts that is no rewrite, texts from files or method."""
    from compoclip.rewrites.base import rewrite_names

    name = name.removeprefix("+")
    others = (*rewrite_names(), *FROM_FILES)
    if plugins.is_file(name):
        plugins.require_file(name)
    elif name not in others:
        method_named(name, "method or rewrite", others)


def require_term(name: str) -> None:
    """Raise UsageError for +NAME of --terms that is neither a loss nor a method or its term."""
    if not name.startswith("+"):
        raise UsageError("write +METHOD or +METHOD.TERM")
    name = name[1:]
    if plugins.is_file(name):
        plugins.require_file(name)
    elif name not in (*TERMS, *plugins.installed("losses")):
        method, _, term = name.partition(".")
        terms = recipe_card(method_named(method)).terms
        if term and term not in terms:
            raise unknown("term", term, terms)
