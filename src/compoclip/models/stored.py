"""What every written form of a model shares: tensors as stored, the record, its verification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.config import read_object, section
from compoclip.models.identity import ModelIdentity
from compoclip.models.loaded import LoadedModel
from compoclip.models.weights import require_finite

RECORD, MERGES = "compoclip.json", "bpe.txt.gz"


def verified(loaded: LoadedModel, record: Path) -> LoadedModel:
    """`loaded` with the identity and provenance of its record.

    Raises CompoclipError when the record is damaged, or says otherwise than what was loaded.
    """
    stored, provenance = read_record(record)
    wrong = stored.differences(loaded.identity, ignore=("base", "adapter"))
    if wrong:
        raise CompoclipError(
            f"{record.parent}: {RECORD} and the other files disagree ({RECORD} first): "
            f"{'; '.join(wrong)}; restore the original files"
        )
    return replace(loaded, identity=stored, provenance=provenance)


def read_record(record: Path) -> tuple[ModelIdentity, dict[str, Any]]:
    """The identity and the provenance in a `compoclip.json`.

    Raises CompoclipError when it is missing or damaged.
    """
    data = read_object(record)
    if not isinstance(data.get("identity"), dict):
        raise CompoclipError(
            f"{record}: has no identity; delete the file or re-save the checkpoint"
        )
    try:
        identity = ModelIdentity.from_json(data["identity"])
    except CompoclipError as error:
        raise CompoclipError(f"{record}: {error}") from error
    return identity, section(data, "provenance", record)


def as_stored(state: Mapping[str, Tensor], dtype: str, name: str) -> dict[str, Tensor]:
    """Tensors on the CPU in float32; with "float16" matrices are rounded to that.

    name: of the model. Raises CompoclipError for another dtype, when a value does not fit float16,
    and when one is not finite.
    """
    require_finite(state, name)
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


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an object as readable JSON."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # of a lone surrogate
