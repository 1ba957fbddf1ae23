"""Everything that makes two checkpoints produce different features, as one comparable record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from compoclip.errors import CompoclipError


@dataclass(frozen=True)
class ModelIdentity:
    """Saved with every checkpoint, verified on load, copied into every result.

    architecture: name, or hash of the open_clip model configuration when it has no name.
    activation: "quick_gelu" or "gelu". tokenizer: id of the tokenizer (kind and vocabulary hash).
    image_mean, image_std: per channel. interpolation: "bicubic" or "bilinear".
    resize_mode: "shortest" (resize short side, centre crop) or "squash".
    base: hash of the weights training started from ("" when unknown); adapter: "" or a description.
    weights: blake2b hash over all tensors (names, shapes, float bytes) of the state dict.
    """

    architecture: str
    activation: str
    tokenizer: str
    context_length: int
    image_size: tuple[int, int]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    interpolation: str
    resize_mode: str
    base: str
    adapter: str
    weights: str

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelIdentity:
        """The inverse of `to_json`. Raises CompoclipError when a field is missing or of another
        type."""
        missing = [f.name for f in fields(cls) if f.name not in data]
        if missing:
            raise CompoclipError(
                f"model identity lacks {', '.join(missing)}; re-save the checkpoint"
            )
        values = {f.name: data[f.name] for f in fields(cls)}
        wrong = next((f.name for f in fields(cls) if not _fits(values[f.name], str(f.type))), None)
        if wrong is not None:
            raise CompoclipError(
                f"model identity: '{wrong}' is malformed; restore the file or re-save the "
                "checkpoint"
            )
        for name in ("image_size", "image_mean", "image_std"):
            values[name] = tuple(values[name])
        return cls(**values)

    def differences(self, other: ModelIdentity, ignore: tuple[str, ...] = ()) -> list[str]:
        """Lines "field: ours vs theirs" for every field that differs."""
        return [
            f"{f.name}: {getattr(self, f.name)} vs {getattr(other, f.name)}"
            for f in fields(self)
            if f.name not in ignore and getattr(self, f.name) != getattr(other, f.name)
        ]


def _fits(value: object, kind: str) -> bool:
    """Whether a JSON value can be a field annotated as `kind`."""
    if kind in ("str", "int"):
        return type(value).__name__ == kind
    number = int if "int" in kind else int | float
    return isinstance(value, list | tuple) and all(isinstance(each, number) for each in value)
