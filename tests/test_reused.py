"""What is reused is the product of these inputs, and as it was made (see `data/fingerprint.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compoclip.cli.main import main
from compoclip.differences import differences_of, require_same
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import file_stamp, read_json_object
from train_helpers import new_model

CAPTIONS = "a red dog left of a blue cat\na green ball on a white boat\n"


def write_photos(folder: Path, count: int = 6) -> Path:
    """A table of captioned bitmaps whose first rows are equal, so that their files begin alike."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["filepath,title"]
    for number in range(count):
        write_photo(folder / f"{number}.bmp", number)
        lines.append(f"{number}.bmp,photo {number} of a red dog")
    table = folder / "photos.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def write_photo(path: Path, number: int) -> None:
    """A bitmap, which is stored from its last row to its first: the end of the file differs."""
    pixels = np.full((96, 96, 3), 200, np.uint8)
    pixels[:8, :, 0] = 5 * number
    Image.fromarray(pixels).save(path)


def exchange(path: Path, write: Callable[[Path], object]) -> None:
    """Another file of equal size, time and beginning takes the place of a file."""
    before, status = path.read_bytes(), path.stat()
    write(path)
    after = path.read_bytes()
    assert len(after) == len(before)
    assert after[:4096] == before[:4096]
    assert after != before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_stamp_depends_on_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "photo.bmp"
    write_photo(path, 1)
    stamp = file_stamp(path)
    exchange(path, lambda path: write_photo(path, 2))
    assert file_stamp(path) != stamp
    small = tmp_path / "small"
    small.write_bytes(b"")
    assert file_stamp(small).startswith("0-")


def test_a_photo_exchanged_is_another_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_photos(tmp_path / "photos")
    new_model(tmp_path)
    sizes = ["--batch-size=2", "--epochs=1", "--warmup=0", "--device=cpu", "--workers=0"]
    model = ["--from-scratch", f"--model={tmp_path / 'config.json'}"]
    run = ["train", "clip-ft", *model, f"--data={table}", f"--out={tmp_path / 'run'}", *sizes]
    pack = ["data", "pack", str(table), "--size=32", f"--out={tmp_path / 'pack'}"]
    assert main([*run, "--set=stop_after=1"]) == 0
    assert main(pack) == 0
    exchange(table.parent / "3.bmp", lambda path: write_photo(path, 9))
    for command, code in ((pack, 2), ([*run, "--resume"], 1)):
        capsys.readouterr()
        assert main(command) == code
        assert "images of 1 of 6 rows changed" in capsys.readouterr().err


def spoil(path: Path) -> None:
    """Change a byte of a file, and leave its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("change", [Path.unlink, spoil])
def test_a_pack_whose_shard_is_another_is_packed_again(
    change: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = write_photos(tmp_path / "photos"), tmp_path / "pack"
    arguments = ["data", "pack", str(table), "--shard-size=4", f"--out={out}"]
    assert main(arguments) == 0
    whole = {shard: shard.read_bytes() for shard in out.glob("*.tar")}
    assert len(whole) == 2
    change(min(whole))
    capsys.readouterr()
    assert main(arguments) == 0
    assert "differs from what was packed; packing again" in capsys.readouterr().err
    assert {shard: shard.read_bytes() for shard in out.glob("*.tar")} == whole
    assert main(arguments) == 0
    assert "packing again" not in capsys.readouterr().err


def test_records_that_were_changed_are_not_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "captions.txt", tmp_path / "out.jsonl"
    source.write_text(CAPTIONS)
    arguments = ["rewrite", str(source), "-o", str(out), "--rewrites=negclip"]
    assert main(arguments) == 0
    settings = (tmp_path / "out.jsonl.settings.json").read_bytes()
    whole = out.read_bytes()
    assert main(arguments) == 0  # all is there
    assert (tmp_path / "out.jsonl.settings.json").read_bytes() == settings
    out.write_bytes(whole.replace(b'"text": "', b'"text": "not '))
    assert main(arguments) == 2
    assert "was changed after it was made" in capsys.readouterr().err
    out.write_bytes(whole)
    assert main([*arguments, "--seed=1"]) == 2
    assert "(seed was 0, is 1); choose another -o or remove it" in capsys.readouterr().err


def test_results_whose_items_are_of_another_model_are_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from compoclip.models.checkpoint import save_model

    save_model(new_model(tmp_path), tmp_path / "model")
    table = write_photos(tmp_path / "photos", 8)
    fixed = ["--on", f"retrieval:{table},id=mine", "--resamples=20", "--device=cpu"]
    arguments = ["evaluate", str(tmp_path / "model"), *fixed, f"--out={tmp_path / 'results'}"]
    assert main(arguments) == 0
    items = next(tmp_path.glob("results/*/mine.parquet"))
    whole = items.read_bytes()
    capsys.readouterr()
    items.write_bytes(whole[: len(whole) // 2])
    assert main(arguments) == 0
    assert "measuring again: " in capsys.readouterr().err
    assert main(arguments) == 0
    assert "already measured" in capsys.readouterr().err


def test_what_differs_is_named(tmp_path: Path) -> None:
    before, now = {"lr": 1, "text": {"gone": 2}}, {"lr": 3}
    require_same(tmp_path, differences_of(before, before), "is of another sweep")
    words = (
        r"is of another sweep \(lr was 1, is 3; text\.gone was 2, is none\); choose another --out"
    )
    with pytest.raises(UsageError, match=words):
        require_same(tmp_path, differences_of(before, now), "is of another sweep")


@pytest.mark.parametrize("text", ["[]", '"plan"', "3", "null"])
def test_a_record_is_an_object(text: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(CompoclipError, match=r"record\.json: expected a JSON object, found .*; x"):
        read_json_object(path, damaged="x")
