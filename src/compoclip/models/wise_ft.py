"""Weight interpolation of a model with the base it was trained from (WiSE-FT).

theta(alpha) = (1 - alpha) theta_base + alpha theta_tuned. Wortsman et al., Robust fine-tuning of
zero-shot models (CVPR 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import LoadedModel, assemble, current_identity
from compoclip.models.config import part_of

Scope = Literal["all", "image", "text"]
WiseLora = Literal["merged", "squared"]


def interpolate(
    base: LoadedModel,
    tuned: LoadedModel,
    alpha: float,
    scope: Scope = "all",
    mix_scale: bool = False,
    wise_lora: WiseLora = "merged",
) -> LoadedModel:
    """A new model between `base` (alpha 0) and `tuned` (alpha 1), on the CPU.

    scope: what is interpolated: all weights, or one tower with its projection; what is outside, and
    the temperature unless `mix_scale`, is that of `tuned`. wise_lora: "squared" scales the change
    by alpha^2, the axis of published curves of LoRA runs, whose code scaled A and B alike.

    Its identity has the base's weights as base, its provenance is that of `tuned` plus "wise_ft".
    Raises UsageError for an alpha outside [0, 1] and for "squared" without an adapter on this base;
    CompoclipError when the models differ in anything but weights.
    """
    ours, theirs = current_identity(base), current_identity(tuned)
    differences = ours.differences(theirs, ignore=("base", "adapter", "weights"))
    if differences:
        why = ""
        if ours.context_length != theirs.context_length:
            why = "; positions that only one of them has cannot be mixed exactly"
        raise CompoclipError(
            f"{base.name} and {tuned.name} cannot be mixed ({base.name} first): "
            f"{'; '.join(differences)}{why}; interpolate a model with the base it was trained from"
        )
    if wise_lora == "squared" and not (theirs.adapter and theirs.base == ours.weights):
        raise UsageError(
            f"squared interpolation is for adapters and the base they were trained on, and "
            f"{tuned.name} is no such thing for {base.name}: leave it out"
        )
    _require_fraction(alpha)
    state = interpolate_states(
        base.encoder.model.state_dict(),
        tuned.encoder.model.state_dict(),
        alpha**2 if wise_lora == "squared" else alpha,
        scope,
        mix_scale,
    )
    mixed = assemble(tuned.config, f"{tuned.name} (alpha {alpha:g})", state=state)
    identity = replace(mixed.identity, base=ours.weights, adapter=theirs.adapter)
    made = {
        "alpha": alpha,
        "scope": scope,
        "mix_scale": mix_scale,
        "wise_lora": wise_lora,
        "base": {"name": base.name, "weights": ours.weights},
        "tuned": {"name": tuned.name, "weights": theirs.weights, "base": theirs.base},
    }
    return replace(mixed, identity=identity, provenance={**tuned.provenance, "wise_ft": made})


def interpolate_states(
    base: Mapping[str, Tensor],
    tuned: Mapping[str, Tensor],
    alpha: float,
    scope: Scope = "all",
    mix_scale: bool = False,
) -> dict[str, Tensor]:
    """(1 - alpha) base + alpha tuned, in float32 on the CPU; integers are those of `tuned`.

    Weights that are equal in both stay exactly so, as do all of them at alpha 0 and 1; these may
    share memory with the inputs. Raises CompoclipError when names or shapes differ, UsageError for
    an alpha outside [0, 1].
    """
    _require_fraction(alpha)
    odd = sorted(base.keys() ^ tuned.keys())
    if odd:
        where = "the base" if odd[0] in base else "the tuned model"
        raise CompoclipError(
            f"only {where} has weights '{odd[0]}' ({len(odd)} such): both must have the same "
            "architecture"
        )
    mixed = {}
    for name, theirs in tuned.items():
        ours = base[name]
        if ours.shape != theirs.shape:
            raise CompoclipError(
                f"'{name}' is {tuple(ours.shape)} in the base and {tuple(theirs.shape)} in the "
                "tuned model: both must have the same architecture"
            )
        theirs = theirs.detach().cpu()
        if theirs.is_floating_point():
            theirs = theirs.float()
            if _within(name, scope, mix_scale):
                theirs = _between(ours.detach().cpu().float(), theirs, alpha)
        mixed[name] = theirs
    return mixed


def _within(name: str, scope: Scope, mix_scale: bool) -> bool:
    part = part_of(name)
    return mix_scale if part == "temperature" else scope in ("all", part)


def _between(base: Tensor, tuned: Tensor, alpha: float) -> Tensor:
    if alpha == 0 or torch.equal(base, tuned):
        return base
    return tuned if alpha == 1 else (1 - alpha) * base + alpha * tuned


def _require_fraction(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha {alpha:g}: must lie between 0 (base) and 1 (tuned)")
