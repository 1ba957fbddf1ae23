"""Folders of Hugging Face's transformers: what their formats share.

    config.json               the kind of model ("model_type") and its sizes
    model.safetensors         its parameters, in one file or several
    preprocessor_config.json  the image processor
    vocab.json, merges.txt, tokenizer.json, ...   the tokenizer
    compoclip.json            identity and provenance (not in folders of others)
    bpe.txt.gz                merges in open_clip's form, when they are not CLIP's own

Neither reading nor writing needs transformers installed, but for tokenizers other than CLIP's.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.files import read_json, read_text
from compoclip.models.checkpoint import (
    Above,
    Format,
    LoadedModel,
    assemble,
    override_activation,
    verified,
)
from compoclip.models.config import (
    MERGES,
    RECORD,
    ModelConfig,
    read_object,
    require_small,
    section,
    write_json,
)
from compoclip.models.formats.hub import TOKENIZER_FILES
from compoclip.models.preprocess import Preprocess, Tokenizer
from compoclip.models.weights import read_state_dict

CONFIG, WEIGHTS, IMAGES = "config.json", "model.safetensors", "preprocessor_config.json"
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_FILTERS = {2: "bilinear", 3: "bicubic"}  # PIL's numbers
_START, _END = "<|startoftext|>", "<|endoftext|>"


def model_type_of(folder: Path) -> object:
    """The "model_type" of a folder of transformers; None for an open_clip folder and any other."""
    if (folder / "open_clip_config.json").is_file() or not (folder / CONFIG).is_file():
        return None
    return read_object(folder / CONFIG).get("model_type")


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Names:
    """The names of the same parameters in transformers and in open_clip.

    same: names, theirs and open_clip's; one that ends in "." is the start of several, # is the
    number of a layer. fused: attentions whose query, key and value projections are apart there and
    one weight here, as starts of names.
    """

    same: Pairs
    fused: Pairs

    def ours(self, name: str) -> str:
        """open_clip's name of a parameter. Raises KeyError for one that is not the `same`."""
        return _renamed(name, self.same)

    def theirs(self, name: str) -> str:
        """The inverse of `ours`."""
        return _renamed(name, _turned(self.same))

    def read(self, state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
        """Their parameters under open_clip's names. Raises CompoclipError naming `source` for
        projections of an attention that are not all there, KeyError for an unknown name."""
        out: dict[str, Tensor] = {}
        for key, value in state.items():
            if key.endswith(".position_ids") or re.search(r"self_attn\.[kv]_proj\.", key):
                continue
            query = re.fullmatch(r"(.*self_attn\.)q_proj\.(weight|bias)", key)
            if query is None:
                out[self.ours(key)] = value
                continue
            names = [f"{query[1]}{part}_proj.{query[2]}" for part in "qkv"]
            lacking = next((name for name in names if name not in state), None)
            if lacking is not None:
                raise CompoclipError(f"{source}: the file lacks '{lacking}'")
            fused = torch.cat([state[name] for name in names])
            out[_renamed(query[1], self.fused) + query[2]] = fused
        return out

    def write(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `read`. Raises KeyError for an unknown name."""
        out: dict[str, Tensor] = {}
        for key, value in state.items():
            fused = re.fullmatch(r"(.*resblocks.*\.in_proj_|.*blocks.*\.qkv\.)(weight|bias)", key)
            if fused is None:
                out[self.theirs(key)] = value
                continue
            start = _renamed(fused[1], _turned(self.fused))
            for part, third in zip("qkv", value.chunk(3)):
                out[f"{start}{part}_proj.{fused[2]}"] = third.contiguous()
        return out


def _turned(names: Pairs) -> Pairs:
    return tuple((b, a) for a, b in names)


def _renamed(name: str, names: Pairs) -> str:
    for old, new in names:
        pattern = re.escape(old).replace(r"\#", r"(\d+)")
        found = re.match(pattern if old.endswith((".", "_")) else f"{pattern}$", name)
        if found:
            return new.replace("#", "".join(found.groups())) + name[found.end() :]
    raise KeyError(name)


@dataclass(frozen=True)
class HFContent:
    """A transformers folder in open_clip's words.

    config: the model configuration. state: its parameters. preprocess: the family's own
    `preprocess_cfg`, for folders that do not say. assumed: what the folder does not say.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    preprocess: Mapping[str, Any]
    assumed: tuple[str, ...] = ()


class HuggingFaceFolder(Format):
    """A folder of transformers; a subclass a family of models.

    model_type: what `config.json` calls the family. family: what people call it.
    """

    known_by = f"hidden_act in {CONFIG}"
    stored = WEIGHTS
    downloads = ("model*.safetensors", "pytorch_model*.bin")  # safetensors if there are any
    beside = (IMAGES, *TOKENIZER_FILES)
    model_type: ClassVar[str]
    family: ClassVar[str]

    def sniff(self, source: str) -> bool:
        """By the "model_type" in `config.json`."""
        return model_type_of(Path(source)) == self.model_type

    @abstractmethod
    def translate(self, path: Path) -> HFContent:
        """Read a folder. Raises CompoclipError when files are missing or damaged."""

    def load(self, source: str, name: str, activation: str | None, above: Above) -> LoadedModel:
        """The folder as an open_clip model; what it does not say (preprocessing, CLIP's vocabulary)
        is the family's own and noted in the provenance."""
        path = Path(source)
        try:
            return override_activation(self._load(path, name), activation)
        except (
            TypeError,
            ValueError,
            IndexError,
            RuntimeError,
        ) as error:  # of taking tensors apart
            first = (str(error).splitlines() or [""])[0]
            raise CompoclipError(
                f"{path}: its tensors have not the shapes of such a model ({first}); restore the "
                "original files"
            ) from error

    def _load(self, path: Path, name: str) -> LoadedModel:
        found = self.translate(path)
        preprocess, assumed = found.preprocess, list(found.assumed)
        if (path / IMAGES).is_file():
            preprocess = _preprocess(read_object(path / IMAGES), path / IMAGES)
        else:
            assumed.append(f"preprocessing: {self.family}'s own, the folder has none")
        model = ModelConfig(found.config, preprocess, folder=path)
        loaded = assemble(model, name, state=found.state, path=path)
        if (path / RECORD).is_file():
            return verified(loaded, path / RECORD)
        facts: dict[str, Any] = {"activation": f"{loaded.identity.activation}, by {CONFIG}"}
        return replace(loaded, provenance={**facts, "assumed": assumed} if assumed else facts)

    def hub_files(self, folder: Path) -> tuple[list[str], tuple[str, ...]]:
        """Configuration and weights, in one file or several."""
        index = folder / _INDEX[0]
        if not index.is_file():
            return [CONFIG, WEIGHTS], self.beside
        data = read_json(index)
        shards = data.get("weight_map") if isinstance(data, dict) else None
        names = sorted({str(name) for name in (shards or {}).values()})
        if not names or any(Path(name).name != name or name.startswith(".") for name in names):
            raise CompoclipError(f"{index}: its weight_map names no files of the folder")
        return [CONFIG, index.name, *names], self.beside


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The parameters in a folder, in one file or several.

    Raises CompoclipError when they are missing or damaged, or a shard is outside the folder.
    """
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


def clip_tokenizer(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Entries of a text configuration for a folder with CLIP's tokenizer or none, and what is
    assumed.

    Raises CompoclipError for another tokenizer.
    """
    merges = _merges(path)
    if (path / MERGES).is_file():
        return {"tokenizer_kwargs": {"bpe_path": MERGES}}, ()
    if merges is None:
        return {}, ("tokenizer: CLIP's own, the folder has none",)
    if merges != _merges_of(SimpleTokenizer()):
        raise CompoclipError(
            f"{path}: its tokenizer is not CLIP's BPE and open_clip could not read it: "
            "only models with CLIP's vocabulary are converted"
        )
    return {}, ()


def own_tokenizer(path: Path, clean: str) -> dict[str, Any]:
    """Entries of a text configuration for a Hugging Face tokenizer in the folder.

    clean: open_clip's name for the cleaning of texts. Raises CompoclipError when there is none.
    """
    if not (path / "tokenizer_config.json").is_file():
        raise CompoclipError(
            f"{path}: has no tokenizer_config.json, and models of its kind have several "
            "tokenizers: copy the tokenizer's files into the folder"
        )
    return {"hf_tokenizer_name": "in-this-folder", "tokenizer_kwargs": {"clean": clean}}


def _preprocess(data: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """open_clip's `preprocess_cfg` of an image processor."""
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


def image_processor(preprocess: Preprocess, kind: str) -> dict[str, Any]:
    """`preprocessor_config.json` of an image processor of transformers.

    kind: its class. Raises CompoclipError for images that are padded.
    """
    height, width = preprocess.size
    if preprocess.resize_mode == "longest":
        raise CompoclipError(f"{kind} cannot pad images to a square (resize_mode longest)")
    whole = {"height": height, "width": width}
    squash = preprocess.resize_mode == "squash"
    numbers = {name: number for number, name in _FILTERS.items()}
    return {
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


def write_clip_tokenizer(folder: Path, own: Tokenizer) -> None:
    """The files that CLIPTokenizer reads; its ids are those of a tokenizer with CLIP's BPE."""
    tokenizer = own.simple
    assert tokenizer is not None
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
            "model_max_length": own.context_length,
            "do_lower_case": True,
            "add_prefix_space": False,
            "errors": "replace",
            **special,
        },
    )
