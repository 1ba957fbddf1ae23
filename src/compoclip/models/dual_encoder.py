"""The dual encoder: a faster forward pass over open_clip's parameters, with local features."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Features, TowerSizes
from compoclip.models.architecture import require_compiler
from compoclip.models.config import Part, Tower, part_of
from compoclip.models.image_tower import ImageFeatures, ImageTower
from compoclip.models.lora import lora_state
from compoclip.models.text_plan import TextInputs, TextPlanner
from compoclip.models.text_tower import TextFeatures, TextTower
from compoclip.models.work import CachedAt, MicroBatch, Outputs, Work, together

T = TypeVar("T")
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class DualEncoder(nn.Module):
    """An open_clip model (CLIP, CustomTextCLIP) with its state dict unchanged.

    Outputs equal open_clip's to float32 rounding.

    A tower without a trainable parameter is encoded without gradient. Frozen modules stay in eval
    mode: dropout and running statistics change in trained modules only.

    Attributes:
        model: The open_clip model: `encoder.model.state_dict()` has plain open_clip keys.
        freeze_bn: Keep every batch norm in eval mode, for towers whose running statistics are not
            statistics of the data (folded batch norms).
        recomputes: Whether activations are recomputed in the backward pass.
        teacher: The teacher of a method during training, a copy or not; not part of the model.
        heads: Heads that train with the model, by name; not part of it.
    """

    def __init__(self, model: nn.Module, freeze_bn: bool = False) -> None:
        super().__init__()
        self.model = model
        self.freeze_bn = freeze_bn
        self.recomputes = False
        self.heads = nn.ModuleDict()
        self.teacher: object = None
        self.train(model.training)

    @cached_property
    def image_tower(self) -> ImageTower:
        """Return the view of the image half of the network."""
        return ImageTower(self.model)

    @cached_property
    def text_tower(self) -> TextTower:
        """Return the view of the text half of the network."""
        return TextTower(self.model)

    @property
    def logit_scale(self) -> nn.Parameter:
        """Return the logarithm of the scale."""
        parameter = self.model.logit_scale
        assert isinstance(parameter, nn.Parameter)
        return parameter

    @property
    def logit_bias(self) -> nn.Parameter | None:
        """Return the learnable bias of the logits (SigLIP), or None."""
        bias: nn.Parameter | None = getattr(self.model, "logit_bias", None)
        return bias

    @property
    def learner(self) -> nn.Module:
        """Return the module for optimisers and training states: the network, or this encoder if it
        has heads or a copy as teacher."""
        return self if self.heads or isinstance(self.teacher, nn.Module) else self.model

    @property
    def sizes(self) -> TowerSizes:
        """Return the sizes that heads need. Raises CompoclipError without text states."""
        text = self.text_tower
        with torch.no_grad():
            joint = text.project(self.logit_scale.new_zeros(1, text.width)).shape[1]
        sizes = TowerSizes(text.width, joint, text.vocabulary)
        if isinstance(visual := self.model.visual, VisionTransformer):
            width, *patch = visual.conv1.weight.shape
            sizes = sizes._replace(image=width, patch=math.prod(patch))
        return sizes

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return self.logit_scale.device

    def train(self, mode: bool = True) -> DualEncoder:
        """Like `nn.Module.train`, but frozen parts stay in eval mode: modules without a trainable
        parameter, with their children, and all batch norms if `freeze_bn`.
        """
        super().train(mode)
        for module in self.model.modules() if mode else ():
            batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
            learns = [parameter.requires_grad for parameter in module.parameters()]
            if (batch_norm and self.freeze_bn) or (learns and not any(learns)):
                module.eval()
        return self

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute activations in the backward pass, in both towers. open_clip supports it for
        transformers and most timm trunks; a ModifiedResNet ignores it."""
        self.model.set_grad_checkpointing(enable)  # type: ignore[operator]
        self.recomputes = enable
        if enable:  # blocks are computed again outside of `attention_kernels`
            torch.backends.cuda.enable_cudnn_sdp(False)

    def compile_towers(self) -> tuple[Tower, ...]:
        """Compile both towers (`torch.compile`), from the next call on; return the compiled ones.

        A text tower needs open_clip's usual causal blocks. Raises CompoclipError without a working
        compiler for the model's device, UsageError for a network with adapters.
        """
        if lora_state(self.model):
            raise UsageError(
                "--compile knows no adapters (they are merged at every step): leave one out"
            )
        require_compiler(self.device)
        self.image_tower.compile()
        return ("image", "text") if self.text_tower.compile() else ("image",)

    def require_local(self, purpose: str = "local losses", tower: Tower | None = None) -> None:
        """Raise CompoclipError, naming the `purpose`, if a tower has no patch or token features.
        tower: check this tower only."""
        if tower != "text":
            self.image_tower.require_local(purpose)
        if tower != "image":
            self.text_tower.require_local(purpose)

    def encode_images(self, pixels: Tensor, patches: bool = False) -> ImageFeatures:
        """Encode (B, 3, H, W) normalised pixels on the model's device.

        patches: return projected patches too, see `ImageTower`. Raises CompoclipError for a tower
        without them.
        """
        return self.image_work(pixels, patches).all()

    def encode_texts(
        self, ids: Tensor, tokens: bool = False, deduplicate: bool = True
    ) -> TextFeatures:
        """Encode texts.

        Args:
            ids: (T, context) int64 token ids. Ids on the CPU are fastest: the layout is planned
                there, without waiting for a device.
            tokens: Return projected tokens and their mask too.
            deduplicate: Encode equal rows once; False is for timing.

        Raises:
            CompoclipError: The tower has no token features, or `ids` are malformed.
        """
        return self.text_work(self._inputs(ids, deduplicate), tokens).all()

    @torch.no_grad()
    def text_states(self, ids: Tensor, micro_batch: int = 0) -> Tensor:
        """Return the inputs of the text projection, without gradient: (T, W) the state of each text
        at EOT, after the last LayerNorm. Raises CompoclipError for a tower without such a state."""
        states = self.text_work(self._inputs(ids, True, micro_batch), state=True).all().state
        assert states is not None
        return states

    def text_planner(self, micro_batch: int = 0) -> TextPlanner:
        """Return a planner of the text tower's inputs, for workers. micro_batch: see `work`."""
        return self.text_tower.planner(self.device, micro_batch)

    def features(self, pixels: Tensor, ids: Tensor, local: bool = False) -> Features:
        """Encode images and texts into the features for losses.

        local: return patches, tokens and token mask too (float32, not normalised). Features are
        float32 of unit length.
        """
        return self.work(pixels, ids, local).all()

    @torch.no_grad()
    def cached_features(self, pixels: Tensor, patches: bool, at: CachedAt) -> Tensor:
        """Encode images with the frozen part of the tower; `work` continues from the result.

        (B, 1 + P, C) the pooled feature of each image, then its patches (P = 0 without). at:
        "trunk" before the last projection, "tower" after it.
        """
        if patches:
            self.image_tower.require_local()
        if at == "trunk":
            self.image_tower.require_trunk()
        with attention_kernels(self.device):
            return self.image_tower.cached_features(pixels, patches, at)

    def work(
        self,
        pixels: Tensor,
        ids: Tensor | TextInputs | Work[TextFeatures],
        local: bool = False,
        micro_batch: int = 0,
        patches: bool = False,
        state: bool = False,
        cached_at: CachedAt = "",
    ) -> Work[Features]:
        """Split `features` into pieces that can be computed one by one.

        Args:
            pixels: (B, 3, H, W) normalised pixels, or cached features (see `cached_at`).
            ids: (T, context) int64 token ids, or the plan of `text_planner`, already in pieces, on
                the model's device; or texts that something else encodes.
            local: As for `features`.
            micro_batch: Images per piece, and texts with at most as many positions as this number
                of full-length texts; 0 is one piece per tower.
            patches: Return patches even without tokens.
            state: Return text states too (float32, not normalised).
            cached_at: The `at` of `cached_features` if its result replaces pixels.
        """
        image = self.image_work(pixels, local or patches, micro_batch, cached_at)
        if isinstance(ids, Tensor):
            ids = self._inputs(ids, True, micro_batch)
        text = ids if isinstance(ids, Work) else self.text_work(ids, local, state)

        def join(pictures: ImageFeatures, read: TextFeatures) -> Features:
            bias = self.logit_bias
            return Features(
                image=F.normalize(pictures.pooled.float(), dim=-1),
                text=F.normalize(read.pooled.float(), dim=-1),
                logit_scale=self.logit_scale.float().exp().reshape(()),
                patches=None if pictures.patches is None else pictures.patches.float(),
                tokens=None if read.tokens is None else read.tokens.float(),
                token_mask=read.token_mask,
                logit_bias=None if bias is None else bias.float().reshape(()),
                text_state=None if read.state is None else read.state.float(),
            )

        return together(join, image, text)

    def image_work(
        self,
        pixels: Tensor,
        patches: bool = False,
        limit: int = 0,
        cached_at: CachedAt = "",
        learns: bool = False,
    ) -> Work[ImageFeatures]:
        """Return the image part of `work`. learns: whether an addition of the method in the tower
        learns, even if the tower is frozen."""
        learns = learns or pixels.requires_grad or self.learns("image")
        work = self.image_tower.work(pixels, patches, limit, cached_at)
        return work.within(lambda encode: self._run(encode, learns), learns)

    def _inputs(self, ids: Tensor, deduplicate: bool, micro_batch: int = 0) -> TextInputs:
        if ids.ndim != 2 or ids.dtype != torch.int64 or len(ids) == 0:
            raise CompoclipError(
                "text ids must be a (texts, context) int64 tensor with at least one text, not "
                f"{tuple(ids.shape)} {ids.dtype}"
            )
        inputs = self.text_planner(micro_batch).inputs(ids.cpu(), deduplicate)
        return inputs.mapped(lambda tensor: tensor.to(self.device, non_blocking=True))

    def text_work(
        self, texts: TextInputs, tokens: bool = False, state: bool = False, learns: bool = False
    ) -> Work[TextFeatures]:
        """Return the text part of `work`, of texts on the model's device. learns: see
        `image_work`."""
        learns = learns or self.learns("text")
        work = self.text_tower.work(texts, tokens, state)
        return work.within(lambda encode: self._run(encode, learns), learns)

    def _run(self, encode: MicroBatch, learns: bool) -> Outputs:
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and learns),
            attention_kernels(self.device),
            # Adapted weights are computed once, not at every use. When backward computes blocks
            # again it needs their weights again, outside of this block: then at every use.
            nullcontext() if self.recomputes else parametrize.cached(),
        ):
            return encode()

    def learns(self, part: Part) -> bool:
        """Return whether a parameter of the part is trained."""
        parameters = self.model.named_parameters()
        return any(p.requires_grad and part_of(name) == part for name, p in parameters)


# --- What a method may bring: a further pass of a batch through the towers. ---


@dataclass(frozen=True)
class PassInputs:
    """The inputs of a further pass of a batch.

    Attributes:
        encoder: The towers.
        pixels: (B, 3, H, W), on the encoder's device.
        texts: The inputs of the text tower; `again` is what workers prepared for the pass.
        plan: The texts of the method, as a plan.
        batch: The batch with its texts.
        local: Whether losses read patches and tokens.
        micro_batch: See `DualEncoder.work`.
    """

    encoder: DualEncoder
    pixels: Tensor
    texts: TextInputs
    plan: Any
    batch: Any
    local: bool
    micro_batch: int


class ExtraPass(Protocol):
    """A module, among the heads of an encoder, that adds a pass to the work of a batch."""

    def extend(self, work: Work[Features], inputs: PassInputs) -> Work[Features]:
        """Return the work with the pass added (`together`)."""
        ...


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """On a CUDA device, attention by the kernels that need no plan for a shape.

    cuDNN, which torch prefers on recent GPUs, plans anew for every new number and length of texts,
    and nearly every batch has new ones: tenths of a second each.
    """
    return sdpa_kernel(_KERNELS) if device.type == "cuda" else nullcontext()
