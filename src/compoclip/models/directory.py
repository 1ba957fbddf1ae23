"""The checkpoint directory: open_clip's own layout plus `compoclip.json`.

    open_clip_config.json        {"model_cfg", "preprocess_cfg", "compoclip": settings}
    open_clip_model.safetensors  the plain open_clip state dict
    compoclip.json               identity (verified on load), provenance
    bpe.txt.gz                   merges of the tokenizer, when it is not CLIP's own

`open_clip.create_model("local-dir:PATH")` reads it without compoclip.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from compoclip import __version__
from compoclip.errors import CompoclipError
from compoclip.models.architecture import (
    activation_of,
    architecture_name,
    attach_preprocess,
    build_model,
    with_activation,
)
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.identity import ModelIdentity
from compoclip.models.preprocess import Preprocess
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from compoclip.models.weights import load_into, read_state_dict, weights_hash

CONFIG, WEIGHTS, RECORD, MERGES = (
    "open_clip_config.json",
    "open_clip_model.safetensors",
    "compoclip.json",
    "bpe.txt.gz",
)
_OTHER_WEIGHTS = ("open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")


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


@dataclass(frozen=True)
class LoadedModel:
    """A model with all that its features depend on.

    identity describes the weights as loaded; `current_identity` describes them now.
    name: what the user asked for. path: the directory or file it came from, if any.
    provenance: how it was made (method settings, data, step, parent); empty when unknown.
    """

    encoder: DualEncoder
    tokenizer: Tokenizer
    preprocess: Preprocess
    config: ModelConfig
    identity: ModelIdentity
    name: str
    path: Path | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CompoclipError when it is missing or malformed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CompoclipError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise CompoclipError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(data, dict):
        raise CompoclipError(f"{path}: expected a JSON object")
    return data


def read_config(path: Path) -> ModelConfig:
    """An open_clip configuration file, with or without the outer "model_cfg".

    Raises CompoclipError when it is missing, malformed or has unknown compoclip settings.
    """
    data = read_json(path)
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


def assemble(
    config: ModelConfig,
    name: str,
    *,
    state: Mapping[str, Tensor] | None = None,
    network: nn.Module | None = None,
    seed: int = 0,
    path: Path | None = None,
) -> LoadedModel:
    """Network, tokenizer, preprocessing and identity of a configuration, on the CPU in eval mode.

    Weights are `state` when given, those of `network` when given, else drawn from `seed`. Raises
    CompoclipError when the parts do not fit together.
    """
    model = build_model(config.model_cfg, seed) if network is None else network
    if state is not None:
        architecture = architecture_name(config.model_cfg)
        load_into(model, state, str(path or name), architecture)
    text_cfg = config.model_cfg["text_cfg"]
    tokenizer = build_tokenizer(text_cfg, config.folder)
    rows = getattr(model, "vocab_size", None)
    if rows and tokenizer.vocab_size > rows:
        raise CompoclipError(
            f"{path or name}: the tokenizer needs {tokenizer.vocab_size} token ids and the text "
            f"tower has {rows}: set text_cfg.vocab_size to {tokenizer.vocab_size}"
        )
    preprocess = attach_preprocess(model, config.preprocess_cfg)
    encoder = DualEncoder(model, freeze_bn=config.freeze_batch_norm).eval()
    identity = ModelIdentity(
        architecture=architecture_name(with_activation(config.model_cfg, "gelu")),
        activation=activation_of(config.model_cfg),
        tokenizer=tokenizer.id,
        context_length=tokenizer.context_length,
        image_size=preprocess.size,
        image_mean=preprocess.mean,
        image_std=preprocess.std,
        interpolation=preprocess.interpolation,
        resize_mode=preprocess.resize_mode,
        base="",
        adapter="",
        weights=weights_hash(model.state_dict()),
    )
    return LoadedModel(encoder, tokenizer, preprocess, config, identity, name, path)


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
    if activation is None or activation == loaded.identity.activation:
        return loaded
    config = replace(config, model_cfg=with_activation(config.model_cfg, activation))
    state = loaded.encoder.model.state_dict()
    other = assemble(config, name, state=state, path=path)
    identity = replace(loaded.identity, activation=activation)
    return replace(other, identity=identity, provenance=loaded.provenance)


def _verified(loaded: LoadedModel, record: Path) -> LoadedModel:
    data = read_json(record)
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


def current_identity(loaded: LoadedModel) -> ModelIdentity:
    """The identity with the hash of the weights as they are now. Changed weights have the loaded
    ones as base."""
    now = weights_hash(loaded.encoder.model.state_dict())
    if now == loaded.identity.weights:
        return loaded.identity
    return replace(loaded.identity, base=loaded.identity.weights, weights=now)


def save_model(
    loaded: LoadedModel,
    directory: Path,
    *,
    provenance: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    adapter: str | None = None,
    overwrite: bool = False,
) -> ModelIdentity:
    """Write a checkpoint directory in one step: it is complete or not there.

    provenance: JSON-ready record of how the weights were made (default: what was loaded).
    dtype "float16" halves the file: matrices are rounded, vectors and scalars stay float32.
    overwrite: replace an existing checkpoint directory. Returns the identity as saved.
    Raises CompoclipError when the place is taken or not writable, or float16 would overflow.
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
    with _whole_directory(directory, overwrite) as temporary:
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


@contextmanager
def _whole_directory(directory: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory beside `directory`; move it into place when the block is done."""
    taken = directory.exists() and not (directory.is_dir() and not any(directory.iterdir()))
    if taken and not (overwrite and (directory / CONFIG).is_file()):
        remedy = "choose another place" + ("" if overwrite else " or ask to overwrite")
        raise CompoclipError(f"{directory}: already exists; {remedy}")
    mark = uuid.uuid4().hex[:8]
    temporary = directory.parent / f".{directory.name}.{mark}.tmp"
    retired = directory.parent / f".{directory.name}.{mark}.old"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        readable = (temporary / CONFIG).stat().st_mode  # safetensors files start as private
        for file in temporary.iterdir():
            file.chmod(readable)
            _sync(file)
        if taken:
            os.replace(directory, retired)
        os.replace(temporary, directory)
        _sync(directory.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CompoclipError(
            f"{directory}: cannot write the checkpoint ({reason}); "
            "free space or choose another place"
        ) from error
    finally:
        if retired.exists() and not directory.exists():
            os.replace(retired, directory)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
