"""Evaluation while training: it disturbs nothing, and decides what is kept and when to stop."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from build.runs import TABLE, command, timeless_log
from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.results import Results, load_results, score_named
from compoclip.evaluation.run import watch_model
from compoclip.methods.base import Optim
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.models.config import RECORD
from compoclip.programs.run import Measuring
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.log import read_log
from compoclip.training.run import RunSummary, run_training
from compoclip.training.settings import RunSettings, WatchSettings
from compoclip.training.watch import Watch, WatchedScore, waited
from ranks_helpers import in_ranks
from train_helpers import COLOURS, weight_hashes

BENCHMARK = "foils"
EVERY = 2
TOTAL = 8


@pytest.fixture
def folder(squares: Path) -> Path:
    """A tiny checkpoint, captioned squares, and foils of them with the colours exchanged."""
    lines = []
    for number, row in enumerate((squares / "data" / "data.tsv").read_text().splitlines()[1:21]):
        image, caption = row.split("\t")
        front, back = (word for word in caption.split() if word in COLOURS)
        swapped = caption.replace(front, "_").replace(back, front).replace("_", back)
        foil = {"image": f"data/{image}", "caption": caption, "negative_caption": swapped}
        lines.append(json.dumps({**foil, "subtask": "odd" if number % 2 else "even"}))
    (squares / "foils").mkdir()
    (squares / "foils" / "colours.jsonl").write_text("\n".join(lines) + "\n")
    return squares


def train(folder: Path, out: str, *more: str, method: str = "clip-ft", code: int = 0) -> Path:
    """Train for two epochs of four steps, and return where the run has written."""
    run = ("--batch-size=10", "--epochs=2", "--lr=1e-3", "--set=save_every=3", "--seed=5")
    assert main(command(folder, out, *run, *more, method=method)) == code
    return folder / out


def watching(folder: Path, *more: str) -> list[str]:
    return [f"--on={BENCHMARK}", f"--eval-data={folder}", f"--eval-every={EVERY}", *more]


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "model" / RECORD).read_text())


def measured(run: Path) -> dict[int, dict[str, Any]]:
    """The scores that a run has logged, by step."""
    return {row["step"]: row["eval"] for row in timeless_log(run) if "eval" in row}


def evaluated(folder: Path, run: Path) -> Results:
    """The results of evaluating the model of a run."""
    options = (f"--on={BENCHMARK}", f"--data={folder}", f"--out={folder}/alone", "--device=cpu")
    assert main(["evaluate", f"{run.name}={run / 'model'}", *options]) == 0
    (results,) = load_results(folder / "alone" / run.name)
    return results


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fsc-clip", ()),
        ("clip-ft", ("--lora",)),
        ("clip-ft", ("--set=ema=0.7", "--micro-batch=4")),
    ],
)
def test_measuring_changes_no_weight(folder: Path, method: str, more: tuple[str, ...]) -> None:
    plain = train(folder, "plain", *more, method=method)
    watched = train(folder, "watched", *more, *watching(folder), method=method)
    assert weight_hashes(watched) == weight_hashes(plain)
    assert [row for row in timeless_log(watched) if "eval" not in row] == timeless_log(plain)
    scores = measured(watched)
    assert list(scores) == [0, 2, 4, 6, 8]
    # What is logged is what evaluating the same weights gives: the last ones are the checkpoint's.
    last = evaluated(folder, watched)
    score = last.headline_score
    assert scores[TOTAL][BENCHMARK] == {
        "value": score.value,
        "low": score.low,
        "high": score.high,
        "chance": score.chance,
    }
    (there,) = load_results(watched / "eval" / "step-00000008")
    if "--lora" not in more:
        assert there.identity["weights"] == last.identity["weights"]


def test_images_are_encoded_once_for_a_frozen_tower(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = list[int]()
    start = ModelEncoder.start_images

    def counted(self: ModelEncoder, pixels: list[Any]) -> Any:
        encoded.append(len(pixels))
        return start(self, pixels)

    monkeypatch.setattr(ModelEncoder, "start_images", counted)
    frozen = train(folder, "frozen", "--freeze=image", *watching(folder))
    once = sum(encoded)
    train(folder, "trained", *watching(folder))
    scores = measured(frozen)
    assert sum(encoded) - once == len(scores) * once > once
    assert evaluated(folder, frozen).headline_score.value == scores[TOTAL][BENCHMARK]["value"]


def test_the_best_step_is_the_model_whenever_the_run_is_stopped(folder: Path) -> None:
    best = watching(folder, f"--keep-best={BENCHMARK}:odd", "--set=patience=3")
    whole = train(folder, "whole", *best)
    expected = record(whole)
    for stop in (1, 5):
        cut = train(folder, f"stopped-{stop}", *best, f"--set=stop_after={stop}")
        assert not (cut / "model").exists()
        train(folder, cut.name, *best, "--resume")
        assert weight_hashes(cut) == weight_hashes(whole)
        assert timeless_log(cut) == timeless_log(whole)
        account = record(cut)["provenance"]["run"]
        assert {**account, "seconds": 0} == {**expected["provenance"]["run"], "seconds": 0}
    scores = {step: row[f"{BENCHMARK}:odd"]["value"] for step, row in measured(whole).items()}
    base = scores.pop(0)
    step = max(scores, key=lambda step: (scores[step], step))
    assert expected["provenance"]["run"]["best"] == {
        "step": step,
        "by": f"{BENCHMARK}:odd",
        "score": scores[step],
        "base": base,
        "measured": len(scores),
    }
    # The checkpoint has the very weights that were measured then.
    (there,) = load_results(whole / "eval" / f"step-{step:08d}")
    assert expected["identity"]["weights"] == there.identity["weights"]
    assert there.scores["odd"]["accuracy"].value == scores[step]
    assert not (whole / "best").exists()
    assert expected["provenance"]["watch"]["on"][BENCHMARK] == there.data_hash


def test_resuming_with_another_rule_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = watching(folder, f"--keep-best={BENCHMARK}")
    run = train(folder, "run", *best, "--set=stop_after=3")
    train(folder, "run", *best, "--set=patience=2", "--resume", code=1)
    assert "other settings" in capsys.readouterr().err
    photo = next((folder / "data").glob("*.png"))
    stored, times = photo.read_bytes(), photo.stat()
    photo.write_bytes(stored + b"\0")  # of the benchmark; the annotations stay as they are
    train(folder, "run", *best, "--resume", code=1)
    assert f"watch.images.{BENCHMARK} changed" in capsys.readouterr().err
    photo.write_bytes(stored)
    os.utime(photo, ns=(times.st_atime_ns, times.st_mtime_ns))
    file = run / "best" / "step-00000002.safetensors"
    file.unlink()
    train(folder, "run", *best, "--resume", code=1)
    assert f"{file}: is missing" in capsys.readouterr().err


# --- What follows from the numbers, with numbers made up. ---


def scripted(
    folder: Path,
    out: str,
    values: dict[int, float],
    patience: int = 0,
    ranks: Ranks = SINGLE,
    lora: bool = False,
    **settings: Any,
) -> tuple[RunSummary, list[int]]:
    """A run that is told what it measures, and the steps at which it asked."""
    asked: list[int] = []

    def measure(step: int) -> dict[str, WatchedScore]:
        asked.append(step)
        if not ranks.first:
            return {}
        return {"a": WatchedScore(values[step], None, None, 0.5)}

    method = load_recipe("clip-ft")(optim=Optim(epochs=2, batch_size=10, lr=1e-3, warmup=2))
    if lora:
        method = method.with_lora(load_recipe("fsc-clip-lora")().lora)
    watch = Watch(
        WatchSettings(on=("x",), eval_every=1, keep_best="a", patience=patience),
        measure,
        folder / out,
        {},
        ranks,
    )
    run = RunSettings(out=folder / out, save_every=1, log_every=1, **settings)
    source = open_source(str(folder / TABLE))
    return run_training(load_model(folder / "base"), method, source, run, ranks, watch=watch), asked


def test_the_run_ends_when_nothing_gets_better(folder: Path) -> None:
    values = {0: 0.9, 1: 0.2, 2: 0.6, 3: 0.6, 4: 0.5, 5: 0.4}
    summary, asked = scripted(folder, "run", values, patience=3)
    assert asked == [0, 1, 2, 3, 4, 5]
    assert (summary.steps, summary.total_steps, summary.ended_early) == (5, TOTAL, True)
    assert summary.best is not None
    assert (summary.best["step"], summary.best["base"]) == (3, 0.9)  # of equals the newest
    assert read_log(folder / "run" / "train.jsonl")[-1]["step"] == 5
    scripted(folder, "third", {k: 0.9 if k == 3 else 0.1 for k in range(TOTAL + 1)})
    assert weight_hashes(folder / "run") == weight_hashes(folder / "third")


def test_a_run_killed_after_its_early_end_does_not_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {0: 0.9, 1: 0.6, 2: 0.5, 3: 0.4}
    summary, _ = scripted(folder, "whole", values, patience=2)

    def killed(*_: object, **__: object) -> None:
        raise CompoclipError("killed")

    monkeypatch.setattr("compoclip.training.run.save_model", killed)
    with pytest.raises(CompoclipError, match="killed"):
        scripted(folder, "run", values, patience=2)
    monkeypatch.undo()
    resumed, asked = scripted(folder, "run", values, patience=2, resume=True)
    assert asked == []
    assert (resumed.steps, resumed.best) == (summary.steps, summary.best)
    assert weight_hashes(folder / "run") == weight_hashes(folder / "whole")


PEAKS = {0: 0.9, 1: 0.6, 2: 0.8, 3: 0.7, 4: 0.7, 5: 0.8, 6: 0.1, 7: 0.2, 8: 0.6}


def test_adapters_are_of_the_best_step(folder: Path) -> None:
    for out, values in (("one", PEAKS), ("two", {**PEAKS, 2: 0.1}), ("last", {**PEAKS, 8: 0.9})):
        summary, _ = scripted(folder, out, values, lora=True)
        assert summary.best is not None
        assert summary.best["step"] == (8 if out == "last" else 5)
    one, two, last = (weight_hashes(folder / name) for name in ("one", "two", "last"))
    assert one == two != last
    load_model(folder / "one" / "adapter")


def test_what_a_state_needs_is_kept_until_the_next_is_written(folder: Path) -> None:
    """Weights of a step that was the best of the state on disk outlive a better one."""
    rising = {k: k / 10 for k in range(TOTAL + 1)}
    scripted(folder, "run", rising, stop_after=4)
    kept = {path.name for path in (folder / "run" / "best").iterdir()}
    assert {"step-00000003.safetensors", "step-00000004.safetensors"} <= kept
    assert "step-00000001.safetensors" not in kept
    summary, asked = scripted(folder, "run", rising, resume=True)
    assert asked == [5, 6, 7, 8]
    assert summary.best is not None
    assert summary.best["step"] == 8


def in_two(ranks: Ranks, folder: Path) -> dict[str, Any]:
    made, asked = scripted(folder, f"ranks-{ranks.world}", PEAKS, ranks=ranks)
    model = load_model(folder / "base")
    place = Measuring(on=(BENCHMARK,), data=folder)
    settings = WatchSettings(on=(BENCHMARK,), eval_every=4)
    out = folder / f"real-{ranks.world}"
    watch = watch_model(model, place.benchmarks(), settings, out, ranks)
    method = load_recipe("clip-ft")(optim=Optim(epochs=2, batch_size=10, lr=0.0, warmup=2))
    source = open_source(str(folder / TABLE))
    run_training(model, method, source, RunSettings(out=out), ranks, watch=watch)
    scores = [each["eval"] for each in read_log(out / "train.jsonl") if "eval" in each]
    return {"best": made.best, "asked": asked, "scores": scores}


def test_two_processes_measure_and_decide_as_one(folder: Path) -> None:
    alone = in_two(SINGLE, folder)
    assert len(alone["scores"]) == 3
    assert in_ranks(2, in_two, folder) == [alone, alone]


def test_patience_by_hand() -> None:
    assert [waited(dict(enumerate(values))) for values in (
        [], [1], [1, 2], [2, 1], [2, 2], [1, 2, 1, 2, 3, 0],
    )] == [0, 0, 0, 1, 1, 1]  # fmt: skip


def test_a_limit_of_steps_is_a_whole_run_whose_scores_have_the_names_of_results(
    folder: Path,
) -> None:
    few = train(folder, "few", "--max-steps=3", *watching(folder))
    assert list(measured(few)) == [0, 2, 3]
    assert len([row for row in timeless_log(few) if "lr" in row]) == 3
    assert (few / "model").exists()
    results = load_results(few / "eval" / "step-00000000")
    assert score_named(results, "foils") is results[0].headline_score
    assert score_named(results, "foils:micro") is results[0].aggregates["micro"]
    assert score_named(results, "foils:odd") is results[0].main("odd")
    with pytest.raises(UsageError, match="foils has no 'x'"):
        score_named(results, "foils:x")


def test_a_limit_of_steps_is_that_of_as_many_epochs(folder: Path) -> None:
    epoch = train(folder, "epoch", "--epochs=1")
    four = train(folder, "four", "--max-steps=4")
    more = train(folder, "more", "--epochs=1", "--max-steps=9")
    assert weight_hashes(epoch) == weight_hashes(four) == weight_hashes(more)
    cut = train(folder, "cut", "--max-steps=4", "--set=stop_after=2")
    train(folder, "cut", "--max-steps=5", "--resume", code=1)
    train(folder, "cut", "--max-steps=4", "--resume")
    assert weight_hashes(cut) == weight_hashes(four)


ON = f"--on={BENCHMARK}"
REFUSED = [
    ("--eval-every=2", "--eval-every goes with --on"),
    ("--keep-best=x", "--keep-best goes with --on"),
    (f"{ON} --keep-best=foils", "--keep-best goes with --eval-every"),
    (f"{ON} --eval-every=2 --set=patience=2", "--set patience goes with --keep-best"),
    (f"{ON} --eval-every=-1", "--eval-every must not be negative"),
    (
        f"{ON} --eval-every=2 --keep-best=foils:nope",
        "foils has no 'nope'; known: micro, macro, positive_score, even, odd",
    ),
    (f"{ON} --eval-every=2 --keep-best=nope", "no score 'nope' was measured .*known: foils"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_options_that_contradict_one_another_are_refused(
    options: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (f"--eval-data={folder}",) if ON in options else ()
    run = train(folder, "run", *options.split(), *data, code=2)
    assert re.search(words, capsys.readouterr().err.strip().splitlines()[-1])
    assert not (run / "eval").exists()  # before the base is measured
    assert not (run / "model").exists()
