"""A teacher for losses that compare with it: a copy of the model, or any other model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from compoclip.data.batch import Batch
from compoclip.data.vectors import require_one_width
from compoclip.losses.contract import Features
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import merged_copy
from compoclip.models.text_plan import TextInputs
from compoclip.models.work import CachedAt

T = TypeVar("T")
_AT_ONCE = 64  # images or texts that another model encodes, without --micro-batch


class Vectors(Protocol):
    """The part of an `Embedder` that a teacher needs; vectors are float32 of unit length."""

    @property
    def scale(self) -> float | None: ...

    def images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]: ...

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class ExternalTeacher:
    """Another model as the teacher, of any kind and width.

    It sees the pixels that the student sees, its crop at its resolution, and resizes them itself.

    Args:
        model: The model.
        about: Its name and identity, JSON-ready.
    """

    model: Vectors
    about: Mapping[str, Any]

    def add_to(self, features: Features, batch: Batch, micro_batch: int) -> Features:
        """Add `teacher_image`, `teacher_text` and, if known, `teacher_scale` to a batch's features.

        A stand-in is encoded for a batch without images. micro_batch: images or texts encoded at
        once; 0 is 64. Raises CompoclipError when the model fails, or its images and texts differ in
        width.
        """
        size, like = micro_batch or _AT_ONCE, features.image
        pixels = batch.pixels.permute(0, 2, 3, 1).cpu().numpy()
        pixels = pixels if len(pixels) else np.zeros((1, *pixels.shape[1:]), np.uint8)
        image = _in_parts(self.model.images, [Image.fromarray(array) for array in pixels], size)
        texts = batch.texts or ("",)
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        text = _in_parts(self.model.texts, list(rows), size)[[rows[caption] for caption in texts]]
        require_one_width(image, text, self.about["model"])
        scale = self.model.scale
        return replace(
            features,
            teacher_image=torch.from_numpy(image).to(like.device),
            teacher_text=torch.from_numpy(text).to(like.device),
            teacher_scale=None if scale is None else like.new_tensor(scale),
        )


def _in_parts(
    encode: Callable[[Sequence[T]], NDArray[np.float32]], inputs: Sequence[T], size: int
) -> NDArray[np.float32]:
    return np.concatenate([encode(inputs[k : k + size]) for k in range(0, len(inputs), size)])


class TeacherEncoder(DualEncoder):
    """An untrained copy of an encoder, which may follow the encoder as a moving average.

    Adapters are merged into its weights. It is always in eval mode: no dropout, no batch
    statistics. student: the encoder, before its first step. decay: see `methods.base.Teacher`.
    """

    def __init__(self, student: DualEncoder, decay: float) -> None:
        self.decay = decay
        self._followed: dict[str, Tensor] | None = None  # what may differ from the student's
        super().__init__(merged_copy(student.model).requires_grad_(False))
        self.train()

    def train(self, mode: bool = True) -> TeacherEncoder:
        """Stay in eval mode."""
        super().train(False)
        # But for the switch that says which way blocks go: the student's, so that both give the
        # same to the last bit as long as their weights are the same. Layers have their own.
        self.model.get_submodule("visual").training = True
        return self

    def add_to(
        self,
        student: DualEncoder,
        features: Features,
        pixels: Tensor,
        texts: TextInputs,
        micro_batch: int,
        cached_at: CachedAt = "",
    ) -> Features:
        """Add `teacher_image`, `teacher_text` and `teacher_scale`, without gradient, to features.

        student: the original of the copy; features of a frozen tower are the teacher's too, and are
        not computed again. pixels, micro_batch, cached_at: see `DualEncoder.work`.
        """
        image, text = features.image.detach(), features.text.detach()
        with torch.no_grad():
            if student.learns("image"):
                pooled = self.image_work(pixels, False, micro_batch, cached_at).all().pooled
                image = F.normalize(pooled.float(), dim=-1)
            if student.learns("text"):
                pooled = self.text_work(texts).all().pooled
                text = F.normalize(pooled.float(), dim=-1)
            scale = self.logit_scale.exp()
        return replace(features, teacher_image=image, teacher_text=text, teacher_scale=scale)

    @torch.no_grad()
    def follow(self, student: DualEncoder) -> None:
        """Move every weight towards the student's by the share 1 - decay, after each step.

        Skipped steps count too.
        """
        if self.decay == 1:
            return
        if self._followed is None:
            with torch.enable_grad():  # where an adapter learns, its weight has a gradient
                parameters = self.model.named_parameters()
                self._followed = {
                    n: p for n, p in parameters if attrgetter(n)(student.model).requires_grad
                }
        theirs = [attrgetter(name)(student.model) for name in self._followed]
        torch._foreach_lerp_(list(self._followed.values()), theirs, 1 - self.decay)
        for path, module in self.model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for name, buffer in module.named_buffers(recurse=False):
                    buffer.copy_(student.model.get_buffer(f"{path}.{name}"))
