"""Evaluation while training: it disturbs nothing, and decides what is kept and when to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.results import load_results, score_named
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
from distributed_runs import write_base
from ranks_helpers import in_ranks
from train_helpers import COLOURS, weight_hashes

BENCHMARK = "foils"
EVERY = 2
TOTAL = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny checkpoint, captioned squares, and foils of them with the colours exchanged."""
    write_base(tmp_path)
    lines = []
    for number, row in enumerate((tmp_path / "data" / "data.tsv").read_text().splitlines()[1:21]):
        image, caption = row.split("\t")
        front, back = (word for word in caption.split() if word in COLOURS)
        swapped = caption.replace(front, "_").replace(back, front).replace("_", back)
        foil = {"image": f"data/{image}", "caption": caption, "negative_caption": swapped}
        lines.append(json.dumps({**foil, "subtask": "odd" if number % 2 else "even"}))
    (tmp_path / "foils").mkdir()
    (tmp_path / "foils" / "colours.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def arguments(folder: Path, out: str, *more: str, method: str = "fsc-clip") -> list[str]:
    return [
        *("train", method, f"--model={folder / 'base'}", f"--out={folder / out}"),
        *(f"--data={folder / 'data' / 'data.tsv'}", "--batch-size=10", "--epochs=2", "--lr=1e-3"),
        *(
            "--warmup=2",
            "--set=log_every=1",
            "--set=save_every=3",
            "--seed=5",
            "--device=cpu",
            *more,
        ),
    ]


def watching(folder: Path, *more: str) -> list[str]:
    return [f"--on={BENCHMARK}", f"--eval-data={folder}", f"--eval-every={EVERY}", *more]


def weights(run: Path) -> dict[str, str]:
    return weight_hashes(run / "model")


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "model" / RECORD).read_text())


def logged(run: Path) -> list[dict[str, Any]]:
    timing = ("seconds", "eval_seconds")
    return [
        {k: v for k, v in each.items() if k not in timing} for each in read_log(run / "train.jsonl")
    ]


@pytest.mark.parametrize("more", [(), ("--lora",), ("--set=ema=0.7", "--micro-batch=4")])
def test_measuring_changes_no_weight(folder: Path, more: tuple[str, ...]) -> None:
    assert main(arguments(folder, "plain", *more)) == 0
    assert main(arguments(folder, "watched", *more, *watching(folder))) == 0
    assert weights(folder / "watched") == weights(folder / "plain")
    with_scores = logged(folder / "watched")
    assert [each for each in with_scores if "eval" not in each] == logged(folder / "plain")
    measured = [each for each in with_scores if "eval" in each]
    assert [each["step"] for each in measured] == [0, 2, 4, 6, 8]
    # What is logged is what evaluating the same weights gives: the last ones are the checkpoint's.
    results = folder / "results"
    options = (f"--on={BENCHMARK}", f"--data={folder}", f"--out={results}", "--device=cpu")
    assert main(["evaluate", f"last={folder / 'watched' / 'model'}", *options]) == 0
    (last,) = load_results(results / "last")
    score = last.headline_score
    assert measured[-1]["eval"][BENCHMARK] == {
        "value": score.value,
        "low": score.low,
        "high": score.high,
        "chance": score.chance,
    }
    (there,) = load_results(folder / "watched" / "eval" / "step-00000008")
    if not more or more[0] != "--lora":
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
    assert main(arguments(folder, "frozen", "--freeze=image", *watching(folder))) == 0
    once = sum(encoded)
    assert main(arguments(folder, "trained", *watching(folder))) == 0
    measured = [each for each in logged(folder / "frozen") if "eval" in each]
    assert sum(encoded) - once == len(measured) * once > once
    last = measured[-1]["eval"][BENCHMARK]["value"]
    options = (f"--on={BENCHMARK}", f"--data={folder}", f"--out={folder}/alone", "--device=cpu")
    assert main(["evaluate", f"last={folder / 'frozen' / 'model'}", *options]) == 0
    assert load_results(folder / "alone" / "last")[0].headline_score.value == last


def test_the_best_step_is_the_model_whenever_the_run_is_stopped(folder: Path) -> None:
    best = watching(folder, f"--keep-best={BENCHMARK}:odd", "--set=patience=3")
    assert main(arguments(folder, "whole", *best)) == 0
    for number, stop in enumerate((1, 4, 5)):
        out = f"stopped-{number}"
        assert main(arguments(folder, out, *best, f"--set=stop_after={stop}")) == 0
        assert not (folder / out / "model").exists()
        assert main(arguments(folder, out, *best, "--resume")) == 0
        assert weights(folder / out) == weights(folder / "whole")
        assert logged(folder / out) == logged(folder / "whole")
        said, expected = (record(folder / run)["provenance"]["run"] for run in (out, "whole"))
        assert {**said, "seconds": 0} == {**expected, "seconds": 0}
    told = record(folder / "whole")
    run = told["provenance"]["run"]
    scores = {
        each["step"]: each["eval"][f"{BENCHMARK}:odd"]["value"]
        for each in logged(folder / "whole")
        if "eval" in each
    }
    base = scores.pop(0)
    step = max(scores, key=lambda step: (scores[step], step))
    assert run["best"] == {
        "step": step,
        "by": f"{BENCHMARK}:odd",
        "score": scores[step],
        "base": base,
        "measured": len(scores),
    }
    # The checkpoint has the very weights that were measured then.
    (there,) = load_results(folder / "whole" / "eval" / f"step-{step:08d}")
    assert told["identity"]["weights"] == there.identity["weights"]
    assert there.scores["odd"]["accuracy"].value == scores[step]
    assert not (folder / "whole" / "best").exists()
    assert told["provenance"]["watch"]["on"][BENCHMARK] == there.data_hash


def test_resuming_with_another_rule_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = watching(folder, f"--keep-best={BENCHMARK}")
    assert main(arguments(folder, "run", *best, "--set=stop_after=3")) == 0
    assert main(arguments(folder, "run", *best, "--set=patience=2", "--resume")) == 1
    assert "other settings" in capsys.readouterr().err
    kept = folder / "run" / "best" / "step-00000002.safetensors"
    kept.unlink()
    assert main(arguments(folder, "run", *best, "--resume")) == 1
    assert f"{kept}: is missing" in capsys.readouterr().err


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
    source = open_source(str(folder / "data" / "data.tsv"))
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
    assert weights(folder / "run") == weights(folder / "third")


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
    assert weights(folder / "run") == weights(folder / "whole")


PEAKS = {0: 0.9, 1: 0.6, 2: 0.8, 3: 0.7, 4: 0.7, 5: 0.8, 6: 0.1, 7: 0.2, 8: 0.6}


def test_adapters_are_of_the_best_step(folder: Path) -> None:
    for out, values in (("one", PEAKS), ("two", {**PEAKS, 2: 0.1}), ("last", {**PEAKS, 8: 0.9})):
        summary, _ = scripted(folder, out, values, lora=True)
        assert summary.best is not None
        assert summary.best["step"] == (8 if out == "last" else 5)
    assert weights(folder / "one") == weights(folder / "two") != weights(folder / "last")
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
    source = open_source(str(folder / "data" / "data.tsv"))
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


def test_a_limit_of_steps_is_a_whole_run(folder: Path) -> None:
    """Ten steps are a matter of one option: the schedule ends there, and a model is written."""
    assert main(arguments(folder, "few", "--max-steps=3", *watching(folder))) == 0
    log = read_log(folder / "few" / "train.jsonl")
    assert [each["step"] for each in log if "eval" in each] == [0, 2, 3]
    assert len([each for each in log if "lr" in each]) == 3
    assert (folder / "few" / "model").exists()
    # One epoch is four steps of ten: the same run, told in other words, has the same weights.
    assert main(arguments(folder, "epoch", "--epochs=1")) == 0
    assert main(arguments(folder, "four", "--max-steps=4")) == 0
    assert main(arguments(folder, "more", "--epochs=1", "--max-steps=9")) == 0
    assert weights(folder / "epoch") == weights(folder / "four") == weights(folder / "more")
    assert main(arguments(folder, "cut", "--max-steps=4", "--set=stop_after=2")) == 0
    assert main(arguments(folder, "cut", "--max-steps=5", "--resume")) == 1
    assert main(arguments(folder, "cut", "--max-steps=4", "--resume")) == 0
    assert weights(folder / "cut") == weights(folder / "four")


# --- Where the scores go. ---


def test_wrong_names_and_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*more: str) -> str:
        assert main(arguments(folder, "run", *more)) == 2
        return capsys.readouterr().err.strip().splitlines()[-1]

    assert "--eval-every goes with --on" in refused("--eval-every=2")
    assert "--keep-best goes with --on" in refused("--keep-best=x")
    on = (f"--on={BENCHMARK}", f"--eval-data={folder}")
    assert "--keep-best goes with --eval-every" in refused(*on, "--keep-best=foils")
    assert "--set patience goes with --keep-best" in refused(*watching(folder, "--set=patience=2"))
    assert "--eval-every must not be negative" in refused(*on, "--eval-every=-1")
    wrong = refused(*watching(folder, "--keep-best=foils:nope"))
    assert "foils has no 'nope'; known: micro, macro, positive_score, even, odd" in wrong
    wrong = refused(*watching(folder, "--keep-best=nope"))
    assert "no score 'nope' was measured" in wrong
    assert "known: foils" in wrong
    assert not (folder / "run" / "eval").exists()  # before the base is measured
    assert not (folder / "run" / "model").exists()


def test_scores_go_by_the_names_of_the_results(folder: Path) -> None:
    assert main(arguments(folder, "run", *watching(folder))) == 0
    results = load_results(folder / "run" / "eval" / "step-00000000")
    assert score_named(results, "foils") is results[0].headline_score
    assert score_named(results, "foils:micro") is results[0].aggregates["micro"]
    assert score_named(results, "foils:odd") is results[0].main("odd")
    with pytest.raises(UsageError, match="foils has no 'x'"):
        score_named(results, "foils:x")
