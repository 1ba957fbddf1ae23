"""Tree scores of captions: what is measured, what is left out, intervals, and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compoclip.analysis.trees import (
    BEST,
    CUT,
    TOO_LONG,
    TOO_SHORT,
    TREES,
    TokenSentence,
    best_tree,
    differences,
    estimates,
    measure_trees,
    span_charts,
    thresholds_of,
    tree_score,
)
from compoclip.cli.caption_input import validation_captions
from compoclip.cli.explain import _cell
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.statistics import Bootstrap, Estimate
from compoclip.models.checkpoint import LoadedModel, ModelConfig, create_model, save_model
from evaluation_helpers import TINY

CONFIG = {**TINY, "text_cfg": {**TINY["text_cfg"], "context_length": 40, "layers": 4}}
CAPTIONS = [
    "A man in a red hat.",
    "two  dogs, unquestionably",
    "a horse &amp; a cart",
    "dogs",
    "a " * 26,
    "incomprehensibilities " * 25,
    "the cat isn't here",
]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    made = create_model(ModelConfig(CONFIG), seed=1)
    for parameter in made.encoder.model.transformer.parameters():
        parameter.data *= 4  # so that words matter to one another
    return made


def test_words_are_what_white_space_separates(model: LoadedModel) -> None:
    words = model.tokenizer.words(CAPTIONS[0])
    assert [word for word, _ in words] == ["a", "man", "in", "a", "red", "hat."]
    for caption in CAPTIONS:
        ids = [token for _, ids in model.tokenizer.words(caption) for token in ids]
        row = model.tokenizer.bounded(ids)
        cut = model.tokenizer([caption])[0].tolist()
        if len(row) <= 40:
            assert cut == row + [0] * (40 - len(row))


def test_captions_that_do_not_fit_are_counted(model: LoadedModel) -> None:
    found = measure_trees("m", model, CAPTIONS)
    assert found.captions == (*CAPTIONS[:3], CAPTIONS[6])
    assert found.left_out == {TOO_SHORT: 1, TOO_LONG: 1, CUT: 1}
    assert found.thresholds == (0, 1, 2)
    assert found.headline == 2
    assert all(found.scores[tree].shape == (4, 3) for tree in TREES)
    assert found.trees[0].count("(") == 5
    with pytest.raises(CompoclipError, match="no caption can be measured"):
        measure_trees("m", model, ["dogs"])


def test_scores_are_those_of_each_sentence_alone(model: LoadedModel) -> None:
    found = measure_trees("m", model, CAPTIONS[:3], batch_size=2)
    for row, caption in enumerate(CAPTIONS[:3]):
        words = [ids for _, ids in model.tokenizer.words(caption)]
        ids = model.tokenizer.bounded([token for word in words for token in word])
        (charts,) = span_charts(
            model.encoder.text_tower.layers(), [TokenSentence.of(words, ids)], [0, 1, 2]
        )
        for column, h in enumerate(found.thresholds):
            wanted = tree_score(charts[h], best_tree(charts[h]))
            assert found.scores[BEST][row, column] == pytest.approx(wanted, abs=1e-5)
            assert all(
                found.scores[tree][row, column] <= found.scores[BEST][row, column] + 1e-9
                for tree in TREES
            )


def test_an_untrained_encoder_scores_near_zero() -> None:
    """At the headline threshold of a tower of CLIP's depth. Lower thresholds are not near zero: the
    best of many trees is above any that is drawn blindly, on any chart (reports/analysis.md)."""
    text = {**CONFIG["text_cfg"], "layers": 12, "width": 128}
    made = create_model(ModelConfig({**CONFIG, "text_cfg": text}), seed=0)
    things = (("red", "star", "mug"), ("green", "dog", "tree"), ("small", "cat", "road"))
    captions = [f"a {colour} {one} to the left of a {two}" for colour, one, two in things]
    found = measure_trees("m", made, captions)
    assert found.headline == 6
    assert 0 <= found.scores[BEST][:, -1].mean() < 0.1
    assert abs(found.scores["random"][:, -1].mean()) < 0.05


def test_the_seed_draws_the_random_trees_and_nothing_else(model: LoadedModel) -> None:
    captions = [f"{CAPTIONS[0]} {k}" for k in range(6)]
    one, same, other = (measure_trees("m", model, captions, seed=s) for s in (0, 0, 1))
    for tree in TREES:
        assert np.array_equal(one.scores[tree], same.scores[tree])
        assert np.array_equal(one.scores[tree], other.scores[tree]) == (tree != "random")


def test_thresholds_are_the_layers_up_to_the_middle_or_those_that_are_named() -> None:
    assert thresholds_of(12) == (0, 1, 2, 3, 4, 5, 6)
    assert thresholds_of(5) == (0, 1, 2)
    assert thresholds_of(12, (6, 0, 6)) == (0, 6)
    with pytest.raises(UsageError, match="give 0 to 11"):
        thresholds_of(12, (12,))


def test_estimates_are_means_over_captions_with_the_mean_over_layers_last() -> None:
    values = np.random.default_rng(0).normal(size=(200, 2))
    first, second, mean = estimates(values, Bootstrap(500))
    assert first.value == pytest.approx(values[:, 0].mean())
    assert mean.value == pytest.approx(values.mean())
    error = values[:, 1].std() / 200**0.5
    assert second.high - second.low == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert second.low < second.value < second.high
    (alone, _, _) = estimates(values[:1], Bootstrap(500))
    assert alone == Estimate(values[0, 0], None, None)
    assert _cell(alone) == f"{values[0, 0]:.3f} [-]"


def test_differences_are_paired_on_common_captions(model: LoadedModel) -> None:
    one = measure_trees("a", model, CAPTIONS[:3])
    two = measure_trees("b", model, [CAPTIONS[2], CAPTIONS[6], CAPTIONS[0]])
    n, gaps = differences(one, two, Bootstrap(100))
    assert n == 2
    assert [gap.value for gap in gaps] == pytest.approx([0.0] * 4, abs=1e-5)
    with pytest.raises(CompoclipError, match="no caption was measured with both models"):
        differences(one, measure_trees("b", model, [CAPTIONS[6]]), Bootstrap(100))


@pytest.fixture
def saved(model: LoadedModel, tmp_path: Path) -> str:
    save_model(model, tmp_path / "tiny")
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS))
    return str(tmp_path / "tiny")


def test_the_command(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, captions = tmp_path / "trees", f"--captions={tmp_path / 'captions.txt'}"
    command = ["tree-score", f"a={saved}", f"b={saved}", captions, "--resamples=50"]
    assert main([*command, f"--out={out}"]) == 0
    shown = capsys.readouterr().out
    assert "a: 4 text layers, 4 captions, 1 left out: fewer than 2 words" in shown
    assert "h = 2 (headline)" in shown
    assert "best, minus first  +0.000" in shown
    records = json.loads((out / "tree-score.json").read_text())
    assert [record["model"] for record in records] == ["a", "b"]
    assert records[1]["difference"]["captions"] == 4
    lines = [json.loads(line) for line in (out / "trees.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert {line["caption"] for line in lines} == {*CAPTIONS[:3], CAPTIONS[6]}
    for ending in ("png", "svg"):
        assert (out / f"tree-score.{ending}").stat().st_size > 1000
    for option, message in (("--sample=0", "--sample"), ("--threshold=9", "give 0 to 3")):
        assert main([*command, option]) == 2
        assert message in capsys.readouterr().err


COCO = {
    "images": [{"id": k, "file_name": f"{k}.jpg"} for k in range(3)],
    "annotations": [{"image_id": k % 3, "caption": text} for k, text in enumerate(CAPTIONS[:4])],
}
KARPATHY = {
    "images": [
        {"filename": f"{k}.jpg", "filepath": "val2014", "split": split, "cocoid": k,
         "sentences": [{"raw": text}]}
        for k, (split, text) in enumerate(zip(("train", "val", "test", "val"), CAPTIONS))
    ]
}  # fmt: skip
BLIP = [{"image": f"val2014/{k}.jpg", "caption": CAPTIONS[k : k + 2]} for k in range(2)]


@pytest.mark.parametrize(
    ("name", "content", "captions"),
    [
        ("captions_val2014.json", COCO, [CAPTIONS[0], CAPTIONS[3], *CAPTIONS[1:3]]),
        ("dataset_coco.json", KARPATHY, [CAPTIONS[1], CAPTIONS[3]]),
        ("coco_karpathy_val.json", BLIP, [*CAPTIONS[:2], *CAPTIONS[1:3]]),
    ],
)
def test_captions_of_validation_photos(
    name: str, content: object, captions: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    assert validation_captions(tmp_path / name) == captions


def test_the_preset_samples_as_the_paper_does(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "captions_val2014.json"
    captions = [{"image_id": 0, "caption": f"a dog and {k} cats"} for k in range(5010)]
    path.write_text(json.dumps({**COCO, "annotations": captions}))
    sampled: list[Sequence[str]] = []

    def measured(name: str, loaded: LoadedModel, chosen: Sequence[str], *more: object) -> object:
        sampled.append(chosen)
        return measure_trees(name, loaded, chosen[:2], *more)  # type: ignore[arg-type]

    command = ["tree-score", saved, "--preset=mosaiclip", f"--captions={path}", "--resamples=20"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compoclip.analysis.trees.measure_trees", measured)
        for more in ([], [], ["--seed=1"], ["--sample=3"]):
            assert main([*command, *more]) == 0
    first, again, other, few = sampled
    assert len(first) == len({*first}) == 5000
    assert first == again
    assert {*first} != {*other}
    assert len(few) == 3
    capsys.readouterr()
    path.write_text(json.dumps({"annotations": []}))
    assert main(command) == 1
    assert "lacks 'images'; are these COCO's caption annotations?" in capsys.readouterr().err


def test_a_tokenizer_without_words_is_one_clear_line(model: LoadedModel) -> None:
    model.tokenizer._simple = False
    try:
        with pytest.raises(CompoclipError, match="which tokens are one word"):
            measure_trees("m", model, CAPTIONS)
    finally:
        model.tokenizer._simple = True
