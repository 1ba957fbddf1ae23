"""What a run or a pack was made from: every part counts, and a difference is named."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from build.tables import write_json, write_parquet
from compoclip.cli.main import main
from compoclip.data import fingerprint as module
from compoclip.data.fingerprint import FILE, Fingerprint, checksums, make_once
from compoclip.data.pack import PackSpec, pack
from compoclip.data.sources import Sample
from compoclip.data.sources.open import Request, open_source
from compoclip.differences import listed
from compoclip.errors import CompoclipError, UsageError
from data_samples import few
from test_data_pack import write_rows
from train_helpers import write_config, write_data

COUNT = 8


def as_parquet(folder: Path) -> str:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    images = [{"bytes": (folder / row["image"]).read_bytes(), "path": None} for row in rows]
    captions = [row["caption"] for row in rows]
    write_parquet(folder / "rows.parquet", {"image": images, "caption": captions})
    return str(folder / "rows.parquet")


def as_shards(folder: Path) -> str:
    shutil.rmtree(folder / "shards", ignore_errors=True)
    pack(Request(str(folder / "rows.jsonl")), folder / "shards", PackSpec(keep=True, shard_size=4))
    return str(folder / "shards")


def as_mixture(folder: Path) -> str:
    return f"{folder / 'rows.jsonl'}=1 {folder / 'other' / 'rows.jsonl'}=1"


def as_selection(folder: Path) -> str:
    left = {"selection_of": {"spec": str(folder / "rows.jsonl")}, "without": ["0.jpg#0"]}
    write_json(folder / "selection.json", left)
    return str(folder / "selection.json")


KINDS: dict[str, Callable[[Path], str]] = {
    "table": lambda folder: str(folder / "rows.jsonl"),
    "parquet": as_parquet,
    "shards": as_shards,
    "mixture": as_mixture,
    "selection": as_selection,
}


def edit(folder: Path, before: str, after: str) -> None:
    table = folder / "rows.jsonl"
    text = table.read_text()
    assert before in text
    table.write_text(text.replace(before, after))


def grow(folder: Path) -> None:
    (folder / "5.jpg").write_bytes((folder / "5.jpg").read_bytes() + b"more")


def touch(folder: Path) -> None:
    os.utime(folder / "5.jpg", ns=(1, 1))


def exchange(folder: Path) -> None:
    """Write another photo of the same size and time in the place of one."""
    photo = folder / "5.jpg"
    status, content = photo.stat(), photo.read_bytes()
    photo.write_bytes(content[:-6] + bytes(4) + content[-2:])
    os.utime(photo, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "captions": (lambda folder: edit(folder, "photo 5", "photo five"), "captions"),
    "negatives": (lambda folder: edit(folder, '["no photo 5"]', '["photo 6"]'), "negatives"),
    "neighbours": (lambda folder: edit(folder, "[6, 7]", "[6, 4]"), "neighbours"),
    "group": (lambda folder: edit(folder, '"g1"', '"g2"'), "group"),
    "score": (lambda folder: edit(folder, '"score": 3.0', '"score": 3.5'), "score"),
    "image size": (grow, "images"),
    "image time": (touch, "images"),
    "image content": (exchange, "images"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_source_holds_counts_and_is_named(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for change, (make, name) in CHANGES.items():
        shutil.rmtree(folder, ignore_errors=True)
        write_rows(folder, COUNT)
        write_rows(folder / "other", COUNT)
        before = open_source(KINDS[kind](folder)).fingerprint()
        before.save(tmp_path)
        assert Fingerprint.load(tmp_path).differences(before) == {}
        make(folder)
        if kind in ("parquet", "shards"):  # a file of images that is written again
            (folder / "5.jpg").touch()
        found = before.differences(open_source(KINDS[kind](folder)).fingerprint())
        if kind == "parquet" and name not in ("captions", "images"):
            name = "images"  # the table, written again
        assert name in found, (change, found)
        assert found[name].startswith(f"{name} of "), found


def test_a_source_of_one_s_own_is_asked_for_its_samples() -> None:
    def mine(caption: str, image: bytes) -> Fingerprint:
        return few([Sample("a", image, (caption,))]).fingerprint()

    first = mine("a cat", b"x")
    assert first.differences(mine("a cat", b"x")) == {}
    assert set(first.differences(mine("a dog", b"x"))) == {"captions"}
    assert set(first.differences(mine("a cat", b"y"))) == {"images"}


def test_what_is_said_of_differences(tmp_path: Path) -> None:
    rows = checksums({"captions": ["a", "b", "c"], "negatives": [["x"], [], ["y", "z"]]})
    digest = "0123456789abcdef"
    before = Fingerprint({"lr": 5e-4, "lora": {"rank": 4}, "my.py": digest, "old.py": digest}, rows)
    before.save(tmp_path)
    other = checksums({"captions": ["a", "B", "C"]})
    now = Fingerprint(
        {"lr": 1e-4, "lora": {"rank": 8}, "my.py": digest[::-1], "freeze": ("image",)}, other
    )
    said = Fingerprint.load(tmp_path).differences(now)
    assert listed(said) == (
        "lr was 0.0005, is 0.0001; lora.rank was 4, is 8; my.py changed; old.py is gone; "
        "freeze was none, is ['image']; captions of 2 of 3 rows changed and 1 more"
    )
    assert said["negatives"] == "negatives are gone"
    assert "old.py" not in before.differences(now, whole=False)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-1])
    with pytest.raises(CompoclipError, match="does not record what the folder was made from"):
        Fingerprint.load(tmp_path)


def test_a_fingerprint_holds_no_row_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path, stamp and text of every image were there until the last."""
    count, table = 10_000, tmp_path / "rows.jsonl"
    rows = ({"image": f"{number}.jpg", "caption": "a red mug"} for number in range(count))
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = open_source(str(table), split="all")
    monkeypatch.setattr("compoclip.data.sources._CHUNK", 500)
    monkeypatch.setattr(module, "_CHUNK", 500)
    source.fingerprint()  # imports what it needs
    tracemalloc.start()
    fingerprint = source.fingerprint()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(fingerprint.rows["images"]) == count
    assert peak < 300 * count  # of which it took twice as many


def test_what_a_fingerprint_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and last bytes of each image, which is opened once, and the columns."""
    table = write_rows(tmp_path / "in", 40)
    source = open_source(str(table))
    crc32 = module.zlib.crc32
    hashed: list[int] = []
    monkeypatch.setattr(
        module.zlib, "crc32", lambda data: [hashed.append(len(data)), crc32(data)][1]
    )
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
    source.fingerprint()
    monkeypatch.undo()
    files = sorted(str(tmp_path / "in" / f"{i}.jpg") for i in range(40))
    assert sorted(str(each) for each in opened if str(each).endswith(".jpg")) == files
    assert max(hashed) <= 2 * 16384
    assert sum(hashed) < 2 * table.stat().st_size + 60 * 60 + 40 * 2 * 16384


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and runs of them that stopped, and ended."""
    folder = tmp_path_factory.mktemp("begun")
    write_config(folder / "config.json", merges=100)
    write_data(folder / "data")
    for run, more in (("run", "--set=stop_after=1"), ("done", "--set=log_every=1")):
        assert main(arguments(folder, run, more)) == 0
    return folder


def arguments(folder: Path, run: str, *more: str) -> list[str]:
    options = ["--from-scratch", f"--model={folder / 'config.json'}", f"--out={folder / run}"]
    sizes = ["--batch-size=8", "--epochs=0.4", "--warmup=1", "--device=cpu", "--workers=0"]
    return ["train", "clip-ft", *options, f"--data={folder / 'data/data.tsv'}", *sizes, *more]


def change_captions(folder: Path) -> None:
    table = folder / "data" / "data.tsv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], *(f"{line} too" for line in lines[1:4]), *lines[4:]]))


def replace_image(folder: Path) -> None:
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(folder / "data" / "3.png")


@pytest.mark.parametrize(
    ("run", "change", "more", "said"),
    [
        ("run", change_captions, (), "captions of 3 of 40 rows changed; use the same, or another"),
        ("done", replace_image, (), "images of 1 of 40 rows changed"),
        (
            "run",
            None,
            ("--images={folder}/copy",),
            "images folder was {folder}/data, is",
        ),
        ("done", None, ("--lr=1e-4", "--seed=1"), "lr was 5e-06, is 0.0001; seed was 0, is 1"),
        ("run", None, ("--epochs=2",), "epochs was 0.4, is 2.0; the learning rate follows"),
        (
            "done",
            None,
            ("--epochs=2",),
            "train on from the finished model, --model",
        ),
        ("run", None, ("--freeze=image",), "freeze was none, is ['image']; "),
    ],
)
def test_resume_names_what_differs(
    begun: Path,
    run: str,
    change: Callable[[Path], None] | None,
    more: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = tmp_path / "data"
    shutil.copytree(begun / "data", kept)  # with its times
    shutil.copytree(begun / "data", begun / "copy", dirs_exist_ok=True)
    words = [each.format(folder=begun) for each in more]
    try:
        if change:
            change(begun)
        assert main(arguments(begun, run, "--resume", *words)) == 1
        told = capsys.readouterr().err.splitlines()[-1]
        assert "made with other settings: " in told
        assert said.format(folder=begun, run=run) in told
    finally:
        shutil.rmtree(begun / "data")
        shutil.copytree(kept, begun / "data")
    assert not (begun / "run" / "model").exists()


def test_a_pack_is_not_gone_on_with_when_an_image_has_changed(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    request, spec = Request(str(table)), PackSpec(size=24, shard_size=3)
    pack(request, tmp_path / "out", spec)
    grow(tmp_path / "in")
    with pytest.raises(UsageError, match=r"another pack \(images of 1 of 8 rows changed; neg"):
        pack(request, tmp_path / "out", spec)
    shutil.copytree(tmp_path / "in", tmp_path / "moved")
    with pytest.raises(UsageError, match=r"images folder was .*/in, is .*/moved"):
        pack(Request(str(table), images=tmp_path / "moved"), tmp_path / "out", spec)


# --- A product is reused only when its recorded inputs, its maker and its content are the same. ---


def test_a_product_is_made_once_and_again_for_other_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    product = tmp_path / "out.txt"
    texts = iter(["one", "two", "three", "four", "five"])

    def making(**values: object) -> bool:
        return make_once(product, Fingerprint(values), lambda: product.write_text(next(texts)))

    assert making(seed=0, photos="ab12cd34ef56")
    assert not making(photos="ab12cd34ef56", seed=0)
    assert product.read_text() == "one"
    assert making(seed=1, photos="0012cd34ef56")
    assert product.read_text() == "two"
    said = capsys.readouterr().err
    assert "out.txt: made anew: seed was 0, is 1; photos changed" in said
    monkeypatch.setattr(module, "__version__", "0.0.0")
    assert making(seed=1, photos="0012cd34ef56")
    assert "compoclip was" in capsys.readouterr().err
    product.unlink()
    assert making(seed=1, photos="0012cd34ef56")
    product.write_text("a user's own")
    with pytest.raises(CompoclipError, match=r"out\.txt: was changed after it was made"):
        making(seed=1, photos="0012cd34ef56")
    assert product.read_text() == "a user's own"


def test_a_product_without_a_record_is_refused_and_one_whose_making_stopped_is_made_again(
    tmp_path: Path,
) -> None:
    product, inputs = tmp_path / "model", Fingerprint({"seed": 0})
    product.mkdir()
    with pytest.raises(CompoclipError, match="does not record what the folder was made from"):
        make_once(product, inputs, product.mkdir)
    product.rmdir()

    def stopped() -> None:
        product.mkdir()
        (product / "weights").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_once(product, inputs, stopped)
    assert make_once(product, inputs, product.mkdir)
    assert not [*product.iterdir()]
    (product / "weights").write_text("more")  # a file that was added is a change
    with pytest.raises(CompoclipError, match="was changed after it was made"):
        make_once(product, inputs, product.mkdir)
