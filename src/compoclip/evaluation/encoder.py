"""What evaluation needs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from compoclip.benchmarks.case import ImageRef
from compoclip.evaluation.outcomes import Scores
from compoclip.models.identity import ModelIdentity
from compoclip.models.parts import Tower


class TextKey(NamedTuple):
    """How the model reads a text. key: its tokens, equal for texts the model cannot tell apart.
    length: number of tokens. truncated: whether the text lost words to the context length."""

    key: bytes
    length: int
    truncated: bool


class Encoder(Protocol):
    """A dual encoder as evaluation sees it. Features are unit-length float32.

    `model_encoder.ModelEncoder` is the one for real models.
    """

    @property
    def identity(self) -> ModelIdentity:
        """What the features depend on; goes into every result."""

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
