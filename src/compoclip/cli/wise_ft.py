"""`compoclip wise-ft BASE TUNED`: interpolate a fine-tuned model with its base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from compoclip import console
from compoclip.cli.options import parse
from compoclip.places import require_writable


@dataclass(frozen=True)
class WiseFtOptions:
    """Mix the weights of a fine-tuned model with those of its base, and write a checkpoint.

    (1 - alpha) BASE + alpha TUNED: some of the base's zero-shot and retrieval accuracy comes back
    for some of what was learnt (WiSE-FT). TUNED may be an adapter folder; it is merged first.

    Example:
        compoclip wise-ft bundled runs/fsc/model --alpha 0.5 --out runs/fsc-half

    Args:
        base: The model that training started from, written as for evaluate.
        tuned: The fine-tuned model.
        out: Checkpoint folder to write.
        alpha: Share of TUNED, from 0 to 1.
        scope: What is mixed: all weights, or those of one tower; the others are those of TUNED.
        mix_scale: Mix the temperature too; else it is that of TUNED (rankings ignore it).
        wise_lora: squared scales what an adapter changed by alpha squared, the axis of published
            curves of LoRA runs; merged (default) by alpha.
        json: Print what was made as JSON.
    """

    base: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BASE")]
    tuned: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TUNED")]
    out: Path
    alpha: float = 0.5
    scope: Literal["all", "image", "text"] = "all"
    mix_scale: bool = False
    wise_lora: Literal["merged", "squared"] = "merged"
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, load both, mix, save."""
    options = parse(WiseFtOptions, "wise-ft", argv)
    require_writable(options.out)
    from compoclip.models.checkpoint import load_model, save_model
    from compoclip.models.interpolate import interpolate

    base, tuned = load_model(options.base), load_model(options.tuned)
    if tuned.identity.base != base.identity.weights:
        made_from = tuned.identity.base or "unknown"
        console.note(
            f"{options.tuned} does not say that it was trained from {options.base} (its base: "
            f"{made_from}, these weights: {base.identity.weights})"
        )
    mixed = interpolate(
        base, tuned, options.alpha, options.scope, options.mix_scale, options.wise_lora
    )
    identity = save_model(mixed, options.out)
    if options.json:
        made = mixed.provenance["wise_ft"]
        console.emit_json({"model": str(options.out), "weights": identity.weights, **made})
    else:
        what = "all weights" if options.scope == "all" else f"the {options.scope} tower"
        print(
            f"{options.base} -> {options.tuned}, alpha {options.alpha:g} on {what}: "
            f"{options.out} (weights {identity.weights})"
        )
    return 0
