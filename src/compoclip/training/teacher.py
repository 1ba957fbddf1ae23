"""A teacher: a copy of the model beside the one that learns, for losses that compare the two."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from compoclip.losses.contract import Features
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import merged_copy
from compoclip.models.text_plan import TextInputs
from compoclip.models.work import KeptAt


class TeacherEncoder(DualEncoder):
    """A copy of an encoder as it is now, which nothing trains and which may follow the encoder.

    Its weights are the plain ones that the encoder computes with: adapters are merged. It never
    drops anything out and never takes statistics of a batch.

    Args:
        student: The encoder, before its first step.
        decay: See `compoclip.methods.base.Teacher`.
    """

    def __init__(self, student: DualEncoder, decay: float) -> None:
        self.decay = decay
        self._followed: dict[str, Tensor] | None = None  # what may differ from the student's
        super().__init__(merged_copy(student.model).requires_grad_(False))
        self.train()

    def train(self, mode: bool = True) -> TeacherEncoder:
        """Stay in eval mode, whatever the encoder around it does."""
        super().train(False)
        # But for the switch that says which way blocks go: the student's, so that both give the
        # same to the last bit as long as their weights are the same. Layers have their own.
        self.model.get_submodule("visual").training = True
        return self

    def beside(
        self,
        student: DualEncoder,
        features: Features,
        pixels: Tensor,
        texts: TextInputs,
        micro_batch: int,
        kept: KeptAt = "",
    ) -> Features:
        """A student's features of a batch, with those of the teacher beside them.

        Args:
            student: What the teacher is a copy of. A tower of it in which nothing learns is the
                teacher's as well, and is not encoded again.
            features: Of the student.
            pixels: (B, 3, H, W) normalised pixels, or what `kept` says.
            texts: The texts of the batch.
            micro_batch: As `kept`, see `DualEncoder.work`.
            kept: See there.

        Returns:
            The features with `teacher_image` and `teacher_text`, which carry no gradient.
        """
        image, text = features.image.detach(), features.text.detach()
        with torch.no_grad():
            if student._learns("image"):
                pooled = self.image_work(pixels, False, micro_batch, kept).all().pooled
                image = F.normalize(pooled.float(), dim=-1)
            if student._learns("text"):
                pooled = self.text_work(texts).all().pooled
                text = F.normalize(pooled.float(), dim=-1)
        return replace(features, teacher_image=image, teacher_text=text)

    @torch.no_grad()
    def follow(self, student: DualEncoder) -> None:
        """Move every weight by 1 - decay of its way to the student's, after a step of that one.

        A step that was not taken counts as one, too: the student is where it was.
        """
        if self.decay == 1:
            return
        if self._followed is None:
            parameters = self.model.named_parameters()
            self._followed = {n: p for n, p in parameters if _learns(student.model, n)}
        theirs = [_weight(student.model, name) for name in self._followed]
        torch._foreach_lerp_(list(self._followed.values()), theirs, 1 - self.decay)
        for path, module in self.model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for name, buffer in module.named_buffers(recurse=False):
                    buffer.copy_(student.model.get_buffer(f"{path}.{name}"))


def _weight(network: nn.Module, name: str) -> Tensor:
    """A weight as the network computes with it: with its adapter, if it has one."""
    path, _, leaf = name.rpartition(".")
    weight: Tensor = getattr(network.get_submodule(path), leaf)
    return weight


def _learns(network: nn.Module, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    module = network.get_submodule(path)
    if parametrize.is_parametrized(module, leaf):
        chain = module.get_submodule(f"parametrizations.{leaf}")
        return any(parameter.requires_grad for parameter in chain.parameters())
    return _weight(network, name).requires_grad
