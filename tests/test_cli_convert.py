"""`compoclip convert` and `compoclip inspect`: every form to every form, errors in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from compoclip.cli.inspect import ConvertOptions
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import (
    LoadedModel,
    create_model,
    known_forms,
    load_model,
    save_model,
)
from compoclip.models.config import ModelConfig
from compoclip.models.conversion import convert, inspect_model
from compoclip.models.formats.adapters import save_adapter
from compoclip.models.lora import Lora, attach_lora
from compoclip.models.resize import stretched
from models_thin import config, fill_adapters, only_known, shake

TEXT = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
SMALL = config(text=TEXT)
CAPTIONS = ["a red square", "a wall behind two dogs"]
RESNET = config(text=TEXT)
RESNET["vision_cfg"] = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8}


@pytest.fixture(autouse=True)
def architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Tiny` exists with both activations."""
    only_known(monkeypatch, {"Tiny": SMALL, "Tiny-quickgelu": {**SMALL, "quick_gelu": True}})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A saved QuickGELU model with weights everywhere."""
    loaded = create_model(ModelConfig({**SMALL, "quick_gelu": True}), seed=1)
    shake(loaded.encoder.model, torch.Generator().manual_seed(7))
    save_model(loaded, tmp_path / "base", provenance={"method": "none"})
    return tmp_path / "base"


def features(loaded: LoadedModel) -> tuple[Tensor, Tensor]:
    size = loaded.preprocess.size
    pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = loaded.encoder.features(pixels, loaded.tokenizer(CAPTIONS))
    return found.image, found.text


def close(one: LoadedModel, other: LoadedModel, tolerance: float = 1e-5) -> bool:
    pairs = zip(features(one), features(other))
    return all(float((a - b).abs().max()) <= tolerance for a, b in pairs)


def write_own_adapter(base: Path, folder: Path, lora: Lora) -> LoadedModel:
    """An adapter with values as if trained; the adapted model."""
    loaded = load_model(base)
    attach_lora(loaded.encoder.model, lora)
    fill_adapters(loaded.encoder.model)
    save_adapter(loaded, lora, folder, provenance={"method": "test"})
    return loaded


def test_every_form_that_a_format_writes_is_an_option() -> None:
    assert sorted(get_args(get_type_hints(ConvertOptions)["to"])) == sorted(set(known_forms()))
    page = (Path(__file__).parents[1] / "docs" / "guide" / "use-elsewhere.md").read_text()
    explained = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    assert set(known_forms()) <= set(re.findall(r"`([a-z-]+)`", "".join(explained)))


# --- dense forms ---------------------------------------------------------------------------------


def test_open_clip_to_hugging_face_and_back(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(base), str(tmp_path / "hf"), "--to", "hf", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["written"] == str(tmp_path / "hf")
    assert made["activation"] == "quick_gelu"
    back = str(tmp_path / "oc")
    assert main(["convert", str(tmp_path / "hf"), back, "--to", "open-clip"]) == 0
    written = capsys.readouterr().out
    assert re.search(r"^form +open-clip$", written, re.M)
    assert re.search(r"^architecture +Tiny$", written, re.M)
    assert written.splitlines()[0].split() == ["fact", "value"]
    assert load_model(back).identity.weights == load_model(base).identity.weights
    assert load_model(back).provenance == {"method": "none"}
    assert close(load_model(back), load_model(base), 0)
    assert main(["convert", str(base), back, "--to", "hf"]) == 1
    assert "already exists" in capsys.readouterr().err


def test_a_file_gets_its_activation_from_its_base(base: Path, tmp_path: Path) -> None:
    state = {k: v + 0.001 for k, v in load_model(base).encoder.model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "w.pt")
    convert(str(tmp_path / "w.pt"), tmp_path / "oc", "open-clip", base=str(base))
    made = load_model(tmp_path / "oc")
    assert made.identity.activation == "quick_gelu"
    assert made.identity.base == load_model(base).identity.weights
    assert made.provenance["file"] == {"name": "w.pt", "epoch": 3}
    assert close(made, load_model(f"Tiny-quickgelu@{tmp_path / 'w.pt'}"), 0)


# --- adapters ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lora",
    [
        Lora(rank=2, alpha=3.0),
        Lora(rank=4, towers="image", targets="+conv"),
        Lora(rank=1, towers="text"),
    ],
)
def test_own_adapters_to_peft_and_back(base: Path, tmp_path: Path, lora: Lora) -> None:
    adapted = write_own_adapter(base, tmp_path / "own", lora)
    convert(str(tmp_path / "own"), tmp_path / "peft", "peft")
    settings = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (lora.rank, lora.alpha)
    (tmp_path / "peft" / "adapter.json").unlink()  # as PEFT writes it
    made = convert(str(tmp_path / "peft"), tmp_path / "again", "lora", base=str(base))
    assert made["base_weights"] == load_model(base).identity.weights
    assert close(load_model(tmp_path / "again"), adapted)
    if lora.targets == "linear":  # one A for query, key and value again: no larger than it was
        state = load_file(tmp_path / "again" / "adapter_model.safetensors")
        before = load_file(tmp_path / "own" / "adapter_model.safetensors")
        assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in before.items()}


def edit_peft(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_damaged_adapters_are_one_line(base: Path, tmp_path: Path) -> None:
    write_own_adapter(base, tmp_path / "own", Lora(rank=2))
    convert(str(tmp_path / "own"), tmp_path / "peft", "peft")
    folder = tmp_path / "peft"
    (folder / "adapter.json").unlink()
    source, settings = str(folder), json.loads((folder / "adapter_config.json").read_text())
    state = load_file(folder / "adapter_model.safetensors")
    stem = "base_model.model.text_model.encoder.layers.0"

    def fails(message: str, base_spec: str | None = str(base)) -> None:
        with pytest.raises(CompoclipError, match=message) as caught:
            convert(source, tmp_path / "out", "lora", base=base_spec)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    fails("does not say what it was trained on", None)
    for change, message in (
        ({"use_dora": True}, "'use_dora' .*unknown entry.*merge it with PEFT"),
        ({"target_modules": ["out_proj"]}, "target_modules leaves .* out"),
        ({"exclude_modules": "text.*"}, "exclude_modules leaves .* out"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"r": 9}, "has rank 2 and adapter_config.json says r 9"),
        ({"lora_alpha": "much"}, "'lora_alpha' must be a number"),
    ):
        edit_peft(folder, **change)
        fails(message)
        (folder / "adapter_config.json").write_text(json.dumps(settings))
    for key, value, message in (
        (f"{stem}.mlp.fc1.lora_B.weight", None, "'.*fc1' has no lora_B"),
        ("base_model.model.text_projection.lora_A.weight", torch.ones(2, 16), "no lora_B"),
        ("base_model.model.surprise", torch.ones(1), "'surprise' is no LoRA weight"),
        (f"{stem}.mlp.fc1.lora_A.weight", torch.ones(2, 15), "another architecture"),
    ):
        changed = {**state, key: value}
        if key.endswith("lora_A.weight") and "projection" in key:
            changed["base_model.model.text_projection.lora_B.weight"] = torch.ones(24, 2)
            message = "adapts 'text_projection', which our adapters do not"
            targets = [*settings["target_modules"], "text_projection"]
            edit_peft(folder, target_modules=targets)
        weights = folder / "adapter_model.safetensors"
        save_file({k: v for k, v in changed.items() if v is not None}, weights)
        fails(message)
    (folder / "adapter_model.safetensors").unlink()
    fails("has no weights; expected adapter_model")


def test_adapters_on_another_base_are_refused(base: Path, tmp_path: Path) -> None:
    other = create_model(ModelConfig({**SMALL, "quick_gelu": True}), seed=8)
    save_model(other, tmp_path / "other")
    write_own_adapter(base, tmp_path / "own", Lora())
    with pytest.raises(CompoclipError, match=r"differ .*weights: .* load it on its own base"):
        convert(str(tmp_path / "own"), tmp_path / "x", "peft", base=str(tmp_path / "other"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{base}", "--to", "merged"], 2, "is no adapter, so there is nothing to merge"),
        (["{base}", "--to", "lora"], 1, "has no adapters"),
        (["{base}", "--to", "hf", "--base", "bundled"], 2, "needs no base; leave --base out"),
        (
            ["{file}", "--to", "open-clip"],
            2,
            r"which architecture is it\? write .*fit Tiny, Tiny-q",
        ),
        (["Tiny@{file}", "--to", "hf"], 1, "does not record its activation"),
        (["{file}", "--to", "lora"], 1, "has no adapters; name an adapter folder"),
        (["{file}", "--to", "hf", "--base", "random:Tiny:5"], 1, "is not a fine-tune of"),
        (["Tiny@nowhere.pt", "--to", "hf"], 2, "nowhere.pt: no such file of weights"),
        (["{base}", "--to", "onnx", "--activation", "gelu", "--base", "x"], 2, "no model 'x'|says"),
    ],
)
def test_requests_that_make_no_sense_are_one_line(
    base: Path,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.save({"state_dict": load_model(base).encoder.model.state_dict()}, tmp_path / "w.pt")
    filled = [a.format(base=base, file=tmp_path / "w.pt") for a in arguments]
    assert main(["convert", filled[0], str(tmp_path / "out"), *filled[1:]]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not (tmp_path / "out").exists()


# --- inspect -------------------------------------------------------------------------------------


def test_inspect_a_folder(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(base), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "open_clip checkpoint folder"
    assert (found["architecture"], found["context"], found["image_size"]) == ("Tiny", 20, 32)
    assert found["activation"] == "quick_gelu"
    assert found["activation_by"] == "recorded in compoclip.json"
    assert found["identity"]["weights"] == load_model(base).identity.weights
    network = load_model(base).encoder.model
    assert found["parameters"]["total"] == sum(p.numel() for p in network.parameters())
    assert found["parameters"]["image"] == sum(p.numel() for p in network.visual.parameters())
    convert(str(base), tmp_path / "half", "hf", dtype="float16")
    half = inspect_model(str(tmp_path / "half"), base=str(base))
    assert half["kind"] == "Hugging Face CLIPModel folder"
    assert set(half["dtypes"]) == {"float16", "float32"}
    assert half["base"]["verdict"] == "derived"
    assert main(["inspect", str(base)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^activation +quick_gelu \(recorded in compoclip.json\)$", text, re.M)
    assert re.search(r"^adapter +none$", text, re.M)


def test_facts_are_printed_as_words(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"texts": {"hn_fraction": 1.0, "graph": None, "kinds": ["a", "b"]}, "settings": {}}
    run = tmp_path / "runs" / "fsc"
    save_model(load_model(base), run / "model", provenance=made)
    assert main(["inspect", str(run / "model")]) == 0
    assert main(["convert", str(run / "model"), str(tmp_path / "to"), "--to=open-clip"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  texts +hn fraction 1\.0, kinds a; b$", text, re.M)
    assert not re.search(r"[{}\[\]]|settings", text)
    photo = tmp_path / "photo.png"
    Image.new("RGB", (8, 8)).save(photo)
    for verb, *more in (
        ["inspect"],
        ["maps", f"--image={photo}", "--caption=a", "--out=o"],
        ["convert", str(tmp_path / "x"), "--to=hf"],
    ):
        assert main([verb, str(run), *more]) == 2
        (said,) = capsys.readouterr().err.splitlines()  # nothing on the device before
        assert f"{run}: is not a model folder; did you mean {run / 'model'}?" in said


def test_inspect_a_file_without_and_with_its_base(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load_model(base).encoder.model.state_dict()
    wrapped = {f"module.{name}": value for name, value in state.items()}
    torch.save({"epoch": 5, "state_dict": wrapped}, tmp_path / "w.pt")
    plain = inspect_model(str(tmp_path / "w.pt"))
    assert plain["architecture"] == "Tiny, Tiny-quickgelu"
    assert plain["activation"] == "not recorded"
    assert plain["kind"] == (
        "weights file, training checkpoint (weights under 'state_dict', names below 'module.')"
    )
    assert plain["provenance"] == {"epoch": 5}
    assert (plain["context"], plain["image_size"], plain["vocabulary"]) == (20, 32, 49408)
    known = inspect_model(str(tmp_path / "w.pt"), base=str(base))
    assert known["activation"] == "quick_gelu"
    assert known["base"]["verdict"] == "same"
    stranger = inspect_model(str(tmp_path / "w.pt"), base="random:Tiny-quickgelu:4")
    assert stranger["activation"] == "not recorded"
    assert "the weights are not near random:Tiny-quickgelu:4" in stranger["activation_by"]
    stated = inspect_model(f"Tiny-quickgelu@{tmp_path / 'w.pt'}")
    assert (stated["activation"], stated["activation_by"]) == ("quick_gelu", "stated by the user")
    assert main(["inspect", str(tmp_path / "w.pt"), "--base", str(base)]) == 0
    assert "same: image tower 0.000, text tower 0.000" in capsys.readouterr().out
    assert main(["inspect", f"Tiny@{tmp_path / 'none.pt'}"]) == 2
    assert "none.pt: no such file of weights" in capsys.readouterr().err


# --- with onnxruntime and PEFT -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_onnx_computes_the_same(tmp_path: Path, kind: str) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra onnx")
    import onnxruntime

    cfg = RESNET
    if kind == "vit":
        cfg = config(vision={"layers": 1}, text={**TEXT, "layers": 1}, quick_gelu=True)
    loaded = create_model(ModelConfig(cfg), seed=1)
    save_model(loaded, tmp_path / "model")
    made = convert(str(tmp_path / "model"), tmp_path / "onnx", "onnx")
    assert made["difference"]["image"] <= 1e-5
    assert made["difference"]["text"] <= 1e-5
    names = {p.name for p in (tmp_path / "onnx").iterdir()}
    assert {"image.onnx", "text.onnx", "preprocess.json", "vocab.json", "compoclip.json"} <= names
    session = onnxruntime.InferenceSession(
        tmp_path / "onnx" / "text.onnx", providers=["CPUExecutionProvider"]
    )
    for texts in (CAPTIONS, [*CAPTIONS, *CAPTIONS, "one more"]):  # any batch size
        ids = loaded.tokenizer(texts)
        found = torch.from_numpy(session.run(None, {"ids": ids.numpy()})[0])
        with torch.no_grad():
            assert torch.allclose(found, loaded.encoder.encode_texts(ids).pooled, atol=1e-5)


@pytest.mark.slow
def test_peft_computes_the_same(base: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    peft = pytest.importorskip("peft", reason="needs the extra hf")
    adapted = write_own_adapter(base, tmp_path / "own", Lora(rank=2, alpha=3.0, targets="+conv"))
    convert(str(base), tmp_path / "hf", "hf")
    convert(str(tmp_path / "own"), tmp_path / "peft", "peft")
    clip = transformers.CLIPModel.from_pretrained(tmp_path / "hf")
    model = peft.PeftModel.from_pretrained(clip, tmp_path / "peft").eval()
    size = adapted.preprocess.size
    pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = model(input_ids=adapted.tokenizer(CAPTIONS), pixel_values=pixels)
    image, text = features(adapted)
    assert torch.allclose(found.image_embeds, image, atol=1e-5)
    assert torch.allclose(found.text_embeds, text, atol=1e-5)
    # what PEFT trains and saves: an A for each projection, other ranks and scalings
    clip = transformers.CLIPModel.from_pretrained(tmp_path / "hf")
    settings = peft.LoraConfig(
        r=2,
        lora_alpha=5,
        target_modules=["q_proj", "v_proj", "fc2", "patch_embedding"],
        rank_pattern={"fc2": 3},
        init_lora_weights=False,
        use_rslora=True,
    )
    theirs = peft.get_peft_model(clip, settings).eval()
    theirs.save_pretrained(tmp_path / "trained")
    merged = load_model_on(tmp_path / "trained", base)
    with torch.no_grad():
        expected = theirs(input_ids=merged.tokenizer(CAPTIONS), pixel_values=pixels)
    image, text = features(merged)
    assert torch.allclose(expected.image_embeds, image, atol=1e-5)
    assert torch.allclose(expected.text_embeds, text, atol=1e-5)


def load_model_on(folder: Path, base: Path) -> LoadedModel:
    """A PEFT folder that names its base itself."""
    edit_peft(folder, base_model_name_or_path=str(base))
    return load_model(folder)


# --- Other numbers of positions. ---


def test_positions_are_stretched_behind_the_first_ones() -> None:
    table = torch.randn(77, 3, generator=torch.Generator().manual_seed(0))
    found = stretched(table, 248)
    assert torch.equal(found[:20], table[:20])
    for row in range(20, 248):  # Long-CLIP: four rows for one, the last three on a straight line
        low, quarter = divmod(row - 20, 4)
        low, quarter = (low + 20, quarter) if low + 21 < 77 else (75, quarter + 4)
        expected = table[low] * (1 - quarter / 4) + table[low + 1] * quarter / 4
        torch.testing.assert_close(found[row], expected)
    assert torch.equal(stretched(table, 30), table[:30])
    assert torch.equal(stretched(table, 77), table)


@pytest.mark.parametrize("custom", [False, True])
def test_a_model_for_longer_texts_and_larger_images(
    base: Path, tmp_path: Path, custom: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    source = base
    if custom:
        source = tmp_path / "custom"
        save_model(create_model(ModelConfig({**SMALL, "custom_text": True}), seed=2), source)
    size = SMALL["vision_cfg"]["image_size"]
    sizes = ["--context-length", "120", "--image-size", str(2 * size)]
    assert main(["convert", str(source), str(tmp_path / "big"), "--to", "open-clip", *sizes]) == 0
    before, after = load_model(source), load_model(tmp_path / "big")
    assert after.identity.context_length == after.tokenizer.context_length == 120
    assert after.identity.image_size == (2 * size, 2 * size)
    assert after.provenance["resized"] == {"context_length": 120, "image_size": 2 * size}
    ids, short = after.tokenizer(CAPTIONS), before.tokenizer(CAPTIONS)
    assert ids.shape == (2, 120)
    with torch.no_grad():  # short texts read the positions that stay
        torch.testing.assert_close(
            after.encoder.encode_texts(ids).pooled, before.encoder.encode_texts(short).pooled
        )
        pixels = torch.randn(1, 3, 2 * size, 2 * size)
        ours = after.encoder.encode_images(pixels).pooled
    theirs, _, _ = open_clip.create_model_and_transforms(
        f"local-dir:{source}", force_image_size=2 * size
    )
    torch.testing.assert_close(ours, theirs.eval().encode_image(pixels).detach())
    main(["convert", str(base), str(tmp_path / "x"), "--to", "open-clip", "--image-size", "0"])
    assert "--image-size must be at least 1" in capsys.readouterr().err
    main(["convert", str(base), str(tmp_path / "x"), "--to", "lora", "--context-length", "90"])
    assert "resize its base" in capsys.readouterr().err
