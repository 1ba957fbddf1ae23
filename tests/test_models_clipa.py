"""CLIPA and CLIPS, on which CLIC is trained: a bidirectional text tower that pools its last token,
an image tower that averages its patches, and, as published, the vocabulary of BERT."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import save_file

import compoclip
from build.tables import write_json
from compoclip.cli.main import main
from compoclip.models.checkpoint import load_model
from method_data import arguments
from models_thin import config, only_known

VISION = {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
TEXT = {"vocab_size": 49408, "pool_type": "last", "no_causal_mask": True}
# The published sizes of the contexts; everything else is thin.
CONTEXTS = {"CLIPA": 32, "CLIPS": 80}
LAYOUTS = {
    name: config(vision=VISION, text={**TEXT, "context_length": context})
    for name, context in CONTEXTS.items()
}
PREPROCESS = {
    "size": 32,
    "mode": "RGB",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "interpolation": "bilinear",
    "resize_mode": "squash",
}
CAPTIONS = ["a red star above a blue mug", "Two dogs, no cat!", " ".join(["a small dog"] * 40)]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "star", "dog", "##s", ",", "!"]


def write_model(folder: Path, layout: str, bert: bool = False) -> Path:
    """Write random weights as the hub has such models.

    bert: with the files of a tokenizer of BERT's kind, of few words.
    """
    cfg: dict[str, Any] = deepcopy(LAYOUTS[layout])
    folder.mkdir()
    if bert:
        import transformers

        (folder / "vocab.txt").write_text("\n".join(BERT))
        transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
        named = {"hf_tokenizer_name": "bert-base-uncased", "vocab_size": 32000}
        cfg["text_cfg"] |= {**named, "tokenizer_kwargs": {"strip_sep_token": True}}
    torch.manual_seed(0)
    model = CLIP(cfg["embed_dim"], cfg["vision_cfg"], cfg["text_cfg"])
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    write_json(folder / "open_clip_config.json", {"model_cfg": cfg, "preprocess_cfg": PREPROCESS})
    return folder


def require_equal_features(folder: Path, tmp_path: Path) -> None:
    """Compare all features with those of open_clip, from photos and captions on."""
    theirs, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    tokenize = open_clip.get_tokenizer(f"local-dir:{folder}")
    theirs.eval()
    paths = [tmp_path / f"{k}.png" for k in range(2)]
    for k, path in enumerate(paths):
        photo = Image.linear_gradient("L").resize((70 + 30 * k, 40)).convert("RGB")
        photo.rotate(90 * k).save(path)
    with torch.no_grad():
        pixels = torch.stack([preprocess(Image.open(path)) for path in paths])
        images = theirs.encode_image(pixels, normalize=True).numpy()
        texts = theirs.encode_text(tokenize(CAPTIONS), normalize=True).numpy()
    ours = compoclip.load(folder)
    assert np.abs(ours.encode_images(paths) - images).max() < 1e-5
    assert np.abs(ours.encode_texts(CAPTIONS) - texts).max() < 1e-5
    for k, caption in enumerate(CAPTIONS):  # alone, so without the padding of longer ones
        assert np.abs(ours.encode_texts(caption) - texts[k]).max() < 1e-5


@pytest.mark.parametrize("bert", [False, True], ids=["clip's words", "bert's words"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_features_are_those_of_open_clip_before_and_after_clic_trains(
    layout: str, bert: bool, world: Path, tmp_path: Path
) -> None:
    if bert:
        pytest.importorskip("transformers", reason="needs the extra hf")
    folder, run = write_model(tmp_path / "model", layout, bert), tmp_path / "run"
    require_equal_features(folder, tmp_path)
    steps = [f"--model={folder}", "--max-steps=2"]
    assert main(arguments(world, "clic", run, *steps)) == 0
    before, after = load_model(folder).identity, load_model(run / "model").identity
    assert before.context_length == CONTEXTS[layout]
    assert after.base == before.weights != after.weights
    for name in ("context_length", "tokenizer", "resize_mode", "interpolation"):
        assert getattr(after, name) == getattr(before, name)
    require_equal_features(run / "model", tmp_path)


def test_weights_alone_need_the_name_of_the_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_known(monkeypatch, LAYOUTS)
    folder = write_model(tmp_path / "model", "CLIPA")
    loaded = load_model(folder)
    state = {f"module.{k}": v for k, v in loaded.encoder.model.state_dict().items()}
    torch.save({"epoch": 1, "state_dict": state}, tmp_path / "clic.pt")
    tuned = load_model(f"CLIPA@{tmp_path / 'clic.pt'}")
    assert tuned.identity.weights == loaded.identity.weights
    assert tuned.identity.architecture == "CLIPA"
