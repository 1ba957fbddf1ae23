"""Image trunks that timm has but cannot be named in an open_clip configuration.

open_clip passes no options on to timm, so that variants get names of their own in timm's registry
when this module is imported: weights converted from TensorFlow need "SAME" padding, SigLIP was
trained with the approximate GELU and timm's towers have the exact one, and no Swin of timm is small
enough to try a recipe out on a laptop. Plain open_clip refuses the names ("Unknown
model") unless this module was imported before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
from timm.models import is_model, list_models, register_model
from torch import nn

from compoclip.errors import CompoclipError


def mobilenetv2_100_same(pretrained: bool = False, **options: Any) -> nn.Module:
    """MobileNetV2 1.0 with TensorFlow's "SAME" padding; otherwise timm's `mobilenetv2_100`.

    Raises CompoclipError for `pretrained`: there are no published weights under this name.
    """
    if pretrained:
        raise CompoclipError("mobilenetv2_100_same has no published weights; give a weights file")
    model: nn.Module = timm.create_model("mobilenetv2_100", pad_type="same", **options)
    return model


def swin_mini_patch4_window4_64(pretrained: bool = False, **options: Any) -> nn.Module:
    """A Swin transformer of 0.5 M parameters for 64 x 64 pixels: two stages, windows of 4 x 4.

    Raises CompoclipError for `pretrained`: there are no published weights under this name.
    """
    if pretrained:
        raise CompoclipError("swin_mini_patch4_window4_64 has no weights; start from scratch")
    shape = {"img_size": 64, "window_size": 4, "embed_dim": 64, "depths": (2, 2)}
    model: nn.Module = timm.create_model(
        "swin_tiny_patch4_window7_224", **{**shape, "num_heads": (2, 4), **options}
    )
    return model


TANH = "_tanh"
"""Ending of the names of SigLIP's image towers with the activation that they were trained with."""


def register_tanh(name: str) -> None:
    """Register timm's model `name` with the approximate GELU, under the name that ends in TANH."""

    def build(pretrained: bool = False, **options: Any) -> nn.Module:
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, act_layer="gelu_tanh", **options
        )
        return model

    build.__name__ = build.__qualname__ = name + TANH
    _register(build)


def _register(build: Callable[..., nn.Module]) -> None:
    if not is_model(build.__name__):
        register_model(build)


for _build in (mobilenetv2_100_same, swin_mini_patch4_window4_64):
    _register(_build)
for _name in list_models("vit_*_siglip_[0-9]*"):
    register_tanh(_name)
