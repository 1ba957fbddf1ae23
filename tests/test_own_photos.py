"""People's own photos, as public bug reports describe them, on the path audit, tune, index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from compoclip.cli.main import main
from test_data_image_door import empty as png_of

Spoil = Callable[[Path], object]
ROWS = [("0.png", "a red dog"), ("1.png", "a blue cat"), ("2.png", "a green cup")]
TRAIN = [(f"{k}.png", "a dog,train") for k in range(60)]
AUDIT, INDEX, TUNE = "audit", "index", "tune"


def table(rows: list[tuple[str, str]], header: str = "image,caption", comma: str = ",") -> Spoil:
    """Return what writes a CSV of these rows."""
    lines = [header.replace(",", comma), *(comma.join(row) for row in rows)]
    return lambda folder: [(folder / "own.csv").write_text("\n".join(lines) + "\n")]


def sideways(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(folder / "0.png", exif=exif)


def long(folder: Path) -> None:
    (folder / "0.png").write_bytes(png_of(200_000, 2))


def cut(folder: Path) -> None:
    path = folder / "0.png"
    path.write_bytes(path.read_bytes()[:60])


def empty(folder: Path) -> None:
    for path in folder.glob("*.png"):
        path.unlink()


#: what is wrong -> verb, what makes it so, exit status, words of what is printed
CASES: dict[str, tuple[str, Spoil, int, str]] = {
    "200,000 pixels long": (AUDIT, long, 0, "image-undecodable"),
    "the same, to index": (INDEX, long, 0, "1 unreadable photo"),
    "sideways": (AUDIT, sideways, 0, "stored sideways: 1 image"),
    "cut": (AUDIT, cut, 0, "undecodable: "),
    "clean": (AUDIT, lambda f: None, 0, "no faulty row or image; every image was decoded"),
    "cut, to index": (INDEX, cut, 0, "1 unreadable photo"),
    "gone": (AUDIT, lambda f: (f / "0.png").unlink(), 1, "photos/0.png"),
    "no photo": (INDEX, empty, 2, "photos"),
    "rows of one photo": (AUDIT, table([*ROWS, ("0.png", "a dog")]), 0, "3 photos from 4 rows"),
    "equal captions": (AUDIT, table([(name, "a dog") for name, _ in ROWS]), 0, "repeated"),
    "capitals, semicolons": (AUDIT, table(ROWS, "Image,Caption", ";"), 0, "columns Image, Caption"),
    "paths of Windows": (AUDIT, table([(f".\\{a}", b) for a, b in ROWS]), 0, "0 images missing"),
    "no caption column": (AUDIT, table(ROWS, "image,words"), 2, "--caption-column"),
    "no caption": (AUDIT, table([(name, "nan") for name, _ in ROWS]), 1, "no usable sample"),
    "absent photos": (AUDIT, table([(f"{n}.png", "a") for n in range(9)]), 1, "missing: 1 more"),
    "few photos": (TUNE, table(ROWS), 2, "3 photos; tune needs 50"),
    "gone, to tune": (
        TUNE,
        table([*ROWS, *((f"x{n}.png", "a dog") for n in range(50))]),
        1, "50 photos missing, such as",
    ),
    "no such table": (TUNE, lambda f: (f / "own.csv").unlink(), 1, "own.csv"),
    "one split": (TUNE, table(TRAIN, "image,caption,split"), 2, "split"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_own_photos(
    case: str, written_squares: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, spoil, status, words = CASES[case]
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (30, 30), (number, 0, 0)).save(folder / f"{number}.png")
    table(ROWS)(folder)
    spoil(folder)
    own, model = str(folder / "own.csv"), f"--model={written_squares / 'base'}"
    images, out = f"--images={folder}", f"--out={tmp_path / 'out'}"
    code = main(
        {
            AUDIT: ["data", "audit", "--data", own, images, "--decode"],
            INDEX: ["index", str(folder), model, out, "--device=cpu"],
            TUNE: ["tune", own, images, model, out, "--device=cpu"],
        }[verb]
    )
    printed = "".join(capsys.readouterr())
    assert (code, words in printed) == (status, True), printed
    assert "Traceback" not in printed
    if status:
        assert not (tmp_path / "out").exists()
