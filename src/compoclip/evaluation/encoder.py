"""The interface of encoders for evaluation, and its implementation for a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from compoclip.archives import Members
from compoclip.benchmarks.case import ImageRef
from compoclip.data.transform import normalised
from compoclip.errors import NOT_FINITE, UsageError, require
from compoclip.evaluation.items import Scores
from compoclip.losses.local import local_similarity, max_similarity
from compoclip.models.architecture import Blip
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.config import ModelIdentity, Tower, part_of
from compoclip.models.plain_text import PlainText, PlainTower
from compoclip.models.preprocess import Preprocess
from compoclip.models.tokenizer import Tokenizer
from compoclip.models.weights import weights_hash
from compoclip.ranks import mark

Precision = Literal["fp32", "bf16"]
_ROUNDING = 1e-5  # by which features of numpy and of torch differ at most
_LOCAL: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "local": local_similarity,
    "maxsim": max_similarity,
}
Pending = Callable[[], Scores]
"""Call to wait for features (N, D) that a device may still be computing."""


class Identity(Protocol):
    """Identity of a model: `ModelIdentity`, or `ExternalIdentity`."""

    @property
    def weights(self) -> str:
        """Return a hash of the weights."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""


class TextKey(NamedTuple):
    """A text as the model reads it. key: its tokens, equal for texts with equal features.
    length: number of tokens. truncated: whether the text exceeds the context length."""

    key: bytes
    length: int
    truncated: bool


class Encoder(Protocol):
    """Interface of a dual encoder for evaluation. Features are unit-length float32.

    `ModelEncoder` implements it for loaded models.
    """

    @property
    def identity(self) -> Identity:
        """Return everything about the model that features depend on; copied into every result."""

    @property
    def precision(self) -> Precision:
        """Return the precision in which the towers compute. Features depend on it."""

    @property
    def device(self) -> torch.device:
        """Return the device of the features; it decides the batch size."""

    def tower_weights(self, tower: Tower) -> str:
        """Return a hash of one tower's weights, the key of its features in the cache."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Enter the state for computing features, once around many batches."""

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        """Return one key per text."""

    def start_texts(self, texts: Sequence[str]) -> Pending:
        """Start to encode one batch of texts."""

    def read_image(self, ref: ImageRef) -> Any:
        """Decode, crop and resize one image; raise CompoclipError naming a damaged file.

        Called from several threads, and pickled where processes read.
        """

    def start_images(self, images: Sequence[Any]) -> Pending:
        """Start to encode one batch of results of `read_image`."""

    def match(self, images: Sequence[Any], texts: Sequence[str], score: str) -> Scores:
        """Return (N,) scores of N pairs, each an image of `read_image` and a text.

        score: as `--score` names it. Raises UsageError for a model without such a score.
        """


def described(encoder: Encoder) -> dict[str, Any]:
    """Return all that features depend on: the identity's fields, and a precision below float32."""
    lower = {} if encoder.precision == "fp32" else {"precision": encoder.precision}
    return encoder.identity.to_json() | lower


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Enter evaluation mode; restore the module's mode afterwards."""
    if not any(part.training for part in module.modules()):
        yield
        return
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def require_finite(features: np.ndarray, name: str = "") -> None:
    """Raise CompoclipError, naming the model, unless all features are finite numbers."""
    require(np.isfinite(features).all(), name or "encoding", NOT_FINITE)


@contextmanager
def full_float32() -> Iterator[None]:
    """Compute convolutions and matrix products of float32 in float32, whatever was allowed before.

    TF32, the default of GPUs for convolutions, rounds the factors to 10 bits.
    Other settings, such as the use of cuDNN, do not change; all are restored afterwards.
    """
    backends: Any = torch.backends
    places = []
    if hasattr(backends.cudnn, "conv"):  # before torch 2.9 there are the older switches alone
        places = [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul]
        places += [backends.mkldnn.conv, backends.mkldnn.rnn, backends.mkldnn.matmul]
    before = [place.fp32_precision for place in places]
    try:  # the older switches are set as well, lest reading them inside is refused
        older = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
    except RuntimeError:  # what the newer ones say cannot be said with them
        older = None
    try:
        if older:
            torch.set_float32_matmul_precision("highest")
            backends.cudnn.allow_tf32 = False
        for place in places:
            if place.fp32_precision in ("tf32", "bf16"):
                place.fp32_precision = "ieee"
        yield
    finally:
        if older:
            torch.set_float32_matmul_precision(older[0])
            backends.cudnn.allow_tf32 = older[1]
        for place, value in zip(places, before):
            if place.fp32_precision != value:
                place.fp32_precision = value


class ImageReader:
    """Reads images as a model sees them; pickled to processes, each of which keeps one.

    preprocess: a model's evaluation transform, which gives (H, W, 3) uint8 pixels. None: RGB
    pictures of the size that they have, as models from outside get them.
    """

    def __init__(self, preprocess: Preprocess | None = None) -> None:
        self._preprocess = preprocess
        self._members = Members()  # archives stay open

    def __call__(self, ref: ImageRef) -> Any:
        """Return the image that a reference names; raise CompoclipError if missing or damaged."""
        image = ref.decoded(self._members)
        if self._preprocess is not None:
            return self.pixels(image, ref.squash)
        square = (min(image.size), min(image.size))
        return image.resize(square, Image.Resampling.BICUBIC) if ref.squash else image

    def pixels(self, image: Image.Image, squash: bool = False) -> np.ndarray:
        """Return the pixels of an RGB image of any size; squash: without keeping its shape."""
        preprocess = self._preprocess
        assert preprocess is not None
        if squash:
            preprocess = replace(preprocess, resize_mode="squash")
        return np.asarray(preprocess.framed(image))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reader, (self._preprocess,)


@cache
def _reader(preprocess: Preprocess | None) -> ImageReader:
    """Return the reader of this process, whose archives stay open from task to task."""
    return ImageReader(preprocess)


class ModelEncoder:
    """An `Encoder` over a loaded model, in evaluation mode.

    The identity, which hashes all weights, is computed on first use and cached: weights that change
    later need a new ModelEncoder. Encoding does not compute it.
    Precision "fp32" is full float32 on every device; "bf16" runs the towers under autocast.
    """

    def __init__(self, loaded: LoadedModel, precision: Precision = "fp32") -> None:
        self._loaded = loaded
        # Pixels go to the device by way of two buffers in turn: one is filled while the other is
        # copied. For a GPU they are page-locked, so that nothing waits for the copy.
        self._buffers: list[tuple[Tensor | None, torch.cuda.Event | None]] = [(None, None)] * 2
        self._entered = False
        self.read_image = ImageReader(loaded.preprocess)
        self.precision = precision

    @cached_property
    def identity(self) -> ModelIdentity:
        """Return the identity, with the weights at the time of the first call."""
        return current_identity(self._loaded)

    @property
    def device(self) -> torch.device:
        """Return the device of the model's parameters."""
        return self._loaded.encoder.device

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._loaded.tokenizer

    def tower_weights(self, tower: Tower) -> str:
        """Return a hash of the tower's parameters and buffers."""
        state = self._loaded.encoder.model.state_dict()
        return weights_hash({name: v for name, v in state.items() if part_of(name) == tower})

    def text_tower(self) -> PlainTower | None:
        """Return where texts can be encoded from without torch, with the same features.

        None for a text tower of another kind than `PlainText` computes, and for weights that are
        not on the disk as they are here.
        """
        if self.identity.weights != self._loaded.identity.weights:
            return None
        tower = PlainTower.of(self._loaded)
        if tower is None:
            return None
        probe = ["a photo of a dog"]
        features = PlainText(tower).encode_texts(probe)
        same = np.allclose(features, self.encode_texts(probe), rtol=0, atol=_ROUNDING)
        return tower if same else None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Enter evaluation mode, no gradients, full float32; nested calls do nothing."""
        if self._entered:
            yield
            return
        with evaluating(self._loaded.encoder), torch.inference_mode(), full_float32():
            self._entered = True
            try:
                yield
            finally:
                self._entered = False

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        """Return the tokens of each text without padding."""
        keys = []
        for text, row in zip(texts, self._loaded.tokenizer(texts).numpy()):
            used = row.nonzero()[0]
            length = int(used[-1]) + 1 if len(used) else 0
            cut = self._loaded.tokenizer.truncated([text]) > 0
            keys.append(TextKey(row[:length].astype("<i4").tobytes(), length, cut))
        return keys

    def encode_texts(self, texts: Sequence[str]) -> Scores:
        """Return the features of one batch, (N, D)."""
        return self.start_texts(texts)()

    def start_texts(self, texts: Sequence[str]) -> Pending:
        """Start to encode one batch of texts; see `Encoder`."""
        ids = self._loaded.tokenizer(texts)
        return self._start(lambda: self._loaded.encoder.encode_texts(ids).pooled)

    def encode_images(self, images: Sequence[np.ndarray]) -> Scores:
        """Return the features (N, D) of one batch of results of `read_image`."""
        return self.start_images(images)()

    def start_images(self, images: Sequence[np.ndarray]) -> Pending:
        """Start to encode one batch of results of `read_image`; see `Encoder`."""
        return self._start(lambda: self._loaded.encoder.encode_images(self._pixels(images)).pooled)

    def match(
        self, images: Sequence[np.ndarray], texts: Sequence[str], score: str = "itm"
    ) -> Scores:
        """Return (N,) scores of N pairs; an image or text that repeats is encoded once.

        itm: log-odds by BLIP's matching head. local, maxsim: of patches and tokens, by
        `local_similarity` and `max_similarity`. Raises UsageError for other scores and for a model
        without a matching head, CompoclipError for one without patches or tokens.
        """
        encoder, network, name = self._loaded.encoder, self._loaded.encoder.model, self._loaded.name
        distinct = {id(picture): picture for picture in images}
        image_rows = {key: row for row, key in enumerate(distinct)}
        text_rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        image = [image_rows[id(picture)] for picture in images]
        text = [text_rows[caption] for caption in texts]
        ids = self._loaded.tokenizer(list(text_rows)).to(encoder.device)
        with self.evaluating(), self._autocast():
            pixels = self._pixels(list(distinct.values()))
            if score in _LOCAL:
                encoder.require_local(f"--score {score}")
                features = encoder.features(pixels, ids, local=True)
                assert features.patches is not None
                assert features.tokens is not None
                assert features.token_mask is not None
                tokens, mask = features.tokens[text], features.token_mask[text]
                with torch.autocast(tokens.device.type, enabled=False):  # in float32
                    local = _LOCAL[score]
                    scores = local(tokens, mask, features.patches[image], features.logit_scale)
            elif score == "itm" and isinstance(network, Blip):
                scores = network.match(network.visual.states(pixels)[image], ids[text])
            else:
                lack = (
                    "no head that matches pairs (BLIP has)" if score == "itm" else "no such score"
                )
                raise UsageError(f"{name}: --score {score}: has {lack}: --score cosine")
        values: Scores = scores.float().cpu().numpy()
        require_finite(values, name)
        return values

    @property
    def scale(self) -> float:
        """Return s, by which cosines become logits."""
        return float(self._loaded.encoder.logit_scale.detach().exp())

    @property
    def bias(self) -> float | None:
        """Return what is added to logits, in models that are trained pair by pair (SigLIP)."""
        bias = self._loaded.encoder.logit_bias
        return None if bias is None else float(bias.detach())

    def images(self, images: Sequence[Image.Image]) -> Scores:
        """Return the features of RGB images of any size, (N, D); see `Embedder`."""
        return self.encode_images([self.read_image.pixels(image) for image in images])

    texts = encode_texts  # as an `Embedder`

    def upload(self, images: Sequence[np.ndarray]) -> Tensor:
        """Copy one batch of results of `read_image` to the device.

        Returns (N, H, W, 3) uint8; on a GPU the copy may still run, on a CPU it is valid until the
        call after the next.
        """
        gpu = self.device.type == "cuda"
        buffer, copied = self._buffers.pop(0)
        if copied is not None:
            copied.synchronize()
        shape = (len(images), *images[0].shape)
        if buffer is None or len(buffer) < shape[0] or buffer.shape[1:] != shape[1:]:
            buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=gpu)
        filled = buffer[: len(images)]
        np.stack(images, out=filled.numpy())
        pixels = filled.to(self.device, non_blocking=gpu)
        self._buffers.append((buffer, mark(self.device)))
        return pixels

    def _pixels(self, images: Sequence[np.ndarray]) -> Tensor:
        """Return (N, 3, H, W) float32 on the device, normalised there."""
        preprocess = self._loaded.preprocess
        # Contiguous: towers round otherwise for channels that lie last.
        pixels = self.upload(images).permute(0, 3, 1, 2).contiguous()
        return normalised(pixels, preprocess.mean, preprocess.std)

    def _start(self, compute: Callable[[], Tensor], unit: bool = True) -> Pending:
        with self.evaluating():
            with self._autocast():
                pooled = compute()
            pooled = F.normalize(pooled.float(), dim=-1) if unit else pooled.float()
            # Queued before the next batch, which they would wait for otherwise.
            copied = pooled.to("cpu", non_blocking=self.device.type == "cuda")
            done = mark(self.device)

        def wait() -> Scores:
            if done is not None:
                done.synchronize()
            features = copied.numpy()
            require_finite(features, self._loaded.name)
            return features

        return wait

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


class UnprojectedEncoder(ModelEncoder):
    """A `ModelEncoder` with image features as they are before the last projection, of any length.

    Linear probes read them. Texts are encoded as usual.
    """

    def tower_weights(self, tower: Tower) -> str:
        """Return the hash of `ModelEncoder`, and what tells these features from the usual ones."""
        return f"{super().tower_weights(tower)}{' unprojected' if tower == 'image' else ''}"

    def start_images(self, images: Sequence[np.ndarray]) -> Pending:
        """Start to encode one batch of results of `read_image`; see `Encoder`."""
        encoder = self._loaded.encoder

        def unprojected() -> Tensor:
            return encoder.cached_features(self._pixels(images), False, "trunk")[:, 0]

        return self._start(unprojected, unit=False)


def encoder_of_probes(encoder: Encoder) -> Encoder:
    """Return the encoder of the image features that linear probes read.

    They are those before the last projection where the image tower ends with one, else (attention
    pools, models from outside) those of the encoder itself.
    """
    if isinstance(encoder, ModelEncoder) and encoder._loaded.encoder.image_tower.has_trunk:
        return UnprojectedEncoder(encoder._loaded, encoder.precision)
    return encoder
