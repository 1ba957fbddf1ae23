"""SigLIP and SigLIP 2 in Hugging Face's words: folders of SiglipModel, read and written.

Transformers' `SiglipModel` (model_type "siglip", which the fixed-size SigLIP 2 models have too) is
a ViT without class token that pools by attention, and a text tower that sees both ways at full
length and pools at its last position. open_clip builds the same from a timm trunk and a text
transformer without causal mask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.models import is_model
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.models.architecture import TANH, architecture_name, with_activation
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.config import (
    RECORD,
    ModelIdentity,
    read_object,
    record_of,
    section,
    write_json,
)
from compoclip.models.formats.hf_folder import (
    CONFIG,
    IMAGES,
    WEIGHTS,
    HFContent,
    HuggingFaceFolder,
    Names,
    image_processor,
    own_tokenizer,
    read_tensors,
)
from compoclip.models.weights import as_stored, weights_hash

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
_CLEAN = "canonicalize"  # what open_clip does to texts before they are cut into tokens
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

_NAMES = Names(
    same=(
        ("vision_model.embeddings.patch_embedding.", "visual.trunk.patch_embed.proj."),
        ("vision_model.encoder.layers.#.layer_norm1.", "visual.trunk.blocks.#.norm1."),
        ("vision_model.encoder.layers.#.layer_norm2.", "visual.trunk.blocks.#.norm2."),
        ("vision_model.encoder.layers.#.self_attn.out_proj.", "visual.trunk.blocks.#.attn.proj."),
        ("vision_model.encoder.layers.#.mlp.", "visual.trunk.blocks.#.mlp."),
        ("vision_model.post_layernorm.", "visual.trunk.norm."),
        ("vision_model.head.probe", "visual.trunk.attn_pool.latent"),
        ("vision_model.head.attention.out_proj.", "visual.trunk.attn_pool.proj."),
        ("vision_model.head.layernorm.", "visual.trunk.attn_pool.norm."),
        ("vision_model.head.mlp.", "visual.trunk.attn_pool.mlp."),
        ("text_model.embeddings.token_embedding.weight", "text.token_embedding.weight"),
        ("text_model.embeddings.position_embedding.weight", "text.positional_embedding"),
        ("text_model.encoder.layers.#.layer_norm1.", "text.transformer.resblocks.#.ln_1."),
        ("text_model.encoder.layers.#.layer_norm2.", "text.transformer.resblocks.#.ln_2."),
        (
            "text_model.encoder.layers.#.self_attn.out_proj.",
            "text.transformer.resblocks.#.attn.out_proj.",
        ),
        ("text_model.encoder.layers.#.mlp.fc1.", "text.transformer.resblocks.#.mlp.c_fc."),
        ("text_model.encoder.layers.#.mlp.fc2.", "text.transformer.resblocks.#.mlp.c_proj."),
        ("text_model.final_layer_norm.", "text.ln_final."),
        ("text_model.head.", "text.text_projection."),
        ("logit_scale", "logit_scale"),
        ("logit_bias", "logit_bias"),
    ),
    fused=(
        ("vision_model.encoder.layers.#.self_attn.", "visual.trunk.blocks.#.attn.qkv."),
        ("text_model.encoder.layers.#.self_attn.", "text.transformer.resblocks.#.attn.in_proj_"),
    ),
)
_POSITIONS = ("vision_model.embeddings.position_embedding.weight", "visual.trunk.pos_embed")
_POOL, _OUR_POOL = "vision_model.head.attention.in_proj_", "visual.trunk.attn_pool."
_TRUNK = re.compile(rf"vit_(\w+?)_patch(\d+)_siglip_(\d+)({TANH})?")
# What of an open_clip configuration a SiglipModel can express: values that must be so, and keys.
_FIXED_VISION = {"timm_pool": "map", "timm_proj": "none"}
_FIXED_TEXT = {
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
    "norm_kwargs": {"eps": 1e-6},
}
_TOP_KEYS = {
    "embed_dim", "init_logit_bias", "init_logit_scale", "custom_text", "vision_cfg", "text_cfg",
}  # fmt: skip
_VISION_KEYS = {"image_size", "timm_model_name", "timm_model_pretrained", *_FIXED_VISION}
_TEXT_KEYS = {
    "context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "act_kwargs",
    "hf_tokenizer_name", "tokenizer_kwargs", *_FIXED_TEXT,
}  # fmt: skip


class HFSiglip(HuggingFaceFolder):
    """transformers' SiglipModel."""

    order = 40
    model_type = "siglip"
    kind = "Hugging Face SiglipModel folder"
    family = "SigLIP"
    forms = ("hf",)

    def translate(self, path: Path) -> HFContent:
        """See `HuggingFaceFolder.translate`."""
        tensors = read_tensors(path)
        config = from_siglip_config(read_object(path / CONFIG), str(path / CONFIG))
        config["text_cfg"] |= own_tokenizer(path, _CLEAN)
        return HFContent(config, from_siglip_state(tensors, str(path)), PREPROCESS)

    def fits(self, loaded: LoadedModel) -> bool:
        """Whether the image tower is one of SigLIP's."""
        name = loaded.config.model_cfg["vision_cfg"].get("timm_model_name")
        return _TRUNK.fullmatch(str(name)) is not None

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Write a SiglipModel folder with the model's own tokenizer."""
        config = to_siglip_config(loaded.config.model_cfg)
        if loaded.preprocess.resize_mode != "squash":
            raise _inexpressible(f"images resized by '{loaded.preprocess.resize_mode}'")
        if dtype == "float16":
            config["torch_dtype"] = "float16"
        plain = as_stored(loaded.encoder.model.state_dict(), dtype, loaded.name)
        with new_folder(folder) as temporary:
            state = to_siglip_state(plain)
            save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / CONFIG, config)
            processor = image_processor(loaded.preprocess, "SiglipImageProcessor")
            write_json(temporary / IMAGES, processor)
            loaded.tokenizer.write_files(temporary)
            again = from_siglip_config(config, str(folder))
            again["text_cfg"] |= own_tokenizer(temporary, _CLEAN)
            identity = replace(
                current_identity(loaded),
                architecture=architecture_name(with_activation(again, "gelu")),
                weights=weights_hash(plain),
            )
            write_json(temporary / RECORD, record_of(identity, loaded.provenance))
        return identity

    def snippet(self, folder: Path) -> tuple[str, str]:
        """transformers' code."""
        return "transformers", (
            "from transformers import AutoImageProcessor, AutoTokenizer, SiglipModel\n\n"
            'model = SiglipModel.from_pretrained("FOLDER").eval()\n'
            'processor = AutoImageProcessor.from_pretrained("FOLDER")\n'
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")  # padding="max_length"'
        )


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


def to_siglip_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of the SiglipModel that computes what an open_clip configuration does.

    Raises CompoclipError when SiglipModel cannot express it.
    """
    vision, text = dict(config["vision_cfg"]), dict(config["text_cfg"])
    for part, known in ((config, _TOP_KEYS), (vision, _VISION_KEYS), (text, _TEXT_KEYS)):
        odd = next((key for key, value in part.items() if key not in known and value), None)
        if odd is not None:
            raise _inexpressible(f"'{odd}': {part[odd]}")
    for part, fixed in ((vision, _FIXED_VISION), (text, _FIXED_TEXT)):
        wrong = next((key for key, value in fixed.items() if part.get(key) != value), None)
        if wrong is not None:
            raise _inexpressible(f"'{wrong}': {part.get(wrong)}")
    cleaning = (text.get("tokenizer_kwargs") or {}).get("clean")
    if not text.get("hf_tokenizer_name") or cleaning != _CLEAN:
        raise _inexpressible(
            f"a tokenizer that is not SigLIP's own (texts cleaned by '{cleaning}')"
        )
    if config.get("init_logit_bias") is None:
        raise _inexpressible("a model without a bias of its logits")
    return {
        "architectures": ["SiglipModel"],
        "model_type": "siglip",
        "torch_dtype": "float32",
        "text_config": _text_config(text, int(config["embed_dim"])),
        "vision_config": _vision_config(vision, int(config["embed_dim"])),
    }


def _text_config(text: Mapping[str, Any], dim: int) -> dict[str, Any]:
    acts = text.get("act_kwargs") or {}
    if acts not in ({}, {"approximate": "tanh"}):
        raise _inexpressible(f"act_kwargs {acts}")
    return {
        "model_type": "siglip_text_model",
        "vocab_size": int(text["vocab_size"]),
        "hidden_size": int(text["width"]),
        "intermediate_size": int(text["width"] * text.get("mlp_ratio", 4.0)),
        "num_hidden_layers": int(text["layers"]),
        "num_attention_heads": int(text["heads"]),
        "max_position_embeddings": int(text["context_length"]),
        "projection_size": dim,
        "hidden_act": "gelu_pytorch_tanh" if acts else "gelu",
        "layer_norm_eps": 1e-6,
    }


def _vision_config(vision: Mapping[str, Any], dim: int) -> dict[str, Any]:
    found = _TRUNK.fullmatch(vision["timm_model_name"])
    shape = {name: shape for shape, name in SIZES.items()}.get(found[1] if found else "")
    if found is None or shape is None or int(found[3]) != vision.get("image_size", int(found[3])):
        raise _inexpressible(f"the image tower '{vision['timm_model_name']}'")
    width, layers, heads, hidden = shape
    if width != dim:
        raise _inexpressible(f"features of length {dim} from an image tower of width {width}")
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_channels": 3,
        "image_size": int(found[3]),
        "patch_size": int(found[2]),
        "hidden_act": "gelu_pytorch_tanh" if found[4] or found[1] == "giantopt" else "gelu",
        "layer_norm_eps": 1e-6,
    }


def _inexpressible(what: str) -> CompoclipError:
    return CompoclipError(
        f"Hugging Face's SiglipModel cannot express {what}: use --to open-clip or --to onnx"
    )


def from_siglip_state(state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The parameters of a SiglipModel as those of an open_clip model with a timm trunk.

    Raises CompoclipError naming `source` for one that is unknown, and for projections of an
    attention that are not all there.
    """
    left, out = dict(state), {}
    if _POSITIONS[0] in left:
        out[_POSITIONS[1]] = left.pop(_POSITIONS[0])[None]
    for kind in ("weight", "bias"):
        if (whole := left.pop(f"{_POOL}{kind}", None)) is not None:
            third = len(whole) // 3
            out[f"{_OUR_POOL}q.{kind}"] = whole[:third].contiguous()
            out[f"{_OUR_POOL}kv.{kind}"] = whole[third:].contiguous()
    try:
        return out | _NAMES.read(left, source)
    except KeyError as error:
        raise CompoclipError(
            f"{source}: {error} is no parameter of a SiglipModel; expected the weights of "
            "transformers' SiglipModel"
        ) from error


def to_siglip_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_siglip_state`, for a model whose configuration a SiglipModel can have.

    Raises CompoclipError for a parameter that SiglipModel does not have.
    """
    left, out = dict(state), {}
    if _POSITIONS[1] in left:
        out[_POSITIONS[0]] = left.pop(_POSITIONS[1])[0].contiguous()
    for kind in ("weight", "bias"):
        if f"{_OUR_POOL}q.{kind}" in left:
            parts = [left.pop(f"{_OUR_POOL}{part}.{kind}") for part in ("q", "kv")]
            out[f"{_POOL}{kind}"] = torch.cat(parts)
    for name in ("logit_scale", "logit_bias"):
        if name in left:
            out[name] = left.pop(name).reshape(1)
    try:
        return out | _NAMES.write(left)
    except KeyError as error:
        raise _inexpressible(str(error)) from error
