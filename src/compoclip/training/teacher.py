"""A teacher: a copy of the model for losses that compare both."""

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
    """An untrained copy of an encoder, which may follow the encoder as a moving average.

    Adapters are merged into its weights. It is always in eval mode: no dropout, no batch
    statistics.

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
        """Stay in eval mode."""
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
        """Add the teacher's features to the student's features of a batch.

        Args:
            student: The original of the copy. The features of a frozen tower are the teacher's too,
                and are not computed again.
            features: Features of the student.
            pixels: (B, 3, H, W) normalised pixels, or cached features (see `kept`).
            texts: The texts of the batch.
            micro_batch: See `DualEncoder.work`.
            kept: See `DualEncoder.work`.

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
        """Move every weight towards the student's by the share 1 - decay, after each step.

        Skipped steps count too.
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
