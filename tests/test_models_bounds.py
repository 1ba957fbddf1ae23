"""What a configuration, record or vocabulary may ask for is bounded, and stays in its folder."""

from __future__ import annotations

import gzip
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file

from build.models import Change, edit_json, put
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.models import architecture
from compoclip.models.checkpoint import create_model, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.formats import adapters as adapter_format
from compoclip.models.formats.adapters import read_peft
from compoclip.models.lora import Lora, attach_lora
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from models_thin import config

TINY = config(text={"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bounds") / "model"
    save_model(create_model(ModelConfig(TINY)), folder)
    return folder


@pytest.fixture
def saved(model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def refused(folder: Path, said: str, file: str = "") -> None:
    with pytest.raises(CompoclipError, match=said) as caught:
        load_model(folder)
    assert str(folder / file) in str(caught.value)
    assert "\n" not in str(caught.value)


def change_config(folder: Path, change: Change) -> None:
    """Change the configuration of a checkpoint."""
    edit_json(folder / "open_clip_config.json", change)


top = partial(put, "model_cfg")
vision, text = partial(top, "vision_cfg"), partial(top, "text_cfg")
images = partial(put, "preprocess_cfg")
OTHER = "in the file and .* in the architecture"
OBJECT = "open_clip_config.json.*'{}' is not an object"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (vision(layers=10**7), "layers 10000000 is not a number up to 1000"),
        (text(layers=10**7), "layers 10000000 is not a number up to 1000"),
        (text(layers=100, width=64), "the file lacks 'transformer|in the file and"),
        (text(context_length=30_000), OTHER),
        (text(vocab_size=10**12), OTHER),
        (vision(width=10**6), OTHER),
        (vision(image_size=10**6), "more positions than any image tower"),
        (vision(mlp_ratio=1e9), OTHER),
        (vision(attentional_pool=True, attn_pooler_queries=10**9), OTHER),
        (top(multimodal_cfg={"layers": 10**9}), "layers 1000000000 is not a number"),
        (vision(layers="x"), "layers x is not a number"),
        (top(vision_cfg=[]), "'vision_cfg' is not an object"),
        (top(text_cfg="x"), "'text_cfg' is not an object"),
        (top(embed_dim=[1]), r"embed_dim \[1\]; .* cannot be built"),
        (text(context_length="77"), "cannot be built: TypeError"),
        (text(tokenizer_kwargs=[1]), "'tokenizer_kwargs' is not an obj"),
        (text(hf_model_name="/etc"), "'/etc' is not a name on the Hugg"),
        (vision(timm_model_name="local-dir:/x"), "leads to a folder"),
        (text(hf_tokenizer_name="../x"), "'../x' is not a name on the H"),
        (images(std=[0, 0, 0]), r"image std \(0.0, 0.0, 0.0\): must be three numbers above"),
        (images(std=[1, 1, -1]), "must be three numbers above"),
        (images(std=[1, 1]), "must be three numbers"),
        (images(mean=[float("nan")] * 3), "image mean .* must be three numbers"),
        (images(mean={"r": 1}), "preprocess_cfg: damaged"),
        (images(mean=["a", 1, 1]), "preprocess_cfg: damaged"),
        (images(fill_color=1000), "fill_color 1000: must be 0 to 255"),
        (images(fill_color="red"), "fill_color red"),
        (images(interpolation=["bicubic"]), "image interpolation"),
        (images(interpolation="random"), "interpolation random: must be bicubic"),
        (images(resize_mode="crop"), "resize_mode crop: must be shortest"),
        (put(model_cfg=[1, 2]), OBJECT.format("model_cfg")),
        (put(preprocess_cfg=[1, 2]), OBJECT.format("preprocess_cfg")),
        (put(compoclip=[1, 2]), OBJECT.format("compoclip")),
        *(
            (text(tokenizer_kwargs={"bpe_path": place}), f"bpe_path {place} leads outside of the")
            for place in ("/etc/passwd", "../merges.gz", "below/../../merges.gz")
        ),
    ],
)
def test_impossible_configurations_are_refused(saved: Path, change: Change, said: str) -> None:
    change_config(saved, change)
    refused(saved, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put(provenance="x"), "'provenance' is not an object"),
        (put(adapter="lora"), "unknown setting 'adapter'; restore the original file"),
        (put(weights="0" * 32), "unknown setting 'weights'"),
        (put("identity", image_size=32), "identity.image_size must be a list"),
        (put("identity", image_mean=["a"]), r"image_mean\[0\] must be a number"),
        (put("identity", weights=None), "identity.weights must be a text"),
        (put("identity", colour=1), "identity: unknown field 'colour'"),
        (lambda r: r["identity"].pop("base"), "identity: no field 'base'"),
    ],
)
def test_damaged_records_name_the_file(
    saved: Path, change: Change, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_json(saved / "compoclip.json", change)
    refused(saved, said, "compoclip.json")
    assert main(["inspect", str(saved)]) == 1
    assert "not foreseen" not in capsys.readouterr().err


def test_records_of_earlier_versions_and_exports_are_read(saved: Path) -> None:
    edit_json(saved / "compoclip.json", lambda record: record.pop("compoclip"))
    load_model(saved)
    edit_json(saved / "compoclip.json", put(onnx_difference={"image": 0.0, "text": 0.0}))
    load_model(saved)


def test_odd_provenance_survives_being_saved_again(saved: Path, tmp_path: Path) -> None:
    odd = {"run": {"steps": "ten", "left_out": [1]}, "terms": 3, "method": ["\ud800"], "\n": {}}
    edit_json(saved / "compoclip.json", put(provenance=odd))
    save_model(load_model(saved), tmp_path / "again")
    assert load_model(tmp_path / "again").provenance == odd


def test_a_model_larger_than_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert architecture.installed() is None or architecture.installed() > 2**28
    monkeypatch.setattr(architecture, "installed", lambda: 10**6)
    with pytest.raises(CompoclipError, match="numbers, 0 GB, and this machine has 0 GB of memory"):
        create_model(ModelConfig(TINY))


def test_a_name_that_no_file_system_takes() -> None:
    with pytest.raises(CompoclipError, match="File name too long"):
        load_model("x" * 5000)


def test_a_configuration_as_large_as_a_data_set(model: Path, saved: Path, tmp_path: Path) -> None:
    (saved / "compoclip.json").unlink()
    with (saved / "compoclip.json").open("wb") as file:
        file.truncate(2**29)
    refused(saved, "more than 134,217,728 bytes", "compoclip.json")
    save_model(load_model(model), tmp_path / "hf", form="hf")
    with (tmp_path / "hf" / "merges.txt").open("r+b") as file:
        file.truncate(2**29)
    refused(tmp_path / "hf", "more than 134,217,728 bytes", "merges.txt")


# --- tokenizers ----------------------------------------------------------------------------------


def test_merges_that_unpack_to_far_too_much(saved: Path) -> None:
    (saved / "bpe.txt.gz").write_bytes(gzip.compress(b"a b\n" * 5_000_000))
    change_config(saved, text(tokenizer_kwargs={"bpe_path": "bpe.txt.gz"}))
    refused(saved, "unpacks to more than 16,777,216 bytes.*restore", "bpe.txt.gz")


@pytest.mark.parametrize("path", [5, ["bpe.txt.gz"], {"a": 1}, None, "bpe.txt.gz\0"])
def test_a_path_of_merges_is_a_text(path: Any, saved: Path) -> None:
    change_config(saved, text(tokenizer_kwargs={"bpe_path": path}))
    refused(saved, "bpe_path must be a text, found .*; restore the original file")


def test_merges_of_another_model_have_the_right_remedy(saved: Path) -> None:
    merges = "\n".join(["header", *(f"{chr(97 + i % 26)} x{i}" for i in range(48894))])
    (saved / "bpe.txt.gz").write_bytes(gzip.compress(merges.encode()))
    settings = {"bpe_path": "bpe.txt.gz", "additional_special_tokens": ["<x>"]}
    change_config(saved, text(tokenizer_kwargs=settings))
    refused(saved, "they are of two models: restore the tokenizer's files")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"additional_special_tokens": ["(a+)+$"]}, "is not of letters, digits"),
        (
            {"additional_special_tokens": [3]},
            "must be a list of texts or null, found .3. .*restore",
        ),
        ({"additional_special_tokens": "<x>"}, "must be a list of texts or null, found '<x>'"),
        ({"reduction_mask": "x"}, "tokenizer_kwargs of the model are not usable: \\w+"),
        ({"bpe_path": "a\0b"}, "merges file is missing"),
        ({"bpe_path": 3}, "merges file is missing"),
        ({"clean": "nothing"}, "not usable"),
        ({"colour": 1}, "tokenizer_kwargs of the model are not usable"),
        ({"trust_remote_code": True}, "'trust_remote_code' is not one of clean, strip_sep"),
    ],
)
def test_tokenizer_options_are_no_patterns_and_no_code(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    named = {"hf_tokenizer_name": "x"} if "trust_remote_code" in options else {}
    with pytest.raises(CompoclipError, match=said):
        build_tokenizer({**named, "tokenizer_kwargs": options}, tmp_path)


def test_a_pointer_for_a_vocabulary_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid")
    with pytest.raises(CompoclipError, match=r"tokenizer\.json: a Git LFS pointer"):
        build_tokenizer({"hf_tokenizer_name": "x"}, tmp_path)


@pytest.fixture(scope="module")
def clip() -> Tokenizer:
    return build_tokenizer({})


@pytest.fixture(scope="module")
def theirs() -> SimpleTokenizer:
    return SimpleTokenizer()


LETTERS = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=2000))


@pytest.mark.parametrize(
    "text",
    [
        "a cat " * 300,
        LETTERS,
        f"a dog. {LETTERS}",
        "=" * 16_000,
        "猫" * 3000,
        "é" * 2000,
        "<end_of_text>" * 200,
        "a" * 75,
        " ".join("a" * 75),
        " ".join("a" * 76),
    ],
)
def test_long_texts_are_cut_as_open_clip_cuts_them(
    clip: Tokenizer, theirs: SimpleTokenizer, text: str
) -> None:
    assert torch.equal(clip([text]), theirs([text]))
    assert clip.truncated([text]) == (len(theirs.encode(text)) > 75)
    assert [i for _, ids in clip.words(text[:300]) for i in ids] == theirs.encode(text[:300])


def test_endless_texts_end(clip: Tokenizer) -> None:
    texts = [
        LETTERS * 500,
        "the cat of the dog of " * 50_000,
        " " * 10**6 + "cat",
        "&nbsp;" * 10**5,
    ]
    assert clip(texts).shape == (4, 77)
    assert clip.truncated(texts) == 4


# --- adapters ------------------------------------------------------------------------------------


def test_a_rank_above_every_weight_is_refused(model: Path) -> None:
    loaded = load_model(model)
    with pytest.raises(UsageError, match="LoRA rank 100,000: no adapted weight has more than rank"):
        attach_lora(loaded.encoder.model, Lora(rank=100_000))
    attach_lora(loaded.encoder.model, Lora(rank=32))


def peft(folder: Path, **changes: Any) -> Path:
    name = "base_model.model.text_model.encoder.layers.0.mlp.fc1.lora_"
    rank = changes.pop("rank", 2)
    folder.mkdir()
    tensors = {f"{name}A.weight": torch.ones(rank, 16), f"{name}B.weight": torch.ones(64, rank)}
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **changes}))
    return folder


SLOW = "(?:(?:[a-z_.0-9]{1,9}){1,9}){1,9}!|x(?:a|b)"  # a pattern that tries for ever


def test_peft_folders_ask_for_no_more_than_they_hold(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_format, "MAX_PATTERN_SECONDS", 0.2)
    network = load_model(model).encoder.model
    read_peft(peft(tmp_path / "good"), network)
    for name, changes, said in (
        ("rank", {"rank": 5000}, "rank 5,000 exceeds the rank of every layer, 16"),
        ("slow", {"rank_pattern": {SLOW: 2}}, "damaged .*takes too long"),
        ("broken", {"rank_pattern": {"(": 2}}, "damaged"),
        ("list", {"alpha_pattern": [1]}, "'alpha_pattern' must be"),
        ("slow names", {"exclude_modules": SLOW}, "damaged .*takes too long"),
    ):
        with pytest.raises(CompoclipError, match=said):
            read_peft(peft(tmp_path / name, **changes), network)
