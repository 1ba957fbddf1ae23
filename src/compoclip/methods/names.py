"""Names of methods and of their parts, judged by themselves: without torch, within milliseconds.

Whether the parts fit each other shows when `compose` puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from compoclip import plugins
from compoclip.data.text_names import OF_DATA, WRITTEN
from compoclip.errors import UsageError
from compoclip.methods.registry import method_names, recipe_card
from compoclip.methods.settings import SUFFIX, unknown
from compoclip.rewrites.base import rewrite_names

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
