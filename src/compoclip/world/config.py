"""World configurations in JSON files: any fields of `WorldConfig`, the others at their default."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError
from compoclip.files import read_json
from compoclip.world.captions import CAPTION_TYPES
from compoclip.world.scene import WorldConfig

_CONFUSABLE = {"conjunction": 0.92, "object": 0.08}


def bundled_world() -> WorldConfig:
    """The configuration that the bundled base model was trained on."""
    return read_world_config(Path(str(files("compoclip"))) / "world" / "base" / "world.json")


def crowded(config: WorldConfig) -> WorldConfig:
    """The same world, with pictures and captions that hold something to confuse and little else:
    mostly two unlike things, said together with their colours. What else a caption may say
    (places, sizes, patterns) tells pictures apart without it, and binding is learnt more slowly.
    """
    weights = {**dict.fromkeys(CAPTION_TYPES, 0.0), **_CONFUSABLE}
    return replace(
        config,
        objects=(0.1, 0.9),
        unlike=True,
        inside=0.0,
        occlusion=0.0,
        repeat=0.0,
        same_colour=0.0,
        patterned=0.0,
        synonyms=0.0,
        attributes=(0.0, 0.9, 0.1, 0.0),
        caption_weights=tuple(sorted(weights.items())),
    )


def read_world_config(path: Path) -> WorldConfig:
    """The configuration a JSON file describes.

    Raises CompoclipError when the file is missing, malformed, or names an unknown field, and
    UsageError when a value is out of range.
    """
    data = read_json(path, damaged="mend the file")
    known = {f.name: type(getattr(WorldConfig(), f.name)) for f in fields(WorldConfig)}
    if not isinstance(data, dict) or (unknown := sorted(set(data) - set(known))):
        named = f"unknown field '{unknown[0]}'" if isinstance(data, dict) else "not an object"
        raise CompoclipError(f"{path}: {named}; a world configuration has: {', '.join(known)}")
    values = {name: _frozen(value) for name, value in data.items()}
    for name, value in values.items():
        kind = known[name]
        if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
            raise CompoclipError(f"{path}: '{name}' must be a {kind.__name__}")
    return replace(WorldConfig(), **values)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
