"""Protocols that `compoclip reproduce` follows: entries of `protocols.yaml`, or a user's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from compoclip.config import parsed_yaml
from compoclip.errors import CompoclipError, UsageError, closest, require
from compoclip.evaluation.published.read import published_table
from compoclip.files import read_text
from compoclip.typed import build

_FILE = Path(__file__).with_name("protocols.yaml")
_REMEDY = "see protocols.yaml of the package"
_SHARED = ("_data", "_work")  # beside the protocols of a file


@dataclass(frozen=True)
class TrainingPhotos:
    """Training data of a protocol; `protocols.yaml` explains the fields."""

    number: int
    captions: str = ""
    photos: tuple[str, ...] = ()
    images: str = ""
    sentences: int = 1
    small: tuple[str, ...] = ()
    small_number: int = 0
    by_hand: str = ""


@dataclass(frozen=True)
class Protocol:
    """An experiment of a paper; `protocols.yaml` explains the fields."""

    name: str
    recipe: str
    model: str
    data: TrainingPhotos
    table: str
    base: tuple[str, ...]
    row: tuple[str, ...]
    benchmarks: tuple[str, ...]
    small: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


def protocol_names() -> tuple[str, ...]:
    """Return the names of the protocols in the package, in the order of their file."""
    return _names(_FILE)


def protocol(name: str) -> Protocol:
    """Return a protocol of the package, or the one of a YAML file.

    Raises UsageError for an unknown name, CompoclipError for a missing or malformed file.
    """
    if not name.endswith((".yaml", ".yml")):
        if name not in protocol_names():
            raise UsageError(f"no protocol '{name}'; {closest(name, protocol_names())}")
        return _read(_FILE, name)
    names = _names(Path(name))
    require(len(names) == 1, name, f"expected one NAME: {{recipe: ...}}, holds {[*names]}")
    return _read(Path(name), names[0])


def training_photos(name: str) -> TrainingPhotos:
    """Return training data of the package by name; raise UsageError for an unknown one."""
    by_name = _content(_FILE)["_data"]
    if name not in by_name:
        raise UsageError(f"no training data '{name}'; {closest(name, by_name)}")
    data: TrainingPhotos = build(TrainingPhotos, by_name[name], f"{_FILE}: {name}", _REMEDY)
    return data


def work(benchmark: str) -> tuple[int, int] | None:
    """Return the numbers of photos and texts that a benchmark encodes; None where not counted."""
    counted = _content(_FILE)["_work"].get(benchmark)
    return tuple(counted) if counted else None


@cache
def _content(path: Path) -> dict[str, Any]:
    data = parsed_yaml(read_text(path), path, "list of protocols")
    for name in data:
        require(name in _SHARED or name[:1] != "_", path, f"unknown field {name!r}; {_REMEDY}")
    return data


def _names(path: Path) -> tuple[str, ...]:
    return tuple(name for name in _content(path) if name not in _SHARED)


def _read(path: Path, name: str) -> Protocol:
    data = _content(path)
    try:
        entry = {"name": name, **data[name]}
        rows = published_table(entry["table"]).rows if "recipe" not in entry else ()
        for arm in (row.arm for row in rows if list(row.labels) == entry["row"]):
            if arm is not None:
                entry = {"recipe": arm.recipe, "model": arm.model, "settings": arm.settings} | entry
        entry["data"] = {**_content(_FILE)["_data"], **data.get("_data", {})}[entry["data"]]
    except (KeyError, TypeError) as error:
        raise CompoclipError(f"{path}: {name} is malformed ({error}); {_REMEDY}") from error
    loaded: Protocol = build(Protocol, entry, f"{path}: {name}", _REMEDY)
    return loaded
