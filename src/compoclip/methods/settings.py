"""Settings of the parts of a method, PATH=VALUE of --set: form and names, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compoclip.config import read_value
from compoclip.errors import UsageError, closest
from compoclip.typed import kind_named, of_text

PARTS = ("terms", "texts", "images", "trains", "lora", "teacher", "optim")
"""Parts of a method that --set changes."""
SUFFIX = "-clip"
"""End of the name of a method that may be left out."""
NOT_SO = "cannot be set in this way"
_SINGLE = {int, float, str}


def part_and_value(setting: str) -> tuple[str, str, str]:
    """Return part, path within it, and value of PART.PATH=VALUE of --set.

    Raise UsageError for another form, and an unknown part.
    """
    path, equals, value = setting.partition("=")
    part, _, rest = path.strip().partition(".")
    if not equals or not rest:
        raise UsageError("write PATH=VALUE, such as terms.clip.weight=0.5")
    if part not in PARTS:
        raise unknown("part", part, PARTS)
    if part == "terms" and rest.rpartition(".")[2] != "weight":
        raise UsageError("only the weight of a term can be set")
    return part, rest, value


def require_place(part: str, rest: str, known: Mapping[str, Sequence[str]], method: str) -> None:
    """Raise UsageError for a path that begins with a part or a name which a method has not.

    Args:
        part: The part of `part_and_value`.
        rest: The path within it.
        known: The names in every part of the method, as `Method.settable` has them.
        method: Its name.
    """
    if part not in known:
        raise UsageError(f"{method} has no {part}")
    if not known[part]:
        raise UsageError(f"the {part} of {method} have no settings")
    name = rest.rpartition(".")[0] if part == "terms" else rest.partition(".")[0]
    if name not in known[part]:
        raise unknown("term" if part == "terms" else "", name, known[part])


def converted(current: Any, value: str) -> Any:
    """Return a value as what `current` is: a flag, a number, a text, a list of numbers or names.

    Raise UsageError for another value.
    """
    kind, value = type(current), value.strip()
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
        if kind in _SINGLE:
            return of_text(value, kind)
        if kind is tuple and current and {*map(type, current)} <= _SINGLE:
            listed = read_value(value) if value.startswith("[") else value.split(",")
            return tuple(of_text(str(item).strip(), type(current[0])) for item in listed)
    except (ValueError, KeyError):
        raise UsageError(f"'{value}' is not {kind_named(kind)}") from None
    raise UsageError(NOT_SO)


def unknown(label: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error about an unknown name, with the closest of `names`."""
    short = [full.removesuffix(SUFFIX) for full in names if full.endswith(SUFFIX)]
    hint = closest(name, dict.fromkeys([*names, *short]))
    return UsageError(f"no {label}{' ' if label else ''}'{name}'; {hint}")
