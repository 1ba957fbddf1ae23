"""Weights files that others published: tensors alone, without a record of what they are.

What a file does not say is never guessed: the architecture is named by the user or is that of a
base; the activation is the user's word, or that of a base which the weights are near to (see
`kinship`). What a file does say is followed: LoRA weights beside plain ones are merged (TSVLC, DAC,
FSC-CLIP), and a shorter table of text positions is a shorter context (CLoVe's 64).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.architecture import (
    activation_of,
    has_quickgelu_twin,
    named_config,
    published_stats,
    with_activation,
)
from compoclip.models.config import ModelConfig
from compoclip.models.kinship import kinship
from compoclip.models.loaded import LoadedModel, assemble
from compoclip.models.lora_weights import merged_state
from compoclip.models.loralib import LoralibFile, lora_of, split
from compoclip.models.weights import WeightsFile, read_weights

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
