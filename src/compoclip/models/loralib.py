"""Low-rank adapters inside open_clip state dicts, as TSVLC, DAC and FSC-CLIP publish them.

Their code replaces layers by ones that hold W beside A and B (the naming of Microsoft's loralib):

    NAME.weight           with  NAME.lora_A, NAME.lora_B                  linear and convolution
    NAME.in_proj_weight   with  NAME.in_proj_weight_lora_A and _lora_B    attention, one shared A

W' = W + (alpha / r) B A with alpha = 1. For a k x k convolution A is (r k, in k), B (out k, r k):
its r is the number of rows of A over k. These are the formulas of `lora_weights`, with other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.lora import Lora
from compoclip.models.parts import part_of

ALPHA = 1.0
"""What that code divides by the rank; no file records it and no published script changes it."""


@dataclass(frozen=True)
class LoralibFile:
    """A state dict taken apart.

    plain: the weights without adapters, as they were before training. adapters: "<name>.a" and
    "<name>.b" by the name of the adapted weight, the form of `lora_weights.lora_state`.
    """

    plain: dict[str, Tensor]
    adapters: dict[str, Tensor]

    def adapted(self) -> list[str]:
        """The names of the adapted weights, in order."""
        return [name.removesuffix(".a") for name in self.adapters if name.endswith(".a")]


def split(state: Mapping[str, Tensor]) -> LoralibFile:
    """Take plain weights and adapters apart; a state dict without adapters is all plain."""
    plain, adapters = {}, {}
    for name, value in state.items():
        for ending, part in (("lora_A", "a"), ("lora_B", "b")):
            if name.endswith(f"_{ending}"):
                adapters[f"{name.removesuffix(f'_{ending}')}.{part}"] = value
                break
            if name.endswith(f".{ending}"):
                adapters[f"{name.removesuffix(ending)}weight.{part}"] = value
                break
        else:
            plain[name] = value
    return LoralibFile(plain, adapters)


def lora_of(adapters: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str) -> Lora:
    """The settings that adapters (as `LoralibFile.adapters`) on `weights` were trained with.

    Raises CompoclipError when a pair is incomplete, a shape does not fit its weight, or ranks
    differ.
    """
    ranks: dict[str, int] = {}
    for key, value in adapters.items():
        name, _, part = key.rpartition(".")
        other = adapters.get(f"{name}.{'b' if part == 'a' else 'a'}")
        if other is None:
            lacking = "lora_B" if part == "a" else "lora_A"
            raise CompoclipError(f"{source}: '{name}' has no {lacking}; get the whole file")
        if name not in weights:
            raise CompoclipError(
                f"{source}: adapts '{name}', which the model does not have: it is for another "
                "architecture"
            )
        if part == "a":
            ranks[name] = _rank(name, value, other, weights[name], source)
    if len(set(ranks.values())) > 1:
        low, high = min(ranks, key=ranks.__getitem__), max(ranks, key=ranks.__getitem__)
        raise CompoclipError(
            f"{source}: LoRA ranks differ ('{low}' has {ranks[low]}, '{high}' has {ranks[high]}), "
            "so its scaling is unknown: parts of several files were mixed"
        )
    if not ranks:
        raise CompoclipError(f"{source}: has no LoRA weights (names that end in lora_A, lora_B)")
    return Lora(
        rank=next(iter(ranks.values())),
        alpha=ALPHA,
        towers=_towers(ranks),
        targets="+conv" if any(weights[name].ndim == 4 for name in ranks) else "linear",
        init="xavier_ab",
    )


def _rank(name: str, a: Tensor, b: Tensor, weight: Tensor, source: str) -> int:
    kernel = weight.shape[-1] if weight.ndim == 4 else 1
    fits = (
        a.ndim == b.ndim == 2
        and b.shape[0] == weight.shape[0] * kernel
        and a.shape[1] * b.shape[0] == weight.numel()
        and a.shape[0] == b.shape[1]
        and a.shape[0] % kernel == 0
        and len(a) > 0
    )
    if not fits:
        raise CompoclipError(
            f"{source}: lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)} of '{name}' do not fit "
            f"its shape {tuple(weight.shape)}"
        )
    return len(a) // kernel


def _towers(names: Mapping[str, int]) -> Literal["both", "image", "text"]:
    parts = {part_of(name) for name in names}
    if parts == {"image"}:
        return "image"
    return "text" if parts == {"text"} else "both"
