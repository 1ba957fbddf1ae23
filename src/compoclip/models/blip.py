"""BLIP (Li et al., ICML 2022) as a dual encoder: transformers' `BlipForImageTextRetrieval`.

Its image-text contrastive (ITC) towers are a dual encoder: ViT and BERT without cross-attention,
each with a projection of its first state. `Blip` presents them as an open_clip model, so that the
same recipes, benchmarks and checkpoints serve. Its image-text matching (ITM) head reads a pair,
with the text encoder looking at the image's patches, and scores pairs one by one (`Blip.match`).

Parameters have transformers' names, those of the image half below "visual.", and `logit_scale`.
The folder of a checkpoint is compoclip's own: open_clip has no such architecture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compoclip.errors import CompoclipError
from compoclip.models.config import section

KEY = "blip_cfg"
"""Entry of a model configuration that makes it a BLIP: the content of transformers' config.json."""
CONTEXT = 35
"""Tokens of a text, as BLIP was trained and is evaluated on retrieval."""
PREPROCESS = {"interpolation": "bicubic", "resize_mode": "squash"}
"""BLIP's own, for folders that do not say; mean and deviation are CLIP's."""
_TEMPERATURE = 0.07  # of ITC training; transformers' checkpoints leave it out
_IMAGE = ("vision_model.", "vision_proj.")
_VOCABULARY, _ENC = 30524, 30523  # BERT's, "[DEC]" and "[ENC]"


class BlipImage(nn.Module):
    """The image tower: pooled (B, D) features, not normalised."""

    def __init__(self, vision_model: nn.Module, vision_proj: nn.Module, image_size: int) -> None:
        super().__init__()
        self.vision_model = vision_model
        self.vision_proj = vision_proj
        self.image_size = (image_size, image_size)

    def states(self, pixels: Tensor) -> Tensor:
        """(B, 1 + patches, W) states, what the matching head looks at."""
        out: Tensor = self.vision_model(pixel_values=pixels).last_hidden_state
        return out

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, D)."""
        pooled: Tensor = self.vision_proj(self.states(pixels)[:, 0])
        return pooled


class Blip(nn.Module):
    """What `DualEncoder` needs of an open_clip model, and the matching head."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """A network with random weights. config: transformers' `config.json`. Raises CompoclipError
        when transformers is not installed, ValueError or TypeError for an unusable configuration.
        """
        super().__init__()
        try:
            from transformers import BlipConfig, BlipForImageTextRetrieval
        except ImportError as error:
            raise CompoclipError(
                "BLIP needs the transformers package: pip install 'compoclip[hf]'"
            ) from error
        theirs = BlipForImageTextRetrieval(BlipConfig(**config))
        whole: Any = theirs.config
        text, vision = whole.text_config, whole.vision_config
        self.visual = BlipImage(theirs.vision_model, theirs.vision_proj, int(vision.image_size))
        self.text_encoder = theirs.text_encoder
        self.text_proj = theirs.text_proj
        self.itm_head = theirs.itm_head
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(_TEMPERATURE)))
        self.vocab_size = int(text.vocab_size)
        self.pad_id = int(text.pad_token_id)

    def encode_text(self, ids: Tensor, normalize: bool = False) -> Tensor:
        """(T, context) ids -> (T, D), without the image."""
        ids = self._cut(ids)
        states = self.text_encoder(input_ids=ids, attention_mask=ids != self.pad_id)
        pooled: Tensor = self.text_proj(states.last_hidden_state[:, 0])
        return F.normalize(pooled, dim=-1) if normalize else pooled

    def match(self, states: Tensor, ids: Tensor) -> Tensor:
        """(T,) log-odds that each text matches its image, by the matching head.

        states: (T, 1 + patches, W) of `BlipImage.states`. With BLIP's vocabulary the first token is
        "[ENC]", as the head was trained (transformers leaves "[CLS]" there).
        """
        ids = self._cut(ids).clone()
        if self.vocab_size == _VOCABULARY:
            ids[:, 0] = _ENC
        seen = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        read = self.text_encoder(
            input_ids=ids,
            attention_mask=ids != self.pad_id,
            encoder_hidden_states=states,
            encoder_attention_mask=seen,
        )
        logits: Tensor = self.itm_head(read.last_hidden_state[:, 0])
        return logits[:, 1] - logits[:, 0]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute activations in backward, in both towers."""
        for part in (self.visual.vision_model, self.text_encoder):
            tower = cast(Any, part)
            if enable:
                tower.gradient_checkpointing_enable()
            else:
                tower.gradient_checkpointing_disable()

    def _cut(self, ids: Tensor) -> Tensor:
        """Without the columns that are padding in every row; what is left does not see them."""
        longest = int((ids != self.pad_id).sum(dim=1).max())
        return ids[:, :longest]


def from_blip_config(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The model configuration of a `BlipForImageTextRetrieval` folder's `config.json`.

    The tokenizer is left to the folder. Raises CompoclipError naming `source` when it is malformed.
    """
    text, vision = (section(data, key, source) for key in ("text_config", "vision_config"))
    keep = {"image_text_hidden_size", "text_config", "vision_config"}
    try:
        return {
            "embed_dim": int(data.get("image_text_hidden_size", 256)),
            "vision_cfg": {"image_size": int(vision.get("image_size", 384))},
            "text_cfg": {
                "context_length": min(CONTEXT, int(text.get("max_position_embeddings", 512))),
                "vocab_size": int(text.get("vocab_size", _VOCABULARY)),
            },
            KEY: {key: value for key, value in data.items() if key in keep},
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise CompoclipError(f"{source}: malformed ({error}); restore the original file") from error


def from_blip_state(state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The parameters of a BlipForImageTextRetrieval under the names of `Blip`.

    Raises CompoclipError naming `source` for another kind of BLIP.
    """
    if "itm_head.weight" not in state or "vision_proj.weight" not in state:
        raise CompoclipError(
            f"{source}: is no BlipForImageTextRetrieval (it lacks itm_head or vision_proj); BLIPs "
            "for captions or questions have no towers to compare"
        )
    out = {(f"visual.{k}" if k.startswith(_IMAGE) else k): v for k, v in state.items()}
    out = {k: v for k, v in out.items() if not k.endswith("embeddings.position_ids")}
    return {"logit_scale": torch.tensor(-math.log(_TEMPERATURE)), **out}


def to_blip_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_blip_state`; the temperature, which transformers does not keep, is left
    out."""
    return {k.removeprefix("visual."): v for k, v in state.items() if k != "logit_scale"}
