"""What fits a gap in a caption, by a masked language model."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, Protocol

from compoclip.errors import CompoclipError


class MaskFiller(Protocol):
    """Proposes words for a gap. Deterministic: the same gap gives the same words."""

    @property
    def name(self) -> str: ...

    def fill(self, before: str, after: str) -> tuple[str, ...]:
        """Whole words for the gap between the two texts, the likeliest first."""
        ...


class TransformersFiller:
    """A masked language model of the transformers package, loaded on first use.

    model: name on the Hugging Face hub or a local folder. count: how many words are proposed.
    Words that the model builds of several pieces are never proposed. Nothing is downloaded before
    the first gap, and the model runs on the CPU.
    """

    def __init__(self, model: str = "distilroberta-base", count: int = 20) -> None:
        self.model = model
        self.count = count

    @property
    def name(self) -> str:
        """The model, for provenance records."""
        return f"transformers:{self.model}"

    def fill(self, before: str, after: str) -> tuple[str, ...]:
        """Words for the gap, likeliest first. Raises CompoclipError without package or model."""
        pipeline = _pipeline(self.model)
        found = pipeline(f"{before}{pipeline.tokenizer.mask_token}{after}", top_k=self.count)
        words = (str(row["token_str"]) for row in found)
        return tuple(w.strip() for w in words if w.strip() and not w.startswith("##"))


@lru_cache(maxsize=2)
def _pipeline(model: str) -> Any:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise CompoclipError(
            "a masked language model needs a package that is not installed; "
            "install it with: pip install transformers"
        ) from None
    try:
        return transformers.pipeline("fill-mask", model=model, device="cpu")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CompoclipError(
            f"{model}: no masked language model ({reason}); name another or a folder that holds one"
        ) from None
