"""Adapters in a run: put on before training, saved and merged after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.base import Method
from compoclip.models.adapter import save_adapter
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.lora import Lora, Towers
from compoclip.models.lora_weights import attach_lora
from compoclip.models.parts import part_of


def put_on(model: LoadedModel, method: Method, seed: int) -> Lora | None:
    """Put the adapters of the method, drawn from `seed`, on the network; None when it has none.

    Says how much learns. The result names the towers that have adapters now: those that the method
    trains, that its LoRA settings name and that have layers to adapt. Raises UsageError when there
    is no such tower, CompoclipError when the weights are not those of the model's identity.
    """
    if method.lora is None:
        return None
    wanted = _both(method.lora.towers, method)
    if current_identity(model) != model.identity:
        raise CompoclipError(
            f"{model.name}: its weights have changed since it was loaded, and adapters need a base "
            "that can be loaded again: save the model and train on the checkpoint"
        )
    network = model.encoder.model
    total = sum(parameter.numel() for parameter in network.parameters())
    targets = attach_lora(network, replace(method.lora, towers=wanted), seed)
    having = {part_of(target.name) for target in targets}
    towers: Towers = "both" if len(having) == 2 else "image" if "image" in having else "text"
    lora = replace(method.lora, towers=towers)
    learns = sum(target.size for target in targets)
    note(
        f"{lora.describe()}: {learns:,} numbers learn beside {total:,} frozen ones "
        f"({learns / total:.2%})"
    )
    if wanted != towers:
        left = "image" if towers == "text" else "text"
        note(f"  the {left} tower has no attention or MLP layers to adapt: it stays as it is")
    return lora


def save(model: LoadedModel, lora: Lora, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write the adapters to `folder`, unless an earlier finish of the same run did."""
    if not folder.exists():
        save_adapter(model, lora, folder, provenance=provenance)


def _both(towers: Towers, method: Method) -> Towers:
    """The towers that LoRA settings name and the method trains."""
    trained = {"image": method.trains.image_tower, "text": method.trains.text_tower}
    chosen = [t for t, trains in trained.items() if trains and towers in ("both", t)]
    if not chosen:
        raise UsageError(
            f"{method.name} trains nothing in the tower of its adapters ({towers}): choose another "
            "with --lora-towers"
        )
    return "both" if len(chosen) == 2 else "image" if chosen == ["image"] else "text"
