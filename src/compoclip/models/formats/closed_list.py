"""The closed list of what other libraries write into the folder of a model (`closed_list.yaml`).

An entry of a file that nobody reads may change the features. So each one is followed, known to be
harmless, or refused by its name; files that are neither are named when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from compoclip.config import package_yaml
from compoclip.errors import CompoclipError, abridged, typed_repr
from compoclip.typed import is_a, kind_named

_LIST = package_yaml(Path(__file__).with_suffix(".yaml"))

TOKENIZER_FILES: tuple[str, ...] = tuple(_LIST["files"]["tokenizer"]["followed"])
"""Files of a tokenizer in the folder of a model."""
IMAGE_PROCESSORS: dict[str, dict[str, Any]] = _LIST["image processors"]
"""Image processors of transformers -> what each does where its settings are silent."""


@cache
def _rules(group: str, kind: str) -> dict[str, Any]:
    """Return the lists of a kind, with those that it includes, and "harmless" as one list."""
    entry = _LIST[group][kind]
    parts = [*(_rules(group, name) for name in entry.get("includes", ())), entry]
    harmless = [list(part.get("harmless", ())) for part in parts[:-1]]
    harmless += entry.get("harmless", {}).values()
    return {
        "followed": [name for part in parts for name in part.get("followed", ())],
        "optional": [name for part in parts for name in part.get("optional", ())],
        "fixed": {name: v for part in parts for name, v in part.get("fixed", {}).items()},
        "harmless": [name for names in harmless for name in names],
        "not null": [name for part in parts for name in part.get("not null", ())],
        "empty": any(part.get("empty") for part in parts),
    }


def check_entries(
    data: Mapping[str, Any], kind: str, source: object, remedy: str, within: str = ""
) -> None:
    """Refuse what the closed list does not know of a file.

    Args:
        data: The object in the file.
        kind: Its list in `closed_list.yaml`.
        source: The file, for the message.
        remedy: The end of the message.
        within: The names of the objects that hold `data`, each followed by a dot.

    Raises:
        CompoclipError: An entry is unknown, null where a value is needed, or has a value with which
            the other library computes something else.
    """
    rules = _rules("entries", kind)
    for name, values in rules["fixed"].items():
        if name in data and name in rules["not null"]:
            values = [value for value in values if value is not None]
        value = data.get(name)
        by_value = [[*_differences(value, expected, f"{within}{name}")] for expected in values]
        if differences := min(by_value, key=len):
            place, other = differences[0]
            raise CompoclipError(
                f"{source}: {place} is {typed_repr(other)}, which is not followed; {remedy}"
            )
    for name, value in data.items():
        listed = name in rules["followed"] or name in rules["harmless"] or name in rules["fixed"]
        if not listed and not (rules["empty"] and not value):
            raise CompoclipError(
                f"{source}: '{within}{name}' ({typed_repr(value)}) is an unknown entry, and may "
                f"change the features; {remedy}"
            )
        if value is None and name in rules["followed"] and name not in rules["optional"]:
            raise CompoclipError(f"{source}: {within}{name} is null; {remedy}")


def _differences(value: Any, expected: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the place of each difference, and the value there.

    A key that `value` leaves out is no difference.
    """
    if isinstance(value, dict) and isinstance(expected, dict) and expected:
        for key, inner in value.items():
            if key in expected:
                yield from _differences(inner, expected[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}", inner
    elif isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        for number, (inner, other) in enumerate(zip(value, expected)):
            yield from _differences(inner, other, f"{place}.{number}")
    elif value != expected or isinstance(value, bool) != isinstance(expected, bool):
        yield place, value


_LEAVES = {"any": object, "text": str, "number": int, "fraction": float, "flag": bool}


def malformed(value: Any, form: Any, whole: Any, place: str = "") -> Iterator[str]:
    """Yield a sentence for each entry that does not have its form in `closed_list.yaml`.

    Args:
        value: The entry.
        form: The form, or its name in the list.
        whole: The object in the file, for forms that name another entry.
        place: The names that lead to the entry, "" for the whole.
    """
    if isinstance(form, str) and form in _LIST["forms"]:
        form = _LIST["forms"][form]
    if isinstance(form, str):
        kind = _LEAVES.get(form, str)
        if not is_a(value, kind):
            yield f"{place} must be {kind_named(kind)}, found {typed_repr(value)}"
        elif form not in _LEAVES and not _names_entry(value, form.removeprefix("key of "), whole):
            yield f"{place} is {typed_repr(value)}, which is no {form}"
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{place} must be a list, found {typed_repr(value)}"
            return
        for number, item in enumerate(value):
            yield from malformed(item, form[0], whole, f"{place}.{number}")
    elif not isinstance(value, Mapping):
        yield f"{place} must be an object, found {typed_repr(value)}"
    elif "by type" in form:
        kinds, name = form["by type"], value.get("type")
        if not isinstance(name, str) or name not in kinds:
            yield f"{place}.type must be one of {', '.join(kinds)}, found {typed_repr(name)}"
            return
        yield from malformed(value, {"type": "any", **kinds[name]}, whole, place)
    elif "one of" in form:
        if len(value) != 1 or not value.keys() <= form["one of"].keys():
            choices = " or ".join(form["one of"])
            yield f"{place} must have {choices} alone, found {typed_repr(value)}"
            return
        for name, item in value.items():
            yield from malformed(item, form["one of"][name], whole, f"{place}.{name}")
    else:
        yield from _malformed_entries(value, form, whole, f"{place}." if place else "")


def _malformed_entries(
    value: Mapping[str, Any], form: Mapping[str, Any], whole: Any, start: str
) -> Iterator[str]:
    """Yield the sentences on the entries of an object, of which the form lists the names."""
    others = form.get("*")
    for listed, part in form.items():
        if listed == "*":
            continue
        name = listed if listed in value else listed.removesuffix("~")
        if name == listed or value.get(name) is not None:
            yield from malformed(value.get(name), part, whole, f"{start}{name}")
    for name, item in value.items():
        if name in form or f"{name}~" in form:
            continue
        if others is None:
            yield f"'{start}{name}' ({typed_repr(item)}) is an unknown entry"
        else:
            yield from malformed(item, others, whole, f"{start}{name}")


def _names_entry(value: object, holder: str, whole: Any) -> bool:
    """Return whether a text names an entry of the object at a place, which may be malformed."""
    for name in holder.split("."):
        whole = whole.get(name) if isinstance(whole, Mapping) else None
    return not isinstance(whole, Mapping) or value in whole


def unread_files(folder: Path, kind: str) -> list[str]:
    """Return a sentence on the files that the closed list does not know; [] without any."""
    rules = _rules("files", kind)
    patterns = [*rules["followed"], *rules["harmless"]]
    names = [
        f"{path.name}{'/' if path.is_dir() else ''}"
        for path in sorted(folder.iterdir())
        if not any(fnmatchcase(path.name, pattern) for pattern in patterns)
    ]
    if not names:
        return []
    return [f"files: {abridged(names, 5)} not read; what they would change is unknown"]
