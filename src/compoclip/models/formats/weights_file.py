"""Weights files that others published: tensors alone, without a record of what they are.

Nothing is guessed: the user or a base gives the architecture; the user, or a base with weights near
to these, the activation (see `weights`). A shorter table of text positions is a shorter context
(CLoVe's 64).

Weights that open_clip publishes, and random ones, are named by their architecture, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
from torch import Tensor

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import file_stamps
from compoclip.models.architecture import (
    activation_of,
    named_config,
    outlined,
    published_stats,
    with_activation,
)
from compoclip.models.checkpoint import (
    Format,
    LoadedModel,
    assemble,
    distance,
    load_model,
)
from compoclip.models.config import POSITIONS, ModelConfig
from compoclip.models.downloads import downloading
from compoclip.models.names import RANDOM, split_part
from compoclip.models.weights import (
    WeightsFile,
    counts,
    dtypes,
    kinship,
    mismatch,
    read_weights,
    require_one_model,
)

_UNSHAPED = (*POSITIONS, "logit_scale")  # whose shapes say nothing of the architecture
_LORALIB = re.compile(r"[._]lora_[AB]$")  # names of loralib, as in files of TSVLC and DAC
_TELLING = ("token_embedding.weight", "text_projection")


class TensorsAlone(Format):
    """FILE, or ARCHITECTURE@FILE, of an open_clip network.

    FILE#PART takes an entry of a training checkpoint, or the names that begin with PART, where a
    file holds several models.
    """

    kind = "weights file"
    known_by = "a file of tensors does not say; give --base, or your word"
    order = 50

    def sniff(self, source: str) -> bool:
        """By "@", or because it is a file."""
        return not Path(source).is_dir() and ("@" in source or split_part(source)[0].is_file())

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """Load the weights as the architecture that the user names. Raises UsageError when that is
        missing or unknown, CompoclipError when nothing tells the activation."""
        architecture, at, file = source.partition("@")
        if not at:
            fit = ""
            with suppress(CompoclipError):
                fit = ", ".join(candidates(_read(source)[1].state))
            fit = f" (its tensors fit {fit})" if fit else ""
            raise UsageError(
                f"{source}: which architecture is it? write ARCHITECTURE@{source}{fit}"
            )
        config = named_config(architecture)
        both = f"{architecture}-quickgelu" in open_clip.list_models()
        if not activation and both:
            raise CompoclipError(
                f"{file}: does not record its activation: OpenAI weights and their fine-tunes need "
                f"{architecture}-quickgelu@{file}, others --activation gelu (the wrong one loses "
                f"accuracy; compoclip inspect {file} --base BASE compares it with a base)"
            )
        images = f"images are prepared as for {architecture}, a file of tensors does not say how"
        stated, statistics = with_activation(config, activation), published_stats(architecture)
        model = ModelConfig(stated, statistics, assumed=(images,))
        place, part = _place_of(source)
        stamps = file_stamps([place])
        _, weights = _read(source)
        loaded = _load(source, place, weights, model, "stated by the user")
        return loaded if part or weights.prefix else replace(loaded, files=stamps)

    def load_on(self, source: str, base: str, activation: str | None) -> LoadedModel:
        """Return the weights as a fine-tune of the base."""
        return load_tuned(source, load_model(base), activation)

    def describe(
        self, source: str, base: LoadedModel | None, activation: str | None
    ) -> dict[str, Any]:
        """Describe the tensors. Nearness to the base reveals the activation."""
        file, weights = _read(source)
        state = weights.state
        stated = source.partition("@")[0] if "@" in source and not Path(source).is_file() else ""
        kind, activation_stated, by = self.kind, "not recorded", self.known_by
        below = f"names below '{weights.prefix}'" if weights.prefix else ""
        if weights.entry:
            places = ", ".join(filter(None, (f"weights under '{weights.entry}'", below)))
            kind += f", training checkpoint ({places})"
        elif below:
            kind += f", {below}"
        if weights.others:
            kind += f", FILE#ENTRY takes {' or '.join(weights.others)} instead"
        kin: dict[str, Any] = {}
        if base is not None:
            kin = distance(state, base, str(file))
            by = f"the weights are not near {base.name} ({kin['distance']})"
            if kin["verdict"] in ("same", "derived"):
                activation_stated = base.identity.activation
                by = f"that of the base {base.name}: {kin['distance']}"
        if activation is not None or stated.endswith("-quickgelu"):
            activation_stated, by = activation or "quick_gelu", "stated by the user"
        side, image_size = _rows(state, "visual.positional_embedding"), None
        patches = state.get("visual.conv1.weight")
        if side and patches is not None:  # patches a side, times their size
            image_size = math.isqrt(side - 1) * int(patches.shape[-1]) if patches.ndim else None
        elif rows := _rows(state, "visual.attnpool.positional_embedding"):
            image_size = 32 * math.isqrt(rows - 1)
        return {
            "kind": kind,
            "architecture": stated or ", ".join(candidates(state)) or "unknown",
            "activation": activation_stated,
            "activation_by": by,
            "context": _rows(state, *POSITIONS),
            "image_size": image_size,
            "vocabulary": _rows(state, "token_embedding.weight", "text.token_embedding.weight"),
            "adapter": "",
            "parameters": counts(state),
            "dtypes": dtypes(state),
            "provenance": dict(weights.facts),
            "identity": {},
            "base": kin,
        }


class PublishedWeights(Format):
    """ARCHITECTURE:TAG: weights that open_clip publishes."""

    kind = "weights that open_clip publishes"
    known_by = "open_clip's table of published weights"
    order = 51

    def sniff(self, source: str) -> bool:
        """By ":"."""
        return ":" in source and not Path(source).is_dir()

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """The weights from the network or the cache."""
        model, _, tag = source.partition(":")
        config = named_config(model)
        published = open_clip.get_pretrained_cfg(model, tag)
        trained, built = activation_of(published), activation_of(config)
        plain = model.removesuffix("-quickgelu")
        timm = "timm_model_name" in config["vision_cfg"]  # activation
        if not activation and not timm and trained != built:
            other = f"{plain}-quickgelu" if trained == "quick_gelu" else plain
            raise CompoclipError(
                f"{source}: the weights were trained with {trained} and {model} has {built}: use "
                f"{other}:{tag}"
            )
        config = with_activation(config, activation)
        with downloading(source):
            stamps = file_stamps([Path(open_clip.download_pretrained(published))])
            network = open_clip.create_model(
                model, pretrained=tag, quick_gelu=config.get("quick_gelu", False)
            )
        loaded = assemble(ModelConfig(config, published), source, network=network.eval())
        return replace(loaded, files=stamps)


class RandomWeights(Format):
    """random:ARCHITECTURE[:SEED]: a network that nobody trained."""

    kind = "random weights"
    known_by = "the architecture"
    order = 32

    def sniff(self, source: str) -> bool:
        """Return whether the name begins so."""
        return source.startswith(RANDOM)

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """The weights that the seed gives."""
        model, _, number = source.removeprefix(RANDOM).partition(":")
        config = with_activation(named_config(model), activation)
        return assemble(ModelConfig(config, published_stats(model)), source, seed=int(number or 0))


def _place_of(source: str) -> tuple[Path, str]:
    """Return the file, and the part of it, of FILE or ARCHITECTURE@FILE."""
    whole = source if split_part(source)[0].is_file() else source.partition("@")[2] or source
    return split_part(whole)


def _read(source: str) -> tuple[Path, WeightsFile]:
    """Read the one model in FILE or ARCHITECTURE@FILE, with or without a #PART."""
    file, part = _place_of(source)
    weights = require_one_model(read_weights(file, part), file)
    inside = next((name for name in weights.state if _LORALIB.search(name)), "")
    if inside:
        raise CompoclipError(
            f"{file}: holds LoRA weights beside plain ones ('{inside}'): merge them with the code "
            "that wrote them, and save the state_dict() again"
        )
    return file, weights


def load_tuned(source: str, base: LoadedModel, activation: str | None = None) -> LoadedModel:
    """Return the weights in a file as the architecture of `base`, which they were trained from.

    Without `activation` the weights must be near the base's, and it has the base's activation.
    Raises CompoclipError when they are not, or the file does not fit the architecture.
    """
    file, weights = _read(source)
    origin = "stated by the user"
    if activation is None:
        kin = kinship(weights.state, base.encoder.model.state_dict(), str(file))
        if kin["verdict"] not in ("same", "derived"):
            raise CompoclipError(
                f"{file}: is not a fine-tune of {base.name} ({kin['distance']}; unrelated weights "
                "are near 1.4), so its activation is unknown: name its own base or give "
                "--activation"
            )
        origin = f"that of the base {base.name}: {kin['distance']}"
    config = replace(base.config, model_cfg=with_activation(base.config.model_cfg, activation))
    loaded = _load(source, file, weights, config, origin)
    parent = loaded.identity.base or base.identity.weights
    return replace(loaded, identity=replace(loaded.identity, base=parent))


def candidates(state: Mapping[str, Tensor]) -> list[str]:
    """Return open_clip's built-in architectures with towers of the shapes in a state dict (OpenAI's
    layout: ViT or ResNet images, causal text), whatever their activation and context length.

    The number of heads cannot be seen in weights; it is the architecture's.
    """
    plain = {name: value for name, value in state.items() if name not in _UNSHAPED}
    tokens, ends = (tuple(plain[name].shape) if name in plain else () for name in _TELLING)
    names = []
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        vision, text = config["vision_cfg"], config["text_cfg"]
        plain_form = set(vision) <= _PLAIN_VISION and "layers" in vision and "layers" in text
        width = text.get("width", 512)
        near = tokens == (text.get("vocab_size", 49408), width)
        near = near and ends == (width, config["embed_dim"])
        if plain_form and near and not config.get("custom_text"):  # an outline takes its time
            outline = outlined(config).state_dict()
            if not mismatch({k: v for k, v in outline.items() if k not in _UNSHAPED}, plain):
                names.append(name)
    return names


def _load(
    name: str, file: Path, weights: WeightsFile, config: ModelConfig, origin: str
) -> LoadedModel:
    model_cfg = deepcopy(dict(config.model_cfg))
    rows = _rows(weights.state, *POSITIONS) or 0
    if 0 < rows < int(model_cfg["text_cfg"].get("context_length", 77)):
        model_cfg["text_cfg"]["context_length"] = rows
    assumed = list(config.assumed)
    if weights.others:
        others = " or ".join(weights.others)
        assumed.append(f"the weights are those of entry {weights.entry}, not of {others}")
    config = replace(config, model_cfg=model_cfg, assumed=tuple(assumed))
    provenance: dict[str, Any] = {
        "file": {"name": file.name, **weights.facts},
        "activation": f"{activation_of(model_cfg)}, {origin}",
    }
    loaded = assemble(config, name, state=weights.state, path=file, assign=True)
    return replace(loaded, provenance=provenance)


_PLAIN_VISION = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio"}


def _rows(state: Mapping[str, Tensor], *names: str) -> int | None:
    tables = (state[name] for name in names if name in state)
    return next((len(value) for value in tables if value.ndim), None)
