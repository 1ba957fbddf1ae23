"""SigLIP in miniature: an image tower for timm, configurations, a folder of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import is_model, register_model
from torch import nn

from compoclip.models.architecture import TANH, register
from models_thin import shake
from tiny_transformers import word_tokenizer

WORDS = ["[PAD]", "[EOS]", "[UNK]", "a", "red", "star", "blue", "mug", "left", "of", "two"]


def vit_thin_patch8_siglip_32(pretrained: bool = False, **options: Any) -> nn.Module:
    """SigLIP's image tower in miniature."""
    shape = {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 32, "patch_size": 8}
    model: nn.Module = timm.create_model("vit_base_patch16_siglip_224", **{**shape, **options})
    return model


if not is_model("vit_thin_patch8_siglip_32"):
    register_model(vit_thin_patch8_siglip_32)
    register(f"vit_thin_patch8_siglip_32{TANH}", "vit_thin_patch8_siglip_32", act_layer="gelu_tanh")


def write_siglip(folder: Path, **text: Any) -> Any:
    """A SiglipModel with random weights and a tokenizer of a few words; the model."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    tokens = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    word_tokenizer(WORDS, "$A [EOS]", **tokens).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {"intermediate_size": 128, "image_size": 32, "patch_size": 8}
    text = {"intermediate_size": 100, "vocab_size": 16, "max_position_embeddings": 12, **text}
    config = transformers.SiglipConfig(
        text_config={**sizes, **text}, vision_config={**sizes, **vision}
    )
    torch.manual_seed(0)
    model = transformers.SiglipModel(config).eval()
    shake(model)
    model.save_pretrained(folder)
    processor = {
        "do_resize": True,
        "size": {"height": 32, "width": 32},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "image_processor_type": "SiglipImageProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def thin_config(tanh: bool = True) -> dict[str, Any]:
    """An open_clip configuration of SigLIP's kind, with a text tower of another width."""
    act = {"act_kwargs": {"approximate": "tanh"}} if tanh else {}
    return {
        "embed_dim": 32,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "image_size": 32,
            "timm_model_name": "vit_thin_patch8_siglip_32" + ("_tanh" if tanh else ""),
            "timm_model_pretrained": False,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": {
            "context_length": 12,
            "vocab_size": 16,
            "hf_tokenizer_name": "somebody/siglip",
            "tokenizer_kwargs": {"clean": "canonicalize"},
            "width": 24,
            "heads": 4,
            "layers": 2,
            "mlp_ratio": 100.5 / 24,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-6},
            **act,
        },
    }


def clip_words_config() -> dict[str, Any]:
    """The same with the tokenizer of CLIP, which needs no files."""
    cfg = thin_config()
    text = {**cfg["text_cfg"], "context_length": 24, "vocab_size": 49408}
    for key in ("hf_tokenizer_name", "tokenizer_kwargs"):
        del text[key]
    return {**cfg, "text_cfg": text}
