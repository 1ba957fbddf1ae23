"""Searches: texts and the nearest photos."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import load_file, save_file

from compoclip.benchmarks.case import Retrieval
from compoclip.benchmarks.targets import parse_targets
from compoclip.captions.clip_text import clip_byte_pairs
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.architecture import build_model
from compoclip.models.checkpoint import LoadedModel, create_model, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.plain_text import PlainText, PlainTower, mapped
from compoclip.search import PhotoIndex, read_index
from compoclip.search.nearest import _changed_words, _kind
from compoclip.search.query import text_encoder
from models_thin import config, only_known, shake
from search_photos import indexed, write_photos
from train_helpers import new_model, write_data

TEXT = "text_projection"
IMAGES = "visual.conv1.weight"
CLIPS = {"vocab_size": 49408}  # of CLIP's own tokenizer
WIDE = {"width": 256, "heads": 4, "layers": 2, "context_length": 77}
TEXTS = [
    *("", "a", "!?", "a red star left of a blue mug", "x<end_of_text>y", "cats &amp; dogs"),
    *("собака бежит по улице", "ein Hund läuft", "一只狗跑过街道", "emoji 🐶🐶 dog"),
    *(" ".join(["dog cat"] * number) for number in (5, 20, 37, 38, 200)),
    "一只狗跑过街道" * 40,
]


def saved(cfg: dict[str, Any], folder: Path, dtype: str = "float32") -> LoadedModel:
    """A model on the disk whose biases and norms are not 0 and 1."""
    loaded = create_model(ModelConfig(cfg))
    shake(loaded.encoder, torch.Generator().manual_seed(1))
    save_model(loaded, folder, dtype=dtype)
    return load_model(folder)


def difference_of(loaded: LoadedModel) -> Callable[[list[str]], float]:
    """What gives the largest difference of the features of texts, by numpy and by torch."""
    tower = PlainTower.of(loaded)
    assert tower is not None
    plain = PlainText(PlainTower(**json.loads(json.dumps(vars(tower)))))
    encoder = ModelEncoder(loaded)

    def difference(texts: list[str]) -> float:
        features = plain.encode_texts(texts)
        assert features.dtype == np.float32
        return float(np.abs(features - encoder.encode_texts(texts)).max())

    return difference


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, photos and their index, which tests only read."""
    folder = tmp_path_factory.mktemp("search")
    loaded = saved(config(text=CLIPS), folder / "model")
    indexed(write_photos(folder / "photos"), ModelEncoder(loaded), folder / "a.index")
    index = read_index(folder / "a.index")
    about = {**index.about, "model": str(folder / "model")}
    replace(index, about=about).save(folder / "a.index")
    return folder


@pytest.mark.parametrize(
    ("cfg", "dtype"),
    [
        (config(text={**CLIPS, **WIDE}, quick_gelu=True), "float16"),
        (config(text={**CLIPS, "heads": 2}), "float32"),
        (config(text={**CLIPS, "context_length": 9}, custom_text=True), "float32"),
    ],
)
def test_numpy_has_the_features_of_torch(cfg: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    difference = difference_of(saved(cfg, tmp_path / "model", dtype))
    assert difference(TEXTS) < 1e-6
    assert max(difference([text]) for text in TEXTS) < 1e-6


def test_any_text_has_the_features_of_torch() -> None:
    difference = difference_of(load_model("bundled"))

    @settings(max_examples=40)
    @given(st.lists(st.text(max_size=30) | st.text("aAé'’st&;<>_01.! \t"), min_size=1, max_size=4))
    def check(texts: list[str]) -> None:
        assert difference(texts) < 1e-6

    check()
    assert difference(TEXTS) < 1e-6


def test_byte_pairs_are_those_of_open_clip() -> None:
    ours, theirs = clip_byte_pairs(), SimpleTokenizer()
    for name in ("encoder", "decoder", "byte_encoder", "byte_decoder", "bpe_ranks"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert (ours.sot_token_id, ours.eot_token_id) == (theirs.sot_token_id, theirs.eot_token_id)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids)


# --- Which towers are computed by numpy. ---


@pytest.mark.parametrize(
    ("cfg", "plain"),
    [
        (config(), (4, False)),
        (config(quick_gelu=True), (4, True)),
        (config(custom_text=True), (4, False)),
        (config(text={"no_causal_mask": True}), None),
        (config(text={"pool_type": "eos", "eos_id": 599}), None),
        (config(text={"pool_type": "last"}, custom_text=True), None),
        (config(text={"embed_cls": True}, custom_text=True), None),
        (config(text={"proj_bias": True}, custom_text=True), None),
        (config(text={"proj_type": "none", "width": 24}), None),
        (config(text={"ls_init_value": 0.3}), None),
        (config(text={"qk_norm": True}), None),
        (config(text={"scale_heads": True}), None),
        (config(text={"act_kwargs": {"approximate": "tanh"}}), None),
        (config(text={"norm_kwargs": {"eps": 1e-6}}), None),
        (config(text={"norm_kwargs": {"elementwise_affine": False}}), None),
    ],
)
def test_towers_that_numpy_computes(cfg: dict[str, Any], plain: tuple[int, bool] | None) -> None:
    assert DualEncoder(build_model(cfg)).text_tower.plain == plain


def rewritten(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        file = folder / "open_clip_model.safetensors"
        state = load_file(file)
        change(state)
        save_file(state, file)
        (folder / "compoclip.json").unlink()

    return rewrite


def pickled(folder: Path) -> None:
    file = folder / "open_clip_model.safetensors"
    torch.save(load_file(file), folder / "open_clip_pytorch_model.bin")
    file.unlink()


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        (lambda folder: None, True),
        (pickled, False),
        (rewritten(lambda state: state.update({k: v.half() for k, v in state.items()})), True),
        (rewritten(lambda state: state.update({k: v.bfloat16() for k, v in state.items()})), False),
        (rewritten(lambda state: state.update({TEXT: state[TEXT].double()})), False),
    ],
)
def test_weights_that_numpy_reads(
    change: Callable[[Path], None], plain: bool, folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(folder / "model", tmp_path / "model")
    change(model)
    loaded = load_model(model)
    assert (PlainTower.of(loaded) is not None) == plain
    assert (ModelEncoder(loaded).text_tower() is not None) == plain


@pytest.mark.parametrize(
    ("options", "plain"),
    [({}, True), ({"clean": "canonicalize"}, False), ({"reduction_mask": "simple"}, False)],
)
def test_tokenizers_that_need_no_torch(
    options: dict[str, Any], plain: bool, tmp_path: Path
) -> None:
    cfg = config(text={**CLIPS, "tokenizer_kwargs": options})
    assert (PlainTower.of(saved(cfg, tmp_path / "model")) is not None) == plain


def test_files_of_weights_are_read_where_they_hold_one_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = load_file(folder / "model" / "open_clip_model.safetensors")
    only_known(monkeypatch, {"Thin": config(text=CLIPS)})
    for prefix in ("", "module.", "ema."):
        named = {f"{prefix}{name}": value for name, value in state.items()}
        save_file(named, tmp_path / f"{prefix or 'plain.'}safetensors")
    plain, wrapped, part = (
        load_model(f"Thin@{tmp_path}/{name}", activation="gelu")
        for name in ("plain.safetensors", "module.safetensors", "ema.safetensors#ema.")
    )
    assert difference_of(plain)(TEXTS[:4]) < 1e-6
    assert PlainTower.of(wrapped) is PlainTower.of(part) is None
    published = {"file": str(tmp_path / "plain.safetensors")}
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda name, tag: published)
    monkeypatch.setattr("compoclip.models.checkpoint.require_model", lambda spec: None)
    monkeypatch.setattr(open_clip, "create_model", lambda *_, **__: plain.encoder.model)
    assert difference_of(load_model("Thin:tag"))(TEXTS[:4]) < 1e-6


def test_weights_in_memory_are_not_those_on_the_disk(folder: Path) -> None:
    loaded = load_model(folder / "model")
    assert ModelEncoder(loaded).text_tower() is not None
    loaded.encoder.model.visual.conv1.weight.data += 1
    assert ModelEncoder(loaded).text_tower() is None
    moved = replace(loaded, files={})
    assert ModelEncoder(moved).text_tower() is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 4) + b"null",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 23) + b'{"a": {"dtype": "F32"}}',
        struct.pack("<Q", 60) + b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0,9]}}',
        struct.pack("<Q", 61) + b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0,36]}}',
        struct.pack("<Q", 61) + b'{"a": {"dtype": "F32", "shape": "", "data_offsets": [0,"a"]}}',
    ],
)
def test_malformed_weights_end_in_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    with pytest.raises(CompoclipError, match="damaged or cut short"):
        mapped(file)


# --- Which searches take the whole model. ---


@pytest.fixture
def index(folder: Path) -> PhotoIndex:
    return read_index(folder / "a.index")


@pytest.mark.parametrize(
    ("queries", "options", "alone"),
    [
        (["a mug"], {}, True),
        (["a mug", "a star"], {"device": "cpu"}, True),
        (["a mug without a star"], {"negation": "subtract:1"}, True),
        (["a mug without a star"], {"negation": "steer"}, True),
        (["a mug"], {"negation": "off"}, True),
        (["a mug without a star"], {"negation": "deo"}, False),
        (["a mug"], {"rerank": "local"}, False),
        (["a mug"], {"rerank": "subgraphs"}, False),
        (["a mug"], {"device": "cuda"}, False),
        (["a mug"], {"model": "elsewhere"}, False),
        (["a mug", Path("a.png")], {}, False),
        ([Path("a.png")], {}, False),
        (["a mug"] * 257, {}, False),
    ],
)
def test_searches_that_need_texts_alone(
    queries: list[str | Path], options: dict[str, Any], alone: bool, index: PhotoIndex
) -> None:
    assert (text_encoder(index, queries, **options) is not None) == alone


def test_an_index_without_a_text_tower_takes_the_model(index: PhotoIndex) -> None:
    about = {**index.about, "text_tower": None}
    assert text_encoder(replace(index, about=about), ["a mug"]) is None
    named = text_encoder(index, ["a mug"], model=index.about["model"])
    assert named is not None


def test_answers_are_those_of_the_whole_model(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page, texts, scores = tmp_path / "page.html", [], []
    score = re.compile(r"-?\b0\.\d{3,}")
    words = ["search", str(folder / "a.index"), "a mug", "a mug without a star", "собака бежит"]
    for _ in range(2):
        assert main([*words, "--page", str(page)]) == 0
        text = "\n".join([*capsys.readouterr(), page.read_text()])
        texts.append(score.sub("SCORE", text))
        scores.append([float(number) for number in score.findall(text)])
        monkeypatch.setattr("compoclip.search.query.text_encoder", lambda *_: None)
    assert texts[0] == texts[1]
    # NumPy and torch round apart in the seventh digit, and so the fourth of a score may differ.
    assert scores[0] == pytest.approx(scores[1], abs=1.01e-4)
    assert "rank  photo" in texts[0]
    assert len(scores[0]) > 15


def test_changed_files_of_the_model_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(folder / "model", tmp_path / "model")
    out = tmp_path / "b.index"
    assert main(["index", str(folder / "photos"), f"--model={model}", f"--out={out}"]) == 0
    assert text_encoder(read_index(out), ["a mug"]) is not None
    rewritten(lambda state: state.update({IMAGES: state[IMAGES] + 1}))(model)
    capsys.readouterr()
    assert main(["search", str(out), "a mug"]) == 1
    assert "made with another model" in capsys.readouterr().err
    file = model / "open_clip_model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    assert main(["search", str(out), "a mug"]) == 1
    assert "damaged or cut short" in capsys.readouterr().err.splitlines()[-1]


def test_a_search_by_text_imports_no_torch(folder: Path, tmp_path: Path) -> None:
    words = ["search", str(folder / "a.index"), "a mug", "a mug without a star"]
    words += ["--page", str(tmp_path / "page.html")]
    code = (
        "import sys\n"
        "from compoclip.cli.main import main\n"
        f"assert main({words!r}) == main([*{words!r}, '--json']) == 0\n"
        "heavy = ('torch', 'torchvision', 'open_clip', 'timm', 'pyarrow')\n"
        "print(*(name for name in heavy if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == ""
    assert "a mug" in done.stdout


# --- The nearest photos ---


Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("a dog on a mat", "a dog on a mat", 0),
        ("A dog on a mat", "a dog on a mat", 0),
        ("a dog on a mat", "a cat on a mat", 1),
        ("a red dog on a blue mat", "a blue dog on a red mat", 2),
        ("a dog on a mat", "a dog on a red mat", 1),
        ("a dog on a red mat", "a dog on a mat", 1),
        ("an owl on a mat", "a big cat on a mat", 3),
        ("", "a dog", 2),
    ],
)
def test_changed_words(one: str, other: str, words: int) -> None:
    assert _changed_words(one, other) == words


@pytest.mark.parametrize(
    ("caption", "captions", "kind"),
    [
        ("the dog lies down", ("a dog on a mat", "the dog lies down"), "own"),
        ("the cat lies down", ("a dog on a mat", "the dog lies down"), "near copy"),
        ("two people ride a train", ("a dog on a mat", "the dog lies down"), "other"),
        ("a dog", (), "other"),
    ],
)
def test_a_caption_is_own_near_or_other(caption: str, captions: tuple[str, ...], kind: str) -> None:
    assert _kind(caption, captions) == kind


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models of other weights."""
    folder = tmp_path_factory.mktemp("models")
    save_model(new_model(folder), folder / "one")
    other = new_model(folder)
    for parameter in other.encoder.model.parameters():
        parameter.data.mul_(-0.9)
    save_model(other, folder / "two")
    return [f"one={folder / 'one'}", f"two={folder / 'two'}"]


def test_the_page_and_the_records(models: list[str], tmp_path: Path, capsys: Capture) -> None:
    captions = write_data(tmp_path, 12)
    on = f"retrieval:{captions},images={tmp_path},split=all"
    command = ["nearest", *models, "--on", on, "--device", "cpu", "--number", "3"]
    assert main([*command, "--captions", "2", "--out", str(tmp_path / "n.html"), "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert len(records) == 3
    page = (tmp_path / "n.html").read_text()
    assert page.count("<img src=") == 3
    assert "the first caption differs between the models" in page
    (target,) = parse_targets([on], Path("data"), None)
    photos = target.load().content
    assert isinstance(photos, Retrieval)
    for name, model in (word.split("=", 1) for word in models):
        encoder = ModelEncoder(load_model(model))
        with encoder.evaluating():
            texts = encoder.encode_texts(photos.texts)
            for record in records:
                ref = next(ref for ref in photos.images if ref.photo == record["image"])
                scores = (encoder.encode_images([encoder.read_image(ref)]) @ texts.T)[0]
                order = np.argsort(-scores, kind="stable")[:2]
                shown = record["by_model"][name]
                assert [row["text"] for row in shown] == [photos.texts[k] for k in order]
                assert [row["score"] for row in shown] == pytest.approx(scores[order], abs=1e-5)
    again = [*command, "--captions", "2", "--out", str(tmp_path / "again.html"), "--json"]
    assert main(again) == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "n.html").read_bytes()


def test_one_model_and_more_images_than_there_are(
    models: list[str], tmp_path: Path, capsys: Capture
) -> None:
    captions = write_data(tmp_path, 5)
    on = f"retrieval:{captions},images={tmp_path},split=all"
    command = ["nearest", models[0], "--on", on, "--number", "50", "--captions", "9000"]
    assert main([*command, "--out", str(tmp_path / "n.html")]) == 0
    printed = capsys.readouterr().out
    assert "differs between" not in (tmp_path / "n.html").read_text()
    assert len(printed.strip().splitlines()) == 2 + 5 + 2


def test_other_benchmarks_are_refused(models: list[str], tmp_path: Path, capsys: Capture) -> None:
    captions = write_data(tmp_path, 5)
    command = ["nearest", models[0], "--on", f"rewrites:{captions},images={tmp_path},split=all"]
    assert main([*command, "--out", str(tmp_path / "n.html")]) == 2
    assert "--on: name a retrieval benchmark" in capsys.readouterr().err
