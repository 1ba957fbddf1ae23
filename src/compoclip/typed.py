"""The one reading of values from outside: of JSON and YAML, of the command line, of notebooks.

A type is written as an annotation: `str`, `int`, `float`, `bool`, `Path`, `None`, `object` for any
value, `Literal`, `X | Y`, `list[X]`, `tuple[X, ...]`, `dict[str, X]`, a class, and `Annotated` with
a range (`Within`). A text has no half characters and no NUL, true is no number, numbers are finite,
and numpy's numbers are numbers.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from compoclip.bounds import MAX_EXACT
from compoclip.errors import CompoclipError, UsageError, names_listed, typed_repr
from compoclip.files import encodable


@dataclass(frozen=True)
class Within:
    """The range of a number, in its `Annotated` beside the type."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        if self.high != math.inf:
            return f"lie between {self.low} and {self.high}"
        return f"be at least {self.low}" if self.low else "not be negative"


Natural = Annotated[int, Within(0)]
NonNegative = Annotated[float, Within(0)]
Count = Annotated[int, Within(1)]
Test = Callable[[object], bool]
T = TypeVar("T")
_FETCH = "fetch the file again"


def is_a(value: object, kind: Any) -> bool:
    """Return whether a value is of a type; the ranges of numbers are for `require_kind`."""
    return _test_of(kind)(value)


def _test_of(kind: Any) -> Test:
    try:
        return _cached_test(kind)
    except TypeError:  # the metadata of an `Annotated` may be no keys
        return _test(kind)


def _test(kind: Any) -> Test:
    """Return a function that tests whether a value is of a type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _test_of(parts[0])
    if origin in (Union, UnionType):
        tests = tuple(map(_test_of, parts))
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in parts
    if origin in (list, tuple):
        of_item = _test_of(parts[0])
        return lambda value: isinstance(value, origin) and all(map(of_item, value))
    if origin in (dict, Mapping):
        of_key, of_value = map(_test_of, parts)
        return lambda value: (
            isinstance(value, Mapping)
            and all(map(of_key, value))
            and all(map(of_value, value.values()))
        )
    if kind is Any:
        return lambda value: True
    return _TESTS.get(kind, lambda value: isinstance(value, kind))


_cached_test = cache(_test)


def _finite(value: Real) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


_TESTS: Mapping[Any, Test] = {
    str: lambda value: isinstance(value, str) and encodable(value) and "\0" not in value,
    Path: lambda value: isinstance(value, Path) and "\0" not in str(value),
    int: lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    float: lambda value: not isinstance(value, bool) and isinstance(value, Real) and _finite(value),
    None: lambda value: value is None,
}


def marks_of(kind: Any, mark: type[T]) -> list[T]:
    """Return the marks of a class that a type, or a part of it, has in its `Annotated`."""
    if get_origin(kind) in (Annotated, Union, UnionType, tuple):
        return [match for part in get_args(kind) for match in marks_of(part, mark)]
    return [kind] if isinstance(kind, mark) else []


def convert(value: Any, kind: Any) -> Any:
    """Convert a value of a file or notebook to the form that its type wants.

    A text becomes a path and the reverse, one value or a list a tuple, a whole number another
    number. Other values stay as they are.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return convert(value, parts[0])
    if origin in (Union, UnionType):
        forms = (convert(value, part) for part in parts)
        return next((form for form, part in zip(forms, parts) if is_a(form, part)), value)
    if origin is tuple:
        several = value if isinstance(value, list | tuple) else (value,)
        converted = tuple(convert(item, parts[0]) for item in several)
        return converted if is_a(converted, kind) else value
    if kind is Path and isinstance(value, str):
        return Path(at_home(value))
    if kind is str and isinstance(value, Path):
        return str(value)
    if kind is float and is_a(value, float):
        return float(value)
    return value


_HOME = re.compile("(?<=[=+@:,])~(?=/|$)")


def at_home(text: str) -> str:
    """Return a text with the folder of the user for the "~" that begins its path.

    text: PATH, or what has one, such as NAME=PATH, +PATH, ARCHITECTURE@PATH and NAME:PATH.
    """
    return _HOME.sub(lambda _: os.path.expanduser("~"), os.path.expanduser(text))


def says_none(text: object, kind: Any) -> bool:
    """Return whether a text is the word for no value, none or null, of a type that has that.

    A file or folder may be called so.
    """
    if not isinstance(text, str) or text.lower() not in ("none", "null"):
        return False
    choices = _choices(kind)
    named = Path in choices or any(text in get_args(choice) for choice in choices)
    return NoneType in choices and not named


def _choices(kind: Any) -> list[Any]:
    """The types of which a value may be any."""
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [choice for part in get_args(kind) for choice in _choices(part)]
    return [kind]


_WORDS: Mapping[Any, tuple[str, str]] = {
    str: ("a text", "texts"),
    Path: ("a path", "paths"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    dict: ("an object", "objects"),
    Mapping: ("an object", "objects"),
    list: ("a list", "lists"),
    tuple: ("a list", "lists"),
    NoneType: ("null", "null"),
    **dict.fromkeys((Any, object), ("any value", "values")),
}


def kind_named(kind: Any, *, plural: bool = False) -> str:
    """Return a type in words, for messages."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return kind_named(parts[0], plural=plural)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(kind_named(part, plural=plural) for part in parts))
    if origin is Literal:
        choices = (part or "nothing" for part in parts)
        return f"one of {', '.join(choices)}"
    if origin in (list, tuple):
        return f"{_WORDS[list][plural]} of {kind_named(parts[0], plural=True)}"
    words = _WORDS.get(dict if is_dataclass(kind) else origin or kind)
    return words[plural] if words else str(kind.__name__)


def require_kind(
    place: str,
    value: object,
    kind: Any,
    remedy: str = "",
    error: type[CompoclipError] = CompoclipError,
) -> Any:
    """Return a value; raise `error` unless it is of a type, its numbers within their ranges.

    place: of the value, its file first. remedy: what to do about it.
    """
    then = f"; {remedy}" if remedy else ""
    if not is_a(value, kind):
        raise error(f"{place} must be {kind_named(kind)}, found {typed_repr(value)}{then}")
    numbers = value if isinstance(value, tuple) else (value,)
    for limit in marks_of(kind, Within):
        for number in numbers:
            if is_a(number, int | float) and not limit.low <= cast(float, number) <= limit.high:
                raise error(f"{place} must {limit}, found {typed_repr(number)}{then}")
    return value


def read_fields(
    row: Any, kinds: Mapping[str, Any], origin: str, remedy: str = _FETCH, *, others: bool = True
) -> dict[str, Any]:
    """Return a record that has fields of these types; those that may be null may be missing.

    origin: the file and row. others: whether it may have other fields, which are ignored, as a row
    of somebody else's has. Raise CompoclipError for any other record.
    """
    needed = [key for key, kind in kinds.items() if kind is object or not is_a(None, kind)]
    if not isinstance(row, dict):
        expected = ", ".join(needed)
        raise CompoclipError(
            f"{origin} needs {expected or 'an object'}; it has: {typed_repr(row)}; {remedy}"
        )
    if not row.keys() >= {*needed}:
        raise CompoclipError(
            f"{origin} needs {', '.join(needed)}; it has: {names_listed(row)}; {remedy}"
        )
    if not others:
        _require_known(row, kinds, origin, remedy)
    for key, kind in kinds.items():
        require_kind(f"{origin}: {key!r}", row.get(key), kind, remedy)
    return {**dict.fromkeys(kinds), **row}


_hints = cache(get_type_hints)


def check_fields(record: Any, place: str) -> None:
    """Raise UsageError for a field of a dataclass that is not of its type or not in its range.

    place: what begins its name in the message.
    """
    hints = _hints(cast(type, type(record)), include_extras=True)
    for field in fields(record):
        value = getattr(record, field.name)
        require_kind(f"{place}{field.name}", value, hints[field.name], error=UsageError)


def build(kind: Any, value: Any, origin: str, remedy: str, place: str = "") -> Any:
    """Return a value of a JSON or YAML file as its type: lists as tuples, objects as dataclasses.

    origin: the file. place: of the value in it, "" for the whole. Raise CompoclipError, naming
    both, for a value of another type, an unknown field, a field that is missing, and a number too
    large to be exact.
    """
    position = f"{origin}: {place}" if place else origin
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        if isinstance(value, dict):
            parts = [part for part in parts if is_dataclass(part)] or parts
        if value is None or len(parts) > 1:
            require_kind(position, value, kind, remedy)
            return convert(value, kind)
        return build(parts[0], value, origin, remedy, place)
    outer, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(cast(type, kind), include_extras=True)
        _require_names(value, fields(kind), position, remedy)
        return kind(  # type: ignore[operator]
            **{
                name: build(hints[name], part, origin, remedy, f"{place}.{name}".lstrip("."))
                for name, part in value.items()
            }
        )
    if outer in (dict, Mapping) and isinstance(value, dict):
        for key in value:
            require_kind(f"{position}: the name of a field", key, inner[0], remedy)
        return {
            key: build(inner[1], part, origin, remedy, f"{place}.{key}".lstrip("."))
            for key, part in value.items()
        }
    if outer is tuple and isinstance(value, list):
        return tuple(
            build(inner[0], part, origin, remedy, f"{place}[{number}]")
            for number, part in enumerate(value)
        )
    require_kind(position, value, kind, remedy)
    if isinstance(value, int | float) and MAX_EXACT < abs(value) < math.inf:
        raise CompoclipError(f"{position} is {typed_repr(value)}, too large to be exact; {remedy}")
    return convert(value, kind)


def _require_names(
    value: Mapping[str, Any], declared: Iterable[Any], position: str, remedy: str
) -> None:
    names = {field.name: field for field in declared}
    _require_known(value, names, position, remedy)
    for name, field in names.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in value:
            raise CompoclipError(f"{position}: no field {name!r}; {remedy}")


def _require_known(stated: Iterable[str], names: Collection[str], place: str, remedy: str) -> None:
    for name in stated:
        if name not in names:
            raise CompoclipError(f"{place}: unknown field {typed_repr(name)}; {remedy}")
