"""Folders of other libraries: every entry is followed, harmless, or refused by its name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from build.models import Change, edit_json, put
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import load_model, save_model
from compoclip.models.conversion import inspect_model
from compoclip.models.formats import hugging_face
from compoclip.models.formats.closed_list import check_entries, malformed
from compoclip.models.formats.weights_file import load_tuned
from compoclip.models.tokenizer import build_tokenizer
from compoclip.models.weights import weights_hash
from foreign_folders import (
    KINDS,
    apply,
    changes,
    outcomes,
    transformers_4,
)
from test_models_hf import features, model, tokenizers_read_once  # noqa: F401

ROOT = [{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
IMAGES = {"image_processor_type": "CLIPImageProcessor", "size": 32, "crop_size": 32}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIPModel folder, without our record."""
    folder = tmp_path_factory.mktemp("foreign") / "clip"
    save_model(model("gelu"), folder, form="hf")
    (folder / "compoclip.json").unlink()
    return folder


@pytest.fixture(scope="module")
def open_clip(clip: Path) -> Path:
    """The same model in open_clip's layout, without our record."""
    folder = clip.with_name("open_clip")
    save_model(load_model(clip), folder)
    (folder / "compoclip.json").unlink()
    return folder


def copied(clip: Path, folder: Path, **files: Any) -> Path:
    folder.mkdir()
    for path in clip.iterdir():
        (folder / path.name).symlink_to(path)
    for name, data in files.items():
        (folder / f"{name}.json").unlink(missing_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def edited(clip: Path, folder: Path, file: str, edit: Change) -> Path:
    copied(clip, folder)
    edit_json(folder / f"{file}.json", edit)
    return folder


# What other releases of transformers 4 write beside, at any depth.
_NONE = (
    "_commit_hash", "begin_suppress_tokens", "bos_token_id", "eos_token_id", "pad_token_id",
    "exponential_decay_length_penalty", "suppress_tokens",
)  # fmt: skip
_FALSE = ("gradient_checkpointing", "tie_encoder_decoder", "_attn_implementation_autoset")
_GENERAL: dict[str, Any] = {
    **transformers_4(),
    **dict.fromkeys(_NONE),
    **dict.fromkeys(_FALSE, False),
    "initializer_factor": 1.0,
    "transformers_version": "4.30.2",
}
_TOWER = {"attention_dropout": 0.0, "dropout": 0.0, "initializer_range": 0.02}


def test_a_folder_as_transformers_4_published_it_loads_as_before(
    clip: Path, tmp_path: Path
) -> None:
    config = json.loads((clip / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    published = {
        **_GENERAL,
        **config,
        "architectures": ["CLIPModel"],
        "logit_scale_init_value": 2.6592,
        "text_config": {**_GENERAL, **_TOWER, **text, "bos_token_id": 0, "eos_token_id": 2},
        "text_config_dict": None,
        "torch_dtype": "float32",
        "transformers_version": "4.16.0.dev0",
        "vision_config": {**_GENERAL, **_TOWER, **vision},
        "vision_config_dict": None,
    }
    published["text_config"]["pad_token_id"] = 1
    images = {
        "crop_size": 32,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "size": 32,
    }
    form = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    start, end = ({"content": f"<|{name}oftext|>", **form} for name in ("start", "end"))
    tokens = {"bos_token": start, "eos_token": end, "unk_token": end}
    special = {**tokens, "pad_token": end["content"]}
    settings = {
        **{key: {**value, "__type": "AddedToken"} for key, value in tokens.items()},
        "pad_token": end["content"],
        "add_prefix_space": False,
        "do_lower_case": True,
        "errors": "replace",
        "model_max_length": 77,
        "name_or_path": "./clip_ViT_B_32/",
        "special_tokens_map_file": "./special_tokens_map.json",
        "tokenizer_class": "CLIPTokenizer",
    }
    vocabulary = json.loads((clip / "vocab.json").read_text())
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    split = {"type": "Split", "pattern": {"Regex": pattern}}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[token["content"]], "special": True, **token} for token in (start, end)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFC"},
                {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                {"type": "Lowercase"},
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {**split, "behavior": "Removed", "invert": True},
                bytes_of,
            ],
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": [end["content"], 49407],
            "cls": [start["content"], 49406],
            "trim_offsets": False,
            "add_prefix_space": False,
        },
        "decoder": bytes_of,
        "model": {
            "dropout": None,
            "unk_token": end["content"],
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>",
            "fuse_unk": False,
            "vocab": vocabulary,
            "merges": (clip / "merges.txt").read_text().splitlines()[1:],
        },
    }
    folder = copied(
        clip,
        tmp_path / "published",
        config=published,
        preprocessor_config=images,
        special_tokens_map=special,
        tokenizer=tokenizer,
        tokenizer_config=settings,
    )
    for name in ("README.md", ".gitattributes", "flax_model.msgpack", "tf_model.h5"):
        (folder / name).write_text("")
    tensors = {key: value.clone() for key, value in load_file(clip / "model.safetensors").items()}
    position = torch.arange(int(text["max_position_embeddings"]))[None]
    tensors["text_model.embeddings.position_ids"] = position  # early releases stored it
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    plain, loaded = load_model(clip), load_model(folder)
    assert loaded.preprocess == plain.preprocess
    for one, other in zip(features(plain), features(loaded)):
        assert torch.equal(one, other)
    assert loaded.identity.assumed == ()
    # The message is about the known form that is closest.
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["invert"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CompoclipError, match=r"pre_tokenizer.pretokenizers.0.invert is None"):
        load_model(folder)


REFUSED: list[tuple[str, Change, str]] = [
    ("config", put(quantization_config={"bits": 4}), "'quantization_config'"),
    ("config", put("vision_config", num_channels=1), "vision_config.num_channels is 1"),
    ("config", put("text_config", position_embedding_type="rope"), "position_embedding_type'"),
    ("config", put("text_config", eos_token_id=5), "eos_token_id is 5 .*texts end in 49407"),
    ("config", put("text_config", layer_norm_eps=None), "text_config.layer_norm_eps is null"),
    ("config", put("text_config", layer_norm_eps="7"), "text_config.layer_norm_eps must be a num"),
    ("config", put("vision_config", image_size="32"), "vision_config.image_size must be a whole"),
    ("config", put("vision_config", pruned_heads={"0": [1]}), "vision_config.pruned_heads"),
    ("preprocessor_config", put(do_rescale=False), "do_rescale is False"),
    ("preprocessor_config", put(do_resize=None), "do_resize is None"),
    ("preprocessor_config", put(do_rescale=None), "do_rescale is None"),
    ("preprocessor_config", put(do_normalize=None), "do_normalize is null"),
    ("preprocessor_config", put(resample=None), "resample is None"),
    ("preprocessor_config", put(image_mean=None), "image_mean is null"),
    ("preprocessor_config", put(do_center_crop=None), "do_center_crop None"),
    ("preprocessor_config", put(size={}), r"size \{\} must be \{'shortest_edge': 32\}"),
    ("preprocessor_config", put(crop_size={"width": 32}), "crop_size .*must be .*'height': 32"),
    (
        "preprocessor_config",
        lambda data: data.pop("crop_size"),
        "crop_size .*224.*by image_processor_type CLIPImageProcessor, must be",
    ),
    ("preprocessor_config", put(rescale_factor=None), "rescale_factor is None"),
    ("preprocessor_config", put(rescale_factor=1.0), "rescale_factor is 1.0"),
    ("preprocessor_config", put(size={"shortest_edge": 40}), "size .*shortest_edge.*40"),
    ("preprocessor_config", put(do_center_crop=False), "do_center_crop False"),
    ("preprocessor_config", put(resample=1), "resample is 1"),
    ("preprocessor_config", put(image_processor_type="DonutImageProcessor"), "Donut"),
    ("preprocessor_config", put(do_pad=True), "do_pad is True"),
    ("tokenizer_config", put(do_lower_case=False), "do_lower_case is False"),
    ("tokenizer_config", put(eos_token="</s>"), "eos_token is '</s>'"),
    ("tokenizer_config", put(pad_token="!"), "pad_token is '!'"),
    ("tokenizer_config", put(added_tokens_decoder={"7": {"content": "x"}}), "decoder.7"),
    ("special_tokens_map", put(bos_token={"content": "<s>"}), "bos_token.content is '<s>'"),
    ("vocab", put(**{"cat</w>": 3}), "vocab.json: cat</w> is 3"),
    ("vocab", put(surprise=None), "vocab.json: surprise is None"),
]


@pytest.mark.parametrize(("file", "edit", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_an_entry_that_is_not_followed_is_refused_by_its_name(
    clip: Path, tmp_path: Path, file: str, edit: Change, message: str
) -> None:
    folder = edited(clip, tmp_path / "clip", file, edit)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_model(folder)
    assert str(folder / f"{file}.json") in str(caught.value)


OPEN_CLIP: list[tuple[Change, str]] = [
    (put(extra=1), "'extra' .*unknown entry"),
    (put(model_cfg=None), "model_cfg is null"),
    (lambda data: data.pop("model_cfg"), "no 'embed_dim', in 'model_cfg' or alone"),
    (put("preprocess_cfg", surprise=1), "'preprocess_cfg.surprise' .*unknown entry"),
    (put("preprocess_cfg", mode="L"), "preprocess_cfg.mode is 'L'"),
    (put("model_cfg", vision_cfg=None), "no 'vision_cfg'"),
    (put("model_cfg", text_cfg=None), "no 'text_cfg'"),
    (put("model_cfg", embed_dim=25), "embed_dim 25; .*'text_projection' is"),
    (lambda data: data["model_cfg"]["text_cfg"].pop("width"), "width 512.*the file"),
    (put("model_cfg", "vision_cfg", width="x"), "width 'x'.*cannot be built"),
]


@pytest.mark.parametrize(("edit", "message"), OPEN_CLIP, ids=[row[1] for row in OPEN_CLIP])
def test_an_entry_of_open_clip_is_followed_or_refused_by_its_name(
    open_clip: Path, tmp_path: Path, edit: Change, message: str
) -> None:
    folder = edited(open_clip, tmp_path / "open_clip", "open_clip_config", edit)
    with pytest.raises(CompoclipError, match=message):
        load_model(folder)


def test_a_folder_that_says_no_kind_of_model_is_told_so(clip: Path, tmp_path: Path) -> None:
    folder = edited(clip, tmp_path / "clip", "config", lambda data: data.pop("model_type"))
    with pytest.raises(UsageError, match=r"config.json has no model_type"):
        load_model(folder)
    (folder / "modules.json").write_text("[]")
    with pytest.raises(UsageError, match=r"sentence-transformers whose config.json has no model_t"):
        load_model(folder)


def test_an_entry_that_has_to_be_there_is_refused_when_it_is_absent() -> None:
    """Null in a list of values stands for an absent entry too; without it the entry is needed."""
    with pytest.raises(CompoclipError, match=r"FILE: peft_type is None .*not followed"):
        check_entries({"r": 4, "target_modules": []}, "adapter_config.json", "FILE", "remedy")
    with pytest.raises(CompoclipError, match=r"FILE: unk_token is None .*not followed"):
        check_entries({"type": "BPE"}, "tokenizer.json model", "FILE", "remedy")
    check_entries({}, "image processor", "FILE", "remedy")


# As the library `tokenizers` writes it.
TOKENIZER_JSON: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"},
    "added_tokens": [{"id": 1, "content": "</s>", "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "NFKC"}]},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always",
        "split": True},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
    "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
        "byte_fallback": True, "ignore_merges": False, "vocab": {"<pad>": 0, "</s>": 1, "<unk>": 2},
        "merges": []},
}  # fmt: skip
# What may be null or absent, or is not looked at.
OPTIONAL = {
    "truncation", "padding", "padding.pad_to_multiple_of", "padding.strategy", "normalizer",
    "pre_tokenizer", "pre_tokenizer.prepend_scheme", "pre_tokenizer.split", "post_processor",
    "decoder", "decoder.prepend_scheme", "decoder.split", "model.dropout", "model.unk_token",
    "model.fuse_unk", "model.byte_fallback", "model.ignore_merges", "model.vocab.surprise",
    "model.vocab.<pad>", "model.vocab.</s>",
}  # fmt: skip


def test_every_malformed_entry_of_a_tokenizer_is_named() -> None:
    """A null, another type, a removal or an addition, where the library reads no such thing."""
    assert list(malformed(TOKENIZER_JSON, "tokenizer.json", TOKENIZER_JSON)) == []
    silent = set()
    for path, change, value in changes(TOKENIZER_JSON):
        data = apply(TOKENIZER_JSON, path, value)
        sentences = "; ".join(malformed(data, "tokenizer.json", data))
        name = next(str(key) for key in reversed(path) if not isinstance(key, int))
        if change != "changed" and name not in sentences:
            silent.add(".".join(map(str, path)))
    assert silent == OPTIONAL


def test_the_added_tokens_of_clip_are_a_list(clip: Path, tmp_path: Path) -> None:
    merges = (clip / "merges.txt").read_text().splitlines()[1:]
    data = {"added_tokens": 7, "model": {"merges": merges}}
    with pytest.raises(CompoclipError, match=r"tokenizer.json: added_tokens must be a list"):
        load_model(copied(clip, tmp_path / "clip", tokenizer=data))


def test_the_malformed_entry_of_a_tokenizer_that_cannot_be_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("data did not match any variant of untagged enum")

    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setattr("open_clip.tokenizer.HFTokenizer.__init__", fail)
    data = apply(TOKENIZER_JSON, ("post_processor", "single", 1, "SpecialToken", "id"), "<s>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    what = r"tokenizer\.json: post_processor\.single\.1\.SpecialToken\.id is '<s>' .*no key of post"
    with pytest.raises(CompoclipError, match=f"{what}.*did not match any variant"):
        build_tokenizer({"hf_tokenizer_name": "x"}, tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER_JSON))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CompoclipError, match=r"tokenizer_config\.json: tokenizer_class must be"):
        build_tokenizer({"hf_tokenizer_name": "x"}, tmp_path)


def test_image_settings_come_from_the_processor_file_of_newer_releases(
    clip: Path, tmp_path: Path
) -> None:
    settings = {**IMAGES, "image_mean": [0.5] * 3, "resample": 2}
    nested = {"image_processor": settings, "processor_class": "CLIPProcessor"}
    both = load_model(copied(clip, tmp_path / "both", processor_config=nested))
    assert both.preprocess.mean == (0.5,) * 3  # it overrules preprocessor_config.json
    assert both.preprocess.interpolation == "bilinear"
    folder = copied(clip, tmp_path / "alone", processor_config=nested)
    (folder / "preprocessor_config.json").unlink()
    alone = load_model(folder)
    assert alone.preprocess == both.preprocess
    assert alone.identity.assumed == ()
    square = {**settings, "size": {"height": 32, "width": 32}, "do_normalize": False}
    folder = copied(clip, tmp_path / "squashed", processor_config={"image_processor": square})
    squashed = load_model(folder).preprocess
    assert (squashed.resize_mode, squashed.mean, squashed.std) == ("squash", (0,) * 3, (1,) * 3)


def test_texts_are_cut_where_the_tokenizer_cuts_them(clip: Path, tmp_path: Path) -> None:
    folder = edited(clip, tmp_path / "clip", "tokenizer_config", put(model_max_length=9))
    assert load_model(folder).identity.context_length == 9
    # sentence-transformers cuts them further, where it has a list of modules.
    cut = {"sentence_bert_config": {"max_seq_length": 7}}
    whole = load_model(copied(clip, tmp_path / "transformers", **cut))
    assert whole.identity.context_length == load_model(clip).identity.context_length
    listed = load_model(copied(clip, tmp_path / "sentence", modules=ROOT, **cut))
    assert listed.identity.context_length == 7


def test_files_that_nobody_reads_are_named(
    clip: Path, open_clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in (clip, open_clip):
        harmless = {"generation_config": {}} if form == clip else {}
        folder = copied(form, tmp_path / form.name, extra_head={}, **harmless)
        (folder / "README.md").unlink(missing_ok=True)
        (folder / "README.md").write_text("")
        (assumed,) = load_model(folder).identity.assumed
        assert "files: extra_head.json not read" in assumed
        assert "extra_head.json" in capsys.readouterr().err


PROMPT = {"default_prompt_name": "query", "prompts": {"query": "a photo of "}}
PIPELINES: list[tuple[dict[str, Any], str]] = [
    (
        {"modules": [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]},
        "0.*Dense.*st:FOLDER",
    ),
    ({"modules": [{"path": ""}]}, "0.type None"),
    (
        {"modules": [{"path": "0_CLIPModel", "type": "x.CLIPModel"}]},
        "0.path: the model is in 0_CLIPModel; name .*/clip/0_CLIPModel",
    ),
    *(
        ({"modules": ROOT, "sentence_bert_config": entry}, message)
        for entry, message in (
            ({"processing_kwargs": {"text": {"max_length": 6}}}, "'processing_kwargs' "),
            ({"query_length": 5}, "'query_length' "),
            ({"module_output_name": "text_embeds"}, "module_output_name is 'text_embeds'"),
            ({"max_seq_length": "6"}, "max_seq_length '6' .* is no number of tokens"),
            (
                {"modality_config": {"text": {"method_output_name": "last_hidden_state"}}},
                "modality_config is .*last_hidden_state",
            ),
        )
    ),
    (
        {"config_sentence_transformers": PROMPT},
        "default_prompt_name: texts begin with 'a photo of .*st:FOLDER",
    ),
]


@pytest.mark.parametrize(("files", "message"), PIPELINES)
def test_more_than_the_model_of_sentence_transformers_is_refused(
    clip: Path, tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompoclipError, match=message):
        load_model(copied(clip, tmp_path / "clip", **files))


def test_a_folder_of_sentence_transformers_is_told_what_reads_it(
    clip: Path, tmp_path: Path
) -> None:
    copied(clip, tmp_path / "st", modules=[]).rename(tmp_path / "inner")
    (tmp_path / "st").mkdir()
    (tmp_path / "inner" / "modules.json").rename(tmp_path / "st" / "modules.json")
    (tmp_path / "inner").rename(tmp_path / "st" / "0_CLIPModel")
    with pytest.raises(UsageError, match=r"st:.*/st measures it, and .*/st/0_CLIPModel is the"):
        load_model(tmp_path / "st")
    assert load_model(tmp_path / "st" / "0_CLIPModel").identity.assumed == ()


State = dict[str, torch.Tensor]


def below(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


# What a training code may save -> what is said of it, and what then picks the one model.
CHECKPOINTS: list[tuple[Callable[[State, State], dict[str, Any]], str, str]] = [
    (lambda one, _: below("clip_model.", one), "", ""),
    (lambda one, _: {"state_dict": below("module.clip_model.", one)}, "", ""),
    (lambda one, _: {"epoch": 3, "model_ema": one, "optimizer": {}}, "#model_ema", "model_ema"),
    (
        lambda one, two: below("student.", one) | below("teacher.", two),
        "below 'student.' and one below 'teacher.'; .*#student., .*#teacher.",
        "student.",
    ),
    (
        lambda one, two: {"state_dict": below("module.teacher.", one) | below("module.s.", two)},
        "below 's.' and one below 'teacher.'",
        "teacher.",
    ),
    (
        lambda one, two: below("model.", one) | below("ema.", two),
        "below 'ema.' and one below 'model.'",
        "model.",
    ),
    (
        lambda one, _: below("clip.", one) | {"head.weight": torch.zeros(2)},
        "below 'clip.', and 'head.weight' beside; .*#clip.",
        "clip.",
    ),
    (lambda one, two: {"state_dict": two, "ema": one}, "", "ema"),
]


@pytest.mark.parametrize(("write", "message", "part"), CHECKPOINTS)
def test_one_of_several_models_in_a_file_is_picked(
    tmp_path: Path,
    write: Callable[[State, State], dict[str, Any]],
    message: str,
    part: str,
) -> None:
    loaded = model("gelu")
    state = dict(loaded.encoder.model.state_dict())
    file = tmp_path / "w.pt"
    torch.save(write(state, {name: value + 1 for name, value in state.items()}), file)
    if message:
        with pytest.raises(CompoclipError, match=message):
            load_tuned(str(file), loaded)
    place = f"{file}#{part}" if part else str(file)
    picked = load_tuned(place, loaded)
    assert picked.identity.weights == weights_hash(state)
    described = inspect_model(place)
    parameters = sum(parameter.numel() for parameter in loaded.encoder.model.parameters())
    assert described["parameters"]["total"] == parameters
    assert described["parameters"]["image"] > 0
    if "ema" in part and not message:
        assert "FILE#ENTRY takes state_dict instead" in described["kind"]
        assert "entry ema, not of state_dict" in picked.identity.assumed[-1]
    with pytest.raises(CompoclipError, match=r"has no entry 'nothing\.'|not usual"):
        load_tuned(f"{file}#nothing.", loaded)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_gives_the_features_of_the_library_or_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("transformers", "sentence_transformers", "peft"):
        pytest.importorskip(library, reason="needs the extras hf and st")
    monkeypatch.setitem(hugging_face.SIZES, "thin", [32, 2, 4, 128])
    rows = list(outcomes(KINDS[kind], tmp_path / "folder", every=7))
    assert len(rows) > 5
    assert [row for row in rows if row.kind == "wrong"] == []
