"""`compoclip inspect CKPT`: what a checkpoint is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from compoclip import console
from compoclip.cli.options import parse

if TYPE_CHECKING:
    from compoclip.models.inspection import Inspection


@dataclass(frozen=True)
class InspectOptions:
    """Say what a checkpoint is: architecture, activation and how it is known, sizes, origin.

    Weights files do not record their activation, and the wrong one loses accuracy. With --base
    their distance to a base is measured: fine-tunes stay near it and have its activation.

    Examples:
        compoclip inspect runs/fsc/model
        compoclip inspect negclip.pth --base ViT-B-32-quickgelu:openai

    Args:
        checkpoint: Folder, weights file, ARCHITECTURE@FILE, ARCHITECTURE:TAG, hf-hub:ID or
            "bundled".
        base: A model to compare the weights with.
        activation: Your word on the activation of weights that do not record it.
        json: Print it as JSON.
    """

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")]
    base: str | None = None
    activation: Literal["gelu", "quick_gelu"] | None = None
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, inspect, print."""
    options = parse(InspectOptions, "inspect", argv)
    from compoclip.models.inspection import inspect_model

    found = inspect_model(options.checkpoint, options.base, options.activation)
    if options.json:
        console.emit_json(found.to_json())
    else:
        print("\n".join(f"{name:<13}{value}" for name, value in _lines(found)))
    return 0


def _lines(found: Inspection) -> list[tuple[str, str]]:
    counts = found.parameters
    parts = [f"{name} {number:,}" for name, number in counts.items() if number and name != "total"]
    lines = [
        ("checkpoint", found.source),
        ("kind", found.kind),
        ("architecture", found.architecture),
        ("activation", f"{found.activation} ({found.activation_by})"),
        ("context", _or_unknown(found.context)),
        ("image size", _or_unknown(found.image_size)),
        ("vocabulary", _or_unknown(found.vocabulary)),
        ("adapter", found.adapter or "none"),
        ("parameters", f"{counts['total']:,} ({', '.join(parts)})"),
        ("stored as", ", ".join(f"{kind} x {count}" for kind, count in found.dtypes.items())),
    ]
    if found.identity:
        lines.append(("weights", str(found.identity["weights"])))
        lines.append(("trained from", str(found.identity["base"]) or "unknown"))
    if found.base:
        base = found.base
        distance = f"{base['verdict']}: {base['distance']}, {base['changed']} tensors differ"
        lines.append(("base", f"{base['name']} ({base['activation']}): {distance}"))
    for name, value in found.provenance.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append((f"  {name}", f" {text}" if len(name) > 10 else text))
    return lines


def _or_unknown(value: int | None) -> str:
    return "unknown" if value is None else str(value)
