"""An open_clip configuration file, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError
from compoclip.files import read_json


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
    """A JSON object from a file. Raises CompoclipError when it is missing or malformed."""
    data = read_json(path, damaged="restore the original file")
    if not isinstance(data, dict):
        raise CompoclipError(f"{path}: expected a JSON object")
    return data


def read_config(path: Path) -> ModelConfig:
    """An open_clip configuration file, with or without the outer "model_cfg".

    Raises CompoclipError when it is missing, malformed or has unknown compoclip settings.
    """
    data = read_object(path)
    config = data.get("model_cfg", data)
    lacking = [key for key in ("embed_dim", "vision_cfg", "text_cfg") if key not in config]
    if lacking:
        raise CompoclipError(f"{path}: not an open_clip model configuration: no '{lacking[0]}'")
    settings = data.get("compoclip", {})
    unknown = [key for key in settings if key != "freeze_batch_norm"]
    if unknown:
        raise CompoclipError(f"{path}: unknown setting '{unknown[0]}' under \"compoclip\"")
    return ModelConfig(
        model_cfg=config,
        preprocess_cfg=data.get("preprocess_cfg") or {},
        freeze_batch_norm=bool(settings.get("freeze_batch_norm", False)),
        folder=path.parent,
    )
