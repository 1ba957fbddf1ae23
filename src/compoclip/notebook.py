"""Results in a notebook: lists that print as the tables of the command line, modules to call."""

from __future__ import annotations

import html
import importlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


class ShownList(list[T]):
    """A list that a notebook shows as text.

    Args:
        items: Its content.
        text: Makes the text, when the list is shown.
    """

    def __init__(self, items: Iterable[T], text: Callable[[], str]) -> None:
        super().__init__(items)
        self._text = text

    def __repr__(self) -> str:
        return self._text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"


class CallableModule(ModuleType):
    """A module whose name is that of a function of `compoclip.api` as well, which it calls.

    An imported module replaces whatever the package has under its name.
    """

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Call the function."""
        api = importlib.import_module("compoclip.api")
        return getattr(api, self.__name__.rpartition(".")[2])(*arguments, **settings)


def make_callable(name: str) -> None:
    """Let the module of that name be called as the function."""
    sys.modules[name].__class__ = CallableModule
