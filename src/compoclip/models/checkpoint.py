"""Get a model by what a user writes for it; the one door to models for every verb."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import open_clip
import torch

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unreadable
from compoclip.models.adapter import RECORD, is_adapter, load_adapter, read_record
from compoclip.models.architecture import (
    activation_of,
    named_config,
    published_stats,
    with_activation,
)
from compoclip.models.config import ModelConfig, read_config
from compoclip.models.directory import load_directory, save_model
from compoclip.models.hub import HUB, downloading, fetch, plain_spec
from compoclip.models.loaded import (
    LoadedModel,
    assemble,
    current_identity,
    override_activation,
)
from compoclip.models.lora_weights import merged_state
from compoclip.models.peft_lora import base_of, is_peft, read_peft
from compoclip.models.raw_file import candidates, load_file
from compoclip.models.weights import load_into, read_state_dict

__all__ = [
    "LoadedModel",
    "ModelConfig",
    "create_model",
    "current_identity",
    "load_adapter",
    "load_model",
    "merge_peft",
    "read_config",
    "save_model",
]

_FORMS = (
    "a checkpoint directory, an adapter directory, ARCHITECTURE@FILE, ARCHITECTURE:PRETRAINED_TAG, "
    "hf-hub:ORG/REPO, local-dir:FOLDER, bundled, or random:ARCHITECTURE[:SEED]"
)


def load_model(
    spec: str | Path, *, activation: str | None = None, device: str | torch.device = "cpu"
) -> LoadedModel:
    """The model a user names, in eval mode on `device`.

    spec: a checkpoint directory (open_clip's layout, or a CLIPModel folder of transformers); an
    adapter directory (own or PEFT, merged into its base, which it names);
    `ViT-B-32-quickgelu@file.pt` (an open_clip state dict, see `raw_file`);
    `ViT-B-32-quickgelu:openai` (open_clip's published weights); `hf-hub:org/repo` (any of these
    folders); `local-dir:FOLDER` (the same as FOLDER);
    `bundled` (the small base model in the package); `random:ViT-B-32[:SEED]`.
    activation: "quick_gelu" or "gelu", to override what the source says; recorded in the identity.

    Raises UsageError for a spec that is none of these, CompoclipError when files are missing,
    damaged, of another architecture, or do not say which activation they were trained with.
    """
    try:
        loaded = _resolve(plain_spec(str(spec)), activation)
    except OSError as error:
        raise unreadable(Path(error.filename or str(spec)[:200]), error) from error
    loaded.encoder.to(device)
    return loaded


def create_model(
    config: ModelConfig, *, seed: int = 0, image_weights: Path | None = None
) -> LoadedModel:
    """A new model for pre-training, with parameters drawn from `seed`.

    image_weights: optional pretrained weights of the image trunk (timm's parameter names; a
    classifier in the file is dropped). Raises CompoclipError when they do not fit.
    """
    loaded = assemble(config, f"new model (seed {seed})", seed=seed)
    if image_weights is None:
        return loaded
    visual: Any = loaded.encoder.model.visual
    trunk = getattr(visual, "trunk", visual)
    state = read_state_dict(image_weights)
    own = trunk.state_dict()
    head = getattr(trunk, "default_cfg", {}).get("classifier", "")
    heads = (head,) if isinstance(head, str) else tuple(head)
    kept = {
        key: value
        for key, value in state.items()
        if key in own or not any(h and key.startswith(f"{h}.") for h in heads)
    }
    load_into(trunk, kept, str(image_weights), f"the image trunk {type(trunk).__name__}")
    return assemble(config, loaded.name, network=loaded.encoder.model)


def _resolve(spec: str, activation: str | None, above: tuple[Path, ...] = ()) -> LoadedModel:
    """above: the adapters whose base this is, if any."""
    if spec == "bundled":
        return _bundled(activation)
    if spec.startswith("random:"):
        return _random(spec, activation)
    if spec.startswith(HUB):
        folder = fetch(spec)
        if is_adapter(folder) or is_peft(folder):
            return _resolve(str(folder), activation, above)
        return load_directory(folder, spec, activation)
    if is_adapter(Path(spec)):
        return _from_adapter(Path(spec), activation, above)
    if is_peft(Path(spec)):
        return _from_peft(Path(spec), activation)
    if Path(spec).is_dir():
        return load_directory(Path(spec), spec, activation)
    name, at, file = spec.partition("@")
    if at:
        return load_file(spec, name, Path(file), activation)
    name, colon, tag = spec.partition(":")
    if colon:
        return _from_tag(spec, name, tag, activation)
    if Path(spec).is_file():
        raise UsageError(
            f"{spec}: which architecture is it? write ARCHITECTURE@{spec}{_fitting(Path(spec))}"
        )
    if spec in open_clip.list_models():
        raise UsageError(
            f"'{spec}' is an architecture without weights: write {spec}:PRETRAINED_TAG, "
            f"{spec}@FILE or random:{spec}"
        )
    raise UsageError(f"no model '{spec}': expected {_FORMS}")


def _fitting(file: Path) -> str:
    """What to say of the architectures that the tensors of a file fit."""
    try:
        names = candidates(read_state_dict(file))
    except CompoclipError:
        return ""
    return f" (its tensors fit {', '.join(names)})" if names else ""


def _from_adapter(path: Path, activation: str | None, above: tuple[Path, ...]) -> LoadedModel:
    record = read_record(path)
    try:
        if path.resolve() in above:
            raise CompoclipError("it is the base of itself")
        base = _resolve(record.base, record.identity.activation, (*above, path.resolve()))
    except CompoclipError as error:
        raise CompoclipError(
            f"{path}: its base {record.base} cannot be loaded ({error}); say where it is in "
            f"{path / RECORD}"
        ) from error
    return override_activation(load_adapter(base, path), activation)


def _from_peft(path: Path, activation: str | None) -> LoadedModel:
    base = base_of(path)
    if base is None:
        raise CompoclipError(
            f"{path}: does not say what it was trained on: compoclip convert {path} DST "
            "--to merged --base BASE"
        )
    return merge_peft(_resolve(base if Path(base).is_dir() else f"{HUB}{base}", activation), path)


def merge_peft(base: LoadedModel, folder: Path) -> LoadedModel:
    """A plain model: `base`, which stays as it is, with a PEFT adapter merged.

    Raises CompoclipError when the folder is damaged, or does not fit the base.
    """
    adapters, lora = read_peft(folder, base.encoder.model)
    state = merged_state(base.encoder.model.state_dict(), adapters, lora.scaling)
    loaded = assemble(base.config, str(folder), state=state, path=folder)
    identity = replace(loaded.identity, base=base.identity.weights, adapter=lora.describe())
    return replace(loaded, identity=identity, provenance={"peft": {"base": base.name}})


def _bundled(activation: str | None) -> LoadedModel:
    path = Path(str(files("compoclip"))) / "world" / "base"
    if not path.is_dir():
        raise CompoclipError(f"{path}: this installation has no bundled base model; name another")
    return load_directory(path, "bundled", activation)


def _random(spec: str, activation: str | None) -> LoadedModel:
    name, _, number = spec.removeprefix("random:").partition(":")
    if number and not (number.isdecimal() and len(number) < 19):
        raise UsageError(f"{spec}: the seed '{number}' is not a number below 10^18")
    config = ModelConfig(with_activation(named_config(name), activation), published_stats(name))
    return assemble(config, spec, seed=int(number or 0))


def _from_tag(spec: str, name: str, tag: str, activation: str | None) -> LoadedModel:
    config = named_config(name)
    tags = open_clip.list_pretrained_tags_by_model(name)
    if tag not in tags:
        known = f"its tags: {', '.join(tags)}" if tags else "it has no published weights"
        raise UsageError(f"open_clip has no weights '{tag}' for {name}; {known}")
    published = open_clip.get_pretrained_cfg(name, tag)
    trained = "quick_gelu" if published.get("quick_gelu") else "gelu"
    built = activation_of(config)
    if activation is None and trained != built and "timm_model_name" not in config["vision_cfg"]:
        other = f"{name}-quickgelu" if trained == "quick_gelu" else name.removesuffix("-quickgelu")
        raise CompoclipError(
            f"{spec}: the weights were trained with {trained} and {name} has {built}: "
            f"use {other}:{tag}"
        )
    config = with_activation(config, activation)
    with downloading(spec):
        network = open_clip.create_model(
            name, pretrained=tag, quick_gelu=config.get("quick_gelu", False)
        )
    return assemble(ModelConfig(config, published), spec, network=network.eval())
