"""The image tower: open_clip's ViTs, ResNets and timm models, with one vector per patch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from compoclip.errors import CompoclipError, UsageError
from compoclip.models.blocks import (
    AS_WRITTEN,
    is_plain,
    run_blocks,
    under_autocast,
    within_rows,
)
from compoclip.models.config import Tower
from compoclip.models.work import CachedAt, Outputs, Work, joined


@dataclass(frozen=True)
class ImageFeatures:
    """Features of images, not normalised: pooled (B, D), and on request patches (B, P, D)."""

    pooled: Tensor
    patches: Tensor | None = None


class ImageTower:
    """A view of the image half of an open_clip model; owns no parameters.

    Patches go through *the same projection as the pooled feature*, position by position:

    - VisionTransformer: states of the last block without class token, `ln_post`, times `proj`.
    - ModifiedResNet: position p of the last feature map as its attention pool projects it,
      c_proj(v_proj(x_p + positional_embedding[p + 1])): what the pooled feature would be if the
      pool attended to p alone.
    - timm trunks (ViT-like, Swin, MobileNet, ConvNeXt, ...): every position of the last feature map
      goes through the trunk's and the adapter's head as if it were the only position of an image,
      so pooling does nothing, and a tower that pools by plain average before a linear head has
      patches whose mean is the pooled feature. In a trunk that pools by attention (SigLIP) that is
      the value and output projection of the pool, and its MLP.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._compiled: Callable[[Tensor, bool], Outputs] | None = None
        self._halves = AS_WRITTEN

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
                f"{purpose} need patch features and this image tower has none ({reason}): choose "
                f"another model or do without {purpose}"
            )

    @property
    def has_trunk(self) -> bool:
        """Return whether the tower ends with a projection of features that can be had alone."""
        visual = self._visual
        if isinstance(visual, TimmModel):
            had = {name for name, _ in visual.head.named_children()} & {"pool", "proj", "mlp"}
            return bool(had) and "pool" not in had
        return isinstance(visual, VisionTransformer) and visual.proj is not None

    def require_trunk(self) -> None:
        """Raise UsageError when features before the last projection cannot be had: the tower ends
        with an attention pool, or with no projection of its own."""
        if not self.has_trunk:
            raise UsageError(
                "features of a frozen image trunk cannot be cached: this tower "
                f"({type(self._visual).__name__}) does not end with a projection that could be "
                "put on them; freeze all of it (--freeze image), or leave --cache-frozen out"
            )

    def work(
        self, pixels: Tensor, patches: bool = False, limit: int = 0, cached_at: CachedAt = ""
    ) -> Work[ImageFeatures]:
        """How (B, 3, H, W) pixels are encoded: `limit` images a micro-batch, or all at once for 0.

        Cached features of images, (B, 1 + P, C) of `cached_features`, may stand for pixels.
        Raises CompoclipError when patches are impossible.
        """
        if patches:
            self.require_local()
        encode = partial(self._from_cached, cached_at=cached_at) if cached_at else self._run
        parts = torch.split(pixels, limit or len(pixels))

        def join(outputs: Sequence[Outputs]) -> ImageFeatures:
            return ImageFeatures(*map(joined, zip(*outputs)))

        encodes = tuple(partial(encode, part, patches) for part in parts)
        return Work(encodes, join, tuple(True for _ in encodes))

    def _run(self, pixels: Tensor, patches: bool) -> Outputs:
        # A compiled tower does not see hooks that were put on its modules after it was compiled.
        if self._compiled and not any(m._forward_hooks for m in self._visual.modules()):
            return self._compiled(pixels, patches)
        return self._encode(pixels, patches)

    def cached_features(self, pixels: Tensor, patches: bool, at: CachedAt) -> Tensor:
        """(B, 1 + P, C): the pooled features, then the patches' if asked; before the last
        projection ("trunk") or after it ("tower")."""
        if isinstance(self._visual, ModifiedResNet):  # convolves faster so
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        trunk = at == "trunk"
        outputs = self._states(pixels, patches, True) if trunk else self._encode(pixels, patches)
        pooled, *states = outputs
        return torch.cat([pooled[:, None], *states], dim=1)

    def _from_cached(self, features: Tensor, patches: bool, cached_at: CachedAt) -> Outputs:
        if not patches:
            features = features[:, :1]
        if cached_at == "trunk":
            (features,) = self._project(features)
        pooled = features[:, 0]
        return (pooled, features[:, 1:]) if patches else (pooled,)

    def compile(self) -> None:
        """Compile the tower, anew for every size of a batch until it is seen to vary: of a usual
        vision transformer one block, which serves for all."""
        visual = self._visual
        if isinstance(visual, VisionTransformer) and _runs_packed(visual):
            self._halves = AS_WRITTEN.compiled()
        else:
            self._compiled = torch.compile(self._encode)

    def _encode(self, pixels: Tensor, patches: bool) -> Outputs:
        visual = self._visual
        # In training, for the sake of the gradients; evaluation stays open_clip's to the last bit.
        ours = visual.training or self._halves is not AS_WRITTEN
        resnet = isinstance(visual, ModifiedResNet)
        if resnet and (visual.training or under_autocast(pixels.device)):  # convolves faster so
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        packed = ours and isinstance(visual, VisionTransformer) and _runs_packed(visual)
        if not patches and not packed:
            pooled = visual(pixels)  # some towers add tokens
            return (pooled[0] if isinstance(pooled, tuple) else pooled,)
        if not resnet:
            return self._project(*self._states(pixels, patches, ours))
        out, pool = visual.forward_intermediates(pixels, indices=1), visual.attnpool
        positions = out["image_intermediates"][-1].flatten(2).transpose(1, 2)
        positions = positions + pool.positional_embedding[1:].to(positions.dtype)
        # As rows: of turned positions the multiplication would copy its weights for every image.
        return out["image_features"], pool.c_proj(pool.v_proj(positions.contiguous()))

    def _project(self, *states: Tensor) -> Outputs:
        """Put the last projection of a ViT or a timm model on states."""
        visual = self._visual
        if isinstance(visual, TimmModel):
            return tuple(map(visual.head, states))
        return states if visual.proj is None else tuple(state @ visual.proj for state in states)

    def _states(self, pixels: Tensor, patches: bool, ours: bool) -> Outputs:
        """Return what the projection takes: the pooled state, and the state of each position."""
        visual = self._visual
        if isinstance(visual, VisionTransformer):
            x = visual._embeds(pixels)
            if ours and _runs_packed(visual):
                blocks, recompute = visual.transformer.resblocks, torch.is_grad_enabled()
                recompute = recompute and visual.transformer.grad_checkpointing
                x = run_blocks(blocks, x, within_rows, self._halves, recompute)
            else:
                x = visual.transformer(x)
            pooled, _ = visual._pool(x)
            return (pooled, visual.ln_post(x)[:, 1:]) if patches else (pooled,)
        trunk = visual.trunk
        features = trunk.forward_features(pixels)
        pooled = trunk.forward_head(features)
        if not patches:
            return (pooled,)
        if features.ndim == 3:  # (B, prefix + P, C): a head may look for its prefix tokens
            prefix = int(getattr(trunk, "num_prefix_tokens", 0))
            positions = features[:, prefix:].reshape(-1, 1, features.shape[-1])
            alone = positions.expand(-1, prefix + 1, -1)
        elif getattr(trunk, "output_fmt", "NCHW") == "NHWC":
            alone = features.reshape(-1, 1, 1, features.shape[-1])
        else:
            alone = features.flatten(2).transpose(1, 2).reshape(-1, features.shape[1], 1, 1)
        states = trunk.forward_head(alone)
        return pooled, states.reshape(len(features), -1, states.shape[-1])


def _runs_packed(visual: VisionTransformer) -> bool:
    """Return whether the tower consists of open_clip's usual blocks, on rows of positions."""
    return visual.transformer.batch_first and all(map(is_plain, visual.transformer.resblocks))


def projection_of(network: nn.Module, tower: Tower) -> tuple[str, ...]:
    """Return the last projection of a tower: names in the state dict, of parameters or of modules.

    Empty for a tower that has none of its own, such as one that ends with an attention pool.
    """
    names = [name for name, _ in network.named_parameters()]
    visual: Any = network.visual
    if tower == "text":
        names_by_kind: tuple[str, ...] = ("text_projection", "text.text_projection", "text.proj")
    elif isinstance(visual, ModifiedResNet):
        names_by_kind = ("visual.attnpool.c_proj",)
    elif isinstance(visual, TimmModel):
        # open_clip's own head, else the trunk's classifier, which it has made one of embeddings.
        names_by_kind = ("visual.head.proj", "visual.head.mlp")
        if not any(n.startswith("visual.head.") for n in names):
            head = visual.trunk.get_classifier()
            names_by_kind = tuple(n for n, module in network.named_modules() if module is head)
    else:
        names_by_kind = ("visual.proj",)
    return tuple(p for p in names_by_kind if any(n == p or n.startswith(f"{p}.") for n in names))
