"""`compoclip tune`: it chooses, trains, measures, hands out the best point and says so."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from build.photos import write_photo
from build.runs import write_base
from build.tables import write_jsonl
from compoclip.analysis.interpolation import Mix, Point
from compoclip.cli.main import main
from compoclip.data.sources import open as opening
from compoclip.data.sources import splits
from compoclip.data.sources.open import Request, open_source
from compoclip.errors import UsageError
from compoclip.evaluation.comparison import Difference
from compoclip.evaluation.groups import COMPOSITION, RETRIEVAL
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import sign_flip
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.programs.tune import (
    LEAST,
    RECALL,
    RULES,
    best,
    holds,
    rule_for,
    sentences,
    together_corrected,
)
from compoclip.training.run import RunSummary
from train_helpers import write_data


def change(value: float, low: float, p: float | None = 0.5, photos: int = 50) -> Difference:
    """A difference of 50 photos, uncorrected; `low` is the end of its interval."""
    high = 2 * value - low
    return Difference("", "", 0.5, 0.5 + value, value, low, high, photos, photos, p)


SURE = 1e-4


def point(alpha: float, retrieval: Difference | None, suite: Difference | None) -> Point:
    if retrieval is None or suite is None:
        return Point(Mix("all", alpha), LEVELS, {})
    named = {RETRIEVAL: retrieval, RECALL: retrieval, COMPOSITION: suite}
    return Point(
        Mix("all", alpha), LEVELS, {axis: replace(d, name=axis) for axis, d in named.items()}
    )


def score(value: float, chance: float) -> Score:
    return Score("accuracy", value, 50, 50, value - 0.1, value + 0.1, "wilson", chance, 50)


LEVELS = {COMPOSITION: score(0.6, 0.5), RETRIEVAL: score(0.043, 0.02)}
BASE = point(0, None, None)


@pytest.mark.parametrize(
    ("points", "alpha"),
    [
        # No gain is significant: the base, however large the changes look.
        ([point(0.5, change(0.1, -0.1), change(0.1, -0.1))], 0),
        # An interval above zero is not enough: 14 photos, a gain of 5 of 14, p 0.0625.
        ([point(1, change(0.0, 0.0), change(0.36, 0.07, 0.0625, photos=14))], 0),
        # Eight tests are one family: the same p is significant alone, and not among eight.
        ([point(1, change(0.0, -0.1), change(0.03, 0.01, 0.02))], 1),
        ([point(a, change(0.0, -0.1), change(0.03, 0.01, 0.02)) for a in (0.25, 0.5, 0.75, 1)], 0),
        # Too few photos to judge.
        ([point(1, change(0.1, 0.05, None, photos=9), change(0.3, 0.2, None, photos=9))], 0),
        # More than the margin of recall is lost: never handed out, whatever the suite gains.
        ([point(0.5, change(-0.011, -0.1), change(0.3, 0.2, SURE))], 0),
        ([point(0.5, change(-0.009, -0.1), change(0.3, 0.2, SURE))], 0.5),
        # Of those that are able, the one with the larger sum of both.
        (
            [
                point(0.5, change(0.05, 0.01, SURE), change(0.02, -0.1)),
                point(0.75, change(0.01, -0.1), change(0.09, 0.02, SURE)),
                point(1, change(-0.02, -0.1), change(0.2, 0.1, SURE)),
            ],
            0.75,
        ),
    ],
)
def test_the_point_that_is_handed_out(points: list[Point], alpha: float) -> None:
    assert best(together_corrected([BASE, *points])).mix.alpha == alpha


def test_the_choice_rarely_leaves_the_base_when_training_changes_nothing() -> None:
    """Under the null hypothesis the level holds for the whole choice, over all shares and axes."""
    rng, runs, photos = np.random.default_rng(0), 400, 40
    left = 0
    for _ in range(runs):
        drift = rng.integers(-1, 2, size=(2, photos))  # of each photo: the mixes differ little
        points = []
        for alpha in (0.25, 0.5, 0.75, 1.0):
            adds = np.where(rng.random((2, photos)) < 0.8, drift, rng.integers(-1, 2, drift.shape))
            shares = adds / photos
            changes = [
                change(float(each.sum()), -1, sign_flip(each), photos=photos) for each in shares
            ]
            points.append(point(alpha, *changes))
        left += best(together_corrected([BASE, *points])).mix.alpha > 0
    assert left / runs <= 0.05


def judged(verdicts: tuple[str, str], alpha: float = 1.0) -> Point:
    """A point with the verdicts on retrieval and on the suite, which gains 4 points."""
    retrieval, suite = (replace(change(0.04, 0.01), verdict=each) for each in verdicts)
    return point(alpha, retrieval, suite)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("higher", "not significant"), True),
        (("not significant", "higher"), True),
        (("not significant", "not significant"), False),
        (("equivalent within 1 point", "not significant"), False),
        (("lower", "higher"), False),
        (("too few photos: 9", "too few photos: 9"), False),
    ],
)
def test_the_photos_that_judge_ask_for_a_significant_gain_too(
    verdicts: tuple[str, str], expected: bool
) -> None:
    assert holds(judged(verdicts)) == expected


def test_what_the_sentences_say() -> None:
    good = judged(("higher", "not significant"), 0.5)
    first, second, third, weak = sentences(good, good, 30, 12.4, "")
    assert first.startswith("It helped: on 30 photos that neither training nor the choice saw")
    assert "retrieval R@1 50.0 -> 54.0 (+4.0 [+1.0, +7.0], higher)" in first
    assert second.startswith("It cost 12 s of training; nothing was lost significantly")
    assert "zero-shot accuracy was not measured" in second
    assert third == (
        "The model is 50 % of the way from the base to the tuned model and reaches the suite of "
        "rewritten captions 60.0 (chance 50.0), retrieval R@1 4.3 (chance 2.0)."
    )
    assert weak == (
        "Retrieval ranks the right one of 30 photos first in 4 % of the searches: that is too weak "
        "for search; begin from a larger CLIP, such as --model ViT-B-32-quickgelu:openai."
    )
    strong = replace(
        good, scores={**good.scores, RETRIEVAL: replace(good.scores[RETRIEVAL], value=0.5)}
    )
    assert len(sentences(strong, strong, 30, 12.4, "")) == 3
    part = judged(("higher", "lower"))
    first, second, *_ = sentences(part, part, 30, 1, "")
    assert first.startswith("It helped in part")
    assert "lost: the suite of rewritten captions 50.0 -> 54.0" in second
    first, second, third, _ = sentences(BASE, part, 30, 1, "31 photos that choose")
    assert first.startswith(
        "Fine-tuning did not help, according to the 31 photos that choose. The model that was not "
        "taken is 100 % of the way from the base to the tuned model. It scores on 30 photos that "
        "training did not see: "
    )
    assert "not significant after correction" in sentences(BASE, good, 30, 1, "")[0]
    assert second == "It cost 1 s of training; no accuracy, since the base is kept."
    assert third.startswith("The model is the base itself and reaches the suite of rewritten")


def test_the_table_of_rules() -> None:
    sizes = [rule.photos for rule in RULES]
    assert sizes == sorted(sizes)
    for rule in RULES:
        load_recipe(rule.method)(**rule.parameters)
        assert 0 < rule.held_out < 0.5
        assert rule.lr_large < rule.lr
    assert rule_for(LEAST) is RULES[0]
    assert rule_for(10**9) is RULES[-1]
    with pytest.raises(UsageError, match=f"{LEAST - 1} photos; tune needs {LEAST}"):
        rule_for(LEAST - 1)


@pytest.fixture
def arguments(tmp_path: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line that tunes a tiny model in three steps, with 72 photos, into `tuned`."""
    rule = replace(RULES[0], steps=3, batch_size=8, held_out=0.25)
    monkeypatch.setattr("compoclip.programs.tune.RULES", (rule,))
    write_base(tmp_path)
    data = write_data(tmp_path / "data", 72)
    places = [f"--out={tmp_path / 'tuned'}", f"--model={tmp_path / 'base'}"]
    return ["tune", str(data), *places, "--device=cpu"]


def test_from_photos_to_a_verdict(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "tuned"
    opened = MagicMock(wraps=opening.open_source)
    heads = MagicMock(wraps=splits._head)
    monkeypatch.setattr(opening, "open_source", opened)
    monkeypatch.setattr(splits, "_head", heads)
    monkeypatch.setattr(RunSummary, "warning", "the run has learned nothing")
    assert main(arguments) == 0
    assert (opened.call_count, heads.call_count) == (1, 72)  # each photo is hashed once
    said = capsys.readouterr()
    assert f"{out / 'model'}: the model to use" in said.out
    assert "the run has learned nothing" in said.err
    lines = [line for line in said.err.splitlines() if line.startswith("table ")]
    assert len(lines) == len({*lines}) == 2  # of the photos that choose, of those that judge
    record: dict[str, Any] = json.loads((out / "tune.json").read_text())
    assert len(record["sentences"]) == 4  # the last warns
    assert all(sentence in said.out for sentence in record["sentences"])
    assert sum(record["photos"].values()) == 72
    # The three parts are apart, and those of the recorded configuration.
    parts = {
        split: {*open_source(arguments[1], split=split, held_out=0.25).column("image")}
        for split in ("train", "val", "test")
    }
    assert {split: len(photos) for split, photos in parts.items()} == record["photos"]
    assert not parts["val"] & parts["test"]
    config = (out / "run" / "config.yaml").read_text()
    assert "split: train" in config
    assert "held_out: 0.25" in config
    # What is handed out is the base where nothing helped, and lies between both elsewhere.
    states = [
        load_model(str(place)).encoder.model.state_dict()
        for place in (tmp_path / "base", out / "run" / "model", out / "model")
    ]
    name = next(
        key for key in states[0] if "resblocks.0.mlp.c_fc.weight" in key and "visual" not in key
    )
    base, tuned, model = (state[name].float() for state in states)
    expected = base + record["alpha"] * (tuned - base)
    assert torch.allclose(model, expected, atol=1e-6)
    assert not torch.equal(base, tuned)
    # The image tower did not learn. A second call finds all of it done.
    assert all(
        torch.equal(states[0][k], states[1][k]) for k in states[0] if k.startswith("visual.")
    )
    assert main([*arguments, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["alpha"] == record["alpha"]
    assert again["differences"] == record["differences"]


def test_what_a_second_call_reuses(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model that lies there, and the results, are those of the inputs of this call."""
    out = tmp_path / "tuned"
    for colour in ("red", "blue"):
        for number in range(12):
            write_photo(tmp_path / "classes" / colour / f"{number}.png", colour=colour)

    def tune(*more: str) -> tuple[str, str]:
        assert main([*arguments, *more]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    def weights(place: Path) -> str:
        return load_model(str(place)).identity.weights

    tune("--on", f"zero_shot:mine,images={tmp_path / 'classes'}")
    assert [*out.glob("results/base/zero_shot_mine.json")]
    assert weights(out / "model") == weights(tmp_path / "base")
    # Another choice: the model is made anew, and results of what was not asked for are gone.
    monkeypatch.setattr("compoclip.programs.tune.best", lambda points: points[2])
    monkeypatch.setattr("compoclip.programs.tune.holds", lambda point: True)
    assert not (out / "found.html").exists()  # nothing has changed
    printed, said = tune()
    assert f"{out / 'model'}: made anew: alpha was 0.0, is 0.5" in said
    # It ends with what three captions find before and after.
    record = json.loads((out / "tune.json").read_text())
    head, *lookups, address = printed.splitlines()[-5:]
    judged = record["photos"]["test"]
    assert head.startswith(f"rank among the {judged} photos that judge of the photo of 3 sampled")
    for line, lookup in zip(lookups, record["lookups"], strict=True):
        before, after = lookup["ranks"].values()
        assert 1 <= before <= judged
        assert line.split() == [str(before), "->", str(after), *lookup["caption"].split()]
    assert address == f"see the photos: {(out / 'found.html').as_uri()}"
    page = (out / "found.html").read_text()
    assert page.count("<section") == 6
    assert page.count('src="data:image/jpeg') == 24
    assert weights(out / "model") != weights(tmp_path / "base")
    assert not [*out.glob("results/*/zero_shot_mine.*")]
    assert {p.name for p in out.glob("results/*/")} >= {"all-0.5", "base", "tuned"}
    # A model that someone else put there is neither used nor removed.
    shutil.rmtree(out / "model")
    shutil.copytree(tmp_path / "base", out / "model")
    assert main(arguments) == 1
    assert f"{out / 'model'}: was changed after it was made" in capsys.readouterr().err
    assert weights(out / "model") == weights(tmp_path / "base")


def test_what_is_left_out_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photos"
    write_data(folder, 60)
    parts = ["train", "train", "val", "test"]
    rows = [{"image": f"{k}.png", "caption": "a dog", "split": parts[k % 4]} for k in range(60)]
    for row in rows[:3]:
        row["split"] = ""
    rows.append({"image": "", "caption": "a cat", "split": "val"})
    few = [{**row, "image": ""} for row in rows[:58]] + rows[58:60]
    monkeypatch.setattr("compoclip.programs.tune._benchmarks", MagicMock(side_effect=UsageError))
    for name, content, said in (
        ("few", few, "2 photos (left out: 58 x sample without an image); tune needs 50"),
        ("all", rows, "(left out: 1 x sample without an image, 3 x photo of none of these parts)"),
    ):
        data = write_jsonl(folder / f"{name}.jsonl", content)
        options = [f"--out={tmp_path / 'o'}", "--model=bundled", "--device=cpu"]
        assert main(["tune", str(data), f"--images={folder}", *options]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.usefixtures("user_cache")
@pytest.mark.parametrize(
    ("names", "opened"),
    [
        ((), 1),
        (("photos.jsonl",), 1),
        (("train.jsonl", "val.jsonl", "test.jsonl"), 4),
        (("trainset.jsonl", "valset.jsonl", "testset.jsonl"), 4),
    ],
)
def test_parts_of_opened_data_are_what_opening_each_part_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], opened: int
) -> None:
    """No names: a table with a column of splits."""
    with write_data(tmp_path, 30).open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    folder = tmp_path / "data"
    folder.mkdir()
    spec = folder if names else folder / "rows.jsonl"
    wanted = ("train", "val", "test")
    if not names:
        rows = [{**row, "split": wanted[place % 3]} for place, row in enumerate(rows)]
    for place, name in enumerate(names or ("rows.jsonl",)):
        part = rows[place :: len(names) or 1]
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in part))
    request = Request(str(spec), images=tmp_path, held_out=0.3, split_seed=1)
    counter = MagicMock(wraps=opening.open_source)
    monkeypatch.setattr(opening, "open_source", counter)
    parts = request.parts_of(replace(request, split="all").open(), wanted)
    assert counter.call_count == opened
    for split, part in parts.items():
        alone = replace(request, split=split).open()
        assert part.describe() == alone.describe()
        assert part.left_out == alone.left_out
        assert not part.fingerprint().differences(alone.fingerprint())
