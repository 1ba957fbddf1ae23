"""Image encoding with projected features of every position, for each kind of open_clip tower.

Patches go through *the same projection as the pooled feature*, position by position:

- VisionTransformer: states of the last block without class token, `ln_post`, times `proj`.
- ModifiedResNet: position p of the last feature map as its attention pool projects it,
  c_proj(v_proj(x_p + positional_embedding[p + 1])): what the pooled feature would be if the pool
  attended to p alone.
- timm trunks (ViT-like, Swin, MobileNet, ConvNeXt, ...): every position of the last feature map
  goes through the trunk's and the adapter's head as if it were the only position of an image, so
  pooling does nothing, and a tower that pools by plain average before a linear head has patches
  whose mean is the pooled feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from compoclip.errors import CompoclipError
from compoclip.models.work import Outputs, Piece, Work, joined


@dataclass(frozen=True)
class ImageFeatures:
    """pooled: (B, D), not normalised. patches: (B, P, D) projected, not normalised, or None."""

    pooled: Tensor
    patches: Tensor | None = None


class ImageTower:
    """A view of the image half of an open_clip model; owns no parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._compiled: Callable[[Tensor, bool], Outputs] | None = None

    @property
    def _visual(self) -> Any:
        return self._model.visual

    def require_local(self, purpose: str = "local losses") -> None:
        """Raise CompoclipError, naming the `purpose`, when the tower's positions cannot be
        projected one by one."""
        visual = self._visual
        reason = ""
        if isinstance(visual, VisionTransformer):
            if visual.attn_pool is not None or visual.pool_type not in ("tok", "avg"):
                reason = "it pools by learned queries"
        elif isinstance(visual, TimmModel):
            if "pool" in dict(visual.head.named_children()):
                reason = "its attention pool needs the whole feature map"
        elif not isinstance(visual, ModifiedResNet):
            reason = f"{type(visual).__name__} is not a known kind"
        if reason:
            raise CompoclipError(
                f"{purpose} need patch features and this image tower has none ({reason}): "
                f"choose another model or do without {purpose}"
            )

    def work(self, pixels: Tensor, patches: bool = False, limit: int = 0) -> Work[ImageFeatures]:
        """How (B, 3, H, W) pixels are encoded: `limit` images a piece, or all at once for 0.

        Raises CompoclipError when patches are impossible.
        """
        if patches:
            self.require_local()
        parts = torch.split(pixels, limit or len(pixels))

        def piece(part: Tensor) -> Piece:
            return lambda: (self._compiled or self._encode)(part, patches)

        return Work(tuple(map(piece, parts)), _joined)

    def compile(self) -> None:
        """Compile the tower, anew for every size of a batch until it is seen to vary."""
        self._compiled = torch.compile(self._encode)

    def _encode(self, pixels: Tensor, patches: bool) -> Outputs:
        # Convolutions of a ResNet are faster so; evaluation stays open_clip's to the last bit.
        if isinstance(self._visual, ModifiedResNet) and self._visual.training:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        if not patches:
            pooled = self._visual(pixels)  # some towers add tokens
            return (pooled[0] if isinstance(pooled, tuple) else pooled,)
        visual = self._visual
        if isinstance(visual, VisionTransformer):
            return _vit(visual, pixels)
        if isinstance(visual, ModifiedResNet):
            return _resnet(visual, pixels)
        return _timm(visual, pixels)


def _joined(outputs: Sequence[Outputs]) -> ImageFeatures:
    return ImageFeatures(*map(joined, zip(*outputs)))


def _vit(visual: VisionTransformer, pixels: Tensor) -> Outputs:
    out = visual.forward_intermediates(
        pixels, indices=1, normalize_intermediates=True, output_fmt="NLC"
    )
    patches = out["image_intermediates"][-1]
    return out["image_features"], patches if visual.proj is None else patches @ visual.proj


def _resnet(visual: ModifiedResNet, pixels: Tensor) -> Outputs:
    out = visual.forward_intermediates(pixels, indices=1)
    pool = visual.attnpool
    positions = out["image_intermediates"][-1].flatten(2).transpose(1, 2)
    positions = positions + pool.positional_embedding[1:].to(positions.dtype)
    return out["image_features"], pool.c_proj(pool.v_proj(positions))


def _timm(visual: TimmModel, pixels: Tensor) -> Outputs:
    trunk = visual.trunk
    features = trunk.forward_features(pixels)
    pooled = visual.head(trunk.forward_head(features))
    batch = len(features)
    if features.ndim == 3:  # (B, prefix + P, C): a head may look for its prefix tokens
        prefix = int(getattr(trunk, "num_prefix_tokens", 0))
        states = features[:, prefix:].reshape(-1, 1, features.shape[-1])
        alone = states.expand(-1, prefix + 1, -1)
    elif getattr(trunk, "output_fmt", "NCHW") == "NHWC":
        alone = features.reshape(-1, 1, 1, features.shape[-1])
    else:
        alone = features.flatten(2).transpose(1, 2).reshape(-1, features.shape[1], 1, 1)
    patches = visual.head(trunk.forward_head(alone))
    return pooled, patches.reshape(batch, -1, patches.shape[-1])
