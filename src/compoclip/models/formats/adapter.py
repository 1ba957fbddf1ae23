"""Adapter folders: what was learnt at low rank, without the weights it was learnt on.

adapter.safetensors   A and B of every adapted weight: "<name in the state dict>.a" and ".b"
adapter.json          base (how to get it, its identity), LoRA settings, adapted weights,
                      provenance
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.models.checkpoint import (
    Above,
    Adapted,
    Format,
    LoadedModel,
    load_model,
    merged_model,
    open_model,
    override_activation,
)
from compoclip.models.config import ModelIdentity, read_object, section, write_json
from compoclip.models.lora import Lora, lora_state, lora_targets
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


class AdapterFolder(Format):
    """Adapters as training with `--lora --no-merge` writes them."""

    kind = "adapter folder, merged into its base"
    known_by = f"the base's identity in {RECORD}"
    order = 10
    markers = (RECORD,)
    stored = WEIGHTS
    downloads = (WEIGHTS,)
    forms = ("lora",)
    adapters_only = True

    def load(self, source: str, name: str, activation: str | None, above: Above) -> LoadedModel:
        """The base that the folder names, with the adapters merged."""
        path = Path(source)
        record = read_adapter_record(path)
        try:
            if path.resolve() in above:
                raise CompoclipError("it is the base of itself")
            base = open_model(record.base, record.identity.activation, (*above, path.resolve()))
        except CompoclipError as error:
            raise CompoclipError(
                f"{path}: its base {record.base} cannot be loaded ({error}); say where it is in "
                f"{path / RECORD}"
            ) from error
        return override_activation(load_adapter(base, path), activation)

    def adapted(self, source: str, base: str | None, activation: str | None) -> Adapted:
        """The adapters on their base, or on the copy of it that the user names."""
        record = read_adapter_record(Path(source))
        start = load_model(base or record.base, activation=activation or record.identity.activation)
        if start.identity.weights != record.identity.weights:
            raise CompoclipError(
                f"{source}: was trained on {record.base} (weights {record.identity.weights}) and "
                f"{start.name} has other weights ({start.identity.weights}): name its own base"
            )
        adapters = read_adapters(start, Path(source), record.lora)
        return Adapted(start, record.lora, adapters, record.provenance)

    def save_adapted(self, adapted: Adapted, folder: Path) -> None:
        """Write the folder."""
        names = [key.removesuffix(".a") for key in adapted.adapters if key.endswith(".a")]
        record = {
            "compoclip": __version__,
            "base": {
                "model": _lasting_name(adapted.base),
                "identity": adapted.base.identity.to_json(),
            },
            "lora": asdict(adapted.lora),
            "adapted": sorted(names),
            "provenance": dict(adapted.provenance),
        }
        require_finite(adapted.adapters, f"{adapted.base.name}: adapter")
        with new_folder(folder) as temporary:
            save_file(dict(adapted.adapters), temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / RECORD, record)


def save_adapter(
    loaded: LoadedModel, lora: Lora, folder: Path, *, provenance: Mapping[str, Any]
) -> None:
    """Write the adapters on a network as an adapter folder.

    Args:
        loaded: The model with adapters attached; its identity is that of their base.
        lora: The settings that they were attached with.
        folder: Folder to write, which must not exist.
        provenance: JSON-ready record of how they were made.

    Raises:
        CompoclipError: There are no adapters, or the place is taken or not writable.
    """
    state = lora_state(loaded.encoder.model)
    if not state:
        raise CompoclipError(f"{loaded.name}: has no adapters to save")
    AdapterFolder().save_adapted(Adapted(loaded, lora, state, provenance), folder)


def read_adapter_record(folder: Path) -> AdapterRecord:
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
    """Merge the adapters of a folder into a copy of their base.

    Args:
        base: The model that the adapters were trained on; it stays as it is.
        folder: The adapter folder.

    Returns:
        A plain model without adapters.

    Raises:
        CompoclipError: The adapters were trained on another base, or files are damaged.
    """
    record = read_adapter_record(folder)
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
    adapters = read_adapters(base, folder, record.lora)
    return merged_model(
        Adapted(base, record.lora, adapters, record.provenance), str(folder), folder
    )


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
    """The spec of a model, good in any working directory."""
    architecture, at, _ = loaded.name.partition("@")
    if loaded.path is not None and at:
        return f"{architecture}@{loaded.path.absolute()}"
    return str(Path(loaded.name).absolute()) if Path(loaded.name).is_dir() else loaded.name
