"""my-model: a custom model, measured like any other.

compoclip evaluate ./my_model.py --on BENCHMARK --data DATA

A class with images() and texts() is an embedder. One with score(image, texts), which returns a
number per text, is a scorer: a reranker, a matching head, a model that answers questions.
"""

from collections.abc import Sequence

import torch
from PIL import Image

import compoclip


class MyModel:
    """Embeds images and texts; here with the bundled model, replace it by yours."""

    # Part of the identity, so that results of another prompt or other weights are kept apart.
    # The hash of this file, and of every torch module among the attributes, is part of it, too.
    prompt = "a photo of "
    revision = "1"

    def __init__(self, device: torch.device) -> None:
        """Load the weights; device: what --device names."""
        self.loaded = compoclip.load("bundled", device=str(device))

    def images(self, images: Sequence[Image.Image]) -> object:
        """Return (N, D), an array or a tensor, of N RGB images of any size."""
        return self.loaded.encode_images(images)

    def texts(self, texts: Sequence[str]) -> object:
        """Return (N, D) of N texts."""
        return self.loaded.encode_texts([self.prompt + text for text in texts])
