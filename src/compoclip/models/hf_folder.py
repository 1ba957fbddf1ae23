"""Folders of Hugging Face's transformers: read, and (CLIP and BLIP) written.

    config.json               CLIPModel (or CLIPVisionModel alone), SiglipModel,
                              BlipForImageTextRetrieval
    model.safetensors         its parameters
    preprocessor_config.json  CLIPImageProcessor
    vocab.json, merges.txt, tokenizer_config.json, special_tokens_map.json   CLIPTokenizer
    compoclip.json            identity and provenance (not in folders of others)
    bpe.txt.gz                merges in open_clip's form, when they are not CLIP's own

Neither direction needs transformers installed.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.files import new_folder, read_text
from compoclip.models import blip, hf_siglip
from compoclip.models.architecture import BLIP, architecture_name, with_activation
from compoclip.models.config import ModelConfig, ModelIdentity, read_object, require_small, section
from compoclip.models.hf_clip import from_hf_config, from_hf_state, to_hf_config, to_hf_state
from compoclip.models.hf_siglip import from_siglip_config, from_siglip_state
from compoclip.models.loaded import (
    MERGES,
    RECORD,
    LoadedModel,
    as_stored,
    assemble,
    current_identity,
    verified,
    write_json,
)
from compoclip.models.preprocess import Preprocess
from compoclip.models.weights import read_state_dict, weights_hash
from compoclip.version import __version__

# --- The two towers of a CLIP in folders of their own, as TripletCLIP publishes what it trained
# from ---
#
# scratch.
#
#     vision-encoder/config.json, model.safetensors    CLIPVisionModelWithProjection in a wrapper
#     text-encoder/config.json, model.safetensors      CLIPTextModelWithProjection in a wrapper
#
# The wrappers' code (`utils.py` beside them) is not run. Sizes are those of the tensors; the number
# of heads is the configuration's, or one for 64 numbers of width as in every CLIP; the activation
# has to be in a configuration, since tensors do not show it. There is no temperature in the files.

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


# --- Folders of Hugging Face's transformers: read, and (CLIP and BLIP) written. ---

CONFIG, WEIGHTS, IMAGES = "config.json", "model.safetensors", "preprocessor_config.json"
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_FILTERS = {2: "bilinear", 3: "bicubic"}  # PIL's numbers
_OWNERS = {"siglip": "SigLIP", "blip": "BLIP"}
_START, _END = "<|startoftext|>", "<|endoftext|>"


def is_hf_folder(folder: Path) -> bool:
    """Whether a folder holds a transformers model (and no open_clip one)."""
    if is_split(folder):
        return True
    if (folder / "open_clip_config.json").is_file() or not (folder / CONFIG).is_file():
        return False
    return "model_type" in read_object(folder / CONFIG)


def hf_kind(folder: Path) -> str:
    """What transformers calls the kind of model in a folder of its own: "clip", "siglip", ...;
    "split" for a CLIP with its towers in folders of their own."""
    if is_split(folder):
        return "split"
    return str(read_object(folder / CONFIG).get("model_type"))


def load_hf_folder(path: Path, name: str) -> LoadedModel:
    """A CLIPModel or SiglipModel folder as an open_clip model, or a BlipForImageTextRetrieval
    folder; what the folder does not say (preprocessing, CLIP's vocabulary) is that family's own and
    noted in the provenance.

    Raises CompoclipError when files are missing or damaged, it is another kind of model, or its
    tokenizer is not CLIP's (of SigLIP and BLIP: is not there).
    """
    try:
        return _load(path, name)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:  # of taking tensors apart
        first = (str(error).splitlines() or [""])[0]
        raise CompoclipError(
            f"{path}: its tensors have not the shapes of such a model ({first}); restore the "
            "original files"
        ) from error


def _load(path: Path, name: str) -> LoadedModel:
    kind = hf_kind(path)
    assumed: list[str] = []
    if kind == "split":
        data, weights = joined(path, {name: _weights(path / name) for name in FOLDERS})
        assumed.append("temperature: 1/100, the folder has none")
    else:
        data, weights = read_object(path / CONFIG), _weights(path)
    if kind == "siglip":
        config = from_siglip_config(data, str(path / CONFIG))
        config["text_cfg"] |= _own_tokenizer(path, "canonicalize")
        state, preprocess = from_siglip_state(weights, str(path)), dict(hf_siglip.PREPROCESS)
    elif kind == "blip":
        config = blip.from_blip_config(data, str(path / CONFIG))
        config["text_cfg"] |= _own_tokenizer(path, "whitespace")
        state, preprocess = blip.from_blip_state(weights, str(path)), dict(blip.PREPROCESS)
        if "logit_scale" not in weights:
            assumed.append("temperature: BLIP's first one, the folder has none")
    else:
        config = from_hf_config(data, str(path / CONFIG))
        config["text_cfg"] |= _clip_tokenizer(path, assumed)
        state, preprocess = from_hf_state(weights, str(path)), {}
    if (path / IMAGES).is_file():
        preprocess = _preprocess(read_object(path / IMAGES), path / IMAGES)
    else:
        assumed.append(f"preprocessing: {_OWNERS.get(kind, 'CLIP')}'s own, the folder has none")
    model = ModelConfig(config, preprocess, folder=path)
    loaded = assemble(model, name, state=state, path=path)
    if (path / RECORD).is_file():
        return verified(loaded, path / RECORD)
    facts: dict[str, Any] = {"activation": f"{loaded.identity.activation}, by {CONFIG}"}
    return replace(loaded, provenance={**facts, "assumed": assumed} if assumed else facts)


def _clip_tokenizer(path: Path, assumed: list[str]) -> dict[str, Any]:
    """What a text configuration says of the tokenizer; what is not in the folder is `assumed`."""
    merges = _merges(path)
    if (path / MERGES).is_file():
        return {"tokenizer_kwargs": {"bpe_path": MERGES}}
    if merges is None:
        assumed.append("tokenizer: CLIP's own, the folder has none")
    elif merges != _merges_of(SimpleTokenizer()):
        raise CompoclipError(
            f"{path}: its tokenizer is not CLIP's BPE and open_clip could not read it: "
            "only models with CLIP's vocabulary are converted"
        )
    return {}


def _own_tokenizer(path: Path, clean: str) -> dict[str, Any]:
    """What a text configuration says of the tokenizer in the folder. clean: open_clip's name for
    what is done to texts before."""
    if not (path / "tokenizer_config.json").is_file():
        raise CompoclipError(
            f"{path}: has no tokenizer_config.json, and models of its kind have several "
            "tokenizers: copy the tokenizer's files into the folder"
        )
    return {"hf_tokenizer_name": "in-this-folder", "tokenizer_kwargs": {"clean": clean}}


def save_hf(
    loaded: LoadedModel, folder: Path, *, vision_only: bool = False, dtype: str = "float32"
) -> ModelIdentity:
    """Write a CLIPModel folder, or one of CLIPVisionModel alone, in one step.

    Returns the identity as saved. Raises CompoclipError when the model has no such form, the place
    is taken or not writable, or float16 would overflow.
    """
    if BLIP in loaded.config.model_cfg and not vision_only:
        return _save_blip(loaded, folder, dtype)
    tokens = getattr(loaded.tokenizer, "simple", None)
    if tokens is None:
        raise CompoclipError(f"{loaded.name}: its tokenizer is not CLIP's BPE: no CLIPModel form")
    config = to_hf_config(loaded.config.model_cfg, loaded.tokenizer.vocab_size)
    network = loaded.encoder.model.state_dict()
    unnested = {name.removeprefix("text."): value for name, value in network.items()}
    plain = as_stored(unnested, dtype, loaded.name)
    state = to_hf_state(plain)
    if vision_only:
        state = {k: v for k, v in state.items() if k.startswith("vision_model.")}
        config = {"architectures": ["CLIPVisionModel"], **config["vision_config"]}
    elif dtype == "float16":
        config["torch_dtype"] = "float16"
    architecture = from_hf_config(config, "") if not vision_only else loaded.config.model_cfg
    identity = replace(
        current_identity(loaded),
        architecture=architecture_name(with_activation(_unnamed(architecture), "gelu")),
        weights=weights_hash(plain),
    )
    with new_folder(folder) as temporary:
        save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
        write_json(temporary / CONFIG, config)
        write_json(temporary / IMAGES, _image_processor(loaded.preprocess))
        if not vision_only:
            write_tokenizer(temporary, tokens, loaded.tokenizer.context_length)
            record = {
                "compoclip": __version__,
                "identity": identity.to_json(),
                "provenance": dict(loaded.provenance),
            }
            write_json(temporary / RECORD, record)
            merges = (loaded.config.model_cfg["text_cfg"].get("tokenizer_kwargs") or {}).get(
                "bpe_path"
            )
            if merges is not None:
                shutil.copyfile((loaded.config.folder or Path()) / merges, temporary / MERGES)
    return identity


def _save_blip(loaded: LoadedModel, folder: Path, dtype: str) -> ModelIdentity:
    """Write a BlipForImageTextRetrieval folder; its temperature is left out, which ranks alike."""
    plain = as_stored(loaded.encoder.model.state_dict(), dtype, loaded.name)
    config = {"architectures": ["BlipForImageTextRetrieval"], "model_type": "blip"}
    with new_folder(folder) as temporary:
        state = blip.to_blip_state(plain)
        save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
        write_json(temporary / CONFIG, {**config, **loaded.config.model_cfg[BLIP]})
        processor = _image_processor(loaded.preprocess)
        processor["image_processor_type"] = "BlipImageProcessor"
        write_json(temporary / IMAGES, processor)
        loaded.tokenizer.write_files(temporary)
    return replace(current_identity(loaded), weights=weights_hash(plain))


def _unnamed(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "custom_text"}


def _weights(path: Path) -> dict[str, Tensor]:
    for name in (WEIGHTS, "pytorch_model.bin"):
        if (path / name).is_file():
            return read_state_dict(path / name)
    for name in _INDEX:
        if (path / name).is_file():
            shards = read_object(path / name).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise CompoclipError(f"{path / name}: has no weight_map; restore the file")
            state: dict[str, Tensor] = {}
            for shard in sorted({str(value) for value in shards.values()}):
                if Path(shard).name != shard:
                    raise CompoclipError(f"{path / name}: shard '{shard}' is outside the folder")
                state |= read_state_dict(path / shard)
            return state
    raise CompoclipError(f"{path}: has no weights; expected {WEIGHTS}")


def _preprocess(data: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """open_clip's `preprocess_cfg` of a CLIPImageProcessor."""
    number = data.get("resample", 3)
    if not isinstance(number, int) or number not in _FILTERS:
        raise CompoclipError(
            f"{source}: resample {str(number)[:80]} is neither 3 (bicubic) nor 2 (bilinear)"
        )
    size = data.get("size", 224)
    squash = isinstance(size, Mapping) and "height" in size and not data.get("do_center_crop")
    return {
        "mean": data.get("image_mean"),
        "std": data.get("image_std"),
        "interpolation": _FILTERS[number],
        "resize_mode": "squash" if squash else "shortest",
    }


def _image_processor(preprocess: Preprocess) -> dict[str, Any]:
    height, width = preprocess.size
    if preprocess.resize_mode == "longest":
        raise CompoclipError(
            "CLIPImageProcessor cannot pad images to a square (resize_mode longest)"
        )
    whole = {"height": height, "width": width}
    squash = preprocess.resize_mode == "squash"
    numbers = {name: number for number, name in _FILTERS.items()}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": whole if squash else {"shortest_edge": min(height, width)},
        "resample": numbers[preprocess.interpolation],
        "do_center_crop": not squash,
        "crop_size": whole,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }


def _merges_of(tokenizer: SimpleTokenizer) -> list[tuple[str, str]]:
    ranks = tokenizer.bpe_ranks
    return sorted(ranks, key=ranks.__getitem__)


def _merges(path: Path) -> list[tuple[str, str]] | None:
    """The merges of the tokenizer in a transformers folder; None when there is none."""
    file = path / "merges.txt"
    if file.is_file():
        require_small(file)
        lines = read_text(file).split("\n")
        pairs = [line.split() for line in lines if line and not line.startswith("#version")]
    elif (path / "tokenizer.json").is_file():
        file = path / "tokenizer.json"
        listed = section(read_object(file), "model", file).get("merges")
        if not isinstance(listed, list):
            raise CompoclipError(f"{file}: has no BPE merges: not a CLIP tokenizer")
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in listed]
    else:
        return None
    wrong = next((i for i, pair in enumerate(pairs, 1) if not _is_pair(pair)), None)
    if wrong is not None:
        raise CompoclipError(f"{file}: merge {wrong} is not a pair of symbols")
    return [(str(one), str(other)) for one, other in pairs]


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def write_tokenizer(folder: Path, tokenizer: SimpleTokenizer, context: int) -> None:
    """The files that CLIPTokenizer reads; its ids are those of `tokenizer`."""
    names = {"<start_of_text>": _START, "<end_of_text>": _END}
    vocabulary = {names.get(token, token): number for token, number in tokenizer.encoder.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    merges = "\n".join(f"{one} {other}" for one, other in _merges_of(tokenizer))
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    special = {
        "bos_token": _START,
        "eos_token": _END,
        "unk_token": _END,
        "pad_token": _END,
    }
    write_json(folder / "special_tokens_map.json", special)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "CLIPTokenizer",
            "model_max_length": context,
            "do_lower_case": True,
            "add_prefix_space": False,
            "errors": "replace",
            **special,
        },
    )
