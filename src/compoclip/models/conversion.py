"""Inspect, convert, interpolate and average models.

Weight interpolation with the base (WiSE-FT) is theta(alpha) = (1 - alpha) theta_base + alpha
theta_tuned; Wortsman et al., Robust fine-tuning of zero-shot models (CVPR 2022). The mean of
several tuned models is a uniform soup; Wortsman et al., Model soups (ICML 2022).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import (
    LoadedModel,
    assemble,
    current_identity,
    format_of,
    formats,
    load_model,
    place_of,
    save_model,
    writer_of,
)
from compoclip.models.config import ModelIdentity, part_of
from compoclip.models.lora import adapted_names
from compoclip.models.names import LOCAL
from compoclip.models.resize import resized

Scope = Literal["all", "image", "text"]
WiseLora = Literal["merged", "squared"]


def inspect_model(
    source: str, base: str | None = None, activation: str | None = None
) -> dict[str, Any]:
    """Return the facts about a checkpoint.

    Args:
        source: A model as for `load_model`, or a weights file.
        base: A model to compare the weights with; close weights determine a file's activation.
        activation: The activation, if the file does not record it.

    Returns:
        JSON-ready: "source"; "kind", the format; "architecture", open_clip's name or those that fit
        the tensors; "activation" and its source, "activation_by"; "context"; "image_size";
        "vocabulary"; "adapter", LoRA weights in words; "parameters" by part; "dtypes": number of
        tensors by stored dtype; "provenance"; "identity", empty if the activation is unknown;
        "base", the distance to the given one.

    Raises:
        CompoclipError: Files are missing or damaged, or the base is of another architecture.
    """
    place = place_of(source)
    start = None if base is None else load_model(base)
    name = source.removeprefix(LOCAL)
    return {"source": name, **format_of(place).describe(place, start, activation)}


def convert(
    source: str,
    destination: Path,
    form: str,
    *,
    base: str | None = None,
    activation: str | None = None,
    dtype: str = "float32",
    context_length: int | None = None,
    image_size: int | None = None,
) -> dict[str, Any]:
    """Write a model in another form and return JSON-ready facts about the written folder.

    Args:
        source: As for `load_model`; with `base` also a weights file or a PEFT folder.
        destination: Folder to write, which must not exist.
        form: "open-clip", "hf", "hf-vision", "hf-text", "merged", "lora", "peft" or "onnx".
        base: The model before training.
        activation: The activation of weights that do not record it.
        dtype: "float32" or "float16", of the tensors of whole models.
        context_length: Tokens per text, where that changes; see `resized`.
        image_size: Side of images in pixels, where that changes.

    Raises:
        CompoclipError: The model has no such form, or cannot be read or written.
    """
    source = place_of(source)
    for writer in formats():
        if writer.adapters_only and form in writer.forms:
            if context_length or image_size:
                raise UsageError(f"--to {form} writes an adapter alone; resize its base")
            adapted = format_of(source).adapted(source, base, activation)
            writer.save_adapted(adapted, destination)
            return {
                "form": form,
                "base": adapted.base.name,
                "base_weights": adapted.base.identity.weights,
                "adapter": adapted.lora.describe(),
                "adapted": len(adapted_names(adapted.adapters)),
            }
    if form == "merged" and not format_of(source).adapters_only:
        raise UsageError(f"{source}: is no adapter, so there is nothing to merge: --to open-clip")
    if base is None:
        loaded = load_model(source, activation=activation)
    else:
        loaded = format_of(source).load_on(source, base, activation)
    if context_length or image_size:
        loaded = resized(loaded, context_length, image_size)
    identity = save_model(loaded, destination, form=form, dtype=dtype)
    written = writer_of(form, loaded).facts(identity, destination)
    return {"form": form, "activation": loaded.identity.activation, **written}


def interpolate(
    base: LoadedModel,
    tuned: LoadedModel,
    alpha: float,
    scope: Scope = "all",
    mix_scale: bool = False,
    wise_lora: WiseLora = "merged",
) -> LoadedModel:
    """Interpolate between a model and the base it was trained from (WiSE-FT), on the CPU.

    The identity has the base's weights as base, the provenance is `tuned`'s plus "wise_ft".

    Args:
        base: The model at alpha 0.
        tuned: The model at alpha 1.
        alpha: Position between the two, in [0, 1].
        scope: "all" interpolates every weight, "image" or "text" one tower with its projection;
            all other weights are from `tuned`.
        mix_scale: Interpolate the temperature too; else it is from `tuned`.
        wise_lora: "squared" scales the change by alpha^2, the axis of published curves of LoRA
            runs, whose code scaled both A and B.

    Raises:
        UsageError: alpha is outside [0, 1], or "squared" is given without an adapter on this base.
        CompoclipError: The models differ in anything but weights.
    """
    ours, theirs = current_identity(base), current_identity(tuned)
    remedy = "interpolate a model with the base it was trained from"
    _require_mixable(base.name, ours, tuned.name, theirs, remedy)
    on_base = theirs.adapter and theirs.base == ours.weights
    if not on_base and wise_lora == "squared":
        raise UsageError(
            f"squared interpolation is for adapters on their own base, and {tuned.name} is no "
            f"adapter of {base.name}: leave it out"
        )
    state = interpolate_states(
        base.encoder.model.state_dict(),
        tuned.encoder.model.state_dict(),
        alpha**2 if wise_lora == "squared" else alpha,
        scope,
        mix_scale,
    )
    mixed = assemble(tuned.config, f"{tuned.name} (alpha {alpha:g})", state=state)
    identity = replace(mixed.identity, base=ours.weights, adapter=theirs.adapter)
    facts = {
        "alpha": alpha,
        "scope": scope,
        "mix_scale": mix_scale,
        "wise_lora": wise_lora,
        "base": {"name": base.name, "weights": ours.weights},
        "tuned": {"name": tuned.name, "weights": theirs.weights, "base": theirs.base},
    }
    return replace(mixed, identity=identity, provenance={**tuned.provenance, "wise_ft": facts})


def average(models: Iterable[LoadedModel]) -> LoadedModel:
    """Average the weights of several models (a uniform soup), on the CPU.

    The provenance names the models under "soup"; the identity has their common base, if any.

    Args:
        models: Two or more, loaded one at a time. They should share one base.

    Raises:
        UsageError: For fewer than two models.
        CompoclipError: The models differ in anything but weights.
    """
    parts: list[dict[str, str]] = []
    first: LoadedModel | None = None
    for model in models:
        identity = current_identity(model)
        parts.append({"name": model.name, "weights": identity.weights, "base": identity.base})
        if first is None:
            first, mean = model, dict(model.encoder.model.state_dict())
            continue
        remedy = "average checkpoints of one architecture"
        _require_mixable(first.name, current_identity(first), model.name, identity, remedy)
        state = model.encoder.model.state_dict()
        mean = interpolate_states(mean, state, 1 / len(parts), mix_scale=True)
    if first is None or len(parts) < 2:
        raise UsageError("a mean takes two or more models: name another, or give one as --model")
    mixed = assemble(first.config, f"mean of {len(parts)} models", state=mean)
    bases = {part["base"] for part in parts}
    identity = replace(mixed.identity, base=bases.pop() if len(bases) == 1 else "")
    return replace(mixed, identity=identity, provenance={"soup": parts})


def _require_mixable(
    name: str, ours: ModelIdentity, other: str, theirs: ModelIdentity, remedy: str
) -> None:
    """Raise CompoclipError when two models differ in anything but weights."""
    if ours.context_length != theirs.context_length:
        remedy = f"positions that only one of them has cannot be mixed exactly; {remedy}"
    ours.require(
        theirs, f"{name} and {other} cannot be mixed ({name} first)", remedy, ignore=("weights",)
    )


def interpolate_states(
    base: Mapping[str, Tensor],
    tuned: Mapping[str, Tensor],
    alpha: float,
    scope: Scope = "all",
    mix_scale: bool = False,
) -> dict[str, Tensor]:
    """Return (1 - alpha) base + alpha tuned, in float32 on the CPU; integers are from `tuned`.

    Weights that are equal in both stay exactly so, as do all at alpha 0 and 1. Raises
    CompoclipError when names or shapes differ, UsageError for an alpha outside [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha {alpha:g}: must lie between 0 (base) and 1 (tuned)")
    odd = base.keys() ^ tuned.keys()
    odd |= {name for name in base.keys() & tuned.keys() if base[name].shape != tuned[name].shape}
    if odd:
        one, other = (
            f"{tuple(state[min(odd)].shape)}" if min(odd) in state else "nothing"
            for state in (base, tuned)
        )
        raise CompoclipError(
            f"'{min(odd)}' is {one} in the base and {other} in the tuned model ({len(odd)} differ "
            "so): both must have the same architecture"
        )
    mixed = {}
    for name, theirs in tuned.items():
        theirs, ours, part = theirs.detach().cpu(), base[name].detach().cpu(), part_of(name)
        if theirs.is_floating_point():
            theirs, ours = theirs.float(), ours.float()
            mixes = mix_scale if part == "temperature" else scope in ("all", part)
            if mixes and (alpha == 0 or torch.equal(ours, theirs)):
                theirs = ours
            elif mixes and alpha != 1:
                theirs = (1 - alpha) * ours + alpha * theirs
        mixed[name] = theirs
    return mixed
