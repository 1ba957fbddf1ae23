"""`compoclip world`: training sets, suites, sheets and the oracle from the command line."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from compoclip.cli.main import main
from compoclip_world.captions import CAPTION_TYPES
from compoclip_world.export.suite import read_scenes


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["world", *map(str, arguments)])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_help_and_unknown_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(word in out for word in ("train", "pairs", "suite", "show", "ask"))
    assert run(capsys)[0] == 2
    code, _, err = run(capsys, "paint")
    assert code == 2
    assert "no WHAT 'paint'" in err
    code, _, err = run(capsys, "train")
    assert code == 2
    assert "give --out FOLDER: Folder for the shards; give --count INT: Scenes to draw" in err


def test_train_writes_shards(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "set"
    code, text, _ = run(capsys, "train", "--out", out, "--count", 6, "--size", 32, "--json")
    assert code == 0
    summary = json.loads(text)
    assert (summary["scenes"], summary["captions"]) == (6, 30)
    with tarfile.open(summary["shards"][0]) as tar:
        names = tar.getnames()
    assert len(names) == 12
    code, _, err = run(capsys, "train", "--out", out, "--count", 2, "--captions", 2)
    assert code == 1
    assert "already exists" in err
    code, text, _ = run(capsys, "train", "--out", tmp_path / "b", "--count", 2, "--captions", 2)
    assert code == 0
    assert "2 scenes, 4 captions, 1 shard," in text


def test_train_writes_a_suite_of_the_same_world(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ("--seed", 3, "--size", 32, "--json")
    train = ("train", "--out", tmp_path / "set", "--count", 2)
    code, text, _ = run(capsys, *train, "--suite", tmp_path / "a", "--suite-items", 3, *asked)
    assert code == 0
    found = json.loads(text)
    code, text, _ = run(capsys, "suite", "--out", tmp_path / "b", "--items-per-task", 3, *asked)
    assert code == 0
    alone = json.loads(text)
    assert found["suite"]["items"] == alone["items"]
    assert read_scenes(tmp_path / "a") == read_scenes(tmp_path / "b")
    # What cannot be written is said before anything is drawn.
    other = ("train", "--out", tmp_path / "new" / "set", "--count", 2)
    code, _, err = run(capsys, *other, "--suite", tmp_path / "a")
    assert (code, "already exists" in err) == (1, True)
    code, _, err = run(capsys, *other, "--suite", tmp_path / "new")
    assert (code, "a folder of its own" in err) == (2, True)
    assert not (tmp_path / "new").exists()


def test_train_leaves_nothing_half_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "world.json"
    only = [[kind, float(kind == "kind")] for kind in CAPTION_TYPES]
    config.write_text(json.dumps({"objects": [1.0], "synonyms": 0.0, "caption_weights": only}))
    out = tmp_path / "set"
    code, _, err = run(
        capsys, "train", "--out", out, "--count", 4, "--captions", 50, "--config", config
    )
    assert code == 1
    assert "different captions" in err
    assert sorted(tmp_path.iterdir()) == [config]


def test_suite_prints_what_it_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "suite"
    arguments = ("suite", "--out", out, "--items-per-task", 3, "--size", 32)
    code, text, _ = run(capsys, *arguments)
    assert code == 0
    assert "world-sugarcrepe/swap_att" in text
    assert f"-> {out}" in text
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert "already exists" in err
    assert err.count("\n") == 1
    arguments = ("suite", "--out", tmp_path / "b", "--items-per-task", 3, "--size", 32)
    code, text, _ = run(capsys, *arguments, "--benchmarks", "winoground", "sugarcrepe", "--json")
    assert code == 0
    summary = json.loads(text)
    assert set(summary["items"]) == {
        "world-sugarcrepe", "world-sugarcrepe-pp", "world-sugarcrepe-pp-tot", "world-winoground",
        "world-foils", "world-strict",
    }  # fmt: skip
    assert summary["items"]["world-sugarcrepe"]["swap_att"] == 3
    assert summary["images"] == len(list((tmp_path / "b").rglob("*.png")))


def test_a_suite_is_drawn_from_the_world_of_its_config(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "world.json"
    config.write_text(json.dumps({"backdrops": ["grey"], "textured": 0.0}))
    arguments = ("suite", "--out", tmp_path / "suite", "--items-per-task", 3, "--size", 32)
    assert run(capsys, *arguments, "--benchmarks", "aro", "--config", config)[0] == 0
    backdrops = {scene.backdrop.colour for scene in read_scenes(tmp_path / "suite").values()}
    assert backdrops == {"grey"}
    made = json.loads((tmp_path / "suite" / "suite.json").read_text())["made_by"]["config"]
    assert (made["size"], made["backdrops"]) == (32, ["grey"])


def test_show_draws_a_sheet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    code, text, _ = run(capsys, "show", "--count", 5, "-o", sheet, "--json")
    assert code == 0
    scenes = json.loads(text)["scenes"]
    assert [scene["index"] for scene in scenes] == [0, 1, 2, 3, 4]
    assert all(len(scene["captions"]) == 3 and scene["things"] for scene in scenes)
    with Image.open(sheet) as image:
        assert image.format == "PNG"
        assert image.width > 4 * 192
        assert image.height > 2 * 192
    first = sheet.read_bytes()
    assert run(capsys, "show", "--count", 5, "-o", sheet)[1] == f"5 scenes -> {sheet}\n"
    assert sheet.read_bytes() == first
    assert list(tmp_path.iterdir()) == [sheet]


def test_ask_prints_the_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = run(capsys, "show", "--count", 1, "--start", 7, "-o", tmp_path / "s.png", "--json")[1]
    caption = json.loads(shown)["scenes"][0]["captions"][0]
    code, text, _ = run(capsys, "ask", caption, "--scene", 7)
    assert code == 0
    assert text.startswith("true\n")
    assert "background" in text
    answer = json.loads(run(capsys, "ask", "a zebra", "--json")[1])
    assert (answer["truth"], answer["foreign"]) == ("false", True)
    assert run(capsys, "ask", "red the of")[1].startswith("unknown (")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--out", "x", "--count", "0"), "--count"),
        (("train", "--out", "x", "--count", "1", "--size", "8"), "image size 8"),
        (("suite", "--out", "x", "--items-per-task", "1"), "give at least 2"),
        (("suite", "--out", "x", "--workers", "0"), "--workers"),
        (("suite", "--out", "x", "--benchmarks", "winogrand"), "did you mean winoground"),
        (("show", "-o", "sheet.docx"), "no image format"),
        (("show", "-o", "sheet.png", "--start", "-1"), "--start"),
        (("ask", " "), "the caption is empty"),
        (("ask", "a star", "--scene", "-1"), "--scene"),
    ],
)
def test_bad_options_end_with_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_end_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    taken = tmp_path / "file"
    taken.write_text("x", encoding="utf-8")
    for arguments in (
        ("train", "--out", taken / "set", "--count", 1),
        ("suite", "--out", taken / "suite", "--items-per-task", 2),
        ("show", "--count", 1, "-o", taken / "sheet.png"),
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 1, arguments
        assert "cannot be written" in err
        assert err.count("\n") == 1
