"""SigLIP and SigLIP 2 in Hugging Face's words, translated to open_clip's and timm's.

Transformers' `SiglipModel` (model_type "siglip", which the fixed-size SigLIP 2 models have too) is
a ViT without class token that pools by attention, and a text tower that sees both ways at full
length and pools at its last position. open_clip builds the same from a timm trunk and a text
transformer without causal mask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.models import is_model
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.architecture import TANH
from compoclip.models.config import read_object, section
from compoclip.models.formats.hf_folder import (
    CONFIG,
    HFContent,
    HuggingFaceFolder,
    own_tokenizer,
    read_tensors,
)

# What transformers takes when config.json leaves a value out (SiglipTextConfig, -VisionConfig).
_COMMON = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_TEXT = {**_COMMON, "vocab_size": 32000, "max_position_embeddings": 64}
_VISION = {**_COMMON, "image_size": 224, "patch_size": 16}
_ACTS = ("gelu", "gelu_pytorch_tanh")
SIZES = {
    (768, 12, 12, 3072): "base",
    (1024, 24, 16, 4096): "large",
    (1152, 27, 16, 4304): "so400m",
    (1536, 40, 16, 6144): "giantopt",
}
"""Width, layers, heads and MLP width of the image towers -> what timm calls them."""
PREPROCESS = {
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "interpolation": "bicubic",
    "resize_mode": "squash",
}
"""SigLIP's own, for folders that do not say."""

_VISION_NAMES = (
    (r"embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"encoder\.layers\.(\d+)\.layer_norm([12])\.", r"blocks.\1.norm\2."),
    (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.", r"blocks.\1.attn.proj."),
    (r"encoder\.layers\.(\d+)\.mlp\.", r"blocks.\1.mlp."),
    (r"post_layernorm\.", "norm."),
    (r"head\.probe$", "attn_pool.latent"),
    (r"head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"head\.layernorm\.", "attn_pool.norm."),
    (r"head\.mlp\.", "attn_pool.mlp."),
)
_TEXT_NAMES = (
    (r"embeddings\.token_embedding\.weight$", "token_embedding.weight"),
    (r"embeddings\.position_embedding\.weight$", "positional_embedding"),
    (r"encoder\.layers\.(\d+)\.layer_norm([12])\.", r"transformer.resblocks.\1.ln_\2."),
    (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.", r"transformer.resblocks.\1.attn.out_proj."),
    (r"encoder\.layers\.(\d+)\.mlp\.fc1\.", r"transformer.resblocks.\1.mlp.c_fc."),
    (r"encoder\.layers\.(\d+)\.mlp\.fc2\.", r"transformer.resblocks.\1.mlp.c_proj."),
    (r"final_layer_norm\.", "ln_final."),
    (r"head\.", "text_projection."),
)
_TOWERS = {
    "vision_model.": ("visual.trunk.", _VISION_NAMES),
    "text_model.": ("text.", _TEXT_NAMES),
}
_Q = re.compile(r"(vision|text)_model\.encoder\.layers\.(\d+)\.self_attn\.q_proj\.(weight|bias)")


class HFSiglip(HuggingFaceFolder):
    """transformers' SiglipModel."""

    order = 40
    model_type = "siglip"
    title = "SiglipModel"
    family = "SigLIP"

    def translate(self, path: Path) -> HFContent:
        """See `HuggingFaceFolder.translate`."""
        tensors = read_tensors(path)
        config = from_siglip_config(read_object(path / CONFIG), str(path / CONFIG))
        config["text_cfg"] |= own_tokenizer(path, "canonicalize")
        return HFContent(config, from_siglip_state(tensors, str(path)), PREPROCESS)


def from_siglip_config(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The open_clip configuration that computes what a SiglipModel's `config.json` does.

    The tokenizer is left to the folder. Raises CompoclipError naming `source` when a value is
    malformed, or the image tower has no name in timm.
    """
    text = {**_TEXT, **section(data, "text_config", source)}
    vision = {**_VISION, **section(data, "vision_config", source)}
    for part in (text, vision):
        if part["hidden_act"] not in _ACTS or part["layer_norm_eps"] != 1e-6:
            raise CompoclipError(
                f"{source}: hidden_act {part['hidden_act']}, layer_norm_eps "
                f"{part['layer_norm_eps']}: SigLIP has {' or '.join(_ACTS)} and 1e-06"
            )
    if vision.get("vision_use_head") is False:
        raise CompoclipError(f"{source}: an image tower without its pooling head has no features")
    try:
        width, text_width = int(vision["hidden_size"]), int(text["hidden_size"])
        hidden = int(text["intermediate_size"])
        config: dict[str, Any] = {
            "embed_dim": width,
            "init_logit_bias": -10,
            "custom_text": True,
            "vision_cfg": {
                "image_size": int(vision["image_size"]),
                "timm_model_name": _trunk(vision, source),
                "timm_model_pretrained": False,
                "timm_pool": "map",
                "timm_proj": "none",
            },
            "text_cfg": {
                "context_length": int(text["max_position_embeddings"]),
                "vocab_size": int(text["vocab_size"]),
                "width": text_width,
                "heads": int(text["num_attention_heads"]),
                "layers": int(text["num_hidden_layers"]),
                "no_causal_mask": True,
                "proj_bias": True,
                "pool_type": "last",
                "norm_kwargs": {"eps": 1e-6},
            },
        }
        if hidden != 4 * text_width:
            config["text_cfg"]["mlp_ratio"] = (hidden + 0.5) / text_width
        if int(text.get("projection_size") or text_width) != width:
            raise ValueError("the towers end in features of different lengths")
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CompoclipError(f"{source}: malformed ({error}); restore the original file") from error
    if text["hidden_act"] == "gelu_pytorch_tanh":
        config["text_cfg"]["act_kwargs"] = {"approximate": "tanh"}
    return config


def _trunk(vision: Mapping[str, Any], source: str) -> str:
    """timm's name of the image tower."""
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shape = tuple(int(vision[key]) for key in keys)
    size = SIZES.get((shape[0], shape[1], shape[2], shape[3]))
    name = f"vit_{size}_patch{vision['patch_size']}_siglip_{vision['image_size']}"
    # In timm giantopt has the approximate activation, all others the exact one.
    if vision["hidden_act"] == "gelu_pytorch_tanh" and size != "giantopt":
        name += TANH
    if size is None or not is_model(name):
        raise CompoclipError(
            f"{source}: timm has no SigLIP tower of width {shape[0]}, {shape[1]} layers, "
            f"{shape[2]} heads, patches of {vision['patch_size']} and images of "
            f"{vision['image_size']} pixels: only published sizes are read"
        )
    return name


def from_siglip_state(state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The parameters of a SiglipModel as those of an open_clip model with a timm trunk.

    Raises CompoclipError naming `source` for one that is unknown, and for projections of an
    attention that are not all there.
    """
    out: dict[str, Tensor] = {}
    for key, value in state.items():
        if key.endswith(".position_ids") or re.search(r"self_attn\.[kv]_proj\.", key):
            continue
        query = _Q.fullmatch(key)
        if query:
            names = [key.replace(".q_proj.", f".{part}_proj.") for part in "qkv"]
            lacking = next((name for name in names if name not in state), None)
            if lacking is not None:
                raise CompoclipError(f"{source}: the file lacks '{lacking}'")
            fused = torch.cat([state[name] for name in names])
            if query[1] == "vision":
                out[f"visual.trunk.blocks.{query[2]}.attn.qkv.{query[3]}"] = fused
            else:
                out[f"text.transformer.resblocks.{query[2]}.attn.in_proj_{query[3]}"] = fused
        elif key == "vision_model.embeddings.position_embedding.weight":
            out["visual.trunk.pos_embed"] = value[None]
        elif key.startswith("vision_model.head.attention.in_proj_"):
            kind = key.rpartition("_")[2]
            third = len(value) // 3
            out[f"visual.trunk.attn_pool.q.{kind}"] = value[:third].contiguous()
            out[f"visual.trunk.attn_pool.kv.{kind}"] = value[third:].contiguous()
        elif key in ("logit_scale", "logit_bias"):
            out[key] = value
        else:
            out[_translated(key, source)] = value
    return out


def _translated(key: str, source: str) -> str:
    for start, (ours, names) in _TOWERS.items():
        if key.startswith(start):
            rest = key.removeprefix(start)
            for pattern, name in names:
                if re.match(pattern, rest):
                    return ours + re.sub(f"^{pattern}", name, rest)
    raise CompoclipError(
        f"{source}: '{key}' is no parameter of a SiglipModel; expected the weights of "
        "transformers' SiglipModel"
    )
