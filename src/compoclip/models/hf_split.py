"""The two towers of a CLIP in folders of their own, as TripletCLIP publishes what it trained from
scratch.

    vision-encoder/config.json, model.safetensors    CLIPVisionModelWithProjection in a wrapper
    text-encoder/config.json, model.safetensors      CLIPTextModelWithProjection in a wrapper

The wrappers' code (`utils.py` beside them) is not run. Sizes are those of the tensors; the number
of heads is the configuration's, or one for 64 numbers of width as in every CLIP; the activation has
to be in a configuration, since tensors do not show it. There is no temperature in the files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.config import read_object, section

FOLDERS = ("vision-encoder", "text-encoder")
_LOGIT_SCALE = math.log(100)  # what CLIP's training ends with


def is_split(folder: Path) -> bool:
    """Whether a folder holds the towers in folders of their own."""
    return all((folder / name / "config.json").is_file() for name in FOLDERS)


def joined(
    path: Path, weights: Mapping[str, Mapping[str, Tensor]]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and parameters of the CLIPModel with these towers. weights: by folder.

    Raises CompoclipError when a folder holds something else than a CLIP tower, or no configuration
    says the activation.
    """
    state = {
        key.removeprefix("model."): value
        for part in weights.values()
        for key, value in part.items()
    }
    vision, text = (_stated(path / name / "config.json") for name in FOLDERS)
    acts = {str(part["hidden_act"]) for part in (vision, text) if "hidden_act" in part}
    if len(acts) != 1:
        raise CompoclipError(
            f"{path}: the config.json in {' and '.join(FOLDERS)} do not agree on hidden_act, or "
            'have none; add "hidden_act": "quick_gelu" or "gelu", as the weights were trained'
        )
    try:
        vision_sizes, text_sizes = _vision_sizes(state), _text_sizes(state)
    except KeyError as error:
        raise CompoclipError(
            f"{path}: the towers lack {error}: they are not those of transformers' CLIP"
        ) from error
    except (TypeError, ValueError, IndexError) as error:
        raise CompoclipError(
            f"{path}: the towers' tensors have not the shapes of transformers' CLIP ({error}); "
            "restore the original files"
        ) from error
    config = {
        "model_type": "clip",
        "projection_dim": len(state["text_projection.weight"]),
        "vision_config": {**vision_sizes, **vision, "hidden_act": min(acts)},
        "text_config": {**text_sizes, **text, "hidden_act": min(acts)},
    }
    return config, {"logit_scale": torch.tensor(_LOGIT_SCALE), **state}


def _stated(file: Path) -> dict[str, Any]:
    """What a wrapper's configuration says of the tower, at its top or below the tower's name."""
    data = read_object(file)
    for name in ("vision_config", "text_config"):
        data = {**data, **section(data, name, file)}
    known = ("hidden_act", "layer_norm_eps", "num_attention_heads")
    return {key: data[key] for key in known if key in data}


def _layers(state: Mapping[str, Tensor], tower: str) -> dict[str, int]:
    start = f"{tower}.encoder.layers."
    numbers = {int(key[len(start) :].partition(".")[0]) for key in state if key.startswith(start)}
    hidden, width = state[f"{start}0.mlp.fc1.weight"].shape
    return {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": len(numbers),
        "num_attention_heads": max(1, width // 64),
    }


def _vision_sizes(state: Mapping[str, Tensor]) -> dict[str, int]:
    _ = state["visual_projection.weight"]
    patch = state["vision_model.embeddings.patch_embedding.weight"].shape[-1]
    positions = len(state["vision_model.embeddings.position_embedding.weight"])
    side = math.isqrt(positions - 1)
    return {
        **_layers(state, "vision_model"),
        "patch_size": patch,
        "image_size": side * patch,
    }


def _text_sizes(state: Mapping[str, Tensor]) -> dict[str, int]:
    _ = state["text_projection.weight"]
    return {
        **_layers(state, "text_model"),
        "vocab_size": len(state["text_model.embeddings.token_embedding.weight"]),
        "max_position_embeddings": len(state["text_model.embeddings.position_embedding.weight"]),
    }
