"""The blind model: probabilities of captions by hand, and `blind:CAPTIONS` of `evaluate`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from build.photos import write_photo
from build.tables import write_csv, write_jsonl
from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.evaluation.blind import CaptionModel, TextOnlyEncoder
from compoclip.evaluation.embedder import open_encoder
from compoclip.evaluation.items import EncodedFeatures
from compoclip.evaluation.results import load_results
from compoclip.programs import run
from compoclip.programs.run import TrainOptions

CAPTIONS = ("a red star left of a ball", "a blue ring", "a ball and a red star")


def test_probabilities_of_captions_by_hand() -> None:
    model = CaptionModel(["a star", "A star.", "a ball"])
    # Words: a (3), star (2), ball (1), the end (3); with the unknown one five, in nine steps.
    end, star = (3 + 2 / 5) / (9 + 2), (2 + 2 / 5) / (9 + 2)
    first = (3 + 2 * (3 + 2 * (3 + 2 / 5) / 11) / 5) / 5
    after = (2 + 2 * (2 + 2 * star) / 5) / 5
    last = (2 + 2 * (2 + 2 * end) / 4) / 4
    expected = math.log(first) + math.log(after) + math.log(last)
    assert model.log_probability("a star") == pytest.approx(expected)
    assert model.log_probability("a star") > model.log_probability("a ball")
    assert model.log_probability("a ball") > model.log_probability("ball a")
    assert model.log_probability("a zebra") < model.log_probability("a ball")
    total = sum(math.exp(model.log_probability(text)) for text in ("a star", "a ball", "", "star"))
    assert total < 1


def test_cosines_rise_with_probability_and_ignore_the_picture() -> None:
    encoder = TextOnlyEncoder(CAPTIONS)
    model = CaptionModel(CAPTIONS)
    texts = ("a red star", "a blue ring", "star red a", "a ball and a red star and a zebra")
    features = EncodedFeatures(
        images=encoder.start_images([None, None])(),
        image_rows={},
        texts=encoder.start_texts(texts)(),
        text_rows={},
        bad={},
        truncated=frozenset(),
    )
    assert np.allclose(np.linalg.norm(features.texts, axis=1), 1, atol=1e-6)
    one, two = (features.scores(np.full(4, row), np.arange(4)) for row in (0, 1))
    assert (one == two).all()
    by_model = sorted(range(4), key=lambda k: model.log_probability(texts[k]))
    assert by_model == np.argsort(one).tolist()


def test_evaluate_takes_captions_as_a_blind_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"image": "none.jpg", "caption": text} for text in CAPTIONS]
    captions = write_csv(tmp_path / "captions.csv", *rows)
    foils = [("a red star", "a star red"), ("ball a ring", "a blue ring")]
    write_jsonl(
        tmp_path / "foils" / "stars.jsonl",
        (
            {"image": "wall.png", "caption": true, "negative_caption": false}
            for true, false in foils
        ),
    )
    write_photo(tmp_path / "wall.png")
    options = ["--on", "foils", f"--data={tmp_path}", f"--out={tmp_path / 'out'}", "--device=cpu"]
    assert main(["evaluate", f"blind=blind:{captions}", *options]) == 0
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("mean grounded gain "))
    assert row.split()[3] == "0.0"
    assert "blind: the better of chance and blind" in printed
    (found,) = load_results(tmp_path / "out")
    assert found.main("stars").value == 0.5
    assert found.identity["architecture"] == "blind"
    assert found.identity == json.loads(json.dumps(TextOnlyEncoder(CAPTIONS).identity.to_json()))
    capsys.readouterr()
    assert main(["evaluate", "blind:absent.csv", *options]) == 1
    assert "absent.csv" in capsys.readouterr().err
    with pytest.raises(UsageError, match="blind: has no score 'itm'"):
        open_encoder(f"blind:{captions}").match([], [], "itm")


def test_a_blind_model_is_no_teacher(tmp_path: Path) -> None:
    captions = write_csv(tmp_path / "c.csv", {"image": "none.jpg", "caption": CAPTIONS[0]})
    options = TrainOptions(
        data=str(captions), out=tmp_path / "out", teacher=f"blind:{captions}", precision="fp32"
    )
    with pytest.raises(UsageError, match="sees no image; name a model that does"):
        run._teacher(options, torch.device("cpu"))
