"""Results in a notebook: what the command line prints, a link to a file, modules to call."""

from __future__ import annotations

import html
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import PosixPath
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import quote

T = TypeVar("T")


def preformatted(text: str) -> str:
    """Return the HTML of a text of the command line, whose columns stay aligned."""
    return f"<pre>{html.escape(text)}</pre>"


class ShownList(list[T]):
    """A list that shows itself as text, and in a notebook as HTML.

    Args:
        items: Its content.
        text: Makes the text, when the list is shown.
        markup: Makes the HTML; by default it holds the text.
    """

    def __init__(
        self,
        items: Iterable[T],
        text: Callable[[], str],
        markup: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(items)
        self._text = text
        self._markup = markup or (lambda: preformatted(text()))

    def __repr__(self) -> str:
        return self._text()

    def _repr_html_(self) -> str:
        return self._markup()


class ShownPath(PosixPath):
    """A path that a notebook shows as a link."""

    def _repr_html_(self) -> str:
        return f'<a href="{quote(str(self))}" target="_blank">{html.escape(str(self))}</a>'


def make_callable(name: str, function: str) -> None:
    """Let the module of that name be called as a function of `compoclip.api`.

    An imported module replaces whatever the package has under its name.
    """

    class CallableModule(ModuleType):
        def __call__(self, *arguments: Any, **settings: Any) -> Any:
            api = importlib.import_module("compoclip.api")
            return getattr(api, function)(*arguments, **settings)

    sys.modules[name].__class__ = CallableModule
