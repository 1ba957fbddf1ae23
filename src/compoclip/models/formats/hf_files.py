"""Files of transformers' folders: named tensors, CLIP's tokenizer, the image processor."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from compoclip.bounds import MAX_CONTEXT
from compoclip.captions.clip_text import BytePairs
from compoclip.errors import CompoclipError, quoted, require, typed_repr
from compoclip.files import read_json, read_text
from compoclip.models.config import (
    MERGES,
    OPEN_CLIP,
    POSITIONS,
    read_object,
    require_small,
    section,
    sound,
    write_json,
)
from compoclip.models.formats.closed_list import IMAGE_PROCESSORS, check_entries
from compoclip.models.preprocess import Preprocess
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from compoclip.models.weights import read_state_dict
from compoclip.typed import require_kind

CONFIG, WEIGHTS, IMAGES = "config.json", "model.safetensors", "preprocessor_config.json"
PROCESSOR = "processor_config.json"
MODULES, MODALITIES = "modules.json", "sentence_bert_config.json"
INDEX = f"{WEIGHTS}.index.json"
_FILTERS = {2: "bilinear", 3: "bicubic"}  # PIL's numbers
_START, _END = "<|startoftext|>", "<|endoftext|>"
_SPECIAL = {"bos_token": _START, "eos_token": _END, "unk_token": _END, "pad_token": _END}
_OTHER_TOKENIZER = (
    "its tokenizer is not CLIP's BPE and open_clip could not read it: only models with CLIP's "
    "vocabulary are converted; hf:FOLDER measures others"
)
_OTHER_IMAGES = "hf:FOLDER measures the model with its own images"


def model_type_of(folder: Path) -> object:
    """Return the "model_type" of a folder of transformers; None for every other folder."""
    if (folder / OPEN_CLIP).is_file() or not (folder / CONFIG).is_file():
        return None
    return read_object(folder / CONFIG).get("model_type")


class ParameterNames:
    """The names of the same parameters in transformers and in open_clip (`hugging_face.yaml`)."""

    def __init__(self, model: str, rows: list[list[str]]) -> None:
        self._model = model
        self._rows = [(theirs, ours, "".join(how)) for theirs, ours, *how in rows]

    def ours(self, name: str) -> tuple[str, str]:
        """Return open_clip's name of a parameter and how it is stored. Raises KeyError."""
        return _renamed(name, self._rows)

    def theirs(self, name: str) -> tuple[str, str]:
        """Return transformers' name of a parameter and how it is stored. Raises KeyError."""
        return _renamed(name, [(ours, theirs, how) for theirs, ours, how in self._rows])

    def read(self, state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
        """Return their parameters under open_clip's names.

        Raises CompoclipError naming `source` for an unknown name, and when a projection of an
        attention is missing.
        """
        out: dict[str, Tensor] = {}
        for key, value in state.items():
            if key.endswith(".position_ids") or re.search(r"self_attn\.[kv]_proj\.", key):
                continue
            try:
                name, how = self.ours(key)
            except KeyError as error:
                raise CompoclipError(
                    f"{source}: {error} is no parameter of {self._model}; expected the weights "
                    f"of transformers' {self._model}"
                ) from error
            if how == "q|kv":
                third = len(value) // 3
                out[name.replace(".q.", ".kv.")] = value[third:].contiguous()
                value = value[:third].contiguous()
            elif how == "qkv":
                parts = [key.replace("q_proj", f"{part}_proj") for part in "qkv"]
                if lacking := [part for part in parts if part not in state]:
                    raise CompoclipError(f"{source}: the file lacks '{lacking[0]}'")
                value = torch.cat([state[part] for part in parts])
            elif how == "transposed":
                value = value.T.contiguous()
            elif how == "row":
                value = value[None]
            out[name] = value
        return out

    def write(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return open_clip's parameters under their names. Raises CompoclipError for an unknown
        name."""
        out: dict[str, Tensor] = {}
        for key, value in state.items():
            if ".attn_pool.kv." in key:
                continue
            try:
                name, how = self.theirs(key)
            except KeyError as error:
                refuse(self._model, str(error))
            if how == "qkv":
                for part, third in zip("qkv", value.chunk(3)):
                    out[name.replace("q_proj", f"{part}_proj")] = third.contiguous()
            elif how == "q|kv":
                out[name] = torch.cat([value, state[key.replace(".q.", ".kv.")]])
            elif how == "transposed":
                out[name] = value.T.contiguous()
            elif how == "row":
                out[name] = value[0].contiguous()
            elif how != "unwritten":
                out[name] = value.reshape(1) if how == "number" else value
        return out


def refuse(model: str, content: str) -> NoReturn:
    """Raise CompoclipError for what a model of transformers has no place for."""
    raise CompoclipError(
        f"Hugging Face's {model} cannot express {content}: use --to open-clip or --to onnx"
    )


def _renamed(name: str, rows: list[tuple[str, str, str]]) -> tuple[str, str]:
    for old, new, how in rows:
        pattern = re.escape(old).replace(r"\#", r"(\d+)")
        match = re.match(pattern if old.endswith((".", "_")) else f"{pattern}$", name)
        if match:
            return new.replace("#", "".join(match.groups())) + name[match.end() :], how
    raise KeyError(name)


def shards_of(index: Path) -> list[str]:
    """Return the files of weights that an index names.

    Raises CompoclipError when it names none, or one outside the folder.
    """
    shards = read_object(index).get("weight_map")
    names = {str(name) for name in shards.values()} if isinstance(shards, dict) else set()
    if not names or any(Path(name).name != name or name[:1] == "." for name in names):
        raise CompoclipError(
            f"{index}: its weight_map names no file, or one that is outside the folder; restore "
            "the file"
        )
    return sorted(names)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the parameters in a folder, from one file or several.

    Raises CompoclipError when they are missing or damaged.
    """
    for name in (WEIGHTS, "pytorch_model.bin"):
        index = path / f"{name}.index.json"
        files = [name] if (path / name).is_file() else []
        if not files and index.is_file():
            files = shards_of(index)
        if files:
            parts = [read_state_dict(path / file) for file in files]
            return {key: value for part in parts for key, value in part.items()}
    raise CompoclipError(f"{path}: has no weights; expected {WEIGHTS}")


def clip_sizes(state: Mapping[str, Tensor], part: str) -> dict[str, int]:
    """Return the sizes of a CLIP tower in their words, from its tensors."""
    tower = f"{part}_model"
    start = f"{tower}.encoder.layers."
    numbers = {int(key[len(start) :].partition(".")[0]) for key in state if key.startswith(start)}
    hidden, width = state[f"{start}0.mlp.fc1.weight"].shape
    positions = len(state[f"{tower}.embeddings.position_embedding.weight"])
    sizes = {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": len(numbers),
        "num_attention_heads": max(1, width // 64),
    }
    if part == "text":
        tokens = len(state[f"{tower}.embeddings.token_embedding.weight"])
        return {**sizes, "vocab_size": tokens, "max_position_embeddings": positions}
    patch = state[f"{tower}.embeddings.patch_embedding.weight"].shape[-1]
    classes = int(f"{tower}.embeddings.class_embedding" in state)
    return {**sizes, "patch_size": patch, "image_size": math.isqrt(positions - classes) * patch}


def tokenizer_of(path: Path, clean: str) -> tuple[dict[str, Any], list[str]]:
    """Return what a text configuration says of the tokenizer in a folder, and what is assumed.

    clean: open_clip's name for the cleaning of texts; "" for CLIP's tokenizer.
    """
    if clean:
        if not (path / "tokenizer_config.json").is_file():
            raise CompoclipError(
                f"{path}: has no tokenizer_config.json, and models of its kind have several "
                "tokenizers: copy the tokenizer's files into the folder"
            )
        return {"hf_tokenizer_name": "in-this-folder", "tokenizer_kwargs": {"clean": clean}}, []
    custom = (path / MERGES).is_file()
    options = {"tokenizer_kwargs": {"bpe_path": MERGES}} if custom else {}
    tokenizer = build_tokenizer(options, path).simple
    assert tokenizer is not None
    stated = _require_same_tokenizer(path, tokenizer)
    return options, [] if stated or custom else ["tokenizer: CLIP's own, the folder has none"]


def longest_text(path: Path) -> int | None:
    """Return the tokens per text at which a folder cuts texts; None if it does not say that.

    sentence-transformers has an entry of its own, which it reads beside its list of modules.
    """
    places = [(path / "tokenizer_config.json", "model_max_length")]
    if (path / MODULES).is_file():
        places.append((path / MODALITIES, "max_seq_length"))
    lengths = []
    for file, entry in places:
        length = read_object(file).get(entry) if file.is_file() else None
        if length is not None and not (isinstance(length, int | float) and length >= 2):
            raise CompoclipError(f"{file}: {entry} {typed_repr(length)} is no number of tokens")
        if length is not None and length <= MAX_CONTEXT:
            lengths.append(int(length))
    return min(lengths, default=None)


def require_pipeline(path: Path) -> None:
    """Refuse a folder of sentence-transformers that does more than the model in it.

    Raises CompoclipError naming the module, the prompt or the entry.
    """
    if (file := path / MODULES).is_file():
        modules = read_json(file)
        require(isinstance(modules, list), file, "expected a list of modules; restore the file")
        for number, module in enumerate(modules):
            kind = str(module.get("type") if isinstance(module, Mapping) else module)
            name = kind.rpartition(".")[2]
            if name not in ("Transformer", "CLIPModel", "Normalize"):
                raise CompoclipError(
                    f"{file}: {number}.type {kind} is more than the model; st:FOLDER measures what "
                    "it does"
                )
            place = str(module.get("path") or ".")
            if name != "Normalize" and Path(place) != Path():
                raise CompoclipError(
                    f"{file}: {number}.path: the model is in {place}; name {path / place}"
                )
        if (file := path / MODALITIES).is_file():
            check_entries(read_object(file), MODALITIES, file, "st:FOLDER follows it")
    if (file := path / "config_sentence_transformers.json").is_file():
        data = read_object(file)
        check_entries(data, "sentence-transformers", file, "st:FOLDER follows it")
        prompt = section(data, "prompts", file).get(str(data.get("default_prompt_name")))
        if prompt:
            raise CompoclipError(
                f"{file}: default_prompt_name: texts begin with {typed_repr(prompt)}; st:FOLDER "
                "follows it"
            )


def cut_context(text: dict[str, Any], state: dict[str, Tensor], longest: int | None) -> None:
    """Shorten the context, and the table of positions, to what the tokenizer leaves of a text."""
    if longest is not None and longest < int(text["context_length"]):
        text["context_length"] = longest
        for name in state.keys() & {*POSITIONS}:
            state[name] = state[name][:longest].clone()


def _require_same_tokenizer(path: Path, tokenizer: BytePairs) -> bool:
    """Return whether files of a folder state the vocabulary, which has to be that of `tokenizer`.

    Raises CompoclipError naming a file and an entry with which texts have other ids.
    """
    vocabulary, merges = clip_vocabulary(tokenizer), _merges_of(tokenizer)
    ids = {token: vocabulary[token] for token in (_START, _END)}
    for file, kind in (
        (path / "tokenizer_config.json", "tokenizer"),
        (path / "special_tokens_map.json", "special tokens"),
    ):
        if file.is_file():
            data = read_object(file)
            check_entries(data, kind, file, _OTHER_TOKENIZER)
            _require_tokens(file, data, _SPECIAL)
            listed = section(data, "added_tokens_decoder", file).items()
            _require_added(file, "added_tokens_decoder.{}", listed, ids)
    if (file := path / "added_tokens.json").is_file():
        _require_tokens(file, read_object(file), ids, closed=True)
    if (file := path / "vocab.json").is_file():
        _require_vocabulary(file, "", read_object(file), vocabulary)
    pairs: list[list[str]] | None = None
    if (file := path / "merges.txt").is_file():
        require_small(file)
        lines = read_text(file).split("\n")
        pairs = [line.split() for line in lines if line and not line.startswith("#version")]
        require([*map(tuple, pairs)] == merges, file, f"merges: {_OTHER_TOKENIZER}")
    if (file := path / "tokenizer.json").is_file():
        data = read_object(file)
        model = section(data, "model", file)
        listed_merges = model.get("merges")
        if not isinstance(listed_merges, list):
            raise CompoclipError(f"{file}: has no model with BPE merges: not a CLIP tokenizer")
        added_tokens = data.get("added_tokens") or []
        require_kind(f"{file}: added_tokens", added_tokens, list[dict[str, Any]], _OTHER_TOKENIZER)
        with sound(file):
            pairs = [p.split(" ") if isinstance(p, str) else list(p) for p in listed_merges]
            rows = [(row["id"], row) for row in added_tokens]
        require([*map(tuple, pairs)] == merges, file, f"merges: {_OTHER_TOKENIZER}")
        _require_vocabulary(file, "model.vocab.", section(model, "vocab", file), vocabulary)
        check_entries(data, "tokenizer.json", file, _OTHER_TOKENIZER)
        check_entries(model, "tokenizer.json model", file, _OTHER_TOKENIZER, "model.")
        _require_added(file, "added_tokens[id={}]", rows, ids)
    return pairs is not None


def _require_added(
    file: Path, place: str, rows: Iterable[tuple[object, Any]], ids: Mapping[str, int]
) -> None:
    """Refuse added tokens, numbers with tokens, other than those of `ids`. place: of a number."""
    stated = {place.format(number): token for number, token in rows}
    expected = {place.format(number): token for token, number in ids.items()}
    _require_tokens(file, stated, expected, closed=True)


def _require_tokens(
    file: Path, data: Mapping[str, Any], expected: Mapping[str, Any], closed: bool = False
) -> None:
    """Refuse entries with other tokens than expected; `closed`: any entry that is not expected."""
    for name, value in data.items():
        nested = isinstance(value, Mapping)
        content = value.get("content") if nested else value
        if (closed or name in expected) and content != expected.get(name):
            place = f"{name}.content" if nested else name
            raise CompoclipError(f"{file}: {place} is {typed_repr(content)}; {_OTHER_TOKENIZER}")


def _require_vocabulary(
    file: Path, within: str, stated: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> None:
    """Refuse a vocabulary with another id than expected, naming the first such token."""
    if stated == vocabulary:
        return
    tokens = [token for token, number in vocabulary.items() if stated.get(token) != number]
    token = (tokens or [token for token in stated if token not in vocabulary])[0]
    raise CompoclipError(
        f"{file}: {within}{quoted(token)[1:-1]} is {typed_repr(stated.get(token))}; "
        f"{_OTHER_TOKENIZER}"
    )


def preprocess_of(path: Path, defaults: str, side: int) -> dict[str, Any] | None:
    """Return open_clip's `preprocess_cfg` of the image processor in a folder; None without one.

    transformers 5 keeps its settings in `processor_config.json`, earlier releases in a file of its
    own, which the first one overrules. defaults: the class of a processor that does not name its
    own. side: of the images that the image tower takes.

    Raises CompoclipError naming an entry that open_clip's preprocessing cannot follow.
    """
    source, within, settings = path / PROCESSOR, "image_processor.", None
    if source.is_file():
        data = read_object(source)
        check_entries(data, "processor", source, _OTHER_IMAGES)
        settings = section(data, "image_processor", source) or None
    if settings is None:
        source, within = path / IMAGES, ""
        if not source.is_file():
            return None
        settings = read_object(source)
    check_entries(settings, "image processor", source, _OTHER_IMAGES, within)
    kind = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    kind = kind or defaults
    name = re.sub(r"(FeatureExtractor|ImageProcessor(Fast|Pil)?)$", "", str(kind))
    if name not in IMAGE_PROCESSORS:
        names = ", ".join(f"{name}ImageProcessor" for name in IMAGE_PROCESSORS)
        raise CompoclipError(
            f"{source}: {within}image_processor_type {typed_repr(kind)} is not one of {names}"
        )
    stated = {**IMAGE_PROCESSORS[name], **settings}
    square = {"height": side, "width": side}
    size, crop = (
        {"height": value, "width": value} if isinstance(value, int) else value
        for value in (stated["size"], stated["crop_size"])
    )
    if isinstance(stated["size"], int) and not stated["default_to_square"]:
        size = {"shortest_edge": stated["size"]}
    cropped = bool(stated["do_center_crop"])
    shortest = {"shortest_edge": side}
    for entry, value, fitting in (
        ("size", size, [shortest, square] if cropped else [square]),
        ("crop_size", crop, [square] if cropped else [crop]),
    ):
        if value not in fitting:
            by = "" if entry in settings else f", by image_processor_type {kind},"
            raise CompoclipError(
                f"{source}: {within}{entry} {str(value)[:80]}{by} must be "
                f"{' or '.join(map(str, fitting))} with do_center_crop {stated['do_center_crop']}, "
                f"as image_size is {side}; {_OTHER_IMAGES}"
            )
    whole = bool(stated["do_normalize"])
    return {
        "mean": stated["image_mean"] if whole else [0.0] * 3,
        "std": stated["image_std"] if whole else [1.0] * 3,
        "interpolation": _FILTERS[stated["resample"]],
        "resize_mode": "squash" if size == square else "shortest",
    }


def write_image_processor(folder: Path, preprocess: Preprocess, kind: str) -> None:
    """Write the `preprocessor_config.json` of an image processor of class `kind`.

    Raises CompoclipError for images that are padded.
    """
    height, width = preprocess.size
    if preprocess.resize_mode == "longest":
        raise CompoclipError(f"{kind} cannot pad images to a square (resize_mode longest)")
    whole = {"height": height, "width": width}
    squash = preprocess.resize_mode == "squash"
    numbers = {name: number for number, name in _FILTERS.items()}
    settings = {
        "image_processor_type": kind,
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
    write_json(folder / IMAGES, settings)


def write_modalities(folder: Path) -> None:
    """Write the file that states that a model reads images and texts.

    mteb (2.26) takes a repository without it as a model of texts alone. sentence-transformers finds
    the same two methods by itself, and reads the file only beside a `modules.json`.
    """
    methods = {
        kind: {"method": f"get_{kind}_features", "method_output_name": "pooler_output"}
        for kind in ("text", "image")
    }
    stated = {"modality_config": methods, "module_output_name": "sentence_embedding"}
    write_json(folder / MODALITIES, {"transformer_task": "feature-extraction", **stated})


def clip_vocabulary(tokenizer: BytePairs) -> dict[str, int]:
    """Return the ids of tokens in transformers' words."""
    names = {"<start_of_text>": _START, "<end_of_text>": _END}
    return {names.get(token, token): number for token, number in tokenizer.encoder.items()}


def _merges_of(tokenizer: BytePairs) -> list[tuple[str, ...]]:
    ranks = tokenizer.bpe_ranks
    return sorted(ranks, key=ranks.__getitem__)


def write_clip_tokenizer(folder: Path, tokenizer_written: Tokenizer) -> None:
    """Write the files that CLIPTokenizer reads, for a tokenizer with CLIP's BPE."""
    tokenizer = tokenizer_written.simple
    assert tokenizer is not None
    vocabulary = clip_vocabulary(tokenizer)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    merges = "\n".join(f"{one} {other}" for one, other in _merges_of(tokenizer))
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    write_json(folder / "special_tokens_map.json", _SPECIAL)
    settings = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": tokenizer_written.context_length,
        "do_lower_case": True,
        "add_prefix_space": False,
        "errors": "replace",
    }
    write_json(folder / "tokenizer_config.json", {**settings, **_SPECIAL})
