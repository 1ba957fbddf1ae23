"""`compoclip data ls|check` on small roots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark_files import (
    SUGARCREPE,
    sugarcrepe_row,
    vg_row,
    write_json,
    write_photo,
    write_sugarcrepe,
)
from build.tables import write_jsonl
from compoclip.benchmarks.check import check
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import meta
from compoclip.benchmarks.sources import shared
from compoclip.benchmarks.targets import find_in
from compoclip.cli.main import main
from test_benchmarks_crepe import row as crepe_row
from test_benchmarks_crepe import write_csv
from test_benchmarks_spatial import vsr_row

Capture = pytest.CaptureFixture[str]


def test_every_source_is_of_something_that_a_benchmark_needs() -> None:
    needed = {
        place for name in benchmark_names() for place in (*meta(name).files, *meta(name).images)
    }
    named = {source for name in benchmark_names() for source in meta(name).remote}
    targets = [source.target for source in (*named, *shared().values())]
    assert len(targets) == len(set(targets))  # no two say otherwise of one file
    assert set(targets) <= {*needed, "coco/coco_karpathy_train.json"}  # `reproduce` trains on it
    for source in (*named, *shared().values()):
        assert source.url.startswith(("https://", "http://images.cocodataset.org/", "http://vis"))
        assert len(source.md5) in (0, 32)


def test_the_catalogue_states_every_benchmark(capsys: Capture) -> None:
    statuses = ("open", "partly gated", "gated", "partly dead", "gone")
    assert all(meta(name).status in statuses for name in benchmark_names())
    assert main(["data", "ls"]) == 0
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.strip()}
    assert set(benchmark_names()) <= set(rows)
    assert "7,511" in rows["sugarcrepe"]
    assert "gated" in rows["winoground"]
    assert "partly dead" in rows["svo_probes"]


def test_details_and_json_agree_with_meta(capsys: Capture) -> None:
    assert main(["data", "ls", "sugarcrepe", "winoground"]) == 0
    printed = capsys.readouterr().out
    about = meta("sugarcrepe")
    for word in (about.citation, about.licence, *about.files, *about.hashes.values()):
        assert word in printed
    assert meta("winoground").access in printed
    assert main(["data", "ls", "sugarcrepe", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["items"] == 7511
    assert {file["path"]: file["blake2b"] for file in found["files"]} == dict(about.hashes)
    assert all(file["url"].endswith(file["path"].split("/")[1]) for file in found["files"])
    assert meta("sugarcrepe").size > 815_000_000
    assert main(["data", "ls", "sugarcreep"]) == 2
    assert main(["data", "list"]) == 2
    assert main(["data"]) == 2


def official_like(root: Path) -> Path:
    write_sugarcrepe(root)
    write_photo(root / "coco" / "val2017" / "1.jpg")
    return root


def test_check_counts_what_is_short(tmp_path: Path, capsys: Capture) -> None:
    root = official_like(tmp_path)
    found = check("sugarcrepe", root)
    assert not found.complete
    assert {each.state for each in found.files} == {"differs"}
    assert (found.items["swap_obj"].here, found.items["swap_obj"].expected) == (2, 245)
    folder = str(root / "coco" / "val2017")
    assert (found.images[folder].here, found.images[folder].expected) == (1, 2)
    assert found.missing == (str(root / "coco" / "val2017" / "2.jpg"),)
    assert found.missing_count == 1

    assert main(["data", "check", "--data", str(root)]) == 1
    printed = capsys.readouterr().out
    assert "sugarcrepe: NOT COMPLETE" in printed
    assert "items of swap_obj: 2 of 245" in printed
    assert "photos in" in printed
    assert "2.jpg" in printed

    (root / "edition.json").write_text('{"edition": "mini"}')
    write_photo(root / "coco" / "val2017" / "2.jpg")
    assert main(["data", "check", "sugarcrepe", "--data", str(root), "--json"]) == 0
    (found_json,) = json.loads(capsys.readouterr().out)
    assert found_json["complete"]
    assert found_json["benchmark"] == "sugarcrepe@mini"
    assert {each["state"] for each in found_json["files"]} == {"present"}


def test_check_decodes_on_demand(tmp_path: Path) -> None:
    root = official_like(tmp_path)
    (root / "edition.json").write_text('{"edition": "mini"}')
    (root / "coco" / "val2017" / "2.jpg").write_bytes(b"no photo")
    assert check("sugarcrepe", root).complete
    found = check("sugarcrepe", root, decoding=True)
    assert found.damaged_count == 1
    assert "2.jpg" in found.damaged[0]
    assert not found.complete


def test_check_tells_the_parts_that_are_there(tmp_path: Path) -> None:
    root = official_like(tmp_path)
    (root / "sugarcrepe" / "add_obj.json").unlink()
    (root / "sugarcrepe" / "add_att.json").write_text("{")
    found = check("sugarcrepe", root)
    states = {each.path: each.state for each in found.files}
    assert states["sugarcrepe/add_obj.json"] == "missing"
    assert set(found.items) == set(SUGARCREPE[:5])
    assert any("add_obj.json: no such file" in line for line in found.problems)
    assert any("add_att.json: not valid JSON" in line for line in found.problems)


def test_check_without_anything(tmp_path: Path, capsys: Capture) -> None:
    assert main(["data", "check", "--data", str(tmp_path)]) == 1
    assert "no file of any benchmark" in capsys.readouterr().err
    assert main(["data", "audit", "--data", str(tmp_path / "captions.csv")]) == 1
    assert "captions.csv: not found; check the path" in capsys.readouterr().err
    assert main(["data", "check", "valse", "--data", str(tmp_path)]) == 1
    assert "valse/existence.json: MISSING" in capsys.readouterr().out


def test_the_real_files_are_official(shared_data: Path) -> None:
    for name in ("sugarcrepe", "sugarcrepe_pp", "valse"):
        found = check(
            name, Path("none"), options={"annotations": shared_data / "annotations" / name}
        )
        counts = {part: count.here for part, count in found.items.items()}
        assert counts == dict(meta(name).expected)
        assert all("photo" in problem for problem in found.problems)
    assert found.left_out == {"rows that fewer than two annotators found right": 1080}


def test_files_that_may_lack_are_no_problem(tmp_path: Path) -> None:
    folder = tmp_path / "elevater" / "mnist"
    folder.mkdir(parents=True)
    (folder / "test.txt").write_text("a.png 0\nb.png 9\n", encoding="utf-8")
    for name in ("a.png", "b.png"):
        write_photo(folder / name)
    found = check("zero_shot:mnist", tmp_path)
    assert found.files == ()
    assert found.problems == ("zero_shot: 2 of 10,000 items",)
    (folder / "labels.txt").write_text("".join(f"{k}\n" for k in range(10)), encoding="utf-8")
    (state,) = check("zero_shot:mnist", tmp_path).files
    assert (state.path, state.state) == ("elevater/mnist/labels.txt", "present")


def test_a_box_beyond_its_photo_is_damage(tmp_path: Path) -> None:
    rows = [vg_row(), vg_row(image_path="5.jpg", bbox_x=100)]
    write_json(tmp_path / "aro" / "visual_genome_relation.json", rows)
    path = write_photo(tmp_path / "aro" / "images" / "5.jpg", size=(20, 20))
    (tmp_path / "edition.json").write_text('{"edition": "mini"}')
    found = check("aro:vg_relation", tmp_path, decoding=True)
    assert found.damaged_count == 1
    assert "outside" in found.damaged[0]
    path.write_bytes(b"no photo")  # of which both boxes are cut
    assert check("aro:vg_relation", tmp_path, decoding=True).damaged_count == 1


@pytest.mark.parametrize("edition", [True, False])
def test_check_finds_files_where_the_readers_do(
    tmp_path: Path, capsys: Capture, edition: bool
) -> None:
    if edition:
        write_json(tmp_path / "edition.json", {"edition": "mini"})
    for name in ("random_dev", "random_test", "zeroshot_dev", "zeroshot_test"):
        path = tmp_path / "vsr" / f"{name.replace('_', '/')}.jsonl"
        write_jsonl(path, [vsr_row(), vsr_row(0)])
    for name in ("atom", "swap", "negate"):
        file = f"prod_vg_hard_negs_{name}_complexity_4.csv"
        write_csv(tmp_path / "crepe" / "prod_hard_negatives" / file, crepe_row())
    rows = [{"image": "1.jpg", "caption": ["a", "b"]}]
    write_json(tmp_path / "flickr8k" / "flickr8k_test.json", rows)
    for name in ("coco/train2017/000000451431.jpg", "vg/VG_100K/13.jpg", "flickr8k/images/1.jpg"):
        write_photo(tmp_path / name)
    code = main(["data", "check", "--data", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == (0 if edition else 1)
    assert "MISSING" not in printed
    if edition:
        assert printed.count(": complete") == 3
    state = "there" if edition else "there, but not the official bytes"
    assert f"  vsr/random/dev.jsonl: {state}, " in printed
    assert "  flickr8k/flickr8k_test.json: there, " in printed
    assert {"vsr", "crepe_prod", "retrieval:flickr8k"} <= {each.spec for each in find_in(tmp_path)}


def test_more_items_than_the_official_files_hold(tmp_path: Path) -> None:
    rows = {str(k): sugarcrepe_row(caption=f"cup {k}") for k in range(246)}
    write_sugarcrepe(tmp_path, swap_obj=rows)
    found = check("sugarcrepe:swap_obj", tmp_path)
    assert "swap_obj: 246 items, the official files hold 245; is a file there twice?" in (
        found.problems
    )
