"""Which part of an open_clip model a parameter belongs to."""

from __future__ import annotations

from typing import Literal

Tower = Literal["image", "text"]
Part = Literal["image", "text", "temperature"]


def part_of(name: str) -> Part:
    """The part of a parameter or buffer, by its name in the state dict.

    The image tower is everything below `visual` (with its projection), the temperature the scale
    and bias of the logits, the text tower the rest.
    """
    if name in ("logit_scale", "logit_bias"):
        return "temperature"
    return "image" if name.startswith("visual.") else "text"
