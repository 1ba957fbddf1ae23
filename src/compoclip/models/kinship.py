"""Whether weights were fine-tuned from a base: what tells an activation that no file records.

A fine-tuned weight stays near its start: the relative distance |W - W0| / |W0| of the matrices is
a few hundredths at published learning rates, while weights trained from another start are about as
far away as unrelated vectors of that length (1.4). Nothing lies between the two, so the distance
is a fingerprint of the base and with it of the activation both were trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.parts import Part, part_of

NEAR, FAR = 0.5, 0.9

Verdict = Literal["same", "derived", "unclear", "unrelated"]


@dataclass(frozen=True)
class Kinship:
    """How far weights are from a base's.

    image, text: the median over the matrices of that tower of |W - W0| / |W0|. compared: how many
    matrices that is. changed: how many tensors of all differ in any value.
    """

    image: float
    text: float
    compared: int
    changed: int

    @property
    def verdict(self) -> Verdict:
        """ "same" when no value differs, "derived" when both towers are near, "unrelated" when
        both are far, else "unclear"."""
        if self.changed == 0:
            return "same"
        if max(self.image, self.text) < NEAR:
            return "derived"
        return "unrelated" if min(self.image, self.text) > FAR else "unclear"

    def describe(self) -> str:
        """ "image tower 0.012, text tower 0.034 from it"."""
        return f"image tower {self.image:.3f}, text tower {self.text:.3f} from it"


def kinship(state: Mapping[str, Tensor], base: Mapping[str, Tensor], source: str) -> Kinship:
    """Compare two state dicts of one architecture; a shorter positional table is compared with the
    first rows of the longer.

    Raises CompoclipError naming `source` when names or shapes differ otherwise, and when either
    tower has no matrix.
    """
    distances: dict[Part, list[float]] = {"image": [], "text": [], "temperature": []}
    changed = 0
    for name, start in base.items():
        if name not in state:
            raise CompoclipError(f"{source}: lacks '{name}' of the base: another architecture")
        value = state[name]
        if name.endswith("positional_embedding") and value.ndim == start.ndim == 2:
            rows = min(len(value), len(start))
            value, start = value[:rows], start[:rows]
        if value.numel() != start.numel():
            raise CompoclipError(
                f"{source}: '{name}' is {tuple(value.shape)} and {tuple(start.shape)} in the base: "
                "another architecture"
            )
        if not start.is_floating_point():
            continue
        one, other = (x.detach().cpu().float().reshape(-1) for x in (value, start))
        changed += int(not torch.equal(one, other))
        norm = float(other.norm())
        if start.ndim >= 2 and norm > 0:
            distances[part_of(name)].append(float((one - other).norm()) / norm)
    if not distances["image"] or not distances["text"]:
        raise CompoclipError(f"{source}: has no weight matrices to compare with the base")
    return Kinship(
        image=median(distances["image"]),
        text=median(distances["text"]),
        compared=len(distances["image"]) + len(distances["text"]),
        changed=changed,
    )
