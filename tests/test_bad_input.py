"""Bad input through the command line: one clear line, the right exit code, nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark_files import SUGARCREPE, sugarcrepe_row, write_json, write_sugarcrepe
from build.photos import write_photo
from compoclip.cli.main import main
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import read_config
from compoclip.training.log import read_log
from train_helpers import FEW, write_config, write_data

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory of a tiny random model."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model = create_model(read_config(write_config(folder / "config.json", merges=FEW)))
    save_model(model, folder / "tiny" / "model")
    return folder / "tiny" / "model"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data", count=8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """SugarCrepe in miniature, with an edition file: 14 items on two photos."""
    write_sugarcrepe(tmp_path / "root")
    for name, colour in (("1.jpg", "red"), ("2.jpg", "blue")):
        place = tmp_path / "root" / "coco" / "val2017" / name
        write_photo(place, colour=colour, size=(40, 40))
    (tmp_path / "root" / "edition.json").write_text('{"edition": "mini"}')
    return tmp_path / "root"


def training(table: Path, out: Path, *more: str) -> list[str]:
    config = write_config(table.parent / "config.json", merges=FEW)
    start = ["train", "clip-ft", "--from-scratch", f"--model={config}", f"--data={table}"]
    return [*start, f"--out={out}", "--batch-size=4", "--epochs=1", "--set=log_every=1", *more]


def tuning(table: Path, out: Path, model: Path | str, *more: str) -> list[str]:
    start = ["train", "clip-ft", f"--model={model}", f"--data={table}"]
    return [*start, f"--out={out}", "--batch-size=4", "--epochs=1", *more]


def evaluation(model: Path | str, root: Path, out: Path, *more: str) -> list[str]:
    start = ["evaluate", str(model), "--on=sugarcrepe", f"--data={root}", f"--out={out}"]
    return [*start, "--resamples=20", *more]


def refused(capsys: Capture, argv: list[str], code: int, *words: str) -> None:
    """`argv` fails with `code` and one line of the verb's, the last, which holds all `words`."""
    assert main(argv) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    lines = error.strip().splitlines()
    assert [line.startswith(f"compoclip {argv[0]}: ") for line in lines].count(True) == 1
    assert lines[-1].startswith(f"compoclip {argv[0]}: ")
    for word in words:
        assert word in lines[-1], lines[-1]


def leftovers(folder: Path) -> list[str]:
    """All files below a folder but the encoded features, which are meant to be used again."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and ".features" not in path.parts
    )


# ---- images


def test_training_on_a_corrupt_image(table: Path, tmp_path: Path, capsys: Capture) -> None:
    image = table.parent / "3.png"
    image.write_bytes(image.read_bytes()[:60])
    out = tmp_path / "run"
    refused(capsys, training(table, out), 1, "1 unreadable image", "3.png", "max_bad=N")
    assert not (out / "model").exists()
    assert main(training(table, tmp_path / "other", "--set=max_bad=1")) == 0
    captured = capsys.readouterr()
    assert "3.png" in captured.err
    assert "unreadable images left out of batches: 1" in captured.err
    assert (tmp_path / "other" / "model").is_dir()


@pytest.mark.parametrize(
    ("spoil", "words", "option"),
    [
        (lambda photo: photo.write_bytes(photo.read_bytes()[:300]), ("replace",), "--max-bad=1"),
        (Path.unlink, ("7 of 14", "1 image missing"), "--allow-partial"),
    ],
)
def test_evaluating_with_a_damaged_or_a_missing_photo(
    spoil: Callable[[Path], object],
    words: tuple[str, ...],
    option: str,
    checkpoint: Path,
    root: Path,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    spoil(root / "coco" / "val2017" / "2.jpg")
    argv = evaluation(checkpoint, root, tmp_path / "out")
    refused(capsys, argv, 1, "2.jpg", *words, option.partition("=")[0])
    assert leftovers(tmp_path / "out") == []
    assert main([*argv, option]) == 0
    shown = capsys.readouterr().out
    for said in ("7 of 14", "1 image missing or damaged", "PARTIAL"):
        assert said in shown


# ---- captions and tables


def test_empty_captions_are_counted_and_shown(table: Path, tmp_path: Path, capsys: Capture) -> None:
    lines = table.read_text().splitlines()
    lines[1:3] = ["0.png\t  ", "1.png\t"]
    table.write_text("\n".join(lines) + "\n")
    assert main(training(table, tmp_path / "run")) == 0
    error = capsys.readouterr().err
    assert "6 samples (left out: 2 x empty caption, 2 x sample without a caption)" in error
    assert main(training(table, tmp_path / "again", "--json")) == 0
    counts = json.loads(capsys.readouterr().out)["left_out"]
    assert counts == {"empty caption": 2, "sample without a caption": 2}


def test_captions_over_the_context_are_cut_counted_and_shown(
    table: Path, tmp_path: Path, capsys: Capture
) -> None:
    lines = table.read_text().splitlines()
    lines[1] = "0.png\t" + "a very long caption about a square " * 20
    table.write_text("\n".join(lines) + "\n")
    assert main(training(table, tmp_path / "run")) == 0
    assert "1 text cut: longer than the model's context of 77 tokens" in capsys.readouterr().err
    assert read_log(tmp_path / "run" / "train.jsonl")[-1]["truncated"] == 1
    record = json.loads((tmp_path / "run" / "model" / "compoclip.json").read_text())
    assert record["provenance"]["run"]["truncated"] == 1


def test_benchmark_texts_over_the_context_are_counted_and_shown(
    checkpoint: Path, root: Path, tmp_path: Path, capsys: Capture
) -> None:
    long = sugarcrepe_row(caption="a red cup and " * 40)
    write_json(root / "sugarcrepe" / "swap_obj.json", {"0": long, "1": sugarcrepe_row()})
    assert main(evaluation(checkpoint, root, tmp_path / "out")) == 0
    assert "1 text cut: longer than the model's context" in capsys.readouterr().out


# ---- benchmarks and names


def test_a_malformed_benchmark(
    checkpoint: Path, root: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = write_json(root / "sugarcrepe" / f"{SUGARCREPE[3]}.json", [{"filename": "1.jpg"}])
    words = (str(file), "row 0", "no key 'caption'")
    refused(capsys, evaluation(checkpoint, root, tmp_path / "out"), 1, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "more", "code", "words"),
    [
        (
            lambda folder: (folder / "5.png").unlink(),
            "",
            1,
            ("5.png: image not found", "max_bad=N"),
        ),
        (lambda folder: None, "--caption-column=tilte", 2, ("'tilte'", "image, caption")),
        (
            lambda folder: (folder / "data.tsv").write_text("image\tcaption\n0.png\t \n"),
            *("", 1, ("data.tsv", "1 x empty caption")),
        ),
    ],
)
def test_data_that_cannot_be_trained_on(
    table: Path,
    tmp_path: Path,
    capsys: Capture,
    change: Callable[[Path], object],
    more: str,
    code: int,
    words: tuple[str, ...],
) -> None:
    change(table.parent)
    refused(capsys, training(table, tmp_path / "run", *filter(None, [more])), code, *words)
    assert not (tmp_path / "run" / "model").exists()


def test_devices_that_are_not_there(
    checkpoint: Path,
    table: Path,
    root: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for argv in (
        training(table, tmp_path / "run"),
        evaluation(checkpoint, root, tmp_path / "out"),
    ):
        for device in ("cuda", "cuda:1"):
            refused(capsys, [*argv, f"--device={device}"], 2, device, "--device cpu")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "run").exists()


# ---- places that cannot be written


def test_output_below_a_file(
    checkpoint: Path, table: Path, root: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out, code, remedy in (
        (file, 2, "name a folder with --out"),
        (file / "below", 1, "choose another"),
        (file / "far" / "below", 1, "choose another"),
    ):
        refused(capsys, training(table, out), code, str(out), remedy)
        refused(capsys, evaluation(checkpoint, root, out), code, str(out), remedy)
        captions = tmp_path / "captions.txt"
        captions.write_text("a red cup on a table\n")
        argv = ["rewrite", str(captions), "-o", str(out / "x.jsonl")]
        refused(capsys, argv, 1, str(out), "check folder")
    assert file.read_text() == "mine"


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_fills_up_while_logging(
    table: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Any:
        return open("/dev/full", "a", encoding="utf-8")

    monkeypatch.setattr("compoclip.training.log.open", full, raising=False)
    out = tmp_path / "run"
    refused(capsys, training(table, out), 1, "train.jsonl", "No space left", "free space")


def test_a_disk_that_fills_up_while_results_are_written(
    checkpoint: Path, root: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    argv = evaluation(checkpoint, root, out)
    for place in ("os.replace", "pyarrow.parquet.write_table"):
        with monkeypatch.context() as patch:
            patch.setattr(place, _full)
            refused(capsys, [*argv, "--fresh"], 1, str(out), "No space left", "free space")
        assert leftovers(out) == []
    assert main(argv) == 0


def test_what_was_not_foreseen_is_one_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise KeyError("odd\nmany lines")

    monkeypatch.setattr("compoclip.cli.results.compare_main", broken)
    refused(capsys, ["compare", "a"], 1, "KeyError", "--debug")
    with pytest.raises(KeyError):
        main(["compare", "a", "--debug"])


# Verbs that take --seed: of every kind of options that one may inherit it from.
SEEDED = {
    "train clip-ft": "--data x --out o",
    "evaluate": "bundled --on x",
    "rewrite": "a",
    "tune": "x --out o",
    "world ask": "x",
}


@pytest.mark.parametrize("seed", ["99999999999999999999", "-1"])
@pytest.mark.parametrize("verb", SEEDED)
def test_a_seed_that_no_generator_takes(verb: str, seed: str, capsys: Capture) -> None:
    argv = [*verb.split(), *SEEDED[verb].split(), f"--seed={seed}"]
    refused(capsys, argv, 2, "--seed must lie between 0 and 9223372036854775807")
