"""Names of models, judged by themselves and by what lies on the disk: without torch, within
milliseconds. Whether a model can be loaded shows when it is."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from compoclip import plugins
from compoclip.errors import UsageError, closest, require
from compoclip.models.config import RECORD

LOCAL, HUB, RANDOM, BUNDLED = "local-dir:", "hf-hub:", "random:", "bundled"
BUNDLED_KNOWS = "has only seen drawn scenes"
"""A clause on the bundled model for those who have photos, in help and messages."""
LIBRARIES = ("hf", "mteb", "st")
"""Libraries whose models are measured as LIBRARY:ID."""
BLIND = "blind"
"""Prefix of the name of a model that sees no image, BLIND:CAPTIONS, and its architecture."""
_FORMS = "a checkpoint folder, bundled, or ARCHITECTURE:TAG such as ViT-B-32-quickgelu:openai"
_INSIDE = ("model", "adapter")  # folders of a run that are models


def architectures() -> tuple[str, ...]:
    """Return the names of open_clip's architectures, with those that a program has added."""
    loaded = sys.modules.get("open_clip")
    return tuple(loaded.list_models()) if loaded else _files_of_architectures()


@cache
def _files_of_architectures() -> tuple[str, ...]:
    """Return the names by open_clip's files: importing it loads torch."""
    package = find_spec("open_clip")
    folders = (package and package.submodule_search_locations) or ()
    files = (file for folder in folders for file in Path(folder, "model_configs").glob("*.json"))
    return tuple(sorted(file.stem for file in files))


def require_architecture(name: str) -> None:
    """Raise UsageError for a name that is no architecture of open_clip."""
    if name not in architectures():
        hint = closest(name, architectures())
        hint = hint if hint.startswith("did you mean") else "the names are open_clip's: ViT-B-32"
        raise UsageError(f"open_clip has no architecture '{name}'; {hint}")


def is_external(spec: str) -> bool:
    """Return whether a name is a file, a library's, a blind or another package's model."""
    library = spec.partition(":")[0] in (BLIND, *LIBRARIES)
    return plugins.is_file(spec) or library or spec in plugins.installed("models")


def split_part(file: str) -> tuple[Path, str]:
    """Return the file, and the entry or the beginning of names, in FILE#PART; "" without one."""
    stem, _, part = file.rpartition("#")
    return (Path(stem), part) if stem and Path(stem).is_file() else (Path(file), "")


def require_model(spec: str, external: bool = False) -> None:
    """Raise UsageError for what names no model.

    Args:
        spec: What a user writes for a model.
        external: Whether models of other libraries and packages will do, as for measuring.
    """
    if external and is_external(spec):
        file = plugins.split(spec)[0]
        require(not plugins.is_file(spec) or file.is_file(), file, "no such file", UsageError)
        return
    place, _ = split_part(spec.removeprefix(LOCAL))
    if spec.startswith(LOCAL):
        require(place.is_dir(), spec, "no such folder", UsageError)
    if spec.startswith(HUB) or spec == BUNDLED or place.is_file():
        return
    if place.is_dir():
        _require_folder(place)
        return
    name, at, weights = spec.partition("@")
    architecture, colon, _ = spec.removeprefix(RANDOM).partition(":")
    if colon or spec.startswith(RANDOM):
        require_architecture(architecture)
    elif at:
        require_architecture(name)
        require(split_part(weights)[0].is_file(), weights, "no such file of weights", UsageError)
    else:
        raise UsageError(_unknown(spec))


def _require_folder(folder: Path) -> None:
    """Raise UsageError for a folder without any configuration, such as that of a run."""
    if any(any(folder.glob(pattern)) for pattern in ("*.json", "*-encoder/*.json", "*.onnx")):
        return
    inside = next((folder / name for name in _INSIDE if any(folder.glob(f"{name}/*.json"))), None)
    hint = f"did you mean {inside}?" if inside else f"it has no {RECORD} and no other configuration"
    raise UsageError(f"{folder}: is not a model folder; {hint}")


def _unknown(spec: str) -> str:
    """Return what to say of a name that is neither on the disk nor of a known form."""
    if spec in architectures():
        return (
            f"'{spec}' is an architecture without weights: write {spec}:PRETRAINED_TAG, "
            f"{spec}@FILE or random:{spec}"
        )
    hint = closest(spec, (BUNDLED, *architectures()))
    if hint.startswith("did you mean"):
        return f"no model '{spec}'; {hint}"
    if "/" in spec:
        return f"{spec}: no such folder or file; name {_FORMS}"
    return f"no model '{spec}'; name {_FORMS}"
