"""BLIP: towers and matching head as in transformers, recipes, benchmarks, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from build.photos import write_photo
from compoclip.benchmarks.case import Benchmark, Case, Form, ImageRef
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.results import load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.architecture import Blip
from compoclip.models.checkpoint import LoadedModel, load_model, save_model
from compoclip.models.conversion import convert, inspect_model
from compoclip.training.log import read_log
from compoclip_world.captions import captions_for
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig
from method_data import write_world
from models_thin import pixels, shake
from tiny_transformers import word_tokenizer
from train_helpers import FEW

TEXTS = ["a red star", "there is a blue mug left of a red star", "a mug"]


def words() -> list[str]:
    """Special tokens, and the words of some captions of the world."""
    world = WorldConfig(size=32)
    texts = [
        caption.text
        for i in range(60)
        for caption in captions_for(scene_for(world, 0, "train", i), world, 0, i, 3)
    ]
    found = sorted({word for text in (*texts, *TEXTS) for word in text.lower().split()})
    return ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *found]


def write_blip(folder: Path, **text: Any) -> Any:
    """A BlipForImageTextRetrieval with random weights and a tokenizer of words; the model."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    vocabulary = words()
    tokens = {"pad_token": "[PAD]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    tokenizer = word_tokenizer(vocabulary, "[CLS] $A [SEP]", lower=True, **tokens)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    own = {"vocab_size": len(vocabulary), "encoder_hidden_size": 32, "pad_token_id": 0}
    shape = {"image_size": 32, "patch_size": 8, "num_attention_heads": 4}
    config = transformers.BlipConfig(
        text_config={**sizes, **own, "num_attention_heads": 4, **text},
        vision_config={**sizes, **shape, "initializer_range": 0.02},
        image_text_hidden_size=16,
    )
    torch.manual_seed(0)
    model = transformers.BlipForImageTextRetrieval(config).eval()
    shake(model)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder, and the model of transformers that is in it."""
    folder = tmp_path_factory.mktemp("blip") / "blip"
    return folder, write_blip(folder)


def network(loaded: LoadedModel) -> Blip:
    assert isinstance(loaded.encoder.model, Blip)
    return loaded.encoder.model


def test_the_towers_and_the_matching_head_are_those_of_transformers(
    made: tuple[Path, Any],
) -> None:
    folder, theirs = made
    loaded = load_model(folder)
    ids = loaded.tokenizer(TEXTS)
    assert ids.shape == (3, 35)
    mask = (ids != 0).long()
    with torch.no_grad():
        both = {"input_ids": ids, "attention_mask": mask}
        itc = theirs(**both, pixel_values=pixels(), use_itm_head=False).itm_score
        seen = loaded.encoder.features(pixels(), ids)
        assert torch.allclose(seen.image @ seen.text.T, itc, atol=1e-5)
        itm = theirs(**both, pixel_values=pixels(count=3)).itm_score
        states = network(loaded).visual.states(pixels(count=3))
        ours = network(loaded).match(states, ids)
        assert torch.allclose(ours, itm[:, 1] - itm[:, 0], atol=1e-5)
    assert round(float(seen.logit_scale), 3) == round(1 / 0.07, 3)
    assert "temperature" in loaded.identity.assumed[0]
    found = inspect_model(str(folder))
    assert found["kind"] == "Hugging Face BlipForImageTextRetrieval folder"


def test_checkpoints_and_folders_keep_outputs(made: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = made
    loaded = load_model(folder)
    save_model(loaded, tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "open_clip" not in card  # which does not read it
    assert 'load_model("FOLDER")' in card
    again = load_model(tmp_path / "saved")
    assert again.identity == loaded.identity
    convert(str(tmp_path / "saved"), tmp_path / "back", "hf")
    back = load_model(tmp_path / "back")
    assert back.identity.weights == loaded.identity.weights
    read = type(theirs).from_pretrained(tmp_path / "back").eval()
    for (name, one), other in zip(theirs.state_dict().items(), read.state_dict().values()):
        assert torch.equal(one, other), name


def test_other_kinds_of_blip_and_local_losses_are_refused(tmp_path: Path) -> None:
    theirs = write_blip(tmp_path / "blip")
    loaded = load_model(tmp_path / "blip")
    with pytest.raises(CompoclipError, match="local losses need patch features"):
        loaded.encoder.require_local()
    theirs.itm_head = torch.nn.Identity()
    theirs.save_pretrained(tmp_path / "blip")
    with pytest.raises(CompoclipError, match="no BlipForImageTextRetrieval"):
        load_model(tmp_path / "blip")


def benchmark(folder: Path) -> Benchmark:
    a, b, c = (
        ImageRef(write_photo(folder / f"{colour}.png", colour=colour, size=(32, 32)))
        for colour in ("red", "blue", "green")
    )
    x, y, z = TEXTS
    cases = (
        Case("t", Form.CHOOSE_TEXT, (a,), (x, y, z), "text"),
        Case("i", Form.CHOOSE_IMAGE, (b, c), (z,), "image"),
        Case("g", Form.GROUP, (a, b), (x, y), "group"),
        Case("p", Form.TRIPLE, (c,), (x, y, z), "triple"),
    )
    return Benchmark("pairs", cases, data_hash="0")


def test_pairs_are_scored_by_the_head_one_by_one(made: tuple[Path, Any], tmp_path: Path) -> None:
    loaded = load_model(made[0])
    cases = benchmark(tmp_path)
    options = Options(score="itm", batch_size=2, resamples=20)
    (result,) = evaluate("blip", ModelEncoder(loaded), [cases], tmp_path / "out", options)
    assert result.score == "itm"
    (stored,) = load_results(tmp_path / "out" / "blip" / "pairs.json")
    scores = {row["item"]: row["scores"] for row in load_items(stored).to_pylist()}

    def alone(case: int, image: int, text: int) -> float:
        item = cases.content[case]  # type: ignore[index]
        shown = loaded.preprocess.evaluation(Image.open(item.images[image].path))[None]
        with torch.no_grad():
            ids = loaded.tokenizer([item.texts[text]])
            return float(network(loaded).match(network(loaded).visual.states(shown), ids))

    expected = {
        "t": [alone(0, 0, t) for t in range(3)],
        "i": [alone(1, i, 0) for i in range(2)],
        "g": [alone(2, i, t) for i in range(2) for t in range(2)],
        "p": [alone(3, 0, t) for t in range(3)],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(scores[name], values, atol=1e-5)
    itc = Options(resamples=20)
    (other,) = evaluate("blip", ModelEncoder(loaded), [cases], tmp_path / "out", itc)
    assert other.score == "cosine"  # and not the result that was there


def test_a_head_is_asked_only_where_there_is_one_and_of_pairs(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", merges=FEW)
    plain = ModelEncoder(load_model(world / "base"))
    options = Options(score="itm")
    with pytest.raises(UsageError, match="no head that matches pairs"):
        evaluate("plain", plain, [benchmark(tmp_path)], tmp_path / "out", options)
    texts = Case("o", Form.TEXT_ONLY, (), (TEXTS[0], TEXTS[1], TEXTS[2]), "text")
    with pytest.raises(UsageError, match="texts alone with --score cosine"):
        evaluate("plain", plain, [Benchmark("t", (texts,), "0")], tmp_path / "out", options)


@pytest.mark.slow
def test_a_tiny_blip_trains_with_mosaic_clip_and_is_measured_on_the_world(
    made: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = made
    world = write_world(tmp_path / "world", merges=FEW)
    options = [f"--model={folder}", f"--data={world / 'plain.jsonl'}"]
    steps = ["--batch-size=8", "--epochs=4", "--lr=1e-3", "--warmup=2", "--set=log_every=1"]
    run = tmp_path / "run"
    assert main(["train", "mosaic-clip", *options, *steps, f"--out={run}", "--seed=3"]) == 0
    records = read_log(run / "train.jsonl")
    assert len(records) == 20
    first, last = records[0]["loss"], records[-1]["loss"]
    assert last < first
    tuned = load_model(run / "model")
    assert tuned.provenance["method"] == "mosaic-clip"
    assert main(["world", "suite", f"--out={tmp_path / 'suite'}", "--items-per-task=3"]) == 0
    on = [f"--on={tmp_path / 'suite'}", "--resamples=20"]
    capsys.readouterr()
    both = [f"base={folder}", f"tuned={run / 'model'}"]
    assert main(["evaluate", *both, *on, f"--out={tmp_path / 'itc'}", "--json"]) == 0
    measured = {each["benchmark"] for each in json.loads(capsys.readouterr().out)}
    assert {"world-sugarcrepe", "world-aro", "world-retrieval", "world-winoground"} & measured
    places = f"root={tmp_path / 'suite'}"
    pairs = ["--on", f"sugarcrepe,{places}", f"sugarcrepe_pp,{places}", "--resamples=20"]
    itm = [f"--out={tmp_path / 'itm'}", "--score=itm", "--json"]
    assert main(["evaluate", *both, *pairs, *itm]) == 0
    results = json.loads(capsys.readouterr().out)
    assert {each["score"] for each in results} == {"itm"}
