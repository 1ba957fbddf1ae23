"""`compoclip nearest`: the captions that models put nearest to images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Retrieval
from compoclip.benchmarks.targets import parse_targets
from compoclip.cli.main import main
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.checkpoint import load_model, save_model
from compoclip.search.nearest import _best, _changed_words, _kind
from train_helpers import new_model, write_data

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


def test_a_caption_is_own_near_or_other() -> None:
    own = ("a dog on a mat", "the dog lies down")
    assert _kind("the dog lies down", own) == "own"
    assert _kind("the cat lies down", own) == "near copy"
    assert _kind("two people ride a train", own) == "other"
    assert _kind("a dog", ()) == "other"


def test_the_best_are_those_of_a_plain_sort() -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((300, 4)).astype(np.float32)
    texts = np.round(rng.standard_normal((40, 4))).astype(np.float32)
    texts[7] = texts[3]  # equal scores rank in the order of the data
    best, scores = _best(images, texts, 5)
    for row in range(300):
        cosines = [float(images[row] @ text) for text in texts]
        order = sorted(range(40), key=lambda k: -cosines[k])[:5]
        assert scores[row] == pytest.approx([cosines[k] for k in order], abs=1e-5)
        ranks = {int(text): rank for rank, text in enumerate(best[row])}
        assert 7 not in ranks or ranks[3] == ranks[7] - 1


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
