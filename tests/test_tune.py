"""`compoclip tune`: it chooses, trains, measures, hands out the best point and says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compoclip.analysis.interpolation import Mix, Point
from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import UsageError
from compoclip.evaluation.comparison import Difference
from compoclip.evaluation.groups import COMPOSITION, RETRIEVAL
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.tune import LEAST, RECALL, RULES, best, loses, rule_for, sentences
from distributed_runs import write_base
from train_helpers import write_data


def found(change: float, low: float, verdict: str = "not significant") -> Difference:
    high = 2 * change - low
    return Difference("", "", 0.5, 0.5 + change, change, low, high, 50, 50, 0.01, 0.02, verdict)


def point(alpha: float, retrieval: Difference | None, suite: Difference | None) -> Point:
    if retrieval is None or suite is None:
        return Point(Mix("all", alpha), {}, {})
    return Point(
        Mix("all", alpha), {}, {RETRIEVAL: retrieval, RECALL: retrieval, COMPOSITION: suite}
    )


BASE = point(0, None, None)


@pytest.mark.parametrize(
    ("points", "alpha"),
    [
        # No gain is significant: the base, however large the changes look.
        ([point(0.5, found(0.1, -0.1), found(0.1, -0.1))], 0),
        # More than the margin of recall is lost: never handed out, whatever the suite gains.
        ([point(0.5, found(-0.011, -0.1), found(0.3, 0.2))], 0),
        ([point(0.5, found(-0.009, -0.1), found(0.3, 0.2))], 0.5),
        # Of those that are able, the one with the larger sum of both.
        (
            [
                point(0.5, found(0.05, 0.01), found(0.02, -0.1)),
                point(0.75, found(0.01, -0.1), found(0.09, 0.02)),
                point(1, found(-0.02, -0.1), found(0.2, 0.1)),
            ],
            0.75,
        ),
        ([point(1, found(0.0, 0.0), found(0.03, 0.01))], 1),
    ],
)
def test_the_point_that_is_handed_out(points: list[Point], alpha: float) -> None:
    assert best([BASE, *points]).mix.alpha == alpha


def test_what_the_sentences_say() -> None:
    good = point(0.5, found(0.05, 0.02, "higher"), found(0.04, -0.01))
    tuned = point(1, found(-0.06, -0.1, "lower"), found(0.1, 0.05, "higher"))
    first, second, third = sentences(good, tuned, 30, 12.4, "")
    assert first.startswith("It helped: on 30 photos that neither training nor the choice saw")
    assert "retrieval R@1 50.0 -> 55.0 (+5.0 [+2.0, +8.0], higher)" in first
    assert second.startswith("It cost 12 s of training; nothing was lost significantly")
    assert "zero-shot accuracy was not measured" in second
    assert third == "The model is 50 % of the way from the base to the tuned model."
    first, second, _ = sentences(
        replace(tuned, mix=Mix("all", 0.75)), tuned, 30, 1, "31 photos that choose"
    )
    assert first.startswith("It helped in part")
    assert "lost: retrieval R@1 50.0 -> 44.0" in second
    unclear = point(1, found(0.01, -0.1), found(0.01, -0.1))
    assert sentences(unclear, unclear, 30, 1, "")[0].startswith("No gain is shown")
    first, second, third = sentences(BASE, tuned, 30, 1, "31 photos that choose")
    assert first.startswith("Fine-tuning did not help by the 31 photos that choose")
    assert "75 % of the way" not in first
    assert second == "It cost 1 s of training; no accuracy, since the base is kept."
    assert third == "The model is the base itself."
    assert loses(tuned)
    assert not loses(good)


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


def test_from_photos_to_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rule = replace(RULES[0], steps=3, batch_size=8, held_out=0.25)
    monkeypatch.setattr("compoclip.tune.RULES", (rule,))
    write_base(tmp_path)
    data, out = write_data(tmp_path / "data", 72), tmp_path / "tuned"
    arguments = ["tune", str(data), "--out", str(out), "--model", str(tmp_path / "base")]
    arguments += ["--device=cpu"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert f"{out / 'model'}: the model to use" in said.out
    lines = [line for line in said.err.splitlines() if line.startswith("table ")]
    assert len(lines) == len({*lines}) == 2  # of the photos that choose, of those that judge
    record: dict[str, Any] = json.loads((out / "tune.json").read_text())
    assert len(record["sentences"]) == 3
    assert all(sentence in said.out for sentence in record["sentences"])
    assert sum(record["photos"].values()) == 72
    # The three parts are apart, and those of the recorded configuration.
    parts = {
        split: {*open_source(str(data), split=split, held_out=0.25).column("image")}
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


def test_too_few_photos_and_splits_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_base(tmp_path)
    data = write_data(tmp_path / "data", 12)
    arguments = ["tune", str(data), f"--out={tmp_path / 'out'}", f"--model={tmp_path / 'base'}"]
    assert main([*arguments, "--device=cpu"]) == 2
    assert "12 photos; tune needs" in capsys.readouterr().err
