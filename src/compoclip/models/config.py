"""An open_clip configuration file, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError
from compoclip.files import read_json

_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_MOST_BYTES = 128 * 2**20  # tokenizer.json of a vocabulary of 256,000 has 35 MB


@dataclass(frozen=True)
class ModelConfig:
    """An open_clip configuration file: architecture, preprocessing and compoclip's own settings.

    freeze_batch_norm: keep batch norms in eval mode always (see `DualEncoder`).
    folder: what relative file names in it refer to.
    """

    model_cfg: Mapping[str, Any]
    preprocess_cfg: Mapping[str, Any] = field(default_factory=dict)
    freeze_batch_norm: bool = False
    folder: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The content of `open_clip_config.json`."""
        data: dict[str, Any] = {
            "model_cfg": self.model_cfg,
            "preprocess_cfg": self.preprocess_cfg,
        }
        if self.freeze_batch_norm:
            data["compoclip"] = {"freeze_batch_norm": True}
        return data


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CompoclipError when it is missing, malformed or larger than
    a configuration or vocabulary is."""
    require_small(path)
    data = read_json(path, damaged="restore the original file")
    if not isinstance(data, dict):
        raise CompoclipError(f"{path}: expected a JSON object")
    return data


def require_small(path: Path) -> None:
    """Raise CompoclipError for a file of text that is larger than any model has."""
    with suppress(OSError):
        if path.stat().st_size > _MOST_BYTES:
            raise CompoclipError(
                f"{path}: larger than {_MOST_BYTES:,} bytes, as no such file is; restore the "
                "original file"
            )


def section(data: Mapping[str, Any], key: str, source: object) -> dict[str, Any]:
    """The object under `key`, empty when there is none. Raises CompoclipError naming `source` when
    something else is there."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CompoclipError(f"{source}: '{key}' is not an object; restore the original file")
    return dict(value)


def require_hub_name(name: object, key: str) -> None:
    """Raise CompoclipError unless `name`, found under `key`, is one of the Hugging Face hub and no
    path: a configuration may not lead to files outside its folder."""
    if not isinstance(name, str) or not _HUB_NAME.fullmatch(name) or ".." in name:
        raise CompoclipError(
            f"model configuration: {key} '{str(name)[:80]}' is not a name on the Hugging Face hub "
            "(ORGANISATION/NAME)"
        )


def read_config(path: Path) -> ModelConfig:
    """An open_clip configuration file, with or without the outer "model_cfg".

    Raises CompoclipError when it is missing, malformed or has unknown compoclip settings.
    """
    data = read_object(path)
    config = section(data, "model_cfg", path) if "model_cfg" in data else data
    lacking = [key for key in ("embed_dim", "vision_cfg", "text_cfg") if key not in config]
    if lacking:
        raise CompoclipError(f"{path}: not an open_clip model configuration: no '{lacking[0]}'")
    for key in ("vision_cfg", "text_cfg"):
        section(config, key, path)
    settings = section(data, "compoclip", path)
    unknown = [key for key in settings if key != "freeze_batch_norm"]
    if unknown:
        raise CompoclipError(f"{path}: unknown setting '{unknown[0]}' under \"compoclip\"")
    return ModelConfig(
        model_cfg=config,
        preprocess_cfg=section(data, "preprocess_cfg", path),
        freeze_batch_norm=bool(settings.get("freeze_batch_norm", False)),
        folder=path.parent,
    )
