"""Get a model by what a user writes for it; the one door to models for every verb."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unreadable
from compoclip.models.adapter import RECORD, is_adapter, load_adapter, read_record
from compoclip.models.architecture import (
    activation_of,
    has_quickgelu_twin,
    named_config,
    published_stats,
    with_activation,
)
from compoclip.models.config import ModelConfig, read_config
from compoclip.models.directory import load_directory, save_model
from compoclip.models.hub import HUB, downloading, fetch, plain_spec
from compoclip.models.loaded import LoadedModel, assemble, current_identity, override_activation
from compoclip.models.lora import LoralibFile, lora_of, merged_state, split
from compoclip.models.peft_lora import base_of, is_peft, read_peft
from compoclip.models.weights import WeightsFile, kinship, load_into, read_state_dict, read_weights

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


# --- Weights files that others published: tensors alone, without a record of what they are. ---
#
# What a file does not say is never guessed: the architecture is named by the user or is that of a
# base; the activation is the user's word, or that of a base which the weights are near to (see
# `weights`). What a file does say is followed: LoRA weights beside plain ones are merged (TSVLC,
# DAC, FSC-CLIP), and a shorter table of text positions is a shorter context (CLoVe's 64).

_POSITIONS = ("positional_embedding", "text.positional_embedding")


def load_file(spec: str, architecture: str, file: Path, activation: str | None) -> LoadedModel:
    """The weights in `file` as open_clip's built-in `architecture`.

    spec: what the user wrote; the model's name. activation: the user's word on it. Raises
    UsageError for an unknown architecture; CompoclipError when the file does not fit it, or nothing
    says which activation the weights were trained with.
    """
    config = named_config(architecture)
    if activation is None and has_quickgelu_twin(architecture):
        raise CompoclipError(
            f"{file} does not record its activation: OpenAI weights and their fine-tunes need "
            f"{architecture}-quickgelu@{file}, others --activation gelu (the wrong one loses "
            f"accuracy; compoclip inspect {file} --base BASE compares it with a base)"
        )
    model = ModelConfig(with_activation(config, activation), published_stats(architecture))
    return _load(spec, file, read_weights(file), model, "stated by the user")


def load_tuned_file(
    file: Path, base: LoadedModel, activation: str | None = None, name: str | None = None
) -> LoadedModel:
    """The weights in `file` as the architecture of `base`, which they were trained from.

    Without `activation` the weights must be near those of the base; the activation is then that of
    the base. Raises CompoclipError when they are not, or the file does not fit the architecture.
    """
    found = read_weights(file)
    parts = split(found.state)
    own = base.encoder.model.state_dict()
    known = "stated by the user"
    if not parts.plain and parts.adapters:
        found = replace(found, state={**own, **found.state})
        known = f"that of the base {base.name}, which the adapters are put on"
    elif activation is None:
        kin = kinship(named_like(parts.plain, own), own, str(file))
        if kin.verdict not in ("same", "derived"):
            raise CompoclipError(
                f"{file}: is not a fine-tune of {base.name} ({kin.describe()}; "
                "unrelated weights are near 1.4), so its activation is unknown: name its own base "
                "or give --activation"
            )
        known = f"that of the base {base.name}: {kin.describe()}"
    config = replace(base.config, model_cfg=with_activation(base.config.model_cfg, activation))
    loaded = _load(name or str(file), file, found, config, known)
    parent = loaded.identity.base or base.identity.weights
    return replace(loaded, identity=replace(loaded.identity, base=parent))


def candidates(state: Mapping[str, Tensor]) -> list[str]:
    """open_clip's built-in architectures with towers of the shapes in a state dict (OpenAI's
    layout: ViT or ResNet images, causal text), whatever their activation and context length.

    The number of heads cannot be seen in weights; it is the architecture's.
    """
    plain = split(state).plain
    return [name for name in open_clip.list_models() if _fits(plain, name)]


def fitted(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The configuration with the context length that a state dict has positions for, if shorter."""
    copy = deepcopy(dict(config))
    rows = next((state[key].shape[0] for key in _POSITIONS if key in state and state[key].ndim), 0)
    text = copy["text_cfg"]
    if 0 < rows < int(text.get("context_length", 77)):
        text["context_length"] = rows
    return copy


def _load(
    name: str, file: Path, found: WeightsFile, config: ModelConfig, known: str
) -> LoadedModel:
    parts = split(found.state)
    config = replace(config, model_cfg=fitted(config.model_cfg, parts.plain))
    provenance: dict[str, Any] = {
        "file": {"name": file.name, **found.facts},
        "activation": f"{activation_of(config.model_cfg)}, {known}",
    }
    if not parts.adapters:
        loaded = assemble(config, name, state=parts.plain, path=file)
        return replace(loaded, provenance=provenance)
    return _merged(name, file, config, parts, provenance)


def _merged(
    name: str, file: Path, config: ModelConfig, parts: LoralibFile, provenance: dict[str, Any]
) -> LoadedModel:
    if not parts.plain:
        raise CompoclipError(
            f"{file}: holds LoRA weights alone; say what they were trained on: "
            f"compoclip convert {file} DST --to open-clip --base BASE"
        )
    lora = lora_of(parts.adapters, parts.plain, str(file))
    start = assemble(config, name, state=parts.plain, path=file)
    state = merged_state(start.encoder.model.state_dict(), parts.adapters, lora.scaling)
    loaded = assemble(config, name, state=state, path=file)
    identity = replace(loaded.identity, base=start.identity.weights, adapter=lora.describe())
    provenance["lora"] = {
        "rank": lora.rank,
        "alpha": lora.alpha,
        "adapted": len(parts.adapted()),
        "note": "merged on load; alpha is the default of the code these files come from",
    }
    return replace(loaded, identity=identity, provenance=provenance)


def named_like(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict under the names of `own`: text tower at top level or below "text."."""
    if "text.positional_embedding" in own and "text.positional_embedding" not in state:
        return {(f"text.{k}" if f"text.{k}" in own else k): v for k, v in state.items()}
    return dict(state)


_PLAIN_VISION = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio"}


def _fits(state: Mapping[str, Tensor], name: str) -> bool:
    config = open_clip.get_model_config(name)
    vision, text = config["vision_cfg"], config["text_cfg"]
    plain = set(vision) <= _PLAIN_VISION and "layers" in vision and "layers" in text
    if config.get("custom_text") or not plain:
        return False
    width, text_width = vision.get("width", 768), text.get("width", 512)
    expected: dict[str, tuple[int, ...]] = {
        "token_embedding.weight": (text.get("vocab_size", 49408), text_width),
        "text_projection": (text_width, config["embed_dim"]),
        "ln_final.weight": (text_width,),
        f"transformer.resblocks.{text['layers'] - 1}.ln_1.weight": (text_width,),
    }
    absent = [f"transformer.resblocks.{text['layers']}.ln_1.weight"]
    if isinstance(vision["layers"], int):
        patch = vision["patch_size"]
        hidden = int(width * vision.get("mlp_ratio", 4.0))
        block = f"visual.transformer.resblocks.{vision['layers'] - 1}"
        expected |= {
            "visual.conv1.weight": (width, 3, patch, patch),
            "visual.positional_embedding": ((vision["image_size"] // patch) ** 2 + 1, width),
            "visual.proj": (width, config["embed_dim"]),
            f"{block}.mlp.c_fc.weight": (hidden, width),
        }
        absent.append(f"visual.transformer.resblocks.{vision['layers']}.ln_1.weight")
    else:
        grid = vision["image_size"] // 32
        expected |= {
            "visual.layer1.0.conv1.weight": (width, width, 1, 1),
            "visual.attnpool.positional_embedding": (grid * grid + 1, width * 32),
            "visual.attnpool.c_proj.weight": (config["embed_dim"], width * 32),
        }
        for stage, blocks in enumerate(vision["layers"], 1):
            expected[f"visual.layer{stage}.{blocks - 1}.bn1.weight"] = (width * 2 ** (stage - 1),)
            absent.append(f"visual.layer{stage}.{blocks}.bn1.weight")
    return not any(key in state for key in absent) and all(
        key in state and tuple(state[key].shape) == shape for key, shape in expected.items()
    )


# --- Get a model by what a user writes for it; the one door to models for every verb. ---

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
    `ViT-B-32-quickgelu@file.pt` (an open_clip state dict);
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
