"""Adapter folders: what was learnt at low rank, without the weights it was learnt on.

adapter.safetensors   A and B of every adapted weight: "<name in the state dict>.a" and ".b"
adapter.json          base (how to get it, its identity), LoRA settings, adapted weights,
                      provenance
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.models.config import ModelIdentity, read_object, section
from compoclip.models.loaded import LoadedModel, assemble, write_json
from compoclip.models.lora import Lora, lora_state, lora_targets, merged_state
from compoclip.models.weights import mismatch, read_state_dict, require_finite
from compoclip.version import __version__

WEIGHTS, RECORD = "adapter.safetensors", "adapter.json"


@dataclass(frozen=True)
class AdapterRecord:
    """What `adapter.json` says. base: what `load_model` gets the base with."""

    base: str
    identity: ModelIdentity
    lora: Lora
    provenance: Mapping[str, Any]


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / RECORD).is_file()


def save_adapter(
    loaded: LoadedModel, lora: Lora, folder: Path, *, provenance: Mapping[str, Any]
) -> None:
    """Write the adapters on the network of `loaded`, whose identity is that of their base.

    Raises CompoclipError when there are none, or the place is taken or not writable.
    """
    state = lora_state(loaded.encoder.model)
    if not state:
        raise CompoclipError(f"{loaded.name}: has no adapters to save")
    write_adapter(loaded, lora, state, folder, provenance=provenance)


def write_adapter(
    base: LoadedModel,
    lora: Lora,
    state: Mapping[str, Tensor],
    folder: Path,
    *,
    provenance: Mapping[str, Any],
) -> None:
    """Write adapters (as `lora_state` names them) on `base`.

    Raises CompoclipError when the place is taken or not writable.
    """
    record = {
        "compoclip": __version__,
        "base": {"model": _lasting_name(base), "identity": base.identity.to_json()},
        "lora": asdict(lora),
        "adapted": sorted(name.removesuffix(".a") for name in state if name.endswith(".a")),
        "provenance": dict(provenance),
    }
    require_finite(state, f"{base.name}: adapter")
    with new_folder(folder) as temporary:
        save_file(dict(state), temporary / WEIGHTS, metadata={"format": "pt"})
        write_json(temporary / RECORD, record)


def read_record(folder: Path) -> AdapterRecord:
    """The record of an adapter folder. Raises CompoclipError when it is missing or damaged."""
    path = folder / RECORD
    data = read_object(path)
    try:
        base, settings = data["base"], data["lora"]
        lora = Lora(**{field.name: settings[field.name] for field in fields(Lora)})
        identity = ModelIdentity.from_json(base["identity"])
        return AdapterRecord(str(base["model"]), identity, lora, section(data, "provenance", path))
    except (KeyError, TypeError, ValueError, CompoclipError) as error:
        raise CompoclipError(f"{path}: damaged ({error}); restore the original file") from error


def load_adapter(base: LoadedModel, folder: Path) -> LoadedModel:
    """A plain model: `base`, which stays as it is, with the adapters of `folder` merged.

    Raises CompoclipError when the adapters were trained on another base, or files are damaged.
    """
    record = read_record(folder)
    if record.identity.weights != base.identity.weights:
        raise CompoclipError(
            f"{folder}: was trained on {record.base} (weights {record.identity.weights}) and "
            f"{base.name} has other weights ({base.identity.weights}): load it on its own base"
        )
    wrong = record.identity.differences(base.identity, ignore=("base", "adapter"))
    if wrong:
        raise CompoclipError(
            f"{folder}: its base {record.base} and {base.name} differ (its base first): "
            f"{'; '.join(wrong)}; load it on its own base"
        )
    network = base.encoder.model
    state = read_adapters(base, folder, record.lora)
    full = merged_state(network.state_dict(), state, record.lora.scaling)
    loaded = assemble(base.config, str(folder), state=full, path=folder)
    identity = replace(loaded.identity, base=base.identity.weights, adapter=record.lora.describe())
    return replace(loaded, identity=identity, provenance=record.provenance)


def read_adapters(base: LoadedModel, folder: Path, lora: Lora) -> dict[str, Tensor]:
    """The A and B of a folder.

    Raises CompoclipError when they are not those that `lora` puts on `base`.
    """
    state = read_state_dict(folder / WEIGHTS)
    targets = lora_targets(base.encoder.model, lora)
    shapes = {f"{t.name}.a": t.a_shape for t in targets}
    shapes |= {f"{t.name}.b": t.b_shape for t in targets}
    own = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    problem = mismatch(own, state)
    if problem:
        raise CompoclipError(f"{folder / WEIGHTS}: not the adapters of {RECORD}: {problem}")
    return state


def _lasting_name(loaded: LoadedModel) -> str:
    """What gets the same model from any working directory."""
    architecture, at, _ = loaded.name.partition("@")
    if loaded.path is not None and at:
        return f"{architecture}@{loaded.path.absolute()}"
    return str(Path(loaded.name).absolute()) if Path(loaded.name).is_dir() else loaded.name
