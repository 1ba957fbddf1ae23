"""Packs of a source, and what a run or a pack was made from: every part counts."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from build.photos import encode, smooth, snapshot, write_photo
from build.runs import command
from build.tables import read_jsonl, write_json, write_jsonl, write_parquet, write_text
from compoclip.cli.main import main
from compoclip.data import fingerprint as module
from compoclip.data.decode import decode
from compoclip.data.fingerprint import FILE, Fingerprint, checksums, make_once
from compoclip.data.options import PackSpec
from compoclip.data.pack import RECORD, PackSummary, pack, packed_image
from compoclip.data.sources.open import Request, open_source
from compoclip.differences import listed
from compoclip.errors import CompoclipError, UsageError
from corpus_shards import tar_members

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("warm_workers")


SPEC = PackSpec(size=24, shard_size=3)


def write_rows(folder: Path, count: int = 8, bad: tuple[int, ...] = ()) -> Path:
    """Photos of growing size in a table with every extra column."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        data = b"junk" if i in bad else snapshot(20 + 4 * i, 60)
        (folder / f"{i}.jpg").write_bytes(data)
        row: dict[str, object] = {"image": f"{i}.jpg", "caption": [f"photo {i}", f"picture {i}"]}
        near = [(i + 1) % count, (i + 2) % count]
        if i % 2:
            row |= {"neg_caption": [f"no photo {i}"], "neg_image": near}
        else:
            row |= {"neg_image": f"{near[0]}.jpg", "group": f"g{i // 4}"}
            row |= {"score": i / 2, "image_score": i + 10.5}
        rows.append(row)
    return write_jsonl(folder / "rows.jsonl", rows)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if not p.name.startswith(".")}


def test_a_pack_reads_as_its_source_does(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    packed = pack(Request(str(table)), tmp_path / "out", SPEC)
    source, small = open_source(str(table)), open_source(str(tmp_path / "out"))
    assert len(source) == len(small) == 8
    for column in ("captions", "negatives", "score", "image_score"):
        assert list(source.column(column)) == list(small.column(column))
    assert source.brings() == small.brings()
    for i, (one, two) in enumerate(zip(source, small)):
        assert one.neighbours == two.neighbours
        assert isinstance(two.image, bytes)
        assert min(decode(two.image).size) == min(24, 20 + 4 * i)
        assert (one.negative_image is None) == (two.negative_image is None)
        if two.negative_image is not None:
            assert isinstance(two.negative_image, bytes)
            assert min(decode(two.negative_image).size) == 24
    assert (packed.samples, packed.shards, packed.scaled, packed.as_they_were) == (8, 3, 9, 3)
    shards = sorted((tmp_path / "out").glob("pack-*"))
    assert [shard.name for shard in shards] == [f"pack-00000{i}.tar" for i in range(3)]
    assert packed.size_bytes == sum(shard.stat().st_size for shard in shards)
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert PackSummary(**record["packed"]) == packed
    assert record["spec"] == {"size": 24, "quality": 90, "keep": False, "shard_size": 3}


def test_images_that_are_small_enough_stay_byte_for_byte(tmp_path: Path) -> None:
    for kind in ("JPEG", "PNG", "WEBP", "BMP"):
        data = snapshot(24, 30, kind)
        extension, new = packed_image(data, SPEC)
        assert (extension, new) == ("jpg" if kind == "JPEG" else kind.lower(), None)
        assert packed_image(snapshot(50, 60, kind), SPEC)[0] == "jpg"
    assert packed_image(snapshot(50, 60), replace(SPEC, keep=True)) == ("jpg", None)
    np.save(tmp_path / "a.npy", np.full((10, 12, 3), (255, 0, 0), np.uint8))
    extension, new = packed_image(tmp_path / "a.npy", SPEC)
    assert extension == "png"
    assert new is not None
    assert decode(new).getpixel((0, 0)) == (0, 0, 255)


@pytest.mark.parametrize(("width", "height"), [(48, 60), (61, 47), (25, 1000), (500, 26)])
def test_a_scaled_image_keeps_its_shape_and_looks(width: int, height: int) -> None:
    image = smooth(width, height)
    _, data = packed_image(encode(image), replace(SPEC, quality=95))
    assert data is not None
    small = decode(data)
    assert min(small.size) == 24
    assert small.width / small.height == pytest.approx(width / height, rel=0.05)
    exact = np.asarray(image.resize(small.size, Image.Resampling.BICUBIC), float)
    assert np.abs(np.asarray(small, float) - exact).mean() < 6


def test_what_cannot_be_read_is_counted_and_keeps_its_number(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in", bad=(3,))
    with pytest.raises(CompoclipError, match=r"2 unreadable images, 1 allowed: .*3\.jpg: not an"):
        pack(Request(str(table)), tmp_path / "out", SPEC, max_bad=1)
    packed = pack(Request(str(table)), tmp_path / "out", SPEC, max_bad=2)
    assert packed.left_out == {"unreadable image": 1, "unreadable negative image": 1}
    assert sorted(packed.bad) == ["2.jpg#2 (negative image)", "3.jpg#3"]
    small = open_source(str(tmp_path / "out"))
    assert len(small) == 7
    assert small.left_out["sample without an image"] == 1
    assert [s.captions[0] for s in small] == [f"photo {i}" for i in (0, 1, 2, 4, 5, 6, 7)]
    assert small[1].neighbours == (2,)  # 3 is gone
    assert small[2].negative_image is None
    assert small[4].neighbours == (5, 6)  # rows 6 and 7
    members = {name: data for name, _, data in tar_members(tmp_path / "out" / "pack-000001.tar")}
    assert "not an image" in json.loads(members["00000003.json"])["left_out"]


def test_bytes_do_not_depend_on_order_or_interruptions(tmp_path: Path, capsys: Capture) -> None:
    request = Request(str(write_rows(tmp_path / "in")))
    pack(request, tmp_path / "whole", SPEC)

    def backwards(work, tasks):  # type: ignore[no-untyped-def]
        return map(work, reversed(tasks))

    def dying(work, tasks):  # type: ignore[no-untyped-def]
        yield work(tasks[1])
        raise KeyboardInterrupt

    pack(request, tmp_path / "other", SPEC, backwards)
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        pack(request, tmp_path / "part", SPEC, dying)
    part = bytes_of(tmp_path / "part")
    assert sorted(part) == [FILE, "pack-000001.json", "pack-000001.tar", RECORD]
    assert "packed" not in json.loads(part[RECORD])
    before = (tmp_path / "part" / "pack-000001.tar").stat().st_mtime_ns
    pack(request, tmp_path / "part", SPEC)
    assert "resuming: 1 of 3 shards are there" in capsys.readouterr().err
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "part")
    assert (tmp_path / "part" / "pack-000001.tar").stat().st_mtime_ns == before
    assert pack(request, tmp_path / "part", SPEC, dying).shards == 3  # nothing left to do


def test_another_pack_is_not_mixed_in(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    request = Request(str(table))
    pack(request, tmp_path / "out", SPEC)
    other = r"another pack \(spec\.quality was 90, is 80\); choose another --out"
    with pytest.raises(UsageError, match=other):
        pack(request, tmp_path / "out", replace(SPEC, quality=80))
    table.write_text(table.read_text().replace("photo 7", "photo seven"))
    with pytest.raises(UsageError, match="captions of 1 of 8 rows changed"):
        pack(request, tmp_path / "out", SPEC)
    write_text(tmp_path / "taken" / "x", "")
    with pytest.raises(UsageError, match="is not a pack"):
        pack(request, tmp_path / "taken", SPEC)
    write_text(table, table.read_text().replace("photo seven", "photo 7"))
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    write_json(tmp_path / "out" / RECORD, {**record, "more": 1})
    with pytest.raises(CompoclipError, match=r"pack\.json: unknown field 'more' \(str\)"):
        pack(request, tmp_path / "out", SPEC)
    (tmp_path / "out" / RECORD).write_text("{")
    with pytest.raises(CompoclipError, match="not valid JSON"):
        pack(request, tmp_path / "out", SPEC)


def test_a_full_disk_leaves_whole_shards_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(str(write_rows(tmp_path / "in")))
    write, calls = tarfile.TarFile.addfile, []

    def full(self: tarfile.TarFile, info: tarfile.TarInfo, file: io.BytesIO) -> None:
        calls.append(info.name)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        write(self, info, file)

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    message = r"pack-000001\.tar: cannot be written \(No space left"
    with pytest.raises(CompoclipError, match=message):
        pack(request, tmp_path / "out", SPEC)
    assert [*bytes_of(tmp_path / "out")] == [FILE, "pack-000000.json", "pack-000000.tar", RECORD]
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.endswith(".tmp")]
    monkeypatch.undo()
    pack(request, tmp_path / "out", SPEC)
    pack(request, tmp_path / "whole", SPEC)
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "out")


@pytest.mark.slow
def test_processes_write_the_same_bytes(tmp_path: Path, capsys: Capture) -> None:
    table = write_rows(tmp_path / "in", bad=(5,))
    packing = ["data", "pack", str(table), "--size=24", "--shard-size=3", "--max-bad=2", "--json"]
    for workers, out in ((1, "a"), (3, "b")):
        assert main([*packing, "--out", str(tmp_path / out), "--workers", str(workers)]) == 0
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert '"unreadable image": 1' in capsys.readouterr().out


def test_the_verb_tells_what_became_of_the_images(tmp_path: Path, capsys: Capture) -> None:
    table = write_rows(tmp_path / "in", bad=(1,))
    packing = ["data", "pack", str(table), "--out", str(tmp_path / "out"), "--size=24"]
    assert main(packing) == 1
    assert "raise --max-bad and go on with the same command" in capsys.readouterr().err
    assert main([*packing, "--max-bad=2"]) == 0
    shown = capsys.readouterr()
    assert "8 samples in 1 shard, " in shown.out
    assert "9 images scaled down, 1 as they were" in shown.out
    assert "left out: " in shown.err
    assert "1 x unreadable image" in shown.err
    for option in ("--size=0", "--quality=101", "--workers=0"):
        assert main([*packing, option]) == 2
    assert main(["data", "pack", str(tmp_path / "no.csv"), "--out", str(tmp_path / "x")]) == 1


# --- Fingerprints: every part counts, and a difference is named. ---


def as_parquet(folder: Path) -> str:
    rows = read_jsonl(folder / "rows.jsonl")
    images = [{"bytes": (folder / row["image"]).read_bytes(), "path": None} for row in rows]
    columns = {"image": images, "caption": [row["caption"] for row in rows]}
    return str(write_parquet(folder / "rows.parquet", columns))


def as_shards(folder: Path) -> str:
    shutil.rmtree(folder / "shards", ignore_errors=True)
    pack(Request(str(folder / "rows.jsonl")), folder / "shards", PackSpec(keep=True, shard_size=4))
    return str(folder / "shards")


def as_mixture(folder: Path) -> str:
    return f"{folder / 'rows.jsonl'}=1 {folder / 'other' / 'rows.jsonl'}=1"


def as_selection(folder: Path) -> str:
    left = {"selection_of": {"spec": str(folder / "rows.jsonl")}, "without": ["0.jpg#0"]}
    return str(write_json(folder / "selection.json", left))


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
        write_rows(folder)
        write_rows(folder / "other")
        before = open_source(KINDS[kind](folder)).fingerprint()
        before.save(tmp_path)
        assert Fingerprint.load(tmp_path).differences(before) == {}
        make(folder)
        if kind in ("parquet", "shards"):  # a file of images that is written again
            (folder / "5.jpg").touch()
        differences = before.differences(open_source(KINDS[kind](folder)).fingerprint())
        if kind == "parquet" and name not in ("captions", "images"):
            name = "images"  # the table, written again
        assert differences[name].startswith(f"{name} of "), change


def test_what_is_said_of_differences(tmp_path: Path) -> None:
    rows = checksums({"captions": ["a", "b", "c"], "negatives": [["x"], [], ["y", "z"]]})
    digest = "0123456789abcdef"
    before = Fingerprint({"lr": 5e-4, "lora": {"rank": 4}, "my.py": digest, "old.py": digest}, rows)
    before.save(tmp_path)
    values = {"lr": 1e-4, "lora": {"rank": 8}, "my.py": digest[::-1], "freeze": ("image",)}
    now = Fingerprint(values, checksums({"captions": ["a", "B", "C"]}))
    differences = Fingerprint.load(tmp_path).differences(now)
    assert listed(differences) == (
        "lr was 0.0005, is 0.0001; lora.rank was 4, is 8; my.py changed; old.py is gone; "
        "freeze was none, is ['image']; captions of 2 of 3 rows changed and 1 more"
    )
    assert differences["negatives"] == "negatives are gone"
    assert "old.py" not in before.differences(now, whole=False)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-1])
    with pytest.raises(CompoclipError, match="does not record what the folder was made from"):
        Fingerprint.load(tmp_path)


def test_a_fingerprint_holds_no_row_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path, stamp and text of every image were there until the last."""
    count = 3000
    rows = ({"image": f"{number}.jpg", "caption": "a red mug"} for number in range(count))
    source = open_source(str(write_jsonl(tmp_path / "rows.jsonl", rows)), split="all")
    monkeypatch.setattr("compoclip.data.sources._CHUNK", 150)
    monkeypatch.setattr(module, "_CHUNK", 150)
    source.fingerprint()  # imports what it needs
    peaks = []
    for _ in range(2):  # in one of them Python's table of interned names may grow
        tracemalloc.start()
        fingerprint = source.fingerprint()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(fingerprint.rows["images"]) == count
    assert min(peaks) < 300 * count  # of which it took twice as many


def test_what_a_fingerprint_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and last bytes of each image, which is opened once, and the columns."""
    table = write_rows(tmp_path / "in", 40)
    source = open_source(str(table))
    crc32 = module.zlib.crc32
    hashed: list[int] = []
    monkeypatch.setattr(module.zlib, "crc32", lambda x: [hashed.append(len(x)), crc32(x)][1])
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    source.fingerprint()
    monkeypatch.undo()
    files = sorted(str(tmp_path / "in" / f"{i}.jpg") for i in range(40))
    assert sorted(name for name in opened if name.endswith(".jpg")) == files
    assert max(hashed) <= 2 * 16384
    assert sum(hashed) < 2 * table.stat().st_size + 60 * 60 + 40 * 2 * 16384


@pytest.fixture(scope="module")
def begun(written_squares: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The squares, and runs on them that stopped, and ended."""
    folder = shutil.copytree(written_squares, tmp_path_factory.mktemp("begun"), dirs_exist_ok=True)
    for run, more in (("run", ["--set=stop_after=1"]), ("done", [])):
        assert main(command(folder, run, "--epochs=0.4", *more)) == 0
    return folder


def change_captions(folder: Path) -> None:
    table = folder / "data" / "data.tsv"
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([head, *(f"{row} too" for row in rows[:3]), *rows[3:]]))


def replace_image(folder: Path) -> None:
    write_photo(folder / "data" / "3.png", size=(9, 9))


@pytest.mark.parametrize(
    ("run", "change", "more", "message"),
    [
        ("run", change_captions, (), "captions of 3 of 40 rows changed; use the same, or another"),
        ("done", replace_image, (), "images of 1 of 40 rows changed"),
        ("run", None, ("--images={folder}/copy",), "images folder was {folder}/data, is"),
        ("done", None, ("--lr=1e-4", "--seed=1"), "lr was 5e-06, is 0.0001; seed was 0, is 1"),
        ("run", None, ("--epochs=2",), "epochs was 0.4, is 2.0; the learning rate follows"),
        ("done", None, ("--epochs=2",), "train on from the finished model, --model"),
        ("run", None, ("--freeze=image",), "freeze was none, is ['image']; "),
    ],
)
def test_resume_names_what_differs(
    begun: Path,
    run: str,
    change: Callable[[Path], None] | None,
    more: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    shutil.copytree(begun / "data", tmp_path / "data")  # with its times
    shutil.copytree(begun / "data", begun / "copy", dirs_exist_ok=True)
    try:
        if change:
            change(begun)
        words = [word.format(folder=begun) for word in more]
        assert main(command(begun, run, "--epochs=0.4", "--resume", *words)) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert "made with other settings: " in error
        assert message.format(folder=begun) in error
    finally:
        shutil.rmtree(begun / "data")
        shutil.copytree(tmp_path / "data", begun / "data")
    assert not (begun / "run" / "model").exists()


# --- A product is reused only when its recorded inputs, its maker and its content are the same. ---


def test_a_product_is_made_once_and_again_for_other_inputs(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
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
    assert "out.txt: made anew: seed was 0, is 1; photos changed" in capsys.readouterr().err
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
