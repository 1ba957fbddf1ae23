"""What a checkpoint is, and other forms of it: what `compoclip inspect` and `convert` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compoclip.errors import UsageError
from compoclip.models.checkpoint import (
    Inspection,
    LoadedModel,
    format_of,
    formats,
    load_model,
    plain_spec,
    save_model,
    writer_of,
)


def inspect_model(
    source: str, base: str | None = None, activation: str | None = None
) -> Inspection:
    """Find out what a checkpoint is.

    Args:
        source: Anything that `load_model` takes, or a weights file alone.
        base: A model to compare the weights with; near weights tell the activation of a file.
        activation: The user's word on the activation.

    Returns:
        What is known of it.

    Raises:
        CompoclipError: Files are missing or damaged, or the base is of another architecture.
    """
    source = plain_spec(source)
    start = None if base is None else load_model(base)
    return format_of(source).describe(source, start, activation)


def convert(
    source: str,
    destination: Path,
    form: str,
    *,
    base: str | None = None,
    activation: str | None = None,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Write a model in another form.

    Args:
        source: As for `load_model`; with `base` also a weights file alone or a PEFT folder.
        destination: Folder to write, which must not exist.
        form: "open-clip", "hf", "hf-vision", "merged", "lora", "peft" or "onnx".
        base: What the weights were trained from.
        activation: The user's word on the activation of weights that do not record it.
        dtype: "float32" or "float16", of the tensors of whole models.

    Returns:
        What was written, JSON-ready.

    Raises:
        CompoclipError: The model has no such form, or as the reader and the writer of the formats
            say.
    """
    source, base = plain_spec(source), None if base is None else plain_spec(base)
    for each in formats():
        if each.adapters_only and form in each.forms:
            adapted = format_of(source).adapted(source, base, activation)
            each.save_adapted(adapted, destination)
            return {
                "form": form,
                "base": adapted.base.name,
                "base_weights": adapted.base.identity.weights,
                "adapter": adapted.lora.describe(),
                "adapted": sum(key.endswith(".a") for key in adapted.adapters),
            }
    if form == "merged" and not format_of(source).has_adapter(source):
        raise UsageError(f"{source}: is no adapter, so there is nothing to merge: --to open-clip")
    loaded = load_source(source, base, activation)
    identity = save_model(loaded, destination, form=form, dtype=dtype)
    made = writer_of(form, loaded).made(identity, destination)
    return {"form": form, "activation": loaded.identity.activation, **made}


def load_source(source: str, base: str | None, activation: str | None) -> LoadedModel:
    """`load_model`; with a base also a weights file alone, or a PEFT folder that names no base.

    Raises like `load_model`, and UsageError for a source that names its base itself.
    """
    if base is None:
        return load_model(source, activation=activation)
    return format_of(source).load_on(source, base, activation)
