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
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.models.architecture import BLIP, BLIP_TEMPERATURE, BLIP_VOCABULARY
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.config import ModelIdentity, read_object, section, write_json
from compoclip.models.formats.hf_folder import (
    CONFIG,
    IMAGES,
    WEIGHTS,
    HFContent,
    HuggingFaceFolder,
    image_processor,
    own_tokenizer,
    read_tensors,
)
from compoclip.models.weights import as_stored, weights_hash

CONTEXT = 35
"""Tokens of a text, as BLIP was trained and is evaluated on retrieval."""
PREPROCESS = {"interpolation": "bicubic", "resize_mode": "squash"}
"""BLIP's own, for folders that do not say; mean and deviation are CLIP's."""
_NO_TEMPERATURE = "temperature: BLIP's first one, the folder has none"
_IMAGE = ("vision_model.", "vision_proj.")


class HFBlip(HuggingFaceFolder):
    """transformers' BlipForImageTextRetrieval."""

    order = 41
    model_type = "blip"
    kind = "Hugging Face BlipForImageTextRetrieval folder"
    family = "BLIP"
    forms = ("hf",)

    def translate(self, path: Path) -> HFContent:
        """See `HuggingFaceFolder.translate`."""
        tensors = read_tensors(path)
        config = from_blip_config(read_object(path / CONFIG), str(path / CONFIG))
        config["text_cfg"] |= own_tokenizer(path, "whitespace")
        unsaid = () if "logit_scale" in tensors else (_NO_TEMPERATURE,)
        return HFContent(config, from_blip_state(tensors, str(path)), PREPROCESS, unsaid)

    def fits(self, loaded: LoadedModel) -> bool:
        """Whether it is a BLIP."""
        return BLIP in loaded.config.model_cfg

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Write the folder; its temperature is left out, which ranks alike."""
        plain = as_stored(loaded.encoder.model.state_dict(), dtype, loaded.name)
        config = {"architectures": ["BlipForImageTextRetrieval"], "model_type": "blip"}
        with new_folder(folder) as temporary:
            save_file(to_blip_state(plain), temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / CONFIG, {**config, **loaded.config.model_cfg[BLIP]})
            processor = image_processor(loaded.preprocess, "BlipImageProcessor")
            write_json(temporary / IMAGES, processor)
            loaded.tokenizer.write_files(temporary)
        return replace(current_identity(loaded), weights=weights_hash(plain))


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
                "vocab_size": int(text.get("vocab_size", BLIP_VOCABULARY)),
            },
            BLIP: {key: value for key, value in data.items() if key in keep},
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
    return {"logit_scale": torch.tensor(-math.log(BLIP_TEMPERATURE)), **out}


def to_blip_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_blip_state`; the temperature, which transformers does not keep, is left
    out."""
    return {k.removeprefix("visual."): v for k, v in state.items() if k != "logit_scale"}
