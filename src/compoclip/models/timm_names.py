"""Image trunks that timm has but cannot be named in an open_clip configuration.

open_clip passes no `pad_type` to timm. Weights converted from TensorFlow need its "SAME" padding,
so that variant gets a name of its own in timm's registry when this module is imported. Plain
open_clip refuses the name ("Unknown model") unless this module was imported before.
"""

from __future__ import annotations

from typing import Any

import timm
from timm.models import is_model, register_model
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


if not is_model(mobilenetv2_100_same.__name__):
    register_model(mobilenetv2_100_same)
