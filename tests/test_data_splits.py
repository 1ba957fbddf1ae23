"""Which samples are read: splits, shares of the data, and mixtures of data sets."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from build.photos import write_captioned, write_photo
from build.runs import command
from build.tables import write_csv, write_json, write_jsonl, write_parquet, write_rows, write_tar
from compoclip.cli.main import main
from compoclip.config import read_config
from compoclip.data.decode import Picture
from compoclip.data.images import BatchBuilder
from compoclip.data.loader import BatchLoader
from compoclip.data.places import mixture_of
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Source
from compoclip.data.sources.mixture import WeightedMix
from compoclip.data.sources.open import Request, open_source, write_selection
from compoclip.data.sources.splits import _head, _number
from compoclip.data.split_names import named_splits, split_of
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.config import RECORD
from compoclip.training.log import read_log
from data_samples import SIZE, equal
from method_data import arguments
from train_helpers import weight_hashes, write_data

Capture = pytest.CaptureFixture[str]


def write_shard(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    members = [(row["image"], b"JPEG") for row in rows]
    members += [(row["image"].replace("jpg", "json"), json.dumps(row).encode()) for row in rows]
    return write_tar(path, sorted(members))


def read(path: Path, split: str | None = None) -> tuple[list[str], dict[str, int]]:
    source = open_source(str(path), split=split)
    return list(source.captions()), dict(source.left_out)


def unasked(noun: str, **counts: int) -> dict[str, int]:
    return {f"{noun} of split {name!r} (--split all takes it)": n for name, n in counts.items()}


ROWS = [
    {"image": f"{i}.jpg", "caption": f"{part} {i}", "split": part, "neg_image": near}
    for i, (part, near) in enumerate(
        [("test", "[1]"), ("train", "[2, 0]"), ("restval", "[1]"), ("val", "[1]"), ("test", "[]")]
    )
]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_that_says_the_split_of_every_row(ending: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / f"t.{ending}", ROWS)
    trained, lost = ["train 1", "restval 2"], {"similar image that the data has not": 1}
    assert read(path) == (trained, {**unasked("sample", test=2, val=1), **lost})
    assert read(path, "train") == (trained, lost)
    assert read(path, "val") == (["val 3"], lost)
    assert read(path, "all") == ([row["caption"] for row in ROWS], {})
    source = open_source(str(path))
    assert source[0].neighbours == (1,)  # rows keep their numbers
    assert source[0].id == "1.jpg#1"
    assert source.describe().endswith(", split train")
    with pytest.raises(UsageError, match=r"no split 'dev'; it has: restval, test, train, val$"):
        read(path, "dev")
    held_out = write_rows(tmp_path / f"h.{ending}", ROWS[3:])
    with pytest.raises(UsageError, match=r"no split 'train'; it has: test, val; .*--split all"):
        read(held_out)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet", "tar"])
@pytest.mark.parametrize("split", [{"name": "train"}, ["train", "val"]])
def test_a_split_that_is_no_name_is_refused(ending: str, split: Any, tmp_path: Path) -> None:
    rows = [{**row, "split": split} for row in ROWS]
    write = {"tar": write_shard, "json": write_json}.get(ending, write_rows)
    path = write(tmp_path / f"t.{ending}", rows)
    with pytest.raises(CompoclipError, match=r"split .* is no name of a split; fix the row"):
        open_source(str(path))


def test_a_split_column_of_a_negclip_table_counts_too(tmp_path: Path) -> None:
    rows = [
        {"title": part, "filepath": "1.jpg", "neg_caption": "['x']", "split": part}
        for part in ("train", "test")
    ]
    path = write_csv(tmp_path / "n.csv", *rows)
    assert read(path) == (["train"], unasked("sample", test=1))
    assert open_source(str(path))[0].negatives == ("x",)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "tar"])
def test_columns_in_capitals_are_the_same_columns(form: str, tmp_path: Path) -> None:
    rows = [
        {"image": f"{k}.jpg", "caption": f"text {k}", "neg_caption": ["other"], "split": part}
        for k, part in enumerate(("train", "val", "Test"))
    ]
    sources = []
    for spell in (str.lower, str.title, str.upper):
        spelled = [{spell(name): cell for name, cell in row.items()} for row in rows]
        path = tmp_path / f"{spell.__name__}.{form}"
        if form == "tar":
            members = [(f"{k}.jpg", b"JPEG") for k in range(3)]
            members += [(f"{k}.json", json.dumps(row).encode()) for k, row in enumerate(spelled)]
            write_tar(path, sorted(members))
        elif form == "csv":
            write_csv(path, *spelled)
        else:
            (write_jsonl if form == "jsonl" else write_parquet)(path, spelled)
        sources.append((read(path), read(path, "val"), read(path, "test"), read(path, "TEST")))
        assert open_source(str(path))[0].negatives == ("other",)
    assert sources[0][0] == (["text 0"], unasked("sample", Test=1, val=1))
    assert sources == [sources[0]] * 3
    assert sources[0][2] == sources[0][3] == (["text 2"], {})


def test_folders_named_after_splits(tmp_path: Path) -> None:
    parts = ("train2014", "val2014", "more")
    write_captioned(tmp_path, {f"{part}/1.jpg": part for part in parts})
    lost = {"sample of no split (--split all takes it)": 1, **unasked("sample", val=1)}
    assert read(tmp_path) == (["train2014"], lost)
    assert read(tmp_path, "val") == (["val2014"], {})
    assert read(tmp_path, "all") == (["more", "train2014", "val2014"], {})
    with pytest.raises(UsageError, match="no split 'test'; it has: samples of no split, train"):
        read(tmp_path, "test")
    names = ("test", "val-1", "plain")  # photos may be called anything
    write_captioned(tmp_path / "more", {f"{name}.jpg": name for name in names})
    assert read(tmp_path / "more") == (["more", "plain", "test", "val-1"], {})


def test_rows_decide_where_names_of_files_do_not(tmp_path: Path) -> None:
    write_parquet(tmp_path / "part-0.parquet", ROWS[:3])
    write_parquet(tmp_path / "part-1.parquet", ROWS[3:])
    assert read(tmp_path, "val")[0] == ["val 3"]
    assert read(tmp_path)[0] == ["train 1", "restval 2"]
    assert read(tmp_path, "part")[0] == [row["caption"] for row in ROWS]  # by their beginning


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "tar"])
def test_rows_decide_where_all_files_are_named_after_one_split(ending: str, tmp_path: Path) -> None:
    write = write_shard if ending == "tar" else write_rows
    write(tmp_path / f"test-0.{ending}", ROWS[:3])  # as Flickr30k at Hugging Face
    write(tmp_path / f"test-1.{ending}", ROWS[3:])
    assert read(tmp_path, "test")[0] == ["test 0", "test 4"]
    assert read(tmp_path)[0] == ["train 1", "restval 2"]
    assert list(Request(str(tmp_path)).open_held_out().captions()) == ["test 0", "test 4"]
    write(tmp_path / f"val-0.{ending}", ROWS[3:4])  # now the names tell splits apart
    assert len(read(tmp_path, "test")[0]) == len(ROWS)


def test_names_of_shards_decide_where_rows_say_no_split(tmp_path: Path) -> None:
    for part in ("test-0", "test-1"):
        write_shard(tmp_path / f"{part}.tar", [{"image": "0.jpg", "caption": part}])
    assert read(tmp_path, "test")[0] == ["test-0", "test-1"]
    with pytest.raises(UsageError, match="no split 'train'; it has: test"):
        read(tmp_path)
    write_tar(tmp_path / "test-0.tar", [("0.jpg", b"JPEG"), ("0.txt", b"plain")])  # has no .json
    assert read(tmp_path, "test")[0] == ["plain", "test-1"]


def test_data_without_splits_is_read_whole(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"image": "1.jpg", "caption": "x"}])
    for split in (None, "all"):
        assert read(path, split) == (["x"], {})
    with pytest.raises(UsageError, match="names no splits, so takes no --split dev"):
        read(path, "dev")
    images, annotations = [{"id": 1, "file_name": "1.jpg"}], [{"image_id": 1, "caption": "y"}]
    coco = {"images": images, "annotations": annotations}
    assert read(write_json(tmp_path / "captions.json", coco), "all") == (["y"], {})


def test_names_of_splits() -> None:
    known = {"train-000.tar": "train", "val2014": "val", "TEST-1.parquet": "test", "dev": "dev"}
    known |= {"validation-0": "validation", "restval": "restval", "training_0": "training"}
    assert {name: split_of(name) for name in known} == known
    for name in ("trainer.tar", "valentines", "testimony", "pack-000000.tar", "00000.tar"):
        assert split_of(name) == ""
    names = ["training-0.tar", "eval-0.tar", "more-0.tar"]
    assert named_splits(names, None) == ["training", "eval", "more"]
    assert named_splits(names, "more") == ["training", "eval", "more"]
    assert named_splits(names[2:], None) == [""]


def test_training_and_packing_leave_the_test_out_and_say_so(
    squares: Path, tmp_path: Path, capsys: Capture
) -> None:
    entries = []
    for i, part in enumerate(("train", "train", "restval", "val", "test", "test")):
        write_photo(tmp_path / f"{i}.png", colour=20 * i, size=(32, 32))
        sentence = {"raw": f"a square of colour {i}"}
        entries.append({"filename": f"{i}.png", "split": part, "sentences": [sentence]})
    path = write_json(tmp_path / "dataset_coco.json", {"images": entries, "dataset": "coco"})
    options = (f"--data={path}", "--batch-size=3")
    lost = [f"{n} x sample of split {part!r}" for part, n in (("test", 2), ("val", 1))]
    assert main(command(squares, "run", *options)) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "3 samples" in line)
    assert all(words in line for words in (*lost, "--split all"))
    assert main(command(squares, "all", *options, "--split=all")) == 0
    assert "clip-ft: 6 samples, " in capsys.readouterr().err
    assert main(["data", "pack", str(path), f"--out={tmp_path / 'pack'}"]) == 0
    captured = capsys.readouterr()
    assert "3 samples" in captured.out
    assert all(words in captured.err for words in lost)
    assert main(["data", "audit", "--train", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "3 rows" in printed
    assert "x sample of split 'test'" in printed


# --- Data that name no splits: a hash of the photo decides. ---


def write_photos(folder: Path, number: int) -> Path:
    """Photos of which each has two rows, and each third one a copy under another name."""
    rows = []
    for k in range(number):
        for name in [f"{k}.png", f"again-{k}.png"] if k % 3 == 0 else [f"{k}.png"]:
            write_photo(folder / name, colour=(k, 0, 7), size=(4, 4))
            rows += [{"image": name, "caption": f"{count} of {name}"} for count in ("one", "two")]
    return write_csv(folder / "t.csv", *rows)


def photos_of(source: Source) -> list[str]:
    return [id.partition("#")[0].removeprefix("again-") for id in source.column("id")]


def test_a_photo_is_on_one_side_only(tmp_path: Path) -> None:
    path = write_photos(tmp_path / "a", 120)
    whole = open_source(str(path))
    parts = {split: open_source(str(path), split=split) for split in ("train", "val", "test")}
    sides = [{*photos_of(part)} for part in parts.values()]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 120  # copies are with their originals
    assert sum(map(len, parts.values())) == len(whole) == 160
    assert {len(texts) for part in parts.values() for texts in part.column("captions")} == {2}
    assert 4 <= len(parts["val"]) <= 28
    assert 4 <= len(parts["test"]) <= 28
    assert "photos, by a hash of the photo" in parts["val"].describe()
    assert parts["val"].left_out == {}
    more = open_source(str(write_photos(tmp_path / "a", 150)), split="val")  # moves no photo
    assert sides[1] <= {*photos_of(more)}


def test_share_and_seed_of_the_hash(tmp_path: Path) -> None:
    path = str(write_photos(tmp_path / "a", 120))
    small, large = (open_source(path, split="val", held_out=h) for h in (0.1, 0.4))
    assert {*small.column("id")} < {*large.column("id")}
    assert len(large) > 40
    other = open_source(path, split="val", split_seed=1)
    assert {*other.column("id")} != {*small.column("id")}
    for share in (0.0, 0.5, -1.0, float("nan")):
        with pytest.raises(UsageError, match=r"must lie between 0 and 0\.5"):
            open_source(path, split="val", held_out=share)
    one = str(write_jsonl(tmp_path / "one.jsonl", [{"image": "a/1.png", "caption": "x"}]))
    number = _number(0, _head(tmp_path / "a" / "1.png"))
    assert 0.01 < number < 0.49
    assert len(open_source(one, split="val", held_out=0.49)) == 1
    assert len(open_source(one, split="train", held_out=number / 2)) == 1
    with pytest.raises(UsageError, match="0 of 1 photo, by a hash of the photo; raise --held-out"):
        open_source(one, split="val", held_out=number / 2)


def test_what_is_measured_on(tmp_path: Path) -> None:
    """Test or else val where the data name splits, and all of it where they name none."""
    for name, rows, captions in (
        ("both", ROWS, ["test 0", "test 4"]),
        ("val", ROWS[1:4], ["val 3"]),
        ("none", [{"image": "1.jpg", "caption": "x"}], ["x"]),
    ):
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        assert list(Request(str(path)).open_held_out().captions()) == captions
    path = write_jsonl(tmp_path / "both.jsonl", ROWS)
    assert list(Request(str(path), split="val").open_held_out().captions()) == ["val 3"]


# --- A share of the samples, by a hash of their ids. ---


def shares_table(folder: Path, number: int, name: str = "t") -> Path:
    rows = [{"image": f"{name}{k}.jpg", "caption": f"photo {k}"} for k in range(number)]
    return write_jsonl(folder / f"{name}.jsonl", rows)


def test_a_share_is_a_part_of_every_larger_one(tmp_path: Path) -> None:
    path = shares_table(tmp_path, 200)
    ids: set[str] = set()
    for fraction in (0.3, 0.5, 0.8, 1.0):
        source = open_source(str(path), fraction=fraction)
        here = {*source.column("id")}
        assert ids < here
        assert len(here) == round(200 * fraction)
        assert len(source) + sum(source.left_out.values()) == 200
        ids = here
    smaller = open_source(str(path), fraction=0.3)
    assert smaller.left_out == {"sample outside the fraction 0.3 of the data": 140}
    assert smaller.describe().endswith("), 60 of 200 samples by a hash of the id")
    # By plain sorting; the order of the rows stays.
    every = [*open_source(str(path)).column("id")]
    digests = {id: blake2b(id.encode(), digest_size=8).digest() for id in every}
    chosen = sorted(every, key=digests.__getitem__)[:60]
    assert [*smaller.column("id")] == [id for id in every if id in chosen]
    assert smaller.fingerprint().values["fraction"] == 0.3
    assert "fraction" not in open_source(str(path)).fingerprint().values


def test_a_share_is_taken_of_the_split_and_of_every_data_set_of_a_mixture(tmp_path: Path) -> None:
    rows = [{"image": f"{k}.jpg", "caption": "x", "split": "train"} for k in range(40)]
    path = write_jsonl(tmp_path / "s.jsonl", [*rows, *ROWS])
    source = open_source(str(path), fraction=0.5)
    assert len(source) == 21
    assert sum(source.left_out.values()) == 21 + 3  # of the split, and of other splits
    assert len(Request(str(path), fraction=0.5).open_held_out()) == 1
    parts = [shares_table(tmp_path, 100, "a"), shares_table(tmp_path, 60, "b")]
    mixed = open_source(f"{parts[0]}=0.5 {parts[1]}=0.5", fraction=0.3)
    ids = [id for part in parts for id in open_source(str(part), fraction=0.3).column("id")]
    assert [*mixed.column("id")] == ids
    assert len(ids) == 48
    assert mixed.fingerprint().values[str(parts[0])]["fraction"] == 0.3


def test_impossible_shares(tmp_path: Path) -> None:
    path = str(shares_table(tmp_path, 3))
    for fraction in (0.0, -0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"--fraction \S+: must be above 0 and at most 1"):
            open_source(path, fraction=fraction)
    with pytest.raises(UsageError, match="0 of 3 samples by a hash of the id; raise --fraction"):
        open_source(path, fraction=0.1)


def test_a_selection_of_a_share_and_a_share_of_a_selection(tmp_path: Path) -> None:
    path = str(shares_table(tmp_path, 40))
    half, selection = Request(path, fraction=0.5), tmp_path / "kept.json"
    first, *others = half.open().column("id")
    write_selection(selection, half, [first], "as a test")
    assert [*open_source(str(selection)).column("id")] == others
    assert len(open_source(str(selection), fraction=0.5)) == 10


def test_a_run_on_a_share_is_recorded_and_resumed_on_that_share_alone(
    world: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    training = [*arguments(world, "clip-ft", run), "--set"]
    number = len(open_source(str(world / "plain.jsonl")))
    assert main([*training, "fraction=0.5", "stop_after=1"]) == 0
    lost = number - round(number / 2)
    assert f"left out of the data: {lost} x sample outside the fraction" in capsys.readouterr().err
    for fraction in ("1.0", "0.25"):
        assert main([*training, f"fraction={fraction}", "--resume"]) == 1
        assert "other settings" in capsys.readouterr().err
    assert main([*training, "fraction=0.5", "--resume"]) == 0
    assert read_config(run / "config.yaml")["fraction"] == 0.5
    record = json.loads((run / "model" / "compoclip.json").read_text())
    assert "samples by a hash of the id" in record["provenance"]["data"]
    capsys.readouterr()
    assert main([*arguments(world, "clip-ft", tmp_path / "new"), "--set", "fraction=0"]) == 2
    assert "--set fraction=0: must be above 0" in capsys.readouterr().err


# --- Mixtures: shares of an epoch, the same for any workers, resumed bit for bit. ---


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
    shards = {"x-{0..9}.tar": 2, "hf:me/data/train": 1}
    assert mixture_of("x-{0..9}.tar=2 hf:me/data/train=1") == shards
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
def folder(squares: Path) -> Path:
    """The base and squares, and 6 further ones with two captions each."""
    rows = []
    for row in write_data(squares / "few", 6).read_text().splitlines()[1:]:
        image, caption = row.split("\t")
        rows.append({"image": image, "caption": [caption, f"a photo of {caption}"]})
    write_jsonl(squares / "few" / "rows.jsonl", rows)
    return squares


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
        plan, transform = TextPlan([], seed=5), ImageTransform(SIZE, RandomCrop())
        return BatchLoader(source, plan, transform, batch_size=6, seed=5, workers=workers)

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


def test_a_run_says_what_it_drew_and_resumes_to_the_last_bit(folder: Path, capsys: Capture) -> None:
    def run(out: str, *more: str, data: list[str] | None = None) -> int:
        options = ["--batch-size=10", "--lr=1e-3", *more, "--data", *(data or spec(folder))]
        return main(command(folder, out, *options, method="fsc-clip"))

    assert run("whole") == 0
    names = [part.rpartition("=")[0] for part in spec(folder)]
    drawn = read_log(folder / "whole" / "train.jsonl")[-1]["drawn"]
    assert list(drawn) == names
    assert sum(drawn.values()) == 40
    assert f"{drawn[names[1]]} samples of {names[1]}" in capsys.readouterr().out
    record = json.loads((folder / "whole" / "model" / RECORD).read_text())
    assert record["provenance"]["run"]["drawn"] == drawn
    assert "0.75 of" in record["provenance"]["data"]

    # Other weights are another run: other batches, and no state to go on from.
    others = [part.replace("=0.25", "=0.5") for part in spec(folder)]
    assert run("stopped", "--set=stop_after=2") == 0
    assert run("stopped", "--resume", data=others) == 1
    assert "other settings" in capsys.readouterr().err
    assert run("stopped", "--resume") == 0
    stopped, whole = (weight_hashes(folder / out) for out in ("stopped", "whole"))
    assert stopped == whole
    assert read_log(folder / "stopped" / "train.jsonl")[-1]["drawn"] == drawn


def test_an_option_goes_to_those_that_have_a_use_for_it(folder: Path) -> None:
    captions, images = folder / "pictures", folder / "few"
    write_captioned(captions, {f"{k}.png": "a square" for k in range(6)})
    rows = shutil.copy(images / "rows.jsonl", folder)
    mixed = open_source(f"{captions}=1 {rows}=1", images=images)
    assert mixed[6].image == images / "0.png"
    assert mixed[0].image == captions / "0.png"
    with pytest.raises(UsageError, match="folders of images take no --images"):
        open_source(f"{captions}=1 {shutil.copytree(captions, folder / 'more')}=1", images=images)
