"""From any form of a model to any other: what `compoclip convert` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from compoclip.errors import CompoclipError, UsageError
from compoclip.models.adapter import is_adapter, read_adapters, read_record, write_adapter
from compoclip.models.checkpoint import load_model, load_tuned_file, merge_peft, save_model
from compoclip.models.hf_folder import is_hf_folder, save_hf
from compoclip.models.hub import HUB, local_folder, plain_spec
from compoclip.models.loaded import LoadedModel
from compoclip.models.lora import Lora, lora_of, lora_targets, split
from compoclip.models.onnx_export import save_onnx
from compoclip.models.peft_lora import base_of, is_peft, read_peft, save_peft
from compoclip.models.weights import read_weights

Form = Literal["open-clip", "hf", "hf-vision", "lora", "peft", "merged", "onnx"]


@dataclass(frozen=True)
class Adapted:
    """A base and the adapters on it, as `lora.lora_state` names them."""

    base: LoadedModel
    lora: Lora
    adapters: Mapping[str, Tensor]
    provenance: Mapping[str, Any]


def convert(
    source: str,
    destination: Path,
    form: Form,
    *,
    base: str | None = None,
    activation: str | None = None,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Write the model `source` as `form` to `destination`; what was written, JSON-ready.

    source: as for `load_model`, and with `base` also a bare weights file or a PEFT folder. Raises
    CompoclipError when the model has no such form, and like the readers and writers of each.
    """
    source, base = plain_spec(source), None if base is None else plain_spec(base)
    if form in ("lora", "peft"):
        adapted = load_adapted(source, base, activation)
        if form == "lora":
            write_adapter(
                adapted.base,
                adapted.lora,
                adapted.adapters,
                destination,
                provenance=adapted.provenance,
            )
        else:
            shapes = {k: tuple(v.shape) for k, v in adapted.base.encoder.model.state_dict().items()}
            where = _hf_base(adapted.base.name)
            save_peft(adapted.adapters, adapted.lora, shapes, destination, where)
        return {
            "form": form,
            "base": adapted.base.name,
            "base_weights": adapted.base.identity.weights,
            "adapter": adapted.lora.describe(),
            "adapted": sum(key.endswith(".a") for key in adapted.adapters),
        }
    if form == "merged" and not _has_adapter(source):
        raise UsageError(f"{source}: is no adapter, so there is nothing to merge: --to open-clip")
    loaded = load_source(source, base, activation)
    made: dict[str, Any] = {"form": form, "activation": loaded.identity.activation}
    if form == "onnx":
        check = save_onnx(loaded, destination)
        return made | {"difference": {"image": check.image, "text": check.text}}
    if form in ("hf", "hf-vision"):
        identity = save_hf(loaded, destination, vision_only=form == "hf-vision", dtype=dtype)
    else:
        adapter = loaded.identity.adapter or None
        identity = save_model(loaded, destination, dtype=dtype, adapter=adapter)
    return made | {"architecture": identity.architecture, "weights": identity.weights}


def load_source(source: str, base: str | None, activation: str | None) -> LoadedModel:
    """`load_model`; with a base also a weights file alone, or a PEFT folder that names no base.

    Raises like `load_model` and `load_tuned_file`.
    """
    if base is None:
        return load_model(source, activation=activation)
    file = weights_file(source)
    if file is not None:
        return load_tuned_file(file, load_model(base), activation, name=source)
    if is_peft(Path(source)):
        return merge_peft(load_model(base, activation=activation), Path(source))
    raise UsageError(
        f"{source}: says itself what it is; --base is for weights files and PEFT adapters"
    )


def load_adapted(source: str, base: str | None, activation: str | None) -> Adapted:
    """The base and adapters of an adapter folder (own or PEFT), or of a published weights file with
    LoRA inside, for which `base` is needed.

    Raises CompoclipError when there are no adapters, or they are not of that base.
    """
    path, file = Path(local_folder(source)), weights_file(source)
    if is_adapter(path):
        record = read_record(path)
        start = load_model(base or record.base, activation=activation or record.identity.activation)
        if start.identity.weights != record.identity.weights:
            raise CompoclipError(
                f"{source}: was trained on {record.base} (weights {record.identity.weights}) and "
                f"{start.name} has other weights ({start.identity.weights}): name its own base"
            )
        adapters = read_adapters(start, path, record.lora)
        return Adapted(start, record.lora, adapters, record.provenance)
    if is_peft(path):
        stated = base or base_of(path)
        if stated is None:
            raise UsageError(f"{source}: does not say what it was trained on: give --base BASE")
        known = base is not None or Path(stated).is_dir()
        start = load_model(stated if known else f"{HUB}{stated}", activation=activation)
        adapters, lora = read_peft(path, start.encoder.model)
        return Adapted(start, lora, adapters, {"peft": path.name})
    if file is not None:
        if base is None:
            raise UsageError(f"{source}: to keep its LoRA weights apart, give --base BASE")
        return _from_loralib(file, load_model(base, activation=activation))
    raise CompoclipError(
        f"{source}: has no adapters (an adapter folder, a PEFT folder, or a file with LoRA inside)"
    )


def weights_file(source: str) -> Path | None:
    """The file in FILE or ARCHITECTURE@FILE; None when it is neither."""
    name = source.partition("@")[2] or source
    return Path(name) if Path(name).is_file() else None


def _from_loralib(file: Path, base: LoadedModel) -> Adapted:
    found = read_weights(file)
    parts = split(found.state)
    own = base.encoder.model.state_dict()
    lora = lora_of(parts.adapters, own, str(file))
    for name, value in parts.plain.items():
        start = own.get(name)
        if start is None or not torch.equal(value.float().reshape(-1), start.float().reshape(-1)):
            raise CompoclipError(
                f"{file}: its LoRA weights were trained on another base than {base.name} "
                f"('{name}' differs): name its own base, or use --to merged"
            )
    targets = {target.name: target for target in lora_targets(base.encoder.model, lora)}
    odd = next((name for name in parts.adapted() if name not in targets), None)
    if odd is not None:
        raise CompoclipError(f"{file}: adapts '{odd}', which our adapters do not: use --to merged")
    adapters: dict[str, Tensor] = {}
    for name, target in targets.items():
        for part, shape in (("a", target.a_shape), ("b", target.b_shape)):
            value = parts.adapters.get(f"{name}.{part}", torch.zeros(shape))
            adapters[f"{name}.{part}"] = value.float().contiguous()
    return Adapted(base, lora, adapters, {"file": {"name": file.name, **found.facts}})


def _has_adapter(source: str) -> bool:
    file = weights_file(source)
    if file is not None:
        return bool(split(read_weights(file).state).adapters)
    folder = Path(local_folder(source))
    return is_adapter(folder) or is_peft(folder)


def _hf_base(name: str) -> str | None:
    """What PEFT can load a base from, if it is of that kind."""
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    return str(Path(name).absolute()) if Path(name).is_dir() and is_hf_folder(Path(name)) else None
