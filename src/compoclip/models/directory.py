"""The checkpoint directory: open_clip's own layout plus `compoclip.json`.

    open_clip_config.json        {"model_cfg", "preprocess_cfg", "compoclip": settings}
    open_clip_model.safetensors  the plain open_clip state dict
    compoclip.json               identity (verified on load), provenance
    bpe.txt.gz                   merges of the tokenizer, when it is not CLIP's own

`open_clip.create_model("local-dir:PATH")` reads it without compoclip.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from compoclip import __version__
from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.models.config import read_config, read_object
from compoclip.models.identity import ModelIdentity
from compoclip.models.loaded import (
    LoadedModel,
    assemble,
    current_identity,
    override_activation,
)
from compoclip.models.weights import read_state_dict, weights_hash

CONFIG, WEIGHTS, RECORD, MERGES = (
    "open_clip_config.json",
    "open_clip_model.safetensors",
    "compoclip.json",
    "bpe.txt.gz",
)
_OTHER_WEIGHTS = ("open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")


def load_directory(path: Path, name: str, activation: str | None = None) -> LoadedModel:
    """Load a checkpoint directory and verify it against its `compoclip.json`, if it has one.

    `activation` overrides what the configuration says; the identity then records the override.
    Raises CompoclipError when files are missing or damaged, or disagree about the identity.
    """
    config = read_config(path / CONFIG)
    weights = next((path / w for w in (WEIGHTS, *_OTHER_WEIGHTS) if (path / w).is_file()), None)
    if weights is None:
        raise CompoclipError(f"{path}: has no weights; expected {WEIGHTS}")
    loaded = assemble(config, name, state=read_state_dict(weights), path=path)
    if (path / RECORD).is_file():
        loaded = _verified(loaded, path / RECORD)
    return override_activation(loaded, activation)


def _verified(loaded: LoadedModel, record: Path) -> LoadedModel:
    data = read_object(record)
    if not isinstance(data.get("identity"), dict):
        raise CompoclipError(
            f"{record}: has no identity; delete the file or re-save the checkpoint"
        )
    stored = ModelIdentity.from_json(data["identity"])
    wrong = stored.differences(loaded.identity, ignore=("base", "adapter"))
    if wrong:
        raise CompoclipError(
            f"{record.parent}: {RECORD} and the other files disagree ({RECORD} first): "
            f"{'; '.join(wrong)}; restore the original files"
        )
    return replace(loaded, identity=stored, provenance=data.get("provenance") or {})


def save_model(
    loaded: LoadedModel,
    directory: Path,
    *,
    provenance: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    adapter: str | None = None,
) -> ModelIdentity:
    """Write a checkpoint directory in one step: it is complete or not there.

    provenance: JSON-ready record of how the weights were made (default: what was loaded).
    dtype "float16" halves the file: matrices are rounded, vectors and scalars stay float32.
    Returns the identity as saved. Raises CompoclipError when the place is taken or not writable,
    or float16 would overflow.
    """
    state = _as_stored(loaded.encoder.model.state_dict(), dtype)
    identity = replace(current_identity(loaded), weights=weights_hash(state))
    if adapter is not None:
        identity = replace(identity, adapter=adapter)
    model_cfg = deepcopy(dict(loaded.config.model_cfg))
    merges = (model_cfg["text_cfg"].get("tokenizer_kwargs") or {}).get("bpe_path")
    if merges is not None:
        model_cfg["text_cfg"]["tokenizer_kwargs"]["bpe_path"] = MERGES
    config = replace(
        loaded.config, model_cfg=model_cfg, preprocess_cfg=loaded.preprocess.to_config()
    )
    record = {
        "compoclip": __version__,
        "identity": identity.to_json(),
        "provenance": dict(loaded.provenance if provenance is None else provenance),
    }
    with new_folder(directory) as temporary:
        save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
        _write_json(temporary / CONFIG, config.to_json())
        _write_json(temporary / RECORD, record)
        if merges is not None:
            shutil.copyfile((loaded.config.folder or Path()) / merges, temporary / MERGES)
    return identity


def _as_stored(state: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    if dtype not in ("float32", "float16"):
        raise CompoclipError(f"checkpoint dtype '{dtype}' is not float32 or float16")
    stored = {}
    for name, value in state.items():
        value = value.detach().to("cpu")
        if value.is_floating_point():
            half = dtype == "float16" and value.ndim >= 2
            value = value.to(torch.float16 if half else torch.float32)
            if half and not value.isfinite().all():
                raise CompoclipError(f"'{name}' does not fit float16: save as float32")
        stored[name] = value.contiguous()
    return stored


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
