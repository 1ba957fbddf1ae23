"""CLIP in Hugging Face's words: folders of transformers' CLIPModel, read and written.

Both hold the same numbers; Hugging Face keeps query, key and value projections apart and writes
projections as linear layers (transposed). Only the plain form has both: a ViT image tower with a
class token and a causal text tower, QuickGELU or GELU in both.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.files import new_folder
from compoclip.models.architecture import architecture_name, with_activation
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.config import (
    MERGES,
    RECORD,
    ModelIdentity,
    part_of,
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
    clip_tokenizer,
    image_processor,
    model_type_of,
    read_tensors,
    write_clip_tokenizer,
)
from compoclip.models.weights import as_stored, weights_hash

_ACTIVATIONS = {"quick_gelu": True, "gelu": False}
# What transformers takes when config.json leaves a value out (CLIPTextConfig, CLIPVisionConfig).
_TEXT = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
# What of an open_clip configuration Hugging Face's CLIPModel can express.
_TOP_KEYS = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text", "init_logit_scale"}
_VISION_KEYS = {
    "image_size", "patch_size", "layers", "width", "head_width", "mlp_ratio", "norm_kwargs",
    "pos_embed_type",  # a fixed table of positions is stored like a learnt one
}  # fmt: skip
_TEXT_KEYS = {
    "context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "norm_kwargs",
    "tokenizer_kwargs",
}  # fmt: skip

_BLOCK = (
    ("layer_norm1.", "ln_1."),
    ("layer_norm2.", "ln_2."),
    ("self_attn.out_proj.", "attn.out_proj."),
    ("mlp.fc1.", "mlp.c_fc."),
    ("mlp.fc2.", "mlp.c_proj."),
)
_LAYERS = (
    ("vision_model.encoder.layers.#.", "visual.transformer.resblocks.#."),
    ("text_model.encoder.layers.#.", "transformer.resblocks.#."),
)
NAMES = Names(
    same=(
        ("vision_model.embeddings.class_embedding", "visual.class_embedding"),
        ("vision_model.embeddings.patch_embedding.weight", "visual.conv1.weight"),
        ("vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"),
        ("vision_model.pre_layrnorm.", "visual.ln_pre."),
        ("vision_model.post_layernorm.", "visual.ln_post."),
        ("text_model.embeddings.token_embedding.weight", "token_embedding.weight"),
        ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
        ("text_model.final_layer_norm.", "ln_final."),
        ("logit_scale", "logit_scale"),
        *((a + b, c + d) for a, c in _LAYERS for b, d in _BLOCK),
    ),
    fused=tuple((f"{a}self_attn.", f"{b}attn.in_proj_") for a, b in _LAYERS),
)
_PROJECTIONS = {
    "visual_projection.weight": "visual.proj",
    "text_projection.weight": "text_projection",
}
"""Linear layers there, matrices here: transposed."""


def to_hf_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of an open_clip CLIP as those of a CLIPModel.

    Raises CompoclipError for one that CLIPModel does not have.
    """
    plain = {name.removeprefix("text."): value for name, value in state.items()}
    turned = {a: plain.pop(b).T.contiguous() for a, b in _PROJECTIONS.items() if b in plain}
    try:
        return turned | NAMES.write(plain)
    except KeyError as error:
        raise CompoclipError(
            f"Hugging Face's CLIPModel has no {error}: only a plain CLIP (ViT image tower, causal "
            "text tower) has that form"
        ) from error


def from_hf_state(state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The parameters of a CLIPModel as those of an open_clip CLIP.

    Raises CompoclipError naming `source` for one that is unknown, and for projections of an
    attention that are not all there.
    """
    plain = dict(state)
    turned = {b: plain.pop(a).T.contiguous() for a, b in _PROJECTIONS.items() if a in plain}
    try:
        return turned | NAMES.read(plain, source)
    except KeyError as error:
        raise CompoclipError(
            f"{source}: {error} is no parameter of a CLIPModel; expected the weights of "
            "transformers' CLIPModel"
        ) from error


def to_hf_config(config: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """`config.json` of the CLIPModel that computes what an open_clip configuration does.

    vocabulary: one more than the id of the end-of-text token, which is the last one used. Raises
    CompoclipError when CLIPModel cannot express it.
    """
    _require_known((config, _TOP_KEYS), kind="CLIPModel")
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": int(config["embed_dim"]),
        "logit_scale_init_value": 2.6592,
        "initializer_factor": 1.0,
        "torch_dtype": "float32",
        "text_config": to_hf_text_config(config, vocabulary, "CLIPModel"),
        "vision_config": to_hf_vision_config(config, "CLIPModel"),
    }


def to_hf_text_config(config: Mapping[str, Any], vocabulary: int, kind: str) -> dict[str, Any]:
    """Return the part of `config.json` on the text tower, whatever the image tower is.

    kind: The model of transformers that errors name. Arguments and errors else as for
    `to_hf_config`.
    """
    text = dict(config["text_cfg"])
    _require_known((text, _TEXT_KEYS), kind=kind)
    width = int(text["width"])
    return {
        "model_type": "clip_text_model",
        "vocab_size": int(text.get("vocab_size", 49408)),
        "hidden_size": width,
        "intermediate_size": int(width * text.get("mlp_ratio", 4.0)),
        "projection_dim": int(config["embed_dim"]),
        "num_hidden_layers": int(text["layers"]),
        "num_attention_heads": int(text["heads"]),
        "max_position_embeddings": int(text.get("context_length", 77)),
        "hidden_act": "quick_gelu" if config.get("quick_gelu") else "gelu",
        "layer_norm_eps": _epsilon(text, kind),
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,
        "pad_token_id": vocabulary - 1,
    }


def to_hf_vision_config(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """`config.json` of the CLIPVisionModel that computes what the image tower of an open_clip
    configuration does, whatever its text tower is.

    kind: The model of transformers that errors name. Raises CompoclipError when it cannot
    express the tower.
    """
    vision = dict(config["vision_cfg"])
    if "timm_model_name" in vision:
        raise _inexpressible(f"a timm image tower ({vision['timm_model_name']})", kind)
    if not isinstance(vision.get("layers"), int):
        raise _inexpressible("a ResNet image tower", kind)
    _require_known((vision, _VISION_KEYS), kind=kind)
    width = int(vision["width"])
    return {
        "model_type": "clip_vision_model",
        "hidden_size": width,
        "intermediate_size": int(width * vision.get("mlp_ratio", 4.0)),
        "projection_dim": int(config["embed_dim"]),
        "num_hidden_layers": vision["layers"],
        "num_attention_heads": width // int(vision.get("head_width", 64)),
        "num_channels": 3,
        "image_size": _square(vision.get("image_size", 224), "image", kind),
        "patch_size": _square(vision["patch_size"], "patch", kind),
        "hidden_act": "quick_gelu" if config.get("quick_gelu") else "gelu",
        "layer_norm_eps": _epsilon(vision, kind),
    }


def _require_known(*parts: tuple[Mapping[str, Any], set[str]], kind: str) -> None:
    for part, known in parts:
        odd = [key for key in part if key not in known]
        if odd:
            raise _inexpressible(f"'{odd[0]}': {part[odd[0]]}", kind)


def from_hf_config(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The open_clip configuration that computes what a CLIPModel's `config.json` does.

    Raises CompoclipError naming `source` when it is no CLIPModel, a value is malformed, or
    open_clip cannot express it.
    """
    if data.get("model_type") != "clip":
        kind = data.get("model_type", "unknown")
        raise CompoclipError(
            f"{source}: model_type '{kind}' is not 'clip', 'siglip' or 'blip', the "
            "kinds that are read; others come from open_clip (ARCHITECTURE:TAG, hf-hub:ID)"
        )
    # Early releases kept the true values in *_config_dict, as transformers still honours.
    text, vision = (
        {**known, **section(data, key, source), **section(data, f"{key}_dict", source)}
        for known, key in ((_TEXT, "text_config"), (_VISION, "vision_config"))
    )
    acts = {str(text["hidden_act"]), str(vision["hidden_act"])}
    if len(acts) > 1 or not acts <= set(_ACTIVATIONS):
        raise CompoclipError(
            f"{source}: hidden_act {' and '.join(sorted(acts))}: open_clip has quick_gelu or gelu, "
            "the same in both towers"
        )
    try:
        width, text_width = int(vision["hidden_size"]), int(text["hidden_size"])
        config: dict[str, Any] = {
            "embed_dim": int(data.get("projection_dim", 512)),
            "vision_cfg": {
                "image_size": int(vision["image_size"]),
                "layers": int(vision["num_hidden_layers"]),
                "width": width,
                "patch_size": int(vision["patch_size"]),
            },
            "text_cfg": {
                "context_length": int(text["max_position_embeddings"]),
                "vocab_size": int(text["vocab_size"]),
                "width": text_width,
                "heads": int(text["num_attention_heads"]),
                "layers": int(text["num_hidden_layers"]),
            },
        }
        head = width // int(vision["num_attention_heads"])
        towers = (
            (config["vision_cfg"], vision, width),
            (config["text_cfg"], text, text_width),
        )
        for ours, theirs, size in towers:
            if int(theirs["intermediate_size"]) != 4 * size:
                ours["mlp_ratio"] = _ratio(int(theirs["intermediate_size"]), size)
            if float(theirs["layer_norm_eps"]) != 1e-5:
                ours["norm_kwargs"] = {"eps": float(theirs["layer_norm_eps"])}
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CompoclipError(f"{source}: malformed ({error}); restore the original file") from error
    if head != 64:
        config["vision_cfg"]["head_width"] = head
    if _ACTIVATIONS[acts.pop()]:
        config["quick_gelu"] = True
    return config


def _ratio(hidden: int, width: int) -> float:
    """A ratio with which open_clip's int(width * ratio) is exactly `hidden`."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def _epsilon(part: Mapping[str, Any], kind: str) -> float:
    options = dict(part.get("norm_kwargs") or {})
    epsilon = float(options.pop("eps", 1e-5))
    if options:
        raise _inexpressible(f"norm_kwargs {options}", kind)
    return epsilon


def _square(size: Any, what: str, kind: str) -> int:
    values = {int(s) for s in size} if isinstance(size, list | tuple) else {int(size)}
    if len(values) > 1:
        raise _inexpressible(f"an oblong {what} size {size}", kind)
    return values.pop()


def _inexpressible(what: str, kind: str) -> CompoclipError:
    return CompoclipError(
        f"Hugging Face's {kind} cannot express {what}: use --to open-clip or --to onnx"
    )


_ALONE = {
    "hf-vision": ("CLIPVisionModel", ("vision_model.",)),
    "hf-text": ("CLIPTextModelWithProjection", ("text_model.", "text_projection.")),
}
"""Form of a tower alone -> transformers' model, and how its parameters begin."""


class HFClip(HuggingFaceFolder):
    """transformers' CLIPModel; either tower alone is written, too."""

    order = 49  # the one for folders of transformers of any other kind, which it refuses
    kind = "Hugging Face CLIPModel folder"
    family = "CLIP"
    forms: ClassVar[tuple[str, ...]] = ("hf", "hf-vision", "hf-text")

    def sniff(self, source: str) -> bool:
        """Any folder of transformers that no format before knows."""
        return model_type_of(Path(source)) is not None

    def translate(self, path: Path) -> HFContent:
        """See `HuggingFaceFolder.translate`."""
        source = str(path / CONFIG)
        return self._translated(path, read_object(path / CONFIG), read_tensors(path), source)

    def _translated(
        self, path: Path, data: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str
    ) -> HFContent:
        config = from_hf_config(data, source)
        tokenizer, assumed = clip_tokenizer(path)
        config["text_cfg"] |= tokenizer
        return HFContent(config, from_hf_state(tensors, str(path)), {}, assumed)

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Write a CLIPModel folder, or one of a tower alone."""
        model, parts = _ALONE.get(form, ("CLIPModel", ("",)))
        architecture = dict(loaded.config.model_cfg)
        vocabulary = loaded.tokenizer.vocab_size
        if form == "hf-vision":
            config = to_hf_vision_config(architecture, model)
        elif loaded.tokenizer.simple is None:
            raise CompoclipError(f"{loaded.name}: its tokenizer is not CLIP's BPE: no {model} form")
        elif form == "hf-text":
            config = to_hf_text_config(architecture, vocabulary, model)
        else:
            config = to_hf_config(architecture, vocabulary)
            architecture = from_hf_config(config, "")
        config["architectures"] = [model]
        if dtype == "float16":
            config["torch_dtype"] = "float16"
        network = loaded.encoder.model.state_dict()
        unnested = {name.removeprefix("text."): value for name, value in network.items()}
        plain = as_stored(unnested, dtype, loaded.name)
        tower = {"hf-vision": "image", "hf-text": "text"}.get(form)
        written = {k: v for k, v in plain.items() if tower in (None, part_of(k))}
        state = {k: v for k, v in to_hf_state(written).items() if k.startswith(parts)}
        named = {key: value for key, value in architecture.items() if key != "custom_text"}
        identity = replace(
            current_identity(loaded),
            architecture=architecture_name(with_activation(named, "gelu")),
            weights=weights_hash(plain),
        )
        with new_folder(folder) as temporary:
            save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / CONFIG, config)
            if form != "hf-text":
                processor = image_processor(loaded.preprocess, "CLIPImageProcessor")
                write_json(temporary / IMAGES, processor)
            if form != "hf-vision":
                write_clip_tokenizer(temporary, loaded.tokenizer)
            if form == "hf":
                write_json(temporary / RECORD, record_of(identity, loaded.provenance))
                if loaded.config.merges is not None:
                    shutil.copyfile(loaded.config.merges, temporary / MERGES)
        return identity

    def snippet(self, folder: Path) -> tuple[str, str]:
        """transformers' code."""
        return "transformers", (
            "from transformers import CLIPModel, CLIPProcessor\n\n"
            'model = CLIPModel.from_pretrained("FOLDER").eval()\n'
            'processor = CLIPProcessor.from_pretrained("FOLDER")\n'
            "# Texts are cleaned before: html.unescape(ftfy.fix_text(text))"
        )


FOLDERS = ("vision-encoder", "text-encoder")
_LOGIT_SCALE = math.log(100)  # what CLIP's training ends with


class SplitClip(HFClip):
    """The two towers of a CLIP in folders of their own, as TripletCLIP publishes what it trained
    from scratch.

        vision-encoder/config.json, model.safetensors    CLIPVisionModelWithProjection in a wrapper
        text-encoder/config.json, model.safetensors      CLIPTextModelWithProjection in a wrapper

    The wrappers' code (`utils.py` beside them) is not run. Sizes are those of the tensors; the
    number of heads is the configuration's, or one for 64 numbers of width as in every CLIP; the
    activation has to be in a configuration, since tensors do not show it. There is no temperature
    in the files.
    """

    order = 42
    kind = "Hugging Face two-tower CLIP folder"
    downloads = ("*-encoder/*.safetensors", "*-encoder/pytorch_model*.bin")
    forms = ()

    def sniff(self, source: str) -> bool:
        """By the configurations in both folders."""
        return all((Path(source) / name / CONFIG).is_file() for name in FOLDERS)

    def translate(self, path: Path) -> HFContent:
        """See `HuggingFaceFolder.translate`."""
        data, state = join_towers(path, {name: read_tensors(path / name) for name in FOLDERS})
        found = self._translated(path, data, state, str(path / CONFIG))
        unsaid = "temperature: 1/100, the folder has none"
        return replace(found, assumed=(unsaid, *found.assumed))


def join_towers(
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
    vision, text = (_tower_facts(path / name / "config.json") for name in FOLDERS)
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


def _tower_facts(file: Path) -> dict[str, Any]:
    """The facts about a tower in a wrapper's configuration, at its top or below its name."""
    data = read_object(file)
    for name in ("vision_config", "text_config"):
        data = {**data, **section(data, name, file)}
    known = ("hidden_act", "layer_norm_eps", "num_attention_heads")
    return {key: data[key] for key in known if key in data}


def _layer_sizes(state: Mapping[str, Tensor], tower: str) -> dict[str, int]:
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
        **_layer_sizes(state, "vision_model"),
        "patch_size": patch,
        "image_size": side * patch,
    }


def _text_sizes(state: Mapping[str, Tensor]) -> dict[str, int]:
    _ = state["text_projection.weight"]
    return {
        **_layer_sizes(state, "text_model"),
        "vocab_size": len(state["text_model.embeddings.token_embedding.weight"]),
        "max_position_embeddings": len(state["text_model.embeddings.position_embedding.weight"]),
    }
