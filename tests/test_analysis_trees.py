"""Binary trees over sentences: charts of spans, exact search, tree scores, and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compoclip.analysis.trees import (
    BEST,
    CUT,
    TOO_LONG,
    TOO_SHORT,
    TREES,
    TokenSentence,
    Tree,
    best_tree,
    bracketed,
    differences,
    estimates,
    greedy_tree,
    left_branching,
    measure_trees,
    random_tree,
    right_branching,
    span_charts,
    splits,
    thresholds_of,
    tree_score,
    tree_value,
)
from compoclip.cli.caption_input import validation_captions
from compoclip.cli.explain import _cell
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.statistics import Bootstrap, Estimate
from compoclip.models.architecture import build_model
from compoclip.models.checkpoint import LoadedModel, ModelConfig, create_model, save_model
from compoclip.models.dual_encoder import DualEncoder
from evaluation_helpers import TINY
from models_thin import END, START, config


def every_tree(a: int, b: int) -> Iterator[Tree]:
    if b - a == 1:
        yield ()
    for k in range(a + 1, b):
        for left in every_tree(a, k):
            for right in every_tree(k, b):
                yield ((a, k, b), *left, *right)


def drawn(n: int, seed: int) -> np.ndarray:
    chart = np.random.default_rng(seed).uniform(-1, 1, size=(n + 1, n + 1))
    chart[0, n] = np.nan  # the whole sentence is never looked at
    return chart


@pytest.mark.parametrize("n", range(2, 7))
@pytest.mark.parametrize("seed", range(8))
def test_the_best_tree_beats_every_other(n: int, seed: int) -> None:
    chart, trees = drawn(n, seed), list(every_tree(0, n))
    assert len(trees) == [0, 1, 1, 2, 5, 14, 42][n]  # Catalan
    highest = partial(best_tree, above_blind=False)
    for find, worth in ((best_tree, tree_score), (highest, tree_value)):
        found = find(chart)
        assert sorted(found) in [sorted(tree) for tree in trees]
        assert worth(chart, found) == pytest.approx(max(worth(chart, tree) for tree in trees))


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_alone_finds_nothing_where_beginnings_are_certain(seed: int) -> None:
    chart = drawn(7, seed)
    chart[0, 1:7] = 1.0  # as in every causal encoder
    assert best_tree(chart, above_blind=False) == left_branching(7)
    assert tree_score(chart, best_tree(chart)) > max(0, tree_score(chart, left_branching(7)))


def test_greed_can_miss_the_best_tree() -> None:
    chart = np.zeros((5, 5))
    chart[0, 1], chart[1, 4] = 0.5, 0.3  # 0.8: the best first split
    chart[0, 2], chart[2, 4] = 0.4, 0.1
    chart[1, 2], chart[2, 3], chart[3, 4] = 0.9, 0.3, 0.3
    chart[0, 3] = chart[1, 3] = -1.0
    greedy, best = greedy_tree(chart), best_tree(chart, above_blind=False)
    assert greedy == ((0, 1, 4), (1, 2, 4), (2, 3, 4))
    assert best == ((0, 2, 4), (0, 1, 2), (2, 3, 4))
    assert tree_value(chart, greedy) == pytest.approx(0.8 + (0.9 + 0.1) + 0.6)
    assert tree_value(chart, best) == pytest.approx(0.5 + (0.5 + 0.9) + 0.6)


def test_three_words_by_hand() -> None:
    chart = np.full((4, 4), np.nan)
    chart[0, 1], chart[1, 2], chart[2, 3] = 0.2, 0.4, 0.6
    chart[0, 2], chart[1, 3] = 0.9, 0.5
    assert splits(chart, 0, 3) == pytest.approx([0.2 + 0.5, 0.9 + 0.6])
    left = left_branching(3)
    assert left == ((0, 2, 3), (0, 1, 2))
    assert best_tree(chart) == best_tree(chart, above_blind=False) == greedy_tree(chart) == left
    # root: 1.5 against a mean of (0.7 + 1.5) / 2; the node of two words has one split only
    assert tree_score(chart, left) == pytest.approx(1.5 - 1.1)
    assert tree_score(chart, right_branching(3)) == pytest.approx(0.7 - 1.1)
    assert tree_value(chart, left) == pytest.approx(0.9 + 0.6 + 0.2 + 0.4)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_branching_trees(n: int) -> None:
    assert left_branching(n) == tuple((0, k, k + 1) for k in range(n - 1, 0, -1))
    assert right_branching(n) == tuple((a, a + 1, n) for a in range(n - 1))


def test_random_trees_come_from_the_generator_and_score_nothing_on_average() -> None:
    chart = drawn(6, 3)
    one, same = (random_tree(6, np.random.default_rng(5)) for _ in range(2))
    assert one == same
    rng = np.random.default_rng(0)
    scores = [tree_score(chart, random_tree(6, rng)) for _ in range(4000)]
    assert np.mean(scores) == pytest.approx(0, abs=4 * np.std(scores) / 4000**0.5)


def test_brackets() -> None:
    words = ["a", "(red)", "dog", "runs"]
    assert bracketed(left_branching(4), words) == "(((a -LRB-red-RRB-) dog) runs)"
    assert bracketed(right_branching(3), words[1:]) == "(-LRB-red-RRB- (dog runs))"
    assert bracketed((), ["dog"]) == "dog"


# --- Charts of spans, against a forward pass written out with a full mask. ---

TOWERS: dict[str, dict[str, Any]] = {
    "causal": config(text={"layers": 4}),
    "quick_gelu_custom": config(quick_gelu=True, custom_text=True, text={"layers": 3}),
    "qk_norm": config(text={"layers": 3, "qk_norm": True}),
    "sees_ahead": config(text={"layers": 4, "no_causal_mask": True}),
    "sees_ahead_qk_norm": config(text={"layers": 3, "no_causal_mask": True, "qk_norm": True}),
}


def encoder_of(cfg: dict[str, Any]) -> DualEncoder:
    encoder = DualEncoder(build_model(cfg, 0)).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in encoder.parameters():  # as drawn, words hardly look at one another
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
    return encoder


def sentence(words: list[list[int]]) -> TokenSentence:
    return TokenSentence.of(words, [START, *(token for word in words for token in word), END])


SENTENCES = (
    sentence([[5], [17, 30, 2], [44], [5], [9, 11]]),
    sentence([[5], [8]]),
    sentence([[100, 101], [7], [44, 3], [60], [61], [62], [63, 64]]),
)


def naive(model: Any, ids: Tensor, allowed: list[Tensor]) -> Tensor:
    """Last states (L, W) of one row, each layer's attention masked by its own (L, L) matrix."""
    x = (model.token_embedding(ids) + model.positional_embedding[: len(ids)])[None]
    for block, may in zip(model.transformer.resblocks, allowed):
        mask = torch.zeros(may.shape).masked_fill(~may, -torch.inf)
        x = block(x, attn_mask=mask.expand(block.attn.num_heads, -1, -1))
    return x[0]


@pytest.mark.parametrize("tower", TOWERS)
def test_every_span_equals_a_forward_pass_with_a_full_mask(tower: str) -> None:
    encoder = encoder_of(TOWERS[tower])
    layers = encoder.text_tower.layers()
    model = getattr(encoder.model, "text", encoder.model)
    thresholds = range(layers.depth)
    with torch.no_grad():
        found = span_charts(layers, SENTENCES, list(thresholds))
        for each, charts in zip(SENTENCES, found):
            length = layers.context_length
            ids = torch.zeros(length, dtype=torch.int64)
            ids[: len(each.ids)] = torch.tensor(each.ids)
            full = torch.ones(length, length, dtype=torch.bool)
            causal = full if layers.sees_ahead else full.tril()
            context = naive(model, ids, [causal] * layers.depth)
            for h in thresholds:
                assert charts[h].shape == (each.words + 1, each.words + 1)
                for a in range(each.words):
                    for b in range(a + 1, each.words + 1):
                        if (a, b) == (0, each.words):
                            assert np.isnan(charts[h][a, b])
                            continue
                        span = list(range(each.starts[a], each.starts[b]))
                        seen = torch.zeros(length, dtype=torch.bool)
                        seen[[0, *span, len(each.ids) - 1]] = True
                        masks = [causal if n < h else causal & seen for n in range(layers.depth)]
                        # what may see nothing at all is not looked at: let it see itself
                        masks = [mask | torch.eye(length, dtype=torch.bool) for mask in masks]
                        free = naive(model, ids, masks)
                        wanted = F.cosine_similarity(context[span].sum(0), free[span].sum(0), dim=0)
                        assert charts[h][a, b] == pytest.approx(wanted.item(), abs=1e-5)
            spans = charts[0][np.triu_indices(each.words + 1, 1)]
            assert np.nanmin(spans) < 0.998  # far enough from 1 for the test to fail


def test_towers_that_cannot_be_measured_are_refused() -> None:
    class_token = encoder_of(config(text={"embed_cls": True}, custom_text=True))
    with pytest.raises(CompoclipError, match="cannot be run one by one"):
        class_token.text_tower.layers()
    diverged = encoder_of(TOWERS["causal"])
    diverged.model.positional_embedding.data[3] = torch.nan
    with pytest.raises(CompoclipError, match="not finite"), torch.no_grad():
        span_charts(diverged.text_tower.layers(), SENTENCES, [1])


# --- Tree scores of captions. ---

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
    (equal, _, _) = estimates(np.tile(values[:1], (5, 1)), Bootstrap(500))
    assert equal == alone  # resampling says nothing about captions that differ


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
    assert "a: 4 text layers, 4 captions (left out: 1 x fewer than 2 words, " in shown
    assert "h = 2 (headline)" in shown
    assert re.search(r"best, minus first +\+0\.000 \[-\]", shown)  # no caption differs
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
