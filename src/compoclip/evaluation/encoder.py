"""The encoder that evaluation needs, and the one over a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compoclip.benchmarks.case import Benchmark, Content, ImageRef
from compoclip.console import track
from compoclip.data.decode import decode
from compoclip.data.members import Members
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import EncodedFeatures, Matches, Scores
from compoclip.models.architecture import Blip
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.config import ModelIdentity, Tower, part_of
from compoclip.models.weights import weights_hash


class TextKey(NamedTuple):
    """A text as the model reads it. key: its tokens, equal for texts the model cannot tell apart.
    length: number of tokens. truncated: whether the text lost words to the context length."""

    key: bytes
    length: int
    truncated: bool


class Encoder(Protocol):
    """A dual encoder as evaluation sees it. Features are unit-length float32.

    `ModelEncoder` is the one for real models.
    """

    @property
    def identity(self) -> ModelIdentity:
        """Everything the features depend on; copied into every result."""

    def tower_weights(self, tower: Tower) -> str:
        """Hash of one tower's weights, which keys its features in the cache."""

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        """One key a text."""

    def encode_texts(self, texts: Sequence[str]) -> Scores:
        """(N, D) for one batch."""

    def read_image(self, ref: ImageRef) -> Any:
        """Decode, crop and preprocess one image; called from several threads.

        Raises CompoclipError naming the file when it is damaged.
        """

    def encode_images(self, images: Sequence[Any]) -> Scores:
        """(N, D) for one batch of what `read_image` returned."""

    def match(self, image: Any, texts: Sequence[str]) -> Scores:
        """(T,) log-odds that each text matches one image of `read_image`, by a matching head.

        Raises UsageError for a model that has none.
        """


# --- The evaluation's view of a loaded model. ---


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while, then the mode that it was in."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


class ModelEncoder:
    """An `Encoder` over a loaded model: evaluation mode, full float32 on every device.

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
        # TF32 convolutions, the default on GPUs, would round patch embeddings to 10 bits
        exactly = torch.backends.cudnn.flags(allow_tf32=False)
        with evaluating(self._loaded.encoder), torch.inference_mode(), exactly:
            yield

    def _finite(self, features: Scores) -> Scores:
        if not np.isfinite(features).all():
            raise CompoclipError(
                f"{self._loaded.name}: the model yields features that are not finite numbers; its "
                "weights are damaged or training diverged: use another checkpoint"
            )
        return features


# --- Scores of pairs by a matching head (BLIP's ITM): every pair of a case is encoded together. ---

Score = Literal["itc", "itm"]


def require_pairs(benchmarks: Sequence[Benchmark]) -> None:
    """Raise UsageError, naming the benchmark, where not every item is of few images and texts."""
    for each in benchmarks:
        if not all(FORMS[form].in_pairs for form in each.content.forms):
            raise UsageError(
                f"{each.name}: a matching head scores the pairs of items (choice, group, triple); "
                "measure retrieval, classification and texts alone with --score itc"
            )


def with_matches(
    encoder: Encoder, contents: Sequence[Content], features: EncodedFeatures, batch_size: int
) -> EncodedFeatures:
    """`features` with the scores of all pairs of the cases in `contents`, each distinct one once.

    batch_size: texts that are encoded at once with an image, whose own states are computed once.
    Pairs with a damaged image are left out, as their cases are. Raises what `encoder.match` raises.
    """
    texts: dict[int, dict[int, str]] = {}
    image_of: dict[int, ImageRef] = {}
    for case in (case for content in contents for case in content.cases):
        for ref in case.images:
            if ref in features.bad:
                continue
            row = features.image_rows[ref]
            image_of.setdefault(row, ref)
            wanted = texts.setdefault(row, {})
            for text in case.texts:
                wanted.setdefault(features.text_rows[text], text)
    count = len(features.texts)
    keys: list[int] = []
    values: list[np.ndarray] = []
    for row in track(sorted(image_of), "matching pairs", len(image_of), "images"):
        image = encoder.read_image(image_of[row])
        columns = sorted(texts[row])
        for start in range(0, len(columns), batch_size):
            part = columns[start : start + batch_size]
            values.append(encoder.match(image, [texts[row][column] for column in part]))
            keys += [row * count + column for column in part]
    found = np.concatenate(values) if values else np.zeros(0, dtype=np.float32)
    return replace(features, matches=Matches(np.array(keys, dtype=np.int64), found, count))
