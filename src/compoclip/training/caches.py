"""Cached features: gradient caching for large batches, and features of a frozen image tower.

Gradient caching computes the gradients of a whole batch in the memory of a micro-batch. Losses need
all features of a batch at once, encoders do not. So every micro-batch is encoded twice: first
without a graph, for the features and the losses' gradients with respect to them; then with a graph,
through which these gradients flow to the parameters. The sums equal one backward pass over the
whole batch, in another order.

Reference: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup
(RepL4NLP 2021).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compoclip.console import track
from compoclip.data.cached import CachedFeatures, features_folder
from compoclip.data.decode import Picture, name_of, photo_hash, unmirrored
from compoclip.data.images import fixed_rng, photo_key
from compoclip.data.sources import Source
from compoclip.data.transform import ImageTransform, normalised
from compoclip.errors import CompoclipError, UsageError, refuse
from compoclip.files import cache_folder
from compoclip.losses.contract import Features
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.text_tower import TextFeatures
from compoclip.models.tokenizer import Tokenizer
from compoclip.models.weights import weights_hash
from compoclip.models.work import CachedAt, MicroBatch, Outputs, Work, joined
from compoclip.ranks import Ranks
from compoclip.training.parts import places as layer_places
from compoclip.training.settings import RunSettings
from compoclip.workers import available_cores

Amp = Callable[[], AbstractContextManager[object]]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which towers are run in "bf16" or "fp16"; it does nothing for fp32."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision in ("bf16", "fp16"))


# --- Gradient caching. ---


class GradientCache:
    """The features of a batch, encoded micro-batch by micro-batch without a graph.

    Args:
        work: The batch, cut into micro-batches.

    Attributes:
        features: Features for the losses. Gradients of a loss stop here; `backward` continues.
    """

    def __init__(self, work: Work[Features], amp: Amp, device: torch.device) -> None:
        self._amp, self._gpus = amp, [device] if device.type == "cuda" else []
        # Of what learns: the micro-batch, its outputs, which collect gradients, and the states of
        # the random generators before it was encoded.
        self._learning: list[tuple[MicroBatch, Outputs, list[Tensor]]] = []
        encoded: list[Outputs] = []
        for encode, learns in zip(work.micro_batches, work.learns):
            random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpus)]
            with torch.no_grad(), amp():
                outputs = encode()
            encoded.append(tuple(tensor.detach().requires_grad_(learns) for tensor in outputs))
            if learns:
                self._learning.append((encode, encoded[-1], random))
        with amp():
            self.features = work.join(encoded)

    def backward(self) -> None:
        """Encode every trained micro-batch again, and accumulate gradients of the parameters.

        Dropout and drop-path repeat the masks of the first pass.
        """
        for encode, leaves, (random, *of_gpus) in self._learning:
            used = [i for i, leaf in enumerate(leaves) if leaf.grad is not None]
            if not used:
                continue
            with torch.random.fork_rng(self._gpus), self._amp():
                torch.set_rng_state(random)
                for gpu, state in zip(self._gpus, of_gpus):
                    torch.cuda.set_rng_state(state, gpu)
                outputs = encode()
            torch.autograd.backward([outputs[i] for i in used], [leaves[i].grad for i in used])


def learning_batch_norms(network: nn.Module) -> list[str]:
    """Return the names of the layers that compute statistics over the batch.

    Frozen batch norms, in eval mode, compute none.
    """
    norm, named = nn.modules.batchnorm._BatchNorm, network.named_modules()
    return [name for name, layer in named if isinstance(layer, norm) and layer.training]


def refuse_batch_norm(network: nn.Module) -> None:
    """Raise UsageError for statistics over the batch: those of a micro-batch are others."""
    for name in learning_batch_norms(network):
        tower = "image" if name.startswith("visual.") else "text"
        raise UsageError(
            f"--micro-batch: {name} in the {tower} tower is a batch norm that learns, so a part of "
            "the batch gives other features than the whole batch: leave --micro-batch out, or "
            "freeze that tower"
        )


# --- Features of a frozen image tower, encoded once and kept on disk. ---

_AT_ONCE = 64  # views that are encoded together


def cached_at(method: Method, settings: RunSettings) -> CachedAt:
    """Where the features are taken that --cache-frozen keeps; "" without it.

    Returns "tower" when all of the image tower is frozen, "trunk" when its projection learns.
    Raises UsageError where features would change, or no image would be shown twice.
    """
    requested = settings.cache_frozen or settings.features
    adapted = method.lora is not None and method.lora.towers == "text"
    still = not method.trains.image_tower or adapted
    refuse(
        {
            "--crops are random crops: leave --no-crop out": settings.crops and not settings.crop,
            "--cache-frozen cannot cache features of random crops: add --no-crop or a fixed number "
            "of --crops, or leave it out": requested and settings.crop and not settings.crops,
            f"--cache-frozen: {method.name} trains the image tower, so features change at every "
            "step: freeze it (--freeze image or image-trunk), or leave it out": (
                requested and not still and "image-trunk" not in settings.freeze
            ),
        }
    )
    if not requested:
        return ""
    return "tower" if still else "trunk"


def frozen_features(
    model: LoadedModel,
    method: Method,
    source: Source,
    transform: ImageTransform,
    settings: RunSettings,
    ranks: Ranks,
) -> CachedFeatures | None:
    """Cache the features of a frozen image tower for all photos of a source.

    A method that reads no patches takes the pooled features that another one has cached with them.
    Rank 0 computes missing features; the others read them from disk. None without --cache-frozen.
    Raise UsageError when there is nothing to cache, CompoclipError when the disk is too small or
    the folder cannot be written.
    """
    at = cached_at(method, settings)
    if not at:
        return None
    model.encoder.to(settings.device).eval()
    if at == "trunk":
        model.encoder.image_tower.require_trunk()
    photos, digest = _shown_photos(source, method)
    alone = f"{method.name} shows composites alone, each of them new"
    if not photos:
        raise UsageError(f"--cache-frozen: {alone}: leave it out")
    places = list(photos.values())
    read = _Maker(
        *(model, source, method, transform, settings.precision, at, places, digest),
        patches=method.needs_patches,
    )
    root = settings.features or cache_folder() / "features"
    more = replace(read, patches=True)
    maker = more if features_folder(root, more.record).is_dir() else read
    rows = {name: n for n, name in enumerate(photos)}
    cached = CachedFeatures(root, maker.record, maker.shape, at, rows, pooled=not read.patches)
    with ranks.rank0_first():
        if ranks.first:
            cached.make(maker)
        cached.open()
    return cached


def _shown_photos(source: Source, method: Method) -> tuple[dict[str, tuple[int, int]], str]:
    """The distinct photos of a source, each with its sample and the place in it, and their hash."""
    places: dict[str, tuple[int, int]] = {}
    pictures: list[Picture] = []
    for index in range(len(source)):
        for place, image in enumerate(method.images.shows(source[index])):
            name = photo_key(image)
            if name not in places:
                places[name] = index, place
                pictures.append(image if isinstance(unmirrored(image), Path) else name.encode())

    def content(image: Picture) -> str:
        """A hash of the bytes of a photo, and whether it is mirrored."""
        file = unmirrored(image)
        return f"{photo_hash(file)} {file is not image}"

    digest = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor(available_cores()) as pool:
        for image_hash in track(
            pool.map(content, pictures), "looking images up", len(pictures), "images"
        ):
            digest.update(f"{image_hash}\n".encode())
    return places, digest.hexdigest()


@dataclass(frozen=True)
class _Maker:
    """Encodes photos as far as the frozen tower does it. photos: sample and place of each. patches:
    whether to encode them, too."""

    model: LoadedModel
    source: Source
    method: Method
    transform: ImageTransform
    precision: str
    at: CachedAt
    photos: list[tuple[int, int]]
    digest: str
    patches: bool

    @cached_property
    def record(self) -> dict[str, Any]:
        """Return everything that the features depend on."""
        network, transform = self.model.encoder.model, self.transform
        image_places = {
            n: place for n, place in layer_places(network).items() if place.part == "image"
        }
        frozen = {
            name: value
            for name, value in network.state_dict().items()
            if name in image_places and (self.at == "tower" or not image_places[name].projection)
        }
        crop = transform.crop
        return {
            "weights": weights_hash(frozen),
            "architecture": dict(self.model.config.model_cfg["vision_cfg"]),
            "activation": self.model.identity.activation,
            "at": self.at,
            "patches": self.patches,
            "precision": self.precision,
            "preprocess": asdict(transform.preprocess),
            "crops": None if crop is None else asdict(crop),
            "draft": transform.draft,
            "upright": transform.upright,
            "decoded": "",
            "photos": self.digest,
        }

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of an image's features."""
        crop, size = self.transform.crop, self.transform.preprocess.size
        one = torch.zeros(1, 3, *size, device=self.model.encoder.device)
        _, tokens, width = self._features(one).shape
        return crop.fixed if crop else 1, tokens, width

    def __call__(self, numbers: range) -> tuple[NDArray[np.float32], dict[int, str]]:
        """Return the features of some photos, and the reasons why others cannot be read."""
        features = np.zeros((len(numbers), *self.shape), np.float32)
        bad: dict[int, str] = {}
        views = [(number, crop) for number in numbers for crop in range(self.shape[0])]
        mean, std = self.method.images.mean_and_std(self.transform.preprocess, "single")
        with ThreadPoolExecutor(available_cores()) as pool:  # reads ahead of the encoder
            coming = zip(views, pool.map(self._read, views))
            while group := list(islice(coming, _AT_ONCE)):
                bad |= {number: reason for (number, _), reason in group if isinstance(reason, str)}
                readable = [(view, image) for view, image in group if not isinstance(image, str)]
                if not readable:
                    continue
                pixels = self.transform.together([image for _, image in readable])
                pixels = pixels.to(self.model.encoder.device, non_blocking=True)
                encoded = self._features(normalised(pixels, mean, std))
                for ((number, crop), _), encoding in zip(readable, encoded.float().cpu().numpy()):
                    features[number - numbers.start, crop] = encoding
        return features, bad

    def _read(self, view: tuple[int, int]) -> Tensor | str:
        """The pixels of a crop of a photo, or why there are none."""
        number, crop = view
        index, place = self.photos[number]
        sample = self.source[index]
        image = self.method.images.shows(sample)[place]
        try:
            return self.transform.read(image, fixed_rng(image, crop), name_of(sample.id, image))
        except CompoclipError as error:
            return str(error)

    def _features(self, pixels: Tensor) -> Tensor:
        encoder = self.model.encoder
        with autocast(encoder.device, self.precision):
            return encoder.cached_features(pixels, self.patches, self.at)


# --- States of a text tower of which only the projection learns, kept in memory. ---


class FrozenTexts:
    """Remembers what the layers of a frozen text tower made of a text; only its projection learns.

    Args:
        most: Bytes of states to cache, on the model's device; later texts are encoded every time.

    Attributes:
        asked: Distinct texts of batches so far.
        found: Those of them that were remembered.
        bytes: Size of all states kept.
    """

    def __init__(self, tokenize: Tokenizer, max_bytes: int = 4 << 30) -> None:
        self._tokenize = tokenize
        self._max_bytes = max_bytes
        self._cache: dict[str, Tensor] = {}
        self.bytes = self.requested = self.reused = 0

    def work(
        self, encoder: DualEncoder, texts: Sequence[str], micro_batch: int
    ) -> Work[TextFeatures]:
        """The work of encoding T texts, of which little is left: those that are new, and to
        project.

        It is one micro-batch, whose outputs are states (T, W) without gradient.
        """
        texts = texts or ("",)

        def encode() -> Outputs:
            distinct = dict.fromkeys(texts)
            cached = {text: self._cache[text] for text in distinct if text in self._cache}
            new = [text for text in distinct if text not in cached]
            self.requested += len(distinct)
            self.reused += len(cached)
            states = encoder.text_states(self._tokenize(new), micro_batch) if new else ()
            for text, state in zip(new, states):
                size = state.numel() * state.element_size()
                if self.bytes + size <= self._max_bytes:
                    state = self._cache[text] = state.clone()
                    self.bytes += size
                cached[text] = state
            return (torch.stack([cached[text] for text in texts]),)

        def join(outputs: Sequence[Outputs]) -> TextFeatures:
            return TextFeatures(encoder.text_tower.project(joined([o[0] for o in outputs])))

        return Work((encode,), join, (False,))
