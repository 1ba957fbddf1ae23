"""What a checkpoint is, as far as it says: `compoclip inspect`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from compoclip.models.adapter import RECORD as ADAPTER_RECORD
from compoclip.models.adapter import is_adapter
from compoclip.models.checkpoint import candidates, load_model, named_like
from compoclip.models.config import part_of
from compoclip.models.convert import weights_file
from compoclip.models.hf_folder import hf_kind, is_hf_folder
from compoclip.models.hub import HUB, plain_spec
from compoclip.models.loaded import RECORD, LoadedModel
from compoclip.models.lora import lora_of, split
from compoclip.models.peft_lora import is_peft
from compoclip.models.weights import WeightsFile, kinship, read_weights

_NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Inspection:
    """What is known of a checkpoint.

    kind: what it is on disk. architecture: open_clip's name, or the names its tensors fit.
    activation: "quick_gelu", "gelu" or "not recorded"; activation_by: how that is known.
    context, image_size, vocabulary: as far as the tensors or the identity say. adapter: description
    of LoRA weights, "" without any. parameters: by part (image, text, temperature, adapter, total).
    dtypes: tensors by number format, as stored (a float32 network when that is not known).
    identity: as `ModelIdentity.to_json`, empty when it cannot be loaded without the user's word.
    base: distance to the base that was given (name, image, text, changed, verdict).
    """

    source: str
    kind: str
    architecture: str
    activation: str
    activation_by: str
    context: int | None
    image_size: int | None
    vocabulary: int | None
    adapter: str
    parameters: Mapping[str, int]
    dtypes: Mapping[str, int]
    provenance: Mapping[str, Any]
    identity: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


def inspect_model(
    source: str, base: str | None = None, activation: str | None = None
) -> Inspection:
    """What `source` is: anything `load_model` takes, or a weights file alone.

    base: a model to compare the weights with; near weights tell the activation of a file. Raises
    CompoclipError when files are missing or damaged, and when the base is of another architecture.
    """
    source = plain_spec(source)
    start = None if base is None else load_model(base)
    file = weights_file(source)
    if file is None and "@" in source and not Path(source).exists():
        file = Path(source.partition("@")[2])  # to say that it is missing
    if file is not None:
        return _of_file(source, file, start, activation)
    loaded = load_model(source, activation=activation)
    found = _of_model(source, loaded, activation)
    if start is None:
        return found
    return replace(found, base=_compared(loaded.encoder.model.state_dict(), start, source))


def _of_model(source: str, loaded: LoadedModel, activation: str | None) -> Inspection:
    identity = loaded.identity
    state = loaded.encoder.model.state_dict()
    kind, by = _kind(source)
    if activation is not None:
        by = "stated by the user"
    return Inspection(
        source=source,
        kind=kind,
        architecture=identity.architecture,
        activation=identity.activation,
        activation_by=by,
        context=identity.context_length,
        image_size=identity.image_size[0],
        vocabulary=loaded.tokenizer.vocab_size,
        adapter=identity.adapter,
        parameters=_parameters(loaded),
        dtypes=_dtypes(_stored(Path(source), state)),
        provenance=loaded.provenance,
        identity=identity.to_json(),
    )


def _kind(source: str) -> tuple[str, str]:
    """What a model is on disk, and what its activation is known by."""
    path = Path(source)
    if is_adapter(path):
        return "adapter folder, merged into its base", f"the base's identity in {ADAPTER_RECORD}"
    if is_peft(path):
        return "PEFT adapter folder, merged into its base", "the base"
    if path.is_dir():
        by = f"recorded in {RECORD}" if (path / RECORD).is_file() else ""
        if is_hf_folder(path):
            kinds = {
                "siglip": "SiglipModel",
                "blip": "BlipForImageTextRetrieval",
                "split": "two-tower CLIP",
            }
            kind = kinds.get(hf_kind(path), "CLIPModel")
            return f"Hugging Face {kind} folder", by or "hidden_act in config.json"
        return "open_clip checkpoint folder", by or "quick_gelu in open_clip_config.json"
    if source == "bundled":
        return "the base model of this package", f"recorded in {RECORD}"
    if source.startswith(HUB):
        return "repository of the Hugging Face hub", "the configuration in the repository"
    if source.startswith("random:"):
        return "random weights", "the architecture"
    return "weights that open_clip publishes", "open_clip's table of published weights"


def _of_file(
    source: str, file: Path, base: LoadedModel | None, activation: str | None
) -> Inspection:
    found = read_weights(file)
    parts = split(found.state)
    names = candidates(found.state)
    stated = source.partition("@")[0] if "@" in source and not Path(source).is_file() else ""
    known, by = _NOT_RECORDED, "a file of tensors does not say; give --base, or your word"
    compared: dict[str, Any] = {}
    if base is not None and parts.plain:
        compared = _compared(parts.plain, base, str(file))
        if compared["verdict"] in ("same", "derived"):
            known = base.identity.activation
            by = f"that of the base {base.name}: {compared['distance']}"
        else:
            by = f"the weights are not near {base.name} ({compared['distance']})"
    if activation is not None or stated.endswith("-quickgelu"):
        known, by = activation or "quick_gelu", "stated by the user"
    return Inspection(
        source=source,
        kind=_file_kind(found, bool(parts.adapters), bool(parts.plain)),
        architecture=stated or ", ".join(names) or "unknown",
        activation=known,
        activation_by=by,
        context=_rows(parts.plain, "positional_embedding", "text.positional_embedding"),
        image_size=_image_size(parts.plain),
        vocabulary=_rows(parts.plain, "token_embedding.weight", "text.token_embedding.weight"),
        adapter=_described(parts.adapters, parts.plain, file) if parts.adapters else "",
        parameters=_counts(parts.plain, parts.adapters),
        dtypes=_dtypes(found.state),
        provenance=dict(found.facts),
        base=compared,
    )


def _file_kind(found: WeightsFile, lora: bool, plain: bool) -> str:
    kind = "weights file"
    if found.entry:
        kind += f", training checkpoint (weights under '{found.entry}'"
        kind += f", names below '{found.prefix}')" if found.prefix else ")"
    if lora:
        kind += ", LoRA weights inside" if plain else ", LoRA weights alone"
    return kind


def _described(adapters: Mapping[str, Tensor], plain: Mapping[str, Tensor], file: Path) -> str:
    if not plain:
        return f"lora on {len(adapters) // 2} weights, its base is not in the file"
    return lora_of(adapters, plain, str(file)).describe()


def _compared(state: Mapping[str, Tensor], base: LoadedModel, source: str) -> dict[str, Any]:
    own = base.encoder.model.state_dict()
    kin = kinship(named_like(state, own), own, source)
    return {
        "name": base.name,
        "weights": base.identity.weights,
        "activation": base.identity.activation,
        "verdict": kin.verdict,
        "distance": kin.describe(),
        "image": kin.image,
        "text": kin.text,
        "changed": kin.changed,
    }


def _parameters(loaded: LoadedModel) -> dict[str, int]:
    named = loaded.encoder.model.named_parameters()
    return _counts({name: value.detach() for name, value in named}, {})


def _counts(plain: Mapping[str, Tensor], adapters: Mapping[str, Tensor]) -> dict[str, int]:
    """Numbers by part. Running statistics of batch norms in a file are not parameters."""
    counts = {"image": 0, "text": 0, "temperature": 0}
    for name, value in plain.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            counts[part_of(name)] += value.numel()
    counts["adapter"] = sum(value.numel() for value in adapters.values())
    return counts | {"total": sum(counts.values())}


def _stored(path: Path, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if is_adapter(path) or is_peft(path) or not path.is_dir():
        return state
    names = ("open_clip_model.safetensors", "model.safetensors")
    return next((read_weights(path / n).state for n in names if (path / n).is_file()), state)


def _dtypes(state: Mapping[str, Tensor]) -> dict[str, int]:
    return dict(Counter(str(value.dtype).removeprefix("torch.") for value in state.values()))


def _rows(state: Mapping[str, Tensor], *names: str) -> int | None:
    found = (state[name] for name in names if name in state)
    return next((len(value) for value in found if value.ndim), None)


def _image_size(state: Mapping[str, Tensor]) -> int | None:
    """Of a ViT or ResNet in OpenAI's layout: patches a side times their size."""
    patches = state.get("visual.conv1.weight")
    if (rows := _rows(state, "visual.positional_embedding")) and patches is not None:
        return math.isqrt(rows - 1) * int(patches.shape[-1]) if patches.ndim else None
    if rows := _rows(state, "visual.attnpool.positional_embedding"):
        return 32 * math.isqrt(rows - 1)
    return None
