"""JSON and YAML values as what a dataclass declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from compoclip.bounds import MAX_EXACT
from compoclip.errors import shown
from compoclip.files import encodable

hints = cache(get_type_hints)


def typed(value: Any, hint: Any, where: str = "") -> Any:
    """Return a value as its type hint says: lists become tuples, objects dataclasses.

    where: its place. Raises ValueError, naming the place, for a value of another type, TypeError
    for an object with other keys than the fields of its dataclass. Whole numbers are 0 or more.
    """
    if get_origin(hint) is UnionType:
        if value is None:
            return None
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    kind, inner = get_origin(hint), get_args(hint)
    if hint in (Any, None):
        return value
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
        known = hints(hint)  # the class itself refuses names that lack or are too many
        return hint(
            **{k: typed(v, known.get(k), f"{where}.{k}".lstrip(".")) for k, v in value.items()}
        )
    if kind in (dict, Mapping) and isinstance(value, dict):
        return {typed(k, str, where): typed(v, inner[1], f"{where}.{k}") for k, v in value.items()}
    if kind is tuple and isinstance(value, list):
        return tuple(typed(each, inner[0], where) for each in value)
    number = type(value) in (int, float) and abs(value) <= MAX_EXACT
    if hint is float and number:
        return float(value)
    if hint is int and number and type(value) is int and value >= 0:
        return value
    if hint is bool and type(value) is bool:
        return value
    if hint is str and isinstance(value, str) and encodable(value):
        return value
    raise ValueError(f"{where} is {shown(value)}")
