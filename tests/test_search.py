"""`compoclip index`, `compoclip search`: photos found exactly, and what no longer holds noticed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

from build.photos import write_noise
from build.tables import write_csv, write_tar, write_text
from compoclip.analysis.maps import image_patches
from compoclip.cli.main import main
from compoclip.data.folders import HIDDEN, NO_IMAGE_FILE
from compoclip.data.sources.open import Request
from compoclip.data.vectors import nearest, require_one_width
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation import ModelEncoder
from compoclip.losses.local import local_similarity
from compoclip.models import load_model
from compoclip.search import (
    PhotoIndex,
    calibrate,
    duplicates,
    index_page,
    index_photos,
    read_index,
    rerank,
    search,
)
from compoclip.search.lance import ABOUT
from compoclip.search.photos import list_photos
from search_photos import changes, indexed

# --- The index. ---


def test_features_are_those_of_the_model(
    index: PhotoIndex, photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    assert list(index.names) == ["0.png", "1.png", "2.png", "deep/er/3.png", "deep/er/4.png"]
    for row, name in enumerate(index.names):
        pixels = encoder.read_image.pixels(Image.open(photos / name))
        assert np.abs(index.features[row] - encoder.encode_images([pixels])[0]).max() < 1e-6
    unread = "image of a kind that is not read (.jxl)"
    assert index.about["left_out"] == {unread: 1, HIDDEN: 1, NO_IMAGE_FILE: 1}
    read = read_index(tmp_path / "index")
    assert (list(read.names), list(read.stamps)) == (list(index.names), list(index.stamps))
    assert read.about == json.loads(json.dumps(index.about))
    assert np.array_equal(read.features, index.features)


def test_only_what_changed_is_encoded_anew(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    out, encode = tmp_path / "index", ModelEncoder.encode_images
    assert changes(indexed(photos, encoder, out)) == (5, 0, 0)
    with patch.object(ModelEncoder, "encode_images", autospec=True, side_effect=encode) as encoded:
        assert changes(indexed(photos, encoder, out)) == (0, 5, 0)
        encoded.assert_not_called()
        write_noise(photos / "1.png", 77)
        os.utime(photos / "1.png", ns=(1, 1))
        (photos / "2.png").unlink()
        write_noise(photos / "a.png", 78)
        index = indexed(photos, encoder, out)
        assert [len(call.args[1]) for call in encoded.mock_calls] == [2]
    assert changes(index) == (2, 3, 1)
    fresh = indexed(photos, encoder, tmp_path / "fresh")
    assert list(index.names) == list(fresh.names)
    assert np.abs(index.features - fresh.features).max() < 1e-6


def test_bytes_decide_whether_a_photo_has_changed(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    for number in range(2):
        write_noise(photos / f"{number}.bmp", number)  # of one size
    indexed(photos, encoder, out)
    one, other = (photos / f"{number}.bmp" for number in range(2))
    status, content = one.stat(), one.read_bytes()
    one.write_bytes(other.read_bytes())
    os.utime(one, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read_index(out).outdated(range(7))["changed"] == ["0.bmp"]
    shutil.copy(out, tmp_path / "other")
    fast = indexed(photos, encoder, tmp_path / "other", fast=True)
    assert changes(fast) == (1, 6, 0)  # both begin with other bytes
    index = indexed(photos, encoder, out)
    assert changes(index) == (1, 6, 0)
    assert index.outdated(range(7)) == {"missing": [], "changed": []}
    places = [list(index.names).index(f"{number}.bmp") for number in range(2)]
    assert np.abs(np.subtract(*index.features[places])).max() < 1e-6
    os.utime(other, ns=(1, 1))  # as a copy has another time
    assert changes(indexed(photos, encoder, out)) == (0, 7, 0)
    one.write_bytes(content)
    assert changes(indexed(photos, encoder, out)) == (1, 6, 0)


def test_unreadable_photos_are_named_and_all_files_are_counted(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    for name in ("@eaDir/0.png", "__MACOSX/._0.png", "drafts/0.png"):
        write_noise(photos / name, 9)
    (photos / "deep" / "torn.jpg").write_bytes(b"\xff\xd8\xff")
    os.mkfifo(photos / "pipe.jpg")
    index = indexed(photos, encoder, tmp_path / "index", exclude=("drafts",))
    assert len(index.names) == 5
    assert list(index.about["unreadable"]) == ["deep/torn.jpg"]
    assert "replace or remove it" in index.about["unreadable"]["deep/torn.jpg"]
    files = sum(len(names) for _, _, names in os.walk(photos))
    assert files == 5 + 1 + sum(index.about["left_out"].values())
    for path in photos.rglob("*.png"):
        path.unlink()
    with pytest.raises(CompoclipError, match=r"no photo can be read; the first is deep/torn\.jpg"):
        indexed(photos, encoder, tmp_path / "other")


def test_a_resumed_run_encodes_the_same_photos_together(
    photos: Path, encoder: ModelEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A photo that cannot be read leaves its batch smaller. A kill loses what is not written."""
    (photos / "0.png").write_bytes(b"torn")
    out, encode = tmp_path / "index", ModelEncoder.encode_images
    batches: list[tuple[int, int]] = []

    def recorded(self: ModelEncoder, images: Any) -> Any:
        batches.append((len(images), len(read_index(out).names) if out.exists() else 0))
        if len(batches) == 2:
            raise KeyboardInterrupt
        return encode(self, images)

    monkeypatch.setattr(ModelEncoder, "encode_images", recorded)
    monkeypatch.setattr("compoclip.search.index._SAVE_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        indexed(photos, encoder, out)
    resumed = indexed(photos, encoder, out)
    assert batches == [(1, 0), (2, 1), (2, 1), (1, 3)]
    batches.clear()
    batches += [(0, 0)] * 2
    whole = indexed(photos, encoder, tmp_path / "whole")
    assert [size for size, _ in batches[2:]] == [1, 2, 1]
    assert np.array_equal(resumed.features[:], whole.features[:])
    assert resumed.about["unreadable"] == whole.about["unreadable"]


def test_tables_and_shards_are_indexed_too(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    lines = "image,caption\n1.png,one\n1.png,again\ndeep/er/3.png,three\n"
    table = write_text(tmp_path / "pairs.csv", lines)
    index = indexed(table, encoder, tmp_path / "index", images=photos)
    whole = indexed(photos, encoder, tmp_path / "whole")
    assert list(index.names) == ["1.png", "deep/er/3.png"]
    assert list(read_index(tmp_path / "index").captions) == list(index.captions) == ["one", "three"]
    assert np.abs(index.features - whole.features[[1, 3]]).max() < 1e-6
    assert index.photo(1) == photos / "deep/er/3.png"
    assert index.outdated([0, 1]) == {"missing": [], "changed": []}
    shard = tmp_path / "0.tar"
    first, second = ((photos / f"{number}.png").read_bytes() for number in (0, 1))
    text = b"a star"
    write_tar(shard, [("0.png", first), ("0.txt", text), ("1.png", second), ("1.txt", text)])
    out = tmp_path / "shard"
    index = indexed(shard, encoder, out)
    assert np.abs(index.features - whole.features[:2]).max() < 1e-6
    assert read_index(out).photo(1) == second
    assert changes(indexed(shard, encoder, out)) == (0, 2, 0)
    page = index_page(index, search(index, encoder, ["a star"]), out)
    assert 'src="data:image/jpeg' in page


def test_an_index_of_another_model_is_made_anew(
    photos: Path, encoder: ModelEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "index"
    indexed(photos, ModelEncoder(load_model("bundled")), out)
    with pytest.raises(CompoclipError, match=r"made with another model .*weights.* --model"):
        read_index(out).require(encoder, out)
    assert changes(indexed(photos, encoder, out)) == (5, 0, 0)
    assert "made with another model; all photos are encoded anew" in capsys.readouterr().err
    read_index(out).require(encoder, out)
    stored = Request(str(photos), orientation="stored")
    assert changes(index_photos(stored, encoder, out, "base")) == (5, 0, 0)
    assert "made of photos turned otherwise; all photos are enc" in capsys.readouterr().err


NO_INDEX = "is no index of photos; make it"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path, place: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def flip_in_names(path: Path) -> None:
    flip(path, path.read_bytes().rindex(b"0.png") - 9)


@pytest.mark.parametrize(
    ("vectors", "spoil", "words"),
    [
        ("float32", cut, "a damaged index.*delete it"),
        ("int8", cut, "a damaged index.*delete it"),
        ("float32", flip, "checksum differs.*delete it"),
        ("int8", flip_in_names, "a damaged index.*delete it"),
        ("float32", lambda path: path.write_text("{}"), NO_INDEX),
        ("float32", lambda path: path.write_bytes(b""), NO_INDEX),
        ("float32", lambda path: shutil.copy(Image.__file__, path), NO_INDEX),
        ("float32", lambda path: path.unlink(), "no such index; make it with compoclip index"),
    ],
)
def test_what_is_no_index_is_refused(
    vectors: str,
    spoil: Callable[[Path], object],
    words: str,
    photos: Path,
    encoder: ModelEncoder,
    tmp_path: Path,
) -> None:
    out = tmp_path / "index"
    indexed(photos, encoder, out, vectors=vectors)
    spoil(out)
    with pytest.raises(CompoclipError, match=words):
        read_index(out)
    if out.exists():  # nor is it overwritten: it may be a file of the user's
        with pytest.raises(CompoclipError, match=f"{words}|is there and no index of photos"):
            indexed(photos, encoder, out)


def test_nearly_equal_photos_are_grouped() -> None:
    """By hand: 0 and 3 are equal, 3 and 4 at 0.995, 0 and 4 too; 1 and 2 stand alone."""
    angles = np.array([0.0, 1.0, 2.0, 0.0, 0.1])
    features = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    index = PhotoIndex(features, list("abcde"), [""] * 5, {}, [""] * 5)
    assert duplicates(index, 0.99) == [("a", "d", "e")]
    assert duplicates(index, 0.999) == [("a", "d")]


# --- The search. ---


@pytest.mark.parametrize("block", [1, 7, 100, 0])
@pytest.mark.parametrize("top", [1, 5, 200])
@pytest.mark.parametrize("queries", [1, 3])
def test_the_nearest_are_those_of_sorting_everything(
    block: int, top: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block:
        monkeypatch.setattr("compoclip.data.vectors._at_once", lambda queries: block)
    rng = np.random.default_rng(0)
    features = rng.integers(-2, 3, (120, 4)).astype(np.float32)  # exact sums, and many ties
    vectors = rng.integers(-2, 3, (queries, 4)).astype(np.float32)
    rows, scores = nearest(features, vectors, top)
    for query, query_rows, values in zip(vectors, rows, scores):
        every = [float(sum(a * b for a, b in zip(row, query))) for row in features.tolist()]
        order = sorted(range(120), key=lambda k: (-every[k], k))[:top]
        assert query_rows.tolist() == order
        assert values.tolist() == [every[k] for k in order]


def test_a_search_ranks_by_cosine(index: PhotoIndex, photos: Path, encoder: ModelEncoder) -> None:
    texts = ["a red star", "a blue mug"]
    answers = search(index, encoder, [*texts, photos / "2.png"], top=3)
    cosines = encoder.encode_texts(texts) @ index.features.T
    for answer, row in zip(answers, cosines):
        order = np.argsort(-row)[:3]
        assert [hit.row for hit in answer.hits] == order.tolist()
        assert answer.best == pytest.approx(row.max(), abs=1e-6)
        assert answer.matches
    assert answers[2].hits[0].photo == "2.png"
    assert answers[2].hits[0].score == pytest.approx(1, abs=1e-5)
    with pytest.raises(UsageError, match="empty"):
        search(index, encoder, [" "])


# --- Options of the data. ---


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 12),
        ({"fraction": 0.5}, 6),
        ({"split": "test"}, 1),
        ({"split": "all", "exclude": ("val*",)}, 11),
    ],
)
def test_options_mean_for_folders_of_photos_what_they_mean_for_tables(
    options: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    for number, split in enumerate(["train2017"] * 10 + ["test", "val2017"]):
        write_noise(tmp_path / split / f"{number}.png", number)
    write_text(tmp_path / "metadata.jsonl", '{"file_name": "test/10.png", "text": "a"}')
    photos = list_photos(Request(str(tmp_path), **options))
    assert len({*photos.names}) == len(photos.stamps) == expected
    outside = 11 if options.get("split") == "test" else 0
    assert expected + outside + sum(photos.left_out.values()) == 13


def test_a_hash_splits_folders_of_photos_as_it_splits_tables(tmp_path: Path) -> None:
    for number in range(40):
        write_noise(tmp_path / "photos" / f"{number}.png", number)
    names = [f"{number}.png" for number in range(40)]
    table = write_csv(tmp_path / "t.csv", *({"image": name, "caption": "a"} for name in names))
    for share, seed in ((0.1, 0), (0.3, 0), (0.3, 1)):
        options: dict[str, Any] = {"split": "test", "held_out": share, "split_seed": seed}
        listed = list_photos(Request(str(tmp_path / "photos"), **options))
        of_table = list_photos(Request(str(table), images=tmp_path / "photos", **options))
        assert {*listed.names} == {*of_table.names} < {*names}


@pytest.mark.parametrize("option", ["images", "image_column", "caption_column", "templates"])
def test_folders_of_photos_refuse_the_options_of_captions(option: str, tmp_path: Path) -> None:
    write_noise(tmp_path / "a.png", 0)
    value: Any = tmp_path if option == "images" else "{}"
    with pytest.raises(UsageError, match=f"take no --{option.replace('_', '-')};"):
        list_photos(Request(str(tmp_path), **{option: value}))


# --- When nothing matches. ---


def test_the_threshold_is_the_quantile_of_best_scores(
    index: PhotoIndex, photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    rows = [(0, "a red star"), (0, "a star"), (3, "a blue mug"), (4, "two boxes"), (2, "a wall")]
    captions = [{"image": index.names[row], "caption": text} for row, text in rows]
    elsewhere = {"image": "none.png", "caption": "a cat"}
    table = write_csv(tmp_path / "held.csv", *captions, elsewhere)
    calibrated = calibrate(index, encoder, Request(str(table), images=photos), 0.3)
    calibration = calibrated.about["calibration"]
    present, absent = [], []
    for row, text in rows:
        cosines = (index.features @ encoder.encode_texts([text])[0]).tolist()
        present.append(max(cosines))
        absent.append(max(value for k, value in enumerate(cosines) if k != row))
    threshold = float(np.quantile(present, 0.3))
    assert calibration["threshold"] == pytest.approx(threshold, abs=1e-6)
    assert (calibration["captions"], calibration["left_out"]) == (5, 1)
    assert calibration["missed"] == pytest.approx(sum(x < threshold for x in present) / 5)
    assert calibration["noticed"] == pytest.approx(sum(x < threshold for x in absent) / 5)
    write_csv(table, elsewhere)
    with pytest.raises(CompoclipError, match="none of its photos is in the index"):
        calibrate(index, encoder, Request(str(table), images=photos))


@pytest.mark.parametrize(
    ("options", "captions"),
    [
        ([], 2),  # of the test split
        (["--split=train"], 3),
        (["--split=all"], 5),
        (["--split=all", "--caption-column=other", "--exclude=0.png"], 4),
    ],
)
def test_captions_that_calibrate_are_held_out_unless_a_split_is_named(
    options: list[str], captions: int, photos: Path, world: Path, tmp_path: Path
) -> None:
    splits = enumerate(["train", "train", "train", "test", "test"])
    names = list_photos(Request(str(photos))).names
    rows = [{"image": names[row], "caption": "a", "other": "b", "split": s} for row, s in splits]
    table, out = write_csv(tmp_path / "held.csv", *rows), tmp_path / "index"
    words = ["index", str(photos), f"--model={world / 'base'}", f"--out={out}", "--device=cpu"]
    assert main([*words, f"--calibrate={table}", *options]) == 0
    index = read_index(out)
    assert index.about["calibration"]["captions"] == captions
    assert len(index.names) == 5 - ("--exclude=0.png" in options)
    assert index.about["source"]["split"] is None


# --- Another order. ---


def test_local_order_is_that_of_tokens_and_patches(
    index: PhotoIndex, photos: Path, world: Path, encoder: ModelEncoder
) -> None:
    loaded = load_model(world / "base")
    (answer,) = search(index, encoder, ["a red star"], 5)
    (photos / answer.hits[3].photo).unlink()  # one that cannot be read is left out
    again = rerank(index, loaded, answer, "local")
    with torch.inference_mode():
        read = loaded.encoder.encode_texts(loaded.tokenizer([answer.query]), tokens=True)
        scale = loaded.encoder.logit_scale.exp()
        expected = {
            hit.photo: local_similarity(
                read.tokens,
                read.token_mask,
                image_patches(loaded, Image.open(photos / hit.photo).convert("RGB")),
                scale,
            ).item()
            for hit in answer.hits[:3] + answer.hits[4:]
        }
    scores = {hit.photo: hit.score for hit in again.hits}
    assert scores == pytest.approx(expected, abs=1e-4)
    assert [*scores.values()] == sorted(scores.values(), reverse=True)


def test_subgraphs_add_the_mean_of_what_the_text_states(
    index: PhotoIndex, world: Path, encoder: ModelEncoder
) -> None:
    answer, bare = search(index, encoder, ["a red star on a blue mug", "hello"], 5)
    parts = ["red star", "blue mug", "red star on blue mug", "star on mug"]
    means = (encoder.encode_texts(parts) @ index.features.T).mean(0)
    loaded = load_model(world / "base")
    again = rerank(index, loaded, answer, "subgraphs", weight=2.0)
    assert {hit.row: hit.score for hit in again.hits} == pytest.approx(
        {hit.row: hit.score + 2 * means[hit.row] for hit in answer.hits}, abs=1e-5
    )
    assert rerank(index, loaded, bare, "subgraphs") == bare


# --- The commands. ---


def test_nothing_matches_below_the_threshold(
    photos: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "photos.index"
    # Paths start from the folder of photos.
    table = write_text(tmp_path / "held.csv", "image,caption\n0.png,a star\n1.png,a mug\n")
    make = ["index", str(photos), "--model", str(world / "base"), "--out", str(out)]
    assert main([*make, "--calibrate", str(table)]) == 0
    assert "nothing matches below " in capsys.readouterr().out
    index = read_index(out)
    high = {**index.about, "calibration": {**index.about["calibration"], "threshold": 1.5}}
    replace(index, about=high).save(out)
    assert main(make) == 0  # what has not changed stays calibrated
    capsys.readouterr()
    assert main(["search", str(out), "a mug"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("nothing matches: the best cosine is ")
    assert main(["search", str(out), "a mug", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["matches"] is False
    write_noise(photos / "new.png", 20)
    assert main(make) == 0
    assert read_index(out).about["calibration"] is None


def test_from_a_folder_to_results(
    photos: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "photos.index")
    make = ["index", str(photos), "--model", str(world / "base"), "--out", out]
    shutil.copy(photos / "0.png", photos / "twin.png")
    assert main([*make, "--duplicates", "0.9999", "--device=cpu"]) == 0
    said = capsys.readouterr().out
    assert "6 photos (6 encoded, 0 unchanged, 0 removed)" in said
    assert "0.png  twin.png" in said
    (tmp_path / "texts.txt").write_text("a red star\n\na blue mug\n")
    ask = ["search", out, "a mug", "--queries", str(tmp_path / "texts.txt"), "--top", "2"]
    assert main([*ask, "--page", str(tmp_path / "p.html"), "--json"]) == 0
    captured = capsys.readouterr()
    answers = json.loads(captured.out)
    assert [answer["query"] for answer in answers] == ["a mug", "a red star", "a blue mug"]
    assert [len(answer["hits"]) for answer in answers] == [2, 2, 2]
    assert "1 photo could not be indexed" in captured.err
    assert (tmp_path / "p.html").is_file()
    (tmp_path / "texts.md").write_text("a red star\n")
    assert main(["search", out, "--queries", str(tmp_path / "texts.md")]) == 2
    assert "texts.md: not one of the kinds .txt, .csv, .tsv, .jsonl, " in capsys.readouterr().err
    assert main(["search", out, "a mug"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[:2] == ["a mug", "rank  photo           score"]
    assert f"see the photos: {Path(out).as_uri()}.html" in captured.err
    assert Path(f"{out}.html").is_file()


def test_moved_and_changed_photos_are_noticed(
    photos: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "photos.index")
    assert main(["index", str(photos), "--model", str(world / "base"), "--out", out]) == 0
    write_noise(photos / "0.png", 70)
    (photos / "1.png").unlink()
    capsys.readouterr()
    assert main(["search", out, "a mug"]) == 0
    missing, changed = (
        line for line in capsys.readouterr().err.splitlines() if "of 5 photos" in line
    )
    assert "1 of 5 photos are not where they were; name their folder with --images" in missing
    assert "1 of 5 photos have changed since they were indexed; run compoclip index" in changed
    moved = photos.rename(tmp_path / "elsewhere")
    assert main(["search", out, "a mug", "--images", str(moved)]) == 0
    said = capsys.readouterr().err
    assert "1 of 5 photos are not where they were" in said
    assert "1 of 5 photos have changed since" in said  # the bytes of a copy tell it too


INDEX = ["index", "full", "--model=bundled"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "no.index"], "no such index"),
        (["search", "no.index", "a mug", "--top=0"], "between 1 and 1000"),
        (["index", "empty", "--model=bundled", "--out=i", "--duplicates=2"], "between -1 and 1"),
        ([*INDEX, "--out=i", "--split=x"], "names no splits, so takes no --split x"),
        ([*INDEX, "--to=lancedb", "--out=file"], "is the file of an index; leave --to out"),
        ([*INDEX, "--to=lancedb", "--out=full"], "already exists; choose another place"),
        ([*INDEX, "--out=full"], "full: is a folder; name a file to write"),
        ([*INDEX, "--to=file", "--out=table"], "is the folder of an index; leave --to out"),
        (
            [*INDEX, "--to=lancedb", "--vectors=int8", "--out=i"],
            "holds float32 vectors; leave --vectors",
        ),
    ],
)
def test_wrong_requests_end_in_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_noise(Path("full/a.png"), 0)
    Path("empty").mkdir()
    Path("file").touch()
    write_text(Path("table", ABOUT), "{}")
    assert main([*words, "--device=cpu"]) in (1, 2)
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not Path("i").exists()


@pytest.mark.parametrize(
    ("images", "texts", "fits"),
    [
        ((2, 4), (3, 4), True),
        ((0, 0), (3, 4), True),
        ((2, 4), (0, 0), True),
        ((2, 4), (3, 5), False),
    ],
)
def test_features_of_images_and_texts_have_one_width(
    images: tuple[int, int], texts: tuple[int, int], fits: bool
) -> None:
    features = [np.zeros(shape, np.float32) for shape in (images, texts)]
    if fits:
        require_one_width(*features, "m")
        return
    words = "^m: features of images have 4 dimensions and features of texts have 5, so they cannot"
    with pytest.raises(CompoclipError, match=words):
        require_one_width(*features, "m")
