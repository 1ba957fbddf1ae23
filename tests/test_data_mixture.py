"""Mixtures of data sets: shares of an epoch, the same for any workers, resumed bit for bit."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from compoclip.cli.main import main
from compoclip.data.decode import Picture
from compoclip.data.images import BatchBuilder
from compoclip.data.loader import BatchLoader
from compoclip.data.places import mixture_of
from compoclip.data.plan import TextPlan
from compoclip.data.sources.mixture import WeightedMix
from compoclip.data.sources.open import open_source
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import UsageError
from compoclip.models.config import RECORD
from compoclip.training.log import Tracker, Trackers, read_log
from distributed_runs import write_base
from test_data_loader import SIZE, equal
from train_helpers import write_data


def mix(a: int, b: int, weight: float) -> WeightedMix:
    return WeightedMix({"a": a, "b": b}, {"a": weight, "b": 1 - weight})


def test_an_epoch_has_the_shares_and_every_sample_is_shown_equally_often() -> None:
    drawn = mix(6, 30, 0.5)
    assert drawn.quotas == {"a": 18, "b": 18}
    shown: Counter[int] = Counter()
    for epoch in range(10):
        order = drawn.order(3, epoch)
        assert len(order) == len(set(order.tolist())) == 36
        indices = order % 36
        assert (indices < 6).sum() == 18
        # Three whole passes through the small one, in turn: none again before all were shown.
        small = indices[indices < 6].tolist()
        assert [sorted(small[k : k + 6]) for k in (0, 6, 12)] == [list(range(6))] * 3
        assert {n // 36 for n in order.tolist() if n % 36 < 6} == {0, 1, 2}
        shown.update(indices.tolist())
        assert drawn.samples_by_source(3, epoch, 36) == {"a": 18, "b": 18}
        first = int((indices[:10] < 6).sum())
        assert drawn.samples_by_source(3, epoch, 10) == {"a": first, "b": 10 - first}
    # 180 draws of the larger one are six passes, whatever epochs they fall into.
    assert set(shown.values()) == {30, 6}
    assert not np.array_equal(drawn.order(3, 0), drawn.order(3, 1))
    assert not np.array_equal(drawn.order(3, 0), drawn.order(4, 0))
    assert np.array_equal(drawn.order(3, 1), mix(6, 30, 0.5).order(3, 1))


def test_weights_need_not_add_up_and_are_rounded_fairly() -> None:
    assert WeightedMix({"a": 5, "b": 5}, {"a": 14, "b": 6}).quotas == {"a": 7, "b": 3}
    thirds = WeightedMix({"a": 4, "b": 3, "c": 4}, {"a": 1, "b": 1, "c": 1})
    assert sorted(thirds.quotas.values()) == [3, 4, 4]
    with pytest.raises(UsageError, match=r"b: a weight of 0\.01 is less than one sample"):
        mix(5, 5, 0.99)
    left = mix(4, 4, 0.5).of(np.array([1, 2, 3, 7]))
    assert left.sizes == {"a": 3, "b": 1}


def test_what_names_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.tsv", "b c.tsv", "d=1 e=2"):
        Path(name).touch()
    assert mixture_of("a.tsv=0.7 'b c.tsv'=.3") == {"a.tsv": 0.7, "b c.tsv": 0.3}
    assert mixture_of("x-{0..9}.tar=2 hf:me/data/train=1") == {
        "x-{0..9}.tar": 2,
        "hf:me/data/train": 1,
    }
    for single in ("a.tsv", "b c.tsv", "no such file", "d=1 e=2", "it's"):
        assert mixture_of(single) is None
    Path("link.tsv").symlink_to("a.tsv")
    for wrong, message in (
        ("a.tsv=0.7 b.tsv", "b.tsv: each of several data sets needs a weight above 0"),
        ("a.tsv=0 b.tsv=1", "a.tsv=0: each of several data sets needs a weight above 0"),
        ("a.tsv a.tsv", "a.tsv: each of several data sets needs a weight above 0"),
        ("a.tsv=1e308 b.tsv=1e308", "a.tsv=1e308: each .* needs a weight .* up to 1,000,000"),
        ("a.tsv=1 a.tsv=2", "a.tsv: is there twice"),
        ("a.tsv=1 ./a.tsv=2", "./a.tsv: is there twice"),
        ("a.tsv=1 link.tsv=2", "link.tsv: is there twice"),
        ("a.tsv=0.5", "a.tsv=0.5: a single data set takes no weight; write a.tsv"),
    ):
        with pytest.raises(UsageError, match=f"^{message}"):
            mixture_of(wrong)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The base and squares of `write_base`, and 6 further ones with two captions each."""
    write_base(tmp_path)
    lines = []
    for row in write_data(tmp_path / "few", 6).read_text().splitlines()[1:]:
        image, caption = row.split("\t")
        lines.append(json.dumps({"image": image, "caption": [caption, f"a photo of {caption}"]}))
    (tmp_path / "few" / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def spec(folder: Path) -> list[str]:
    return [f"{folder / 'data' / 'data.tsv'}=0.25", f"{folder / 'few' / 'rows.jsonl'}=0.75"]


def test_batches_are_the_same_for_any_workers_and_from_any_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(" ".join(spec(folder)))
    assert len(source) == 46
    assert len(list(source.column("id"))) == 46
    assert source.describe().startswith("0.25 of ")

    def loading(workers: int = 0) -> BatchLoader:
        return BatchLoader(
            source,
            TextPlan([], seed=5),
            ImageTransform(SIZE, RandomCrop()),
            batch_size=6,
            seed=5,
            workers=workers,
        )

    whole = list(loading().steps(0, 14))
    assert equal(loading(2).steps(0, 14), iter(whole))
    assert equal(loading().steps(9, 14), iter(whole[9:]))
    # A sample that is shown again in an epoch has its caption and its crop drawn anew.
    keys = []
    shown = BatchBuilder.training_pixels

    def noted(self: BatchBuilder, id: str, image: Picture, key: str) -> torch.Tensor:
        keys.append((self.epoch, key))
        return shown(self, id, image, key)

    monkeypatch.setattr(BatchBuilder, "training_pixels", noted)
    list(loading().steps(0, 14))
    assert len(set(keys)) == len(keys) == 84
    first = [b.texts[i] for b in whole[:7] for i, id in enumerate(b.ids) if id.startswith("0.png")]
    assert len(first) >= 5
    assert len({text.startswith("a photo") for text in first}) == 2
    counts = loading()
    names = list(counts.samples_by_source(0))
    assert counts.samples_by_source(0) == dict.fromkeys(names, 0)
    assert sum(counts.samples_by_source(3).values()) == 18
    assert sum(counts.samples_by_source(14).values()) == 84
    assert counts.samples_by_source(14)[names[1]] == pytest.approx(0.75 * 84, abs=5)


def test_a_run_says_what_it_drew_and_resumes_to_the_last_bit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(out: str, *more: str, data: list[str] | None = None) -> int:
        options = ["--batch-size=10", "--epochs=2", "--lr=1e-3", "--warmup=2", "--set=log_every=1"]
        model = [f"--model={folder / 'base'}", f"--out={folder / out}", "--device=cpu"]
        return main(
            ["train", "fsc-clip", *model, "--data", *(data or spec(folder)), *options, *more]
        )

    def weights(out: str) -> dict[str, bytes]:
        state = load_file(folder / out / "model" / "open_clip_model.safetensors")
        return {name: value.numpy().tobytes() for name, value in state.items()}

    assert run("whole") == 0
    said = capsys.readouterr().out
    names = [each.rpartition("=")[0] for each in spec(folder)]
    drawn = read_log(folder / "whole" / "train.jsonl")[-1]["drawn"]
    assert list(drawn) == names
    assert sum(drawn.values()) == 80
    assert f"{drawn[names[1]]} samples of {names[1]}" in said
    record = json.loads((folder / "whole" / "model" / RECORD).read_text())
    assert record["provenance"]["run"]["drawn"] == drawn
    assert "0.75 of" in record["provenance"]["data"]

    # Other weights are another run: other batches, and no state to go on from.
    others = [each.replace("=0.25", "=0.5") for each in spec(folder)]
    assert run("stopped", "--set=stop_after=5") == 0
    assert run("stopped", "--resume", data=others) == 1
    assert "other settings" in capsys.readouterr().err
    assert run("stopped", "--resume") == 0
    assert weights("stopped") == weights("whole")
    assert read_log(folder / "stopped" / "train.jsonl")[-1]["drawn"] == drawn

    assert run("other", data=others) == 0
    assert weights("other") != weights("whole")


def test_trackers_show_what_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, float]] = []

    def noting(*_: object) -> Tracker:
        return lambda record, step: seen.append(dict(record)), lambda: None

    monkeypatch.setattr("compoclip.training.log._OPEN", {"json": noting})
    record = {"step": 1, "loss": 2.0, "drawn": {"a": 3, "b": 1}}
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n")
    with Trackers(("json",), tmp_path, {}, lambda record, total: None) as report:
        report(record, 9)
    assert seen == [{"loss": 2.0, "drawn/a": 3.0, "drawn/b": 1.0}]


def test_an_option_goes_to_those_that_have_a_use_for_it(folder: Path) -> None:
    captions = folder / "pictures"
    captions.mkdir()
    for place in (folder / "few").glob("*.png"):
        shutil.copy(place, captions)
        (captions / f"{place.stem}.txt").write_text("a square\n")
    rows = folder / "rows.jsonl"
    shutil.copy(folder / "few" / "rows.jsonl", rows)
    images = folder / "few"
    mixed = open_source(f"{captions}=1 {rows}=1", images=images)
    assert mixed[6].image == images / "0.png"
    assert mixed[0].image == captions / "0.png"
    with pytest.raises(UsageError, match="folders of images take no --images"):
        open_source(f"{captions}=1 {shutil.copytree(captions, folder / 'more')}=1", images=images)
