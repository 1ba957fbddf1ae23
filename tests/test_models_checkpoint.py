"""Checkpoints: open_clip reads them, identity is guarded, raw files are read safely."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from build_bpe import count_words, train_bpe, write_merges
from PIL import Image
from safetensors.torch import load_file, save_file

from build.models import Change, edit_json, put
from build.tables import write_json
from compoclip.errors import CompoclipError, UsageError
from compoclip.models import architecture
from compoclip.models.checkpoint import (
    LoadedModel,
    create_model,
    current_identity,
    load_model,
    save_model,
)
from compoclip.models.config import ModelConfig, read_config
from compoclip.models.formats import open_clip as directory
from compoclip.models.weights import read_state_dict, weights_hash
from models_thin import config, only_known, timm_config

CAPTIONS = ["a red cat on a mat", "two dogs", "a mat on a red cat, and nothing else in sight"]
SMALL = config(text={"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1})
ODD_SETTING = {"model_cfg": SMALL, "compoclip": {"colour": 1}}
ODD_FREEZE = {"model_cfg": SMALL, "compoclip": {"freeze_batch_norm": "no"}}


def new(cfg: dict[str, Any] | None = None, seed: int = 0, **preprocess: Any) -> LoadedModel:
    return create_model(ModelConfig(cfg or SMALL, preprocess), seed=seed)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with its own vocabulary and other image statistics than the default."""
    folder = tmp_path_factory.mktemp("written")
    write_merges(train_bpe(count_words(CAPTIONS), 20), folder / "merges.gz")
    cfg = config(text={"vocab_size": 544, "tokenizer_kwargs": {"bpe_path": "merges.gz"}})
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.5] * 3, "interpolation": "bilinear"}
    model = create_model(ModelConfig(cfg, preprocess, folder=folder))
    save_model(model, folder / "model", provenance={"method": "none", "step": 3})
    return folder / "model"


@pytest.fixture
def saved(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(written, tmp_path / "model")


def test_a_directory_comes_back_as_it_was(saved: Path) -> None:
    model = load_model(saved)
    record = json.loads((saved / "compoclip.json").read_text())
    assert record["identity"] == json.loads(json.dumps(model.identity.to_json()))
    assert model.provenance == {"method": "none", "step": 3}
    assert model.identity.image_mean == (0.5, 0.4, 0.3)
    assert model.identity.interpolation == "bilinear"
    assert model.identity.context_length == 20
    assert model.identity.tokenizer.startswith("clip-bpe-534-")
    assert not model.encoder.training
    again = saved.parent / "again"
    assert save_model(model, again) == model.identity
    assert load_model(str(again)).identity == model.identity
    assert sorted(p.name for p in again.iterdir()) == sorted(p.name for p in saved.iterdir())


def test_plain_open_clip_loads_a_directory_with_equal_features(saved: Path) -> None:
    model = load_model(saved)
    plain, _, evaluate = open_clip.create_model_and_transforms(f"local-dir:{saved}")
    plain.eval()
    image = Image.effect_noise((40, 33), 90).convert("RGB")
    pixels = model.preprocess.evaluation(image)
    assert torch.equal(pixels, evaluate(image))
    tokenizer = open_clip.get_tokenizer(f"local-dir:{saved}")
    ids = model.tokenizer(CAPTIONS)
    assert torch.equal(ids, tokenizer(CAPTIONS))
    with torch.no_grad():
        ours = model.encoder.encode_texts(ids).pooled
        assert torch.allclose(ours, plain.encode_text(ids), atol=1e-5)
        image_features = model.encoder.encode_images(pixels[None]).pooled
        assert torch.equal(image_features, plain.encode_image(pixels[None]))
        second = open_clip.create_model(f"local-dir:{saved}").eval()
        assert torch.equal(second.encode_text(ids), plain.encode_text(ids))


def test_a_directory_that_others_wrote_or_moved_has_the_same_identity(saved: Path) -> None:
    expected = load_model(saved)
    moved = saved.rename(saved.parent / "moved")
    assert load_model(moved).identity == expected.identity
    tokenizer = open_clip.get_tokenizer(f"local-dir:{moved}", bpe_path=str(moved / "bpe.txt.gz"))
    assert torch.equal(tokenizer(CAPTIONS), expected.tokenizer(CAPTIONS))
    (moved / "compoclip.json").unlink()
    assert load_model(moved).identity == expected.identity
    assert load_model(moved).provenance == {}


CHANGES: dict[str, Change] = {
    "activation: gelu vs quick_gelu": put("model_cfg", quick_gelu=True),
    "image_mean: (0.5, 0.4, 0.3) vs (0.48": lambda c: c["preprocess_cfg"].pop("mean"),
    "interpolation: bilinear vs bicubic": lambda c: c["preprocess_cfg"].pop("interpolation"),
    "resize_mode: shortest vs squash": put("preprocess_cfg", resize_mode="squash"),
    "architecture: config-": put("model_cfg", "text_cfg", heads=8),
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_changed_configuration_is_refused(saved: Path, message: str) -> None:
    edit_json(saved / "open_clip_config.json", CHANGES[message])
    with pytest.raises(CompoclipError) as caught:
        load_model(saved)
    assert message in str(caught.value)
    assert str(saved) in str(caught.value)


def test_changed_weights_and_tokenizer_are_refused(saved: Path) -> None:
    weights = saved / "open_clip_model.safetensors"
    state = load_file(weights)
    state["logit_scale"] += 1
    save_file(state, weights)
    write_merges(train_bpe({"mat": 3, "tam": 2}, 30), saved / "bpe.txt.gz")
    with pytest.raises(CompoclipError, match=r"(?=.*weights: ).*tokenizer: clip-bpe-534-"):
        load_model(saved)


def test_an_explicit_activation_overrides_and_is_recorded(saved: Path) -> None:
    plain, other = load_model(saved), load_model(saved, activation="quick_gelu")
    assert other.identity == replace(plain.identity, activation="quick_gelu")
    ids = plain.tokenizer(CAPTIONS)
    assert not torch.allclose(
        plain.encoder.encode_texts(ids).pooled, other.encoder.encode_texts(ids).pooled, atol=1e-4
    )
    assert load_model(saved, activation="gelu").identity == plain.identity
    with pytest.raises(UsageError, match="'relu' is not one of"):
        load_model(saved, activation="relu")


def test_training_makes_the_loaded_weights_the_base(saved: Path, tmp_path: Path) -> None:
    model = load_model(saved)
    assert current_identity(model) == model.identity
    with torch.no_grad():
        model.encoder.logit_scale.add_(0.5)
    tuned = save_model(model, tmp_path / "tuned", adapter="lora r=4")
    assert tuned.base == model.identity.weights
    assert tuned.weights != model.identity.weights
    assert tuned.adapter == "lora r=4"
    assert load_model(tmp_path / "tuned").identity == tuned


def test_float16_storage_is_smaller_and_exact_on_reload(tmp_path: Path) -> None:
    model = new()
    identity = save_model(model, tmp_path / "half", dtype="float16")
    stored = load_file(tmp_path / "half" / "open_clip_model.safetensors")
    assert stored["token_embedding.weight"].dtype == torch.float16
    assert stored["logit_scale"].dtype == stored["ln_final.weight"].dtype == torch.float32
    back = load_model(tmp_path / "half")
    assert back.identity == identity
    assert next(back.encoder.parameters()).dtype == torch.float32
    for name, value in model.encoder.model.state_dict().items():
        assert torch.allclose(value, back.encoder.model.state_dict()[name], atol=1e-3, rtol=1e-3)
    with torch.no_grad():
        model.encoder.model.token_embedding.weight[0, 0] = 1e6
    with pytest.raises(CompoclipError, match=r"'token_embedding.weight' does not fit float16"):
        save_model(model, tmp_path / "over", dtype="float16")
    assert not (tmp_path / "over").exists()


def test_saving_never_leaves_half_a_checkpoint(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(saved)
    with pytest.raises(CompoclipError, match="already exists; choose another place"):
        save_model(model, saved)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(directory, "save_file", full)
        with pytest.raises(CompoclipError, match="No space left on device"):
            save_model(model, tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(CompoclipError, match="cannot be written"):
        save_model(model, tmp_path / "file" / "model")
    assert load_model(saved).identity == model.identity
    assert {path.name for path in tmp_path.iterdir()} == {"file", "model"}


# --- raw files -----------------------------------------------------------------------------------


@pytest.fixture
def tiny_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Tiny` exists with both activations, `Solo` with one."""
    solo = config(text={"vocab_size": 49408, "layers": 2})
    known = {"Tiny": SMALL, "Tiny-quickgelu": {**SMALL, "quick_gelu": True}, "Solo": solo}
    only_known(monkeypatch, known)


@pytest.mark.usefixtures("tiny_architectures")
def test_raw_files_have_the_hash_of_their_values(tmp_path: Path) -> None:
    model = new({**SMALL, "quick_gelu": True}, seed=4)
    state = model.encoder.model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save({name: value.half() for name, value in state.items()}, tmp_path / "half.pt")
    for name, exact in (("w.safetensors", True), ("w.pt", True), ("half.pt", False)):
        file = tmp_path / name
        loaded = load_model(f"Tiny-quickgelu@{file}")
        assert loaded.identity.architecture == "Tiny"
        assert loaded.identity.activation == "quick_gelu"
        assert loaded.path == file
        assert (loaded.identity.weights == model.identity.weights) is exact
        assert loaded.identity.weights == weights_hash(loaded.encoder.model.state_dict())
        assert loaded.identity.weights == weights_hash(read_state_dict(file))


@pytest.mark.usefixtures("tiny_architectures")
def test_a_raw_file_does_not_know_its_activation(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    torch.save(new().encoder.model.state_dict(), file)
    with pytest.raises(CompoclipError, match=f"Tiny-quickgelu@{file}.*--activation gelu"):
        load_model(f"Tiny@{file}")
    for activation in ("gelu", "quick_gelu"):
        assert load_model(f"Tiny@{file}", activation=activation).identity.activation == activation


@pytest.mark.usefixtures("tiny_architectures")
def test_weights_of_another_architecture_name_key_and_shapes(tmp_path: Path) -> None:
    state = new().encoder.model.state_dict()
    lacking = {name: value for name, value in state.items() if name != "ln_final.bias"}
    for name, weights, said in (
        ("Solo", state, r"'positional_embedding' is \(20, 16\) in the file"),
        ("Tiny-quickgelu", lacking, r"the file lacks 'ln_final.bias' \(16,\)"),
        (
            "Tiny-quickgelu",
            {**state, "visual.extra": torch.zeros(2)},
            r"the architecture has no 'visual.extra' \(2,\)",
        ),
    ):
        torch.save(weights, tmp_path / "w.pt")
        with pytest.raises(CompoclipError, match=said):
            load_model(f"{name}@{tmp_path / 'w.pt'}")


class Surprise:
    """Unpickling this would touch a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.usefixtures("tiny_architectures")
def test_code_in_a_weights_file_is_never_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    torch.save({"state_dict": Surprise(touched)}, tmp_path / "evil.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Surprise(touched)))
    script = torch.jit.script(torch.nn.Linear(2, 2))
    script.save(str(tmp_path / "script.pt"))
    for name in ("evil.pt", "pickle.pt", "script.pt"):
        with pytest.raises(CompoclipError, match=f"{name}: not a plain PyTorch state dict"):
            load_model(f"Tiny-quickgelu@{tmp_path / name}")
    assert not touched.exists()


@pytest.mark.usefixtures("tiny_architectures")
def test_damaged_files_are_one_line(saved: Path, tmp_path: Path) -> None:
    weights = saved / "open_clip_model.safetensors"
    whole = weights.read_bytes()
    for size in (0, 5, 200, len(whole) - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(CompoclipError, match="damaged or cut short") as caught:
            load_model(saved)
        assert "\n" not in str(caught.value)
    weights.unlink()
    with pytest.raises(CompoclipError, match="has no weights; expected open_clip_model"):
        load_model(saved)
    (tmp_path / "w.pt").write_bytes(b"PK\x03\x04 no zip")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"optimizer": {}}, tmp_path / "other.pt")
    for name, said in (
        ("w.pt", r"w\.pt: not a plain PyTorch state dict"),
        ("list.pt", "holds no state dict"),
        ("other.pt", "'optimizer' is not a tensor"),
        ("none.pt", "no such file of weights"),
    ):
        with pytest.raises(CompoclipError, match=said):
            load_model(f"Tiny-quickgelu@{tmp_path / name}")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("compoclip.json", "{}", r"compoclip\.json: has no identity"),
        ("compoclip.json", "{", r"compoclip\.json: not valid JSON"),
        ("open_clip_config.json", "[1]", "expected a JSON object"),
        ("open_clip_config.json", '{"model_cfg": {"embed_dim": 3}}', "no 'vision_cfg'"),
        ("open_clip_config.json", json.dumps(ODD_SETTING), "unknown setting 'colour'"),
        ("open_clip_config.json", json.dumps(ODD_FREEZE), "freeze_batch_norm must be true or"),
    ],
)
def test_malformed_json_files_are_one_line(saved: Path, name: str, content: str, said: str) -> None:
    (saved / name).write_text(content)
    with pytest.raises(CompoclipError, match=said):
        load_model(saved)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny_architectures")
def test_random_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first, second = load_model("random:Tiny"), load_model("random:Tiny:0")
    other = load_model("random:Tiny:7")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.identity == second.identity
    assert first.identity.weights != other.identity.weights
    assert first.name == "random:Tiny"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ViT-B-32", "architecture without weights: write ViT-B-32:PRETRAINED_TAG"),
        ("nowhere", "no model 'nowhere'; name a checkpoint folder"),
        ("bundld", "no model 'bundld'; did you mean bundled?"),
        ("random:Nope", "open_clip has no architecture 'Nope'"),
        ("random:ViT-B-32:x", "seed 'x' is not a number below"),
        (f"random:ViT-B-32:{'9' * 20}", f"seed '{'9' * 20}' is not a number below"),
        ("random:ViT-B-32:²", "seed '²' is not a number below"),
        ("Nope@w.pt", "open_clip has no architecture 'Nope'"),
        ("random:ViT-B-23", "no architecture 'ViT-B-23'; did you mean ViT-B-32"),
        ("ViT-B-32:nope", "no weights 'nope' for ViT-B-32; did you mean openai?"),
    ],
)
def test_unknown_names_say_what_would_work(spec: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(spec)
    assert message in str(caught.value)


def test_published_weights_with_the_other_activation_are_refused() -> None:
    with pytest.raises(CompoclipError, match="use ViT-B-32-quickgelu:openai"):
        load_model("ViT-B-32:openai")


@pytest.mark.parametrize("spec", ["RN50-quickgelu:openai", "hf-hub:nobody/nothing"])
def test_downloads_without_a_network_say_so(
    spec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    said = f"{spec}: could not be downloaded .*_OFFLINE forbids"
    with pytest.raises(CompoclipError, match=said) as caught:
        load_model(spec)
    assert "\n" not in str(caught.value)


def test_the_bundled_model_is_read_from_the_package_that_names_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: dict[str, EntryPoint] = {}
    monkeypatch.setattr("compoclip.plugins.installed", lambda kind: points)
    with pytest.raises(CompoclipError, match=r"'bundled' comes with compoclip-world: run pip"):
        load_model("bundled")
    points["bundled"] = EntryPoint("bundled", "there", "compoclip.checkpoints")
    monkeypatch.setattr("compoclip.plugins.imported", lambda point, what: saved)
    assert load_model("bundled").name == "bundled"


def test_architectures_keep_their_published_preprocessing() -> None:
    siglip = architecture.named_config("ViT-B-16-SigLIP")
    assert architecture.architecture_name(siglip) == "ViT-B-16-SigLIP"
    assert architecture.published_stats("ViT-B-16-SigLIP")["mean"] == (0.5, 0.5, 0.5)
    assert architecture.published_stats("ViT-B-16-SigLIP")["resize_mode"] == "squash"
    assert architecture.published_stats("coca_base") == {}


# --- from scratch --------------------------------------------------------------------------------


def test_unbuildable_configurations_are_one_line() -> None:
    for cfg, message in (
        (config(vision={"colour": 3}), "unexpected keyword argument 'colour'"),
        (config(text={"heads": 5}), "embed_dim must be divisible"),
        ({"embed_dim": 3, "vision_cfg": {}}, "KeyError"),
        (timm_config("nope"), r"Unknown model \(nope\)"),
        (config(text={"vocab_size": 100}), "set text_cfg.vocab_size to 49408"),
    ):
        with pytest.raises(CompoclipError, match=message) as caught:
            new(cfg)
        assert "\n" not in str(caught.value)


def test_a_real_pretrained_trunk_loads_exactly(shared_data: Path, tmp_path: Path) -> None:
    import timm

    weights = shared_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
    cfg = timm_config("mobilenetv2_100_same")
    cfg["text_cfg"]["vocab_size"] = 49408
    settings = {"model_cfg": cfg, "compoclip": {"freeze_batch_norm": True}}
    file = write_json(tmp_path / "config.json", settings)
    model = create_model(read_config(file), seed=2, image_weights=weights)
    trunk = timm.create_model("mobilenetv2_100", pad_type="same")
    trunk.load_state_dict(load_file(weights))
    trunk.reset_classifier(0)
    x = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.encoder.model.visual.trunk(x), trunk.eval()(x))
        save_model(model, tmp_path / "model", dtype="float16")
        back = load_model(tmp_path / "model")
        assert back.encoder.freeze_bn
        features = back.encoder.train().encode_images(x).pooled
        assert torch.allclose(features, model.encoder.encode_images(x).pooled, atol=1e-2)
    assert model.identity.weights != new(cfg, seed=2).identity.weights
    cfg["vision_cfg"]["timm_model_name"] = "mobilenetv2_050"
    with pytest.raises(CompoclipError, match="not the weights of the image trunk EfficientNet"):
        create_model(ModelConfig(cfg), image_weights=weights)
