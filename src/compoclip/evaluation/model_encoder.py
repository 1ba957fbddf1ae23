"""The evaluation's view of a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from compoclip.benchmarks.case import ImageRef
from compoclip.data.decode import decode
from compoclip.data.members import Members
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import TextKey
from compoclip.evaluation.outcomes import Scores
from compoclip.models.blip import Blip
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.parts import Tower, part_of
from compoclip.models.weights import weights_hash


class ModelEncoder:
    """An `encoder.Encoder` over a loaded model: evaluation mode, full float32 on every device.

    The identity is taken when it is made: weights that train on need a new ModelEncoder.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._members = Members()
        self.identity = current_identity(loaded)

    def tower_weights(self, tower: Tower) -> str:
        """Hash of the tower's parameters and buffers."""
        state = self._loaded.encoder.model.state_dict()
        return weights_hash({name: v for name, v in state.items() if part_of(name) == tower})

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        """Tokens up to the last one that is not padding."""
        keys = []
        for text, row in zip(texts, self._loaded.tokenizer(texts).numpy()):
            used = row.nonzero()[0]
            length = int(used[-1]) + 1 if len(used) else 0
            cut = self._loaded.tokenizer.truncated([text]) > 0
            keys.append(TextKey(row[:length].astype("<i4").tobytes(), length, cut))
        return keys

    def encode_texts(self, texts: Sequence[str]) -> Scores:
        """(N, D)."""
        ids = self._loaded.tokenizer(texts)
        return self._features(lambda: self._loaded.encoder.encode_texts(ids).pooled)

    def read_image(self, ref: ImageRef) -> Tensor:
        """(3, H, W) pixels by the model's own evaluation transform, after the crop.

        A squashed image is resized to the model's size without keeping its shape.
        """
        stored = self._members(ref.path, ref.member) if ref.member else ref.path
        image = decode(stored, box=ref.box, name=ref.photo)
        preprocess = self._loaded.preprocess
        if ref.squash:
            preprocess = replace(preprocess, resize_mode="squash")
        return preprocess.evaluation(image)

    def encode_images(self, images: Sequence[Tensor]) -> Scores:
        """(N, D)."""
        encoder = self._loaded.encoder
        pixels = torch.stack(list(images)).to(encoder.device)
        return self._features(lambda: encoder.encode_images(pixels).pooled)

    def match(self, image: Tensor, texts: Sequence[str]) -> Scores:
        """(T,) of one image with each text. Raises UsageError for a model without such a head."""
        encoder, network = self._loaded.encoder, self._loaded.encoder.model
        if not isinstance(network, Blip):
            raise UsageError(
                f"{self._loaded.name}: has no head that matches pairs (BLIP has): --score itc"
            )
        ids = self._loaded.tokenizer(texts).to(encoder.device)
        with self._evaluating():
            states = network.visual.states(image[None].to(encoder.device))
            scores = network.match(states.expand(len(ids), -1, -1), ids).float().cpu().numpy()
        return self._finite(scores)

    def _features(self, compute: Callable[[], Tensor]) -> Scores:
        with self._evaluating():
            features: Scores = F.normalize(compute().float(), dim=-1).cpu().numpy()
        return self._finite(features)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        encoder = self._loaded.encoder
        training = encoder.training
        encoder.eval()
        try:
            # TF32 convolutions, the default on GPUs, would round patch embeddings to 10 bits
            with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
                yield
        finally:
            encoder.train(training)

    def _finite(self, features: Scores) -> Scores:
        if not np.isfinite(features).all():
            raise CompoclipError(
                f"{self._loaded.name}: the model yields features that are not finite numbers; its "
                "weights are damaged or training diverged: use another checkpoint"
            )
        return features
