"""Features that are computed once: of a frozen image tower, on disk for all runs; of frozen texts
and of a bank of images, in the memory of one run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compoclip.console import track
from compoclip.data.batch import item_keys
from compoclip.data.cached import CachedFeatures, features_folder
from compoclip.data.decode import Picture, name_of, photo_hash, unmirrored
from compoclip.data.images import fixed_rng, photo_key
from compoclip.data.sources import Source
from compoclip.data.transform import ImageTransform, normalised
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import cache_folder
from compoclip.losses.contract import Features, normalise
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.text_tower import TextFeatures
from compoclip.models.tokenizer import Tokenizer
from compoclip.models.weights import weights_hash
from compoclip.models.work import CachedAt, Outputs, Work, joined
from compoclip.ranks import Ranks
from compoclip.training.gradients import autocast
from compoclip.training.parts import places as layer_places
from compoclip.training.settings import RunSettings
from compoclip.workers import available_cores

# --- Features of a frozen image tower, encoded once and kept on disk. ---

_AT_ONCE = 64  # views that are encoded together


def cached_at(method: Method, settings: RunSettings) -> CachedAt:
    """Return where the features are taken that --cache-frozen caches; "" without it.

    "tower" when all of the image tower is frozen, "trunk" when its projection learns. Raises
    UsageError where features would change.
    """
    if not (settings.cache_frozen or settings.features):
        return ""
    adapted = method.lora is not None and method.lora.towers == "text"
    still = not method.trains.image_tower or adapted
    if settings.crop and not settings.crops:
        raise UsageError(
            "--cache-frozen cannot cache features of random crops: add --no-crop or a fixed number "
            "of --crops, or leave it out"
        )
    if not still and "image-trunk" not in settings.freeze:
        raise UsageError(
            f"--cache-frozen: {method.name} trains the image tower, so features change at every "
            "step: freeze it (--freeze image or image-trunk), or leave it out"
        )
    return "tower" if still else "trunk"


def frozen_features(
    model: LoadedModel,
    method: Method,
    source: Source,
    transform: ImageTransform,
    settings: RunSettings,
    at: CachedAt,
    ranks: Ranks,
) -> CachedFeatures:
    """Cache the features of a frozen image tower for all photos of a source.

    at: from `cached_at`. A method that reads no patches takes the pooled features that another one
    has cached with them. Rank 0 computes missing features; the others read them from disk. Raise
    UsageError when there is nothing to cache, CompoclipError when the disk is too small or the
    folder cannot be written.
    """
    if at == "trunk":
        model.encoder.image_tower.require_trunk()
    photos, digest = _shown_photos(source, method)
    if not photos:
        raise UsageError(
            f"--cache-frozen: {method.name} shows composites alone, each of them new: leave it out"
        )
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
    """Caches what the layers of a frozen text tower make of a text; only its projection learns.

    Args:
        max_bytes: Size of the states to cache, on the model's device; later texts are encoded every
            time.

    Attributes:
        requested: Distinct texts of batches so far.
        reused: Those of them that were cached.
        bytes: Size of all cached states.
    """

    def __init__(self, tokenize: Tokenizer, max_bytes: int = 4 << 30) -> None:
        self._tokenize = tokenize
        self._max_bytes = max_bytes
        self._cache: dict[str, Tensor] = {}
        self.bytes = self.requested = self.reused = 0

    def work(
        self, encoder: DualEncoder, texts: Sequence[str], micro_batch: int
    ) -> Work[TextFeatures]:
        """Return the work of encoding T texts: one micro-batch, whose outputs are states (T, W)
        without gradient, and the projection."""
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


# --- Images of the whole data, for losses that look beyond the batch. ---

_BANK_IMAGES = 16_384
"""With more, comparing a batch with all of them would cost as much as encoding its texts."""
_BANK_AT_ONCE = 1024


@dataclass(frozen=True)
class ImageBank:
    """Images as a frozen tower sees them.

    features: (N, D), unit length. keys: (2 N,), see `Features.bank_keys`.
    """

    features: Tensor
    keys: Tensor

    def add_to(self, features: Features) -> Features:
        """Return the features of a batch with those of the bank."""
        return replace(features, bank=self.features, bank_keys=self.keys)


@torch.no_grad()
def image_bank(encoder: DualEncoder, cached: CachedFeatures) -> ImageBank:
    """Return the features of the photos of a source, of at most `_BANK_IMAGES` of them."""
    images = cached.some(_BANK_IMAGES)
    keys = torch.from_numpy(item_keys(images).view(np.int32).astype(np.int64)).to(encoder.device)
    parts = torch.split(torch.stack([*images.values()]), _BANK_AT_ONCE)
    works = (encoder.image_work(p.to(encoder.device), cached_at=cached.at) for p in parts)
    features = torch.cat([normalise(work.all().pooled.float()) for work in works])
    return ImageBank(features, keys)
