"""Settings of the parts of a method, PATH=VALUE of --set: form and names, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

from compoclip.config import of_setting
from compoclip.errors import UsageError, closest
from compoclip.typed import is_a, kind_named

PARTS = ("terms", "texts", "images", "trains", "lora", "teacher", "optim")
"""Parts of a method that --set changes."""
SUFFIX = "-clip"
"""End of the name of a method that may be left out."""
NOT_SO = "cannot be set in this way"


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


def require_place(part: str, rest: str, names: Mapping[str, Sequence[str]], method: str) -> None:
    """Raise UsageError for a path that begins with a part or a name which a method has not.

    Args:
        part: The part of `part_and_value`.
        rest: The path within it.
        names: The names in every part of the method, as `Method.settable` has them.
        method: Its name.
    """
    if part not in names:
        raise UsageError(f"{method} has no {part}")
    if not names[part]:
        raise UsageError(f"the {part} of {method} have no settings")
    name = rest.rpartition(".")[0] if part == "terms" else rest.partition(".")[0]
    if name not in names[part]:
        raise unknown("term" if part == "terms" else "", name, names[part])


def converted(kind: Any, text: str) -> Any:
    """Return the text of a setting as a value of a type, as a configuration file would have it.

    A list may be without its brackets: 1,0,0. Raise UsageError for a value of another type, and for
    types that no text stands for.
    """
    text = text.strip()
    item = get_args(kind)[0] if get_origin(kind) is tuple else kind
    if any(map(is_dataclass, (item, *get_args(item)))):
        raise UsageError(NOT_SO)
    listed = item is not kind and not text.startswith("[")
    for value in (of_setting(f"[{text}]" if listed else text, kind), text):
        if is_a(value, kind):
            return value
    raise UsageError(f"'{text}' is not {kind_named(kind)}")


def unknown(label: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error about an unknown name, with the closest of `names`."""
    short = [full.removesuffix(SUFFIX) for full in names if full.endswith(SUFFIX)]
    hint = closest(name, dict.fromkeys([*names, *short]))
    return UsageError(f"no {label}{' ' if label else ''}'{name}'; {hint}")
