"""Folders as transformers, sentence-transformers, PEFT and open_clip write them; their features.

Weights are random.
"""

from __future__ import annotations

import copy
import gzip
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache, lru_cache
from io import StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.tokenizer import bytes_to_unicode
from PIL import Image

from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import load_model
from compoclip.models.formats import hugging_face
from models_thin import config as thin_clip
from models_thin import shake
from siglip_thin import write_siglip

TEXTS = ["a red cat on a mat", "Two dogs", "a man, it is   nothing", "cats " * 90]
Features = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of folder. write: fills an empty folder. theirs: features by the library."""

    write: Callable[[Path], object]
    theirs: Callable[[Path], Features]
    texts: tuple[str, ...] = tuple(TEXTS)


@cache
def image() -> Image.Image:
    """Return a picture of broad structure, so that crops and filters show."""
    noise = np.random.default_rng(0).integers(0, 255, (9, 12, 3), np.uint8)
    return Image.fromarray(noise).resize((60, 45), Image.Resampling.BICUBIC)


def ours(folder: Path, texts: tuple[str, ...]) -> Features:
    """Return the features of compoclip."""
    loaded = load_model(folder)
    with torch.no_grad():
        pixels = loaded.preprocess.evaluation(image())[None]
        found = loaded.encoder.features(pixels, loaded.tokenizer(list(texts)))
    return found.image.numpy(), found.text.numpy()


def _unit(output: Any) -> np.ndarray[Any, Any]:
    pooled = getattr(output, "pooler_output", output)
    return torch.nn.functional.normalize(pooled, dim=-1).numpy()


# --- transformers. ---


def write_clip(folder: Path) -> None:
    """Write a CLIPModel with its CLIPProcessor, as transformers 5 saves them."""
    import transformers

    path = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    vocab = list(bytes_to_unicode().values())
    vocab += [each + "</w>" for each in vocab]
    vocab += ["".join(line.split()) for line in lines] + ["<|startoftext|>", "<|endoftext|>"]
    (folder / "words").mkdir(parents=True)
    (folder / "words" / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(vocab)}))
    (folder / "words" / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]))
    tokenizer = transformers.CLIPTokenizerFast.from_pretrained(
        folder / "words", model_max_length=77
    )
    shutil.rmtree(folder / "words")
    part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    part |= {"num_attention_heads": 2, "projection_dim": 24}
    text = {"max_position_embeddings": 77, "eos_token_id": 49407, "bos_token_id": 49406}
    configuration = transformers.CLIPConfig(
        text_config={**part, **text, "vocab_size": 49408},
        vision_config={**part, "image_size": 32, "patch_size": 8},
        projection_dim=24,
    )
    model = transformers.CLIPModel(configuration)
    torch.manual_seed(3)
    shake(model)
    model.save_pretrained(folder)
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    transformers.CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)


def write_clip_4(folder: Path) -> None:
    """Write the same folder in the files of transformers 4, or as an installed one saves it."""
    write_clip(folder)
    if (folder / "preprocessor_config.json").is_file():
        return
    nested = json.loads((folder / "processor_config.json").read_text())
    (folder / "processor_config.json").unlink()
    images = {**nested["image_processor"], "feature_extractor_type": "CLIPFeatureExtractor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    stored = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(stored["vocab"]))
    merges = "".join(f"{one} {other}\n" for one, other in stored["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    (folder / "tokenizer.json").unlink()
    end = "<|endoftext|>"
    special = {"bos_token": "<|startoftext|>", "eos_token": end, "unk_token": end, "pad_token": end}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings |= {"do_lower_case": True, "add_prefix_space": False, "errors": "replace"}
    file.write_text(json.dumps(settings))
    file = folder / "config.json"
    data = json.loads(file.read_text())
    data["torch_dtype"] = data.pop("dtype")
    # What transformers before 4.31 wrote of every part.
    general = transformers_4()
    data["text_config"] |= {**general, "dropout": 0.0}
    data["vision_config"] |= {**general, "dropout": 0.0}
    data |= {"text_config_dict": None, "vision_config_dict": None}
    file.write_text(json.dumps(data))


def transformers_4() -> dict[str, Any]:
    """Return entries that transformers 4 wrote into every section of a configuration."""
    return {
        "_name_or_path": "", "add_cross_attention": False, "architectures": None,
        "bad_words_ids": None, "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None,
        "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False,
        "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "finetuning_task": None,
        "forced_bos_token_id": None, "forced_eos_token_id": None,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False,
        "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0,
        "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1,
        "output_attentions": False, "output_hidden_states": False, "output_scores": False,
        "prefix": None, "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False,
        "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False,
        "sep_token_id": None, "task_specific_params": None, "temperature": 1.0,
        "tf_legacy_loss": False, "tie_encoder_decoder": False, "tie_word_embeddings": True,
        "tokenizer_class": None, "top_k": 50, "top_p": 1.0, "torch_dtype": None,
        "torchscript": False, "typical_p": 1.0, "use_bfloat16": False,
    }  # fmt: skip


def _stamp(folder: Path, *names: str) -> tuple[bytes, ...]:
    return tuple(
        (folder / name).read_bytes() if (folder / name).is_file() else b"" for name in names
    )


@lru_cache(maxsize=1)
def _their_model(folder: Path, stamp: object) -> Any:
    """Return the model in float32 on a CPU, whatever number the weights are stored in."""
    import transformers

    return transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@lru_cache(maxsize=1)
def _their_pixels(folder: Path, stamp: object) -> Any:
    import transformers

    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return processor(images=[image()], return_tensors="pt")["pixel_values"].float()


@lru_cache(maxsize=1)
def _their_tokens(folder: Path, texts: tuple[str, ...], kind: str, most: int, stamp: object) -> Any:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = tokenizer(
        list(texts),
        padding="max_length" if kind == "siglip" else True,
        truncation=True,
        max_length=min(most, tokenizer.model_max_length),
        return_tensors="pt",
    )
    # SigLIP reads texts with their padding.
    names = ["input_ids"] if kind == "siglip" else ["input_ids", "attention_mask"]
    return {name: words[name] for name in names}


_CONFIG = ("config.json",)
_IMAGES = ("preprocessor_config.json", "processor_config.json")
_WORDS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
_WORDS += ("special_tokens_map.json", "added_tokens.json")


def transformers_features(folder: Path, texts: tuple[str, ...] = tuple(TEXTS)) -> Features:
    """Return the features of a CLIPModel or SiglipModel folder by transformers."""
    model = _their_model(folder, _stamp(folder, *_CONFIG))
    kind, most = model.config.model_type, model.config.text_config.max_position_embeddings
    pixels = _their_pixels(folder, _stamp(folder, *_IMAGES, *_CONFIG))
    words = _their_tokens(folder, texts, kind, most, _stamp(folder, *_WORDS, *_CONFIG))
    return _of_both(model, pixels, words)


def _of_both(model: Any, pixels: Any, words: Mapping[str, Any]) -> Features:
    with torch.no_grad():
        return (
            _unit(model.get_image_features(pixel_values=pixels)),
            _unit(model.get_text_features(**words)),
        )


def siglip_features(folder: Path) -> Features:
    return transformers_features(folder, SIGLIP_TEXTS)


SIGLIP_TEXTS = ("a red star", "two blue mug left of a red star", "a " * 30)


_read_tokenizer = hugging_face.tokenizer_of


_tokenizers: dict[object, Any] = {}


def read_tokenizer_once(folder: Path, clean: str) -> Any:
    """Return what `tokenizer_of` does, which compares 49,408 tokens, once for equal files."""
    key = clean, _stamp(folder, *_WORDS, "bpe.txt.gz")
    if key not in _tokenizers:
        while len(_tokenizers) > 3:
            _tokenizers.popitem()
        _tokenizers[key] = _read_tokenizer(folder, clean)
    return _tokenizers[key]


# --- sentence-transformers. ---


def write_sentence(folder: Path) -> None:
    """Write a SentenceTransformer over a CLIPModel."""
    from sentence_transformers import SentenceTransformer

    write_clip(folder / "clip")
    SentenceTransformer(str(folder / "clip")).save(str(folder))
    shutil.rmtree(folder / "clip")


def sentence_features(folder: Path) -> Features:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(folder),
        device="cpu",
        model_kwargs={"dtype": torch.float32},
        processor_kwargs={"backend": "pil"},
    )
    found = [model.encode(list(each)) for each in ([image()], TEXTS)]
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in found]
    return units[0], units[1]


# --- PEFT. ---


def write_peft(folder: Path) -> None:
    """Write LoRA adapters on the attention of a CLIPModel in the folder beside."""
    import peft
    import transformers

    base = folder.parent / "base"
    if not base.is_dir():
        write_clip(base)
    model = peft.get_peft_model(
        transformers.CLIPModel.from_pretrained(base),
        peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "fc1"]),
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)


def peft_features(folder: Path) -> Features:
    import peft

    base = folder.parent / "base"
    model = copy.deepcopy(_their_model(base, None))
    model = peft.PeftModel.from_pretrained(model, folder).merge_and_unload().eval()
    pixels = _their_pixels(base, None)
    return _of_both(model, pixels, _their_tokens(base, tuple(TEXTS), "clip", 77, None))


# --- open_clip. ---


def write_open_clip(folder: Path) -> None:
    """Write the folder that open_clip's `push_to_hf_hub` uploads."""
    from open_clip.push_to_hf_hub import save_for_hf

    text = {"vocab_size": 49408, "context_length": 77}
    configuration = thin_clip(vision={"pos_embed_type": "learnable"}, text=text, quick_gelu=True)
    model = open_clip.CLIP(**copy.deepcopy(configuration))
    torch.manual_seed(3)
    shake(model)
    open_clip.model.set_model_preprocess_cfg(
        model, {**open_clip.transform.PreprocessCfg(size=(32, 32)).__dict__}
    )
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)  # CLIP's has no files
    save_for_hf(model, tokenizer, configuration, folder, safe_serialization=True)


def open_clip_features(folder: Path) -> Features:
    name = f"local-dir:{folder}"
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    tokenizer = open_clip.get_tokenizer(name)
    with torch.no_grad():
        model.eval()
        return (
            _unit(model.encode_image(preprocess(image())[None])),
            _unit(model.encode_text(tokenizer(TEXTS))),
        )


KINDS: dict[str, Kind] = {
    "transformers 5, CLIP": Kind(write_clip, transformers_features),
    "transformers 4, CLIP": Kind(write_clip_4, transformers_features),
    "transformers 5, SigLIP": Kind(write_siglip, siglip_features, SIGLIP_TEXTS),
    "sentence-transformers": Kind(write_sentence, sentence_features),
    "PEFT": Kind(write_peft, peft_features),
    "open_clip": Kind(write_open_clip, open_clip_features),
}

# --- Changes of one entry. ---

_OTHER = {
    "quick_gelu": "gelu", "gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu", "float32": "float16",
    "bicubic": "bilinear", "shortest": "squash", "RGB": "L", "none": "all",
    "<|endoftext|>": "<|startoftext|>", "<|startoftext|>": "<|endoftext|>",
    "CLIPImageProcessor": "SiglipImageProcessor", "SiglipImageProcessor": "CLIPImageProcessor",
    "CLIPTokenizer": "BertTokenizer", "CLIPProcessor": "SiglipProcessor",
}  # fmt: skip
REMOVED = object()


def changes(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    """Yield (path, what is done, new value) for each entry of a JSON file."""
    if isinstance(data, dict):
        yield (*path, "surprise"), "unknown key added", 1
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in islice(entries, None if len(data) <= 1000 else 3):  # of a vocabulary
        here = (*path, key)
        large = isinstance(value, dict | list) and len(value) > 1000
        objects = isinstance(value, list) and value and isinstance(value[0], dict)
        if objects or (isinstance(value, dict) and not large):
            yield from changes(value, here)
        elif (other := _changed(value, large)) is not None:
            yield here, "changed", other
        if isinstance(data, dict):
            yield here, "null", None
            yield here, "another type", "7" if isinstance(value, int | float) else 7
            yield here, "removed", REMOVED


def _changed(value: Any, large: bool) -> Any:
    if large:  # two neighbours of a vocabulary or of its merges are exchanged
        if isinstance(value, list):
            return [*value[:9], value[10], value[9], *value[11:]]
        names = list(value)
        return {**value, "a</w>": value["e</w>"], "e</w>": value["a</w>"]} if names else None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 + 0.1
    if isinstance(value, str):
        return _OTHER.get(value, f"{value}x")
    if isinstance(value, list):
        return [_changed(value[0], False), *value[1:]] if value else ["surprise"]
    return 3 if value is None else {"surprise": 1}


def apply(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of JSON data with one entry changed; only what holds it is copied."""
    key, *rest = path
    made = data.copy()
    if rest:
        made[key] = apply(data[key], tuple(rest), value)
    elif value is REMOVED:
        del made[key]
    else:
        made[key] = value
    return made


@dataclass(frozen=True)
class Outcome:
    """The outcome of one change. kind: "equal", "refused", "refused without the name", "library
    refuses, equal to the unchanged", "wrong"."""

    entry: str
    change: str
    kind: str
    words: str = ""


def _close(one: Features, other: Features) -> bool:
    return all(
        a.shape == b.shape and float(np.abs(a - b).max()) <= 1e-5 for a, b in zip(one, other)
    )


def outcomes(kind: Kind, folder: Path, every: int = 1) -> Iterator[Outcome]:
    """Write a folder, change each entry of each of its JSON files in turn, and compare.

    every: take one change of so many, for a machine with little time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind.write(folder)
    before = kind.theirs(folder)
    assert _close(ours(folder, kind.texts), before), "the unchanged folder differs"
    for file in sorted(folder.rglob("*.json")):
        original = file.read_bytes()
        data = json.loads(original)
        for path, change, value in islice(changes(data), None, None, every):
            file.write_text(json.dumps(apply(data, path, value), ensure_ascii=False))
            entry = f"{file.relative_to(folder)}: {'.'.join(map(str, path))}"
            name = next(str(key) for key in reversed(path) if not isinstance(key, int))
            yield judged(kind, folder, before, entry, change, name)
        file.write_bytes(original)


def judged(
    kind: Kind, folder: Path, before: Features, entry: str, change: str, name: str
) -> Outcome:
    """Compare both libraries on a changed folder."""
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            found = ours(folder, kind.texts)
    except CompoclipError as error:
        named = "refused" if name in str(error) else "refused without the name"
        return Outcome(entry, change, named, str(error).replace(str(folder), "FOLDER"))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(entry, change, "wrong", f"not foreseen: {type(error).__name__} {error}")
    try:
        with redirect_stderr(StringIO()):
            theirs = kind.theirs(folder)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # panics of tokenizers are none of `Exception`
        same = _close(found, before)
        kind_of = "library refuses, equal to the unchanged" if same else "wrong"
        return Outcome(entry, change, kind_of, f"{type(error).__name__}: {str(error)[:150]}")
    if _close(found, theirs):
        said = "assumed" in printed.getvalue()
        return Outcome(entry, change, "equal", printed.getvalue().strip() if said else "")
    return Outcome(entry, change, "wrong", "features differ")
