"""Packing: any source as shards with small images, whole or not there, resumable."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from build.photos import encode, smooth, snapshot
from compoclip.cli.main import main
from compoclip.data.decode import decode
from compoclip.data.fingerprint import FILE
from compoclip.data.pack import RECORD, PackSpec, PackSummary, pack, packed_image
from compoclip.data.sources import Sample
from compoclip.data.sources.open import Request, open_source
from compoclip.errors import CompoclipError, UsageError

pytestmark = pytest.mark.usefixtures("warm_workers")

SPEC = PackSpec(size=24, shard_size=3)


def write_rows(folder: Path, count: int = 8, bad: tuple[int, ...] = ()) -> Path:
    """Photos of growing size in a table with every extra column."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(count):
        data = b"junk" if i in bad else snapshot(20 + 4 * i, 60)
        (folder / f"{i}.jpg").write_bytes(data)
        row: dict[str, object] = {"image": f"{i}.jpg", "caption": [f"photo {i}", f"picture {i}"]}
        if i % 2:
            row |= {
                "neg_caption": [f"no photo {i}"],
                "neg_image": [(i + 1) % count, (i + 2) % count],
            }
        else:
            row |= {"neg_image": f"{(i + 1) % count}.jpg", "group": f"g{i // 4}"}
            row |= {"score": i / 2, "image_score": i + 10.5}
        lines.append(json.dumps(row))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "rows.jsonl"


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if not p.name.startswith(".")}


def content(sample: Sample) -> tuple[object, ...]:
    return sample.captions, sample.negatives, sample.neighbours


def test_a_pack_reads_as_its_source_does(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    packed = pack(Request(str(table)), tmp_path / "out", SPEC)
    source, small = open_source(str(table)), open_source(str(tmp_path / "out"))
    assert len(source) == len(small) == 8
    assert list(source.column("score")) == list(small.column("score"))
    assert list(source.column("image_score")) == list(small.column("image_score"))
    assert source.brings() == small.brings()
    for i in range(8):
        one, two = source[i], small[i]
        assert content(one) == content(two)
        assert isinstance(two.image, bytes)
        assert min(decode(two.image).size) == min(24, 20 + 4 * i)
        assert (one.negative_image is None) == (two.negative_image is None)
        if one.negative_image is not None:
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
    assert [small[i].captions[0] for i in range(7)] == [f"photo {i}" for i in (0, 1, 2, 4, 5, 6, 7)]
    assert small[1].neighbours == (2,)  # 3 is gone
    assert small[2].negative_image is None
    assert small[4].neighbours == (5, 6)  # rows 6 and 7
    with tarfile.open(tmp_path / "out" / "pack-000001.tar") as tar:
        file = tar.extractfile("00000003.json")
        assert file is not None
        assert "not an image" in json.load(file)["left_out"]


def test_bytes_do_not_depend_on_order_or_interruptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_rows(tmp_path / "in")
    request = Request(str(table))
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
    with pytest.raises(
        UsageError, match=r"another pack \(spec\.quality was 90, is 80\); choose another --out"
    ):
        pack(request, tmp_path / "out", replace(SPEC, quality=80))
    table.write_text(table.read_text().replace("photo 7", "photo seven"))
    with pytest.raises(UsageError, match="captions of 1 of 8 rows changed"):
        pack(request, tmp_path / "out", SPEC)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").write_text("")
    with pytest.raises(UsageError, match="is not a pack"):
        pack(request, tmp_path / "taken", SPEC)
    (tmp_path / "out" / RECORD).write_text("{")
    with pytest.raises(CompoclipError, match="not valid JSON"):
        pack(request, tmp_path / "out", SPEC)


def test_a_full_disk_leaves_whole_shards_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_rows(tmp_path / "in")
    request = Request(str(table))
    write, calls = tarfile.TarFile.addfile, []

    def full(self: tarfile.TarFile, info: tarfile.TarInfo, file: io.BytesIO) -> None:
        calls.append(info.name)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        write(self, info, file)

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(
        CompoclipError, match=r"pack-000001\.tar: cannot be written \(No space left"
    ):
        pack(request, tmp_path / "out", SPEC)
    assert sorted(bytes_of(tmp_path / "out")) == [
        FILE,
        "pack-000000.json",
        "pack-000000.tar",
        RECORD,
    ]
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.endswith(".tmp")]
    monkeypatch.undo()
    pack(request, tmp_path / "out", SPEC)
    pack(request, tmp_path / "whole", SPEC)
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "out")


@pytest.mark.slow
def test_processes_write_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_rows(tmp_path / "in", bad=(5,))
    asked = ["data", "pack", str(table), "--size=24", "--shard-size=3", "--max-bad=2", "--json"]
    for workers, out in ((1, "a"), (3, "b")):
        assert main([*asked, "--out", str(tmp_path / out), "--workers", str(workers)]) == 0
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert '"unreadable image": 1' in capsys.readouterr().out


def test_the_verb_tells_what_became_of_the_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_rows(tmp_path / "in", bad=(1,))
    asked = ["data", "pack", str(table), "--out", str(tmp_path / "out"), "--size=24"]
    assert main(asked) == 1
    assert "raise --max-bad and go on with the same command" in capsys.readouterr().err
    assert main([*asked, "--max-bad=2"]) == 0
    shown = capsys.readouterr()
    assert "8 samples in 1 shard, " in shown.out
    assert "9 images scaled down, 1 as they were" in shown.out
    assert "left out: " in shown.err
    assert "1 x unreadable image" in shown.err
    assert main([*asked, "--size=0"]) == 2
    assert main([*asked, "--quality=101"]) == 2
    assert main([*asked, "--workers=0"]) == 2
    assert main(["data", "pack", str(tmp_path / "no.csv"), "--out", str(tmp_path / "x")]) == 1
