"""The checkpoint directory: open_clip's own layout plus `compoclip.json`.

    open_clip_config.json        {"model_cfg", "preprocess_cfg", "compoclip": settings}
    open_clip_model.safetensors  the plain open_clip state dict
    compoclip.json               identity (verified on load), provenance
    bpe.txt.gz                   merges of the tokenizer, when it is not CLIP's own
    tokenizer.json, ...          files of a Hugging Face tokenizer (SigLIP)
    README.md                    the model card (see `card`)

`open_clip.create_model("local-dir:PATH")` reads it without compoclip.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.models.card import write_card
from compoclip.models.config import ModelIdentity, read_config
from compoclip.models.hf_folder import is_hf_folder, load_hf_folder
from compoclip.models.loaded import (
    MERGES,
    RECORD,
    LoadedModel,
    as_stored,
    assemble,
    current_identity,
    override_activation,
    verified,
    write_json,
)
from compoclip.models.weights import read_state_dict, weights_hash
from compoclip.version import __version__

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
_OTHER_WEIGHTS = ("open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")


def load_directory(path: Path, name: str, activation: str | None = None) -> LoadedModel:
    """Load a checkpoint directory, or a CLIPModel folder of Hugging Face's transformers, and verify
    it against its `compoclip.json`, if it has one.

    `activation` overrides what the configuration says; the identity then records the override.
    Raises CompoclipError when files are missing or damaged, or disagree about the identity.
    """
    if is_hf_folder(path):
        return override_activation(load_hf_folder(path, name), activation)
    config = read_config(path / CONFIG)
    weights = next((path / w for w in (WEIGHTS, *_OTHER_WEIGHTS) if (path / w).is_file()), None)
    if weights is None:
        raise CompoclipError(f"{path}: has no weights; expected {WEIGHTS}")
    loaded = assemble(config, name, state=read_state_dict(weights), path=path)
    if (path / RECORD).is_file():
        loaded = verified(loaded, path / RECORD)
    return override_activation(loaded, activation)


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
    state = as_stored(loaded.encoder.model.state_dict(), dtype, loaded.name)
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
        write_json(temporary / CONFIG, config.to_json())
        write_json(temporary / RECORD, record)
        if merges is not None:
            shutil.copyfile((loaded.config.folder or Path()) / merges, temporary / MERGES)
        loaded.tokenizer.write_files(temporary)
        write_card(temporary)
    return identity
