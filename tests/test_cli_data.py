"""`compoclip data ls|check|fetch` on small roots and a local server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from benchmark_files import (
    SUGARCREPE,
    sugarcrepe_row,
    write_json,
    write_photo,
    write_sugarcrepe,
)
from compoclip.benchmarks import fetch as fetching
from compoclip.benchmarks.catalogue import catalogue, entry
from compoclip.benchmarks.check import check
from compoclip.benchmarks.download import Expected
from compoclip.benchmarks.meta import STATUSES
from compoclip.benchmarks.registry import benchmark_names, meta
from compoclip.benchmarks.sources import SOURCES, Source
from compoclip.cli import data_fetch
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.targets import find_in
from test_benchmarks_crepe import row as crepe_row
from test_benchmarks_crepe import write_csv
from test_benchmarks_download import zipped
from test_benchmarks_spatial import vsr_row
from web_server import Site, served

Capture = pytest.CaptureFixture[str]


def test_every_source_is_of_something_that_a_benchmark_needs() -> None:
    needed = {
        place for name in benchmark_names() for place in (*meta(name).files, *meta(name).images)
    }
    assert set(SOURCES) <= needed
    for target, source in SOURCES.items():
        assert source.target == target
        assert source.url.startswith(("https://", "http://images.cocodataset.org/", "http://vis"))
        assert len(source.md5) in (0, 32)


def test_the_catalogue_states_every_benchmark(capsys: Capture) -> None:
    assert [each.meta.id for each in catalogue()] == list(benchmark_names())
    assert all(each.meta.status in STATUSES for each in catalogue())
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
    assert entry("sugarcrepe").size > 815_000_000
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


@pytest.fixture
def site() -> Iterator[Site]:
    with served(Site()) as found:
        yield found


@pytest.fixture
def mirror(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """SugarCrepe in miniature on the local server, its photos in an archive."""
    made = official_like(tmp_path / "made")
    for name in SUGARCREPE:
        url = SOURCES[f"sugarcrepe/{name}.json"].url
        path = fetching.rebased(url, "")
        site.files[path] = (made / "sugarcrepe" / f"{name}.json").read_bytes()
    photo = (made / "coco" / "val2017" / "1.jpg").read_bytes()
    archive = zipped(tmp_path / "v.zip", {f"val2017/{n}.jpg": photo for n in (1, 2)})
    site.files["/zips/val2017.zip"] = archive.read_bytes()
    small = {
        target: Source(target, source.url, archive=source.archive)
        for target, source in SOURCES.items()
    }
    monkeypatch.setattr(fetching, "SOURCES", small)
    about = meta("sugarcrepe").__dict__
    monkeypatch.setitem(about, "hashes", {})
    monkeypatch.setitem(about, "expected", dict.fromkeys(SUGARCREPE, 2))
    return site


def test_fetch_annotations_and_photos(mirror: Site, tmp_path: Path, capsys: Capture) -> None:
    root = tmp_path / "root"
    arguments = ["data", "fetch", "sugarcrepe", "--data", str(root), "--url-base", mirror.url]
    mirror.break_at["/zips/val2017.zip"] = [100]
    assert main([*arguments, "--yes", "--json"]) == 0
    captured = capsys.readouterr()
    fetched = json.loads(captured.out)
    assert set(fetched["fetched"]) == {
        *(f"sugarcrepe/{name}.json" for name in SUGARCREPE),
        "coco/val2017",
    }
    assert fetched["not_verified"] == fetched["fetched"]
    assert captured.err.index("together") < captured.err.index("bytes")  # first what, then doing it
    assert check("sugarcrepe", root).complete
    assert not list(root.rglob("*.part*"))
    assert not list(root.rglob("*.zip"))
    mirror.asked.clear()
    assert main([*arguments, "--yes"]) == 0
    assert mirror.asked == []
    assert "0 files fetched" in capsys.readouterr().out

    (root / "coco" / "val2017" / "2.jpg").unlink()
    (root / "sugarcrepe" / "swap_obj.json").unlink()
    assert main([*arguments, "--yes", "--annotations-only"]) == 0
    assert [path.rpartition("/")[2] for path, _ in mirror.asked] == ["swap_obj.json"]
    assert main([*arguments, "--yes"]) == 0
    assert "1 of 2 photos missing" in capsys.readouterr().err
    assert check("sugarcrepe", root).complete


def test_fetch_asks_first(
    mirror: Site, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    arguments = ["data", "fetch", "sugarcrepe", "--data", str(root), "--url-base", mirror.url]
    assert main(arguments) == 2
    assert "say --yes" in capsys.readouterr().err
    monkeypatch.setattr(data_fetch, "_agreed", lambda: False)
    assert main(arguments) == 1
    assert "nothing was fetched" in capsys.readouterr().err
    assert mirror.asked == []
    assert not root.exists()


def test_fetch_refuses_what_is_gated(tmp_path: Path, capsys: Capture) -> None:
    for name in ("winoground", "colorswap"):
        assert main(["data", "fetch", name, "--data", str(tmp_path), "--yes"]) == 1
        error = capsys.readouterr().err
        assert "accept the terms" in error
        assert meta(name).source in error
        assert error.count("\n") == 1
    assert main(["data", "fetch", "spec", "--data", str(tmp_path), "--yes"]) == 1
    captured = capsys.readouterr()
    assert "spec/count/image2text.json: by hand" in captured.out
    assert main(["data", "fetch", "--data", str(tmp_path)]) == 2
    assert main(["data", "fetch", "retrieval", "--data", str(tmp_path)]) == 2
    (tmp_path / "edition.json").write_text('{"edition": "world"}')
    with pytest.raises(CompoclipError, match="edition 'world'"):
        fetching.lacking(["sugarcrepe"], tmp_path)


def test_a_missing_file_ends_with_one_line(mirror: Site, tmp_path: Path, capsys: Capture) -> None:
    path = fetching.rebased(SOURCES["sugarcrepe/swap_att.json"].url, "")
    del mirror.files[path]
    root = tmp_path / "root"
    arguments = ["data", "fetch", "sugarcrepe", "--data", str(root), "--url-base", mirror.url]
    assert main([*arguments, "--yes"]) == 1
    assert "answers 404" in capsys.readouterr().err.splitlines()[-1]


def test_official_checksums_are_asked_of_a_mirror(site: Site, tmp_path: Path) -> None:
    (job,) = [
        each
        for each in fetching.lacking(["cola"], tmp_path, annotations_only=True).jobs
        if each.source.target.startswith("cola/")
    ]
    assert job.expected == Expected(56_746, "", next(iter(meta("cola").hashes.values())))
    site.files[fetching.rebased(job.source.url, "")] = b"[]"
    with pytest.raises(CompoclipError, match="blake2b checksum"):
        fetching.fetch(job, tmp_path, url_base=site.url)
    assert not list(tmp_path.rglob("*.json*"))


SVO_HEAD = "sentence,pos_url,neg_url,subj_neg,verb_neg,obj_neg\n"
SVO = f"{SVO_HEAD}a man sits,http://x/1,http://x/2,False,True,False\n"


@pytest.mark.parametrize(
    ("target", "content", "wrong"),
    [
        ("svo_probes/svo_probes.csv", SVO, ""),
        ("svo_probes/svo_probes.csv", "<!DOCTYPE html>\n<p>Sorry, <b>no</b></p>\n", "kind"),
        ("svo_probes/svo_probes.csv", "a,b\n1,2\n", "kind"),
        ("svo_probes/svo_probes.csv", SVO_HEAD, "content"),
        ("mmvp_vlm/Questions.csv", "Question ID,Type,Statement\n1,Texts,a\n", ""),
        ("mmvp_vlm/Questions.csv", "<html>\n</html>\n", "content"),
        ("imagecode/valid_data.json", '{"set": {"0": "a dog"}}', ""),
        ("imagecode/valid_data.json", '{"message": "rate limited"}', "content"),
        ("imagecode/valid_data.json", "<html></html>", "kind"),
        ("imagecode/valid_data.json", "{}", "content"),
        ("imagecode/valid_data.json", "404", "kind"),
        ("flickr30k/flickr30k_test.json", '[{"image": "1.jpg", "caption": ["a"]}]', ""),
        ("flickr30k/flickr30k_test.json", '[{"image": "1.jpg"}]', "content"),
        ("vl_checklist/data/Relation/vg/action.json", '[["1.jpg", {"POS": ["a"]}]]', ""),
        ("hard_positives/data/vl_checklist_relations.json", "[[1]]", "content"),
    ],
)
def test_files_without_a_checksum_have_to_be_of_their_kind(
    site: Site, tmp_path: Path, target: str, content: str, wrong: str
) -> None:
    source = SOURCES[target]
    site.files[fetching.rebased(source.url, "")] = content.encode()
    job = fetching.Job(source, Expected(), "missing")
    assert job.checked_by == "nothing published"
    if not wrong:
        line = fetching.fetch(job, tmp_path, url_base=site.url)
        assert line.endswith(f"{len(content)} bytes, not verified: no published checksum")
        assert (tmp_path / target).read_text() == content
        return
    with pytest.raises(
        CompoclipError, match=rf"its {wrong} \(.*official file; it was del"
    ) as raised:
        fetching.fetch(job, tmp_path, url_base=site.url)
    assert "\n" not in str(raised.value)
    assert site.url in str(raised.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_archives_without_a_checksum_have_to_be_archives(site: Site, tmp_path: Path) -> None:
    source = SOURCES["visual7w"]
    job = fetching.Job(source, Expected(), "missing")
    assert job.checked_by == "nothing, plain http"
    path = fetching.rebased(source.url, "")
    site.files[path] = b"<html>gone</html>"
    with pytest.raises(CompoclipError, match=r"its kind \(no zip or tar archive\)"):
        fetching.fetch(job, tmp_path, url_base=site.url)
    assert not list(tmp_path.iterdir())
    site.files[path] = zipped(tmp_path / "v.zip", {}).read_bytes()
    with pytest.raises(CompoclipError, match="holds no file; delete it and fetch it again"):
        fetching.fetch(job, tmp_path, url_base=site.url)
    (tmp_path / "visual7w.zip").unlink()
    site.files[path] = zipped(tmp_path / "v.zip", {"im/1.jpg": b"1", "im/2.jpg": b"2"}).read_bytes()
    line = fetching.fetch(job, tmp_path, url_base=site.url)
    assert line.endswith("visual7w: 2 files, not verified: no published checksum")


def test_what_is_not_verified_is_said(mirror: Site, tmp_path: Path, capsys: Capture) -> None:
    root = tmp_path / "root"
    arguments = ["data", "fetch", "sugarcrepe", "--data", str(root), "--url-base", mirror.url]
    assert main([*arguments, "--yes", "--annotations-only"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("nothing published") == len(SUGARCREPE)
    assert captured.err.count("not verified: no published checksum") == len(SUGARCREPE)
    assert "7 files fetched, 7 of them not verified: no published checksum; " in captured.out
    assert main(["data", "ls", "svo_probes", "vsr"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no published checksum: what is fetched is not verified") == 1


def test_both_folders_of_visual_genome(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "cola").symlink_to(shared_data / "annotations" / "cola")
    lack = fetching.lacking(["cola"], tmp_path)
    assert [job.source.target for job in lack.jobs] == ["vg/VG_100K", "vg/VG_100K_2"]
    assert "420 of 420 photos" in lack.jobs[0].reason or "photos missing" in lack.jobs[0].reason


def test_sets_of_families(tmp_path: Path) -> None:
    lack = fetching.lacking(["retrieval:coco"], tmp_path)
    assert [job.source.target for job in lack.jobs] == [
        "coco/coco_karpathy_test.json",
        "coco/val2014",
    ]
    with pytest.raises(UsageError, match="family"):
        fetching.lacking(["retrieval:cocoa"], tmp_path)


def test_files_that_may_lack_are_no_problem(tmp_path: Path) -> None:
    folder = tmp_path / "elevater" / "mnist"
    folder.mkdir(parents=True)
    (folder / "test.txt").write_text("a.png 0\nb.png 9\n", encoding="utf-8")
    for name in ("a.png", "b.png"):
        write_photo(folder / name)
    found = check("zero_shot:mnist", tmp_path)
    assert found.files == ()
    assert found.problems == ("zero_shot: 2 of 10000 items",)
    (folder / "labels.txt").write_text("".join(f"{k}\n" for k in range(10)), encoding="utf-8")
    (state,) = check("zero_shot:mnist", tmp_path).files
    assert (state.path, state.state) == ("elevater/mnist/labels.txt", "present")


def test_a_box_beyond_its_photo_is_damage(tmp_path: Path) -> None:
    from benchmark_files import vg_row, write_json

    rows = [vg_row(), vg_row(image_path="5.jpg", bbox_x=100)]
    write_json(tmp_path / "aro" / "visual_genome_relation.json", rows)
    path = tmp_path / "aro" / "images" / "5.jpg"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(path)
    (tmp_path / "edition.json").write_text('{"edition": "mini"}')
    found = check("aro:vg_relation", tmp_path, decoding=True)
    assert found.damaged_count == 1
    assert "outside" in found.damaged[0]


@pytest.mark.parametrize("edition", [True, False])
def test_check_finds_files_where_the_readers_do(
    tmp_path: Path, capsys: Capture, edition: bool
) -> None:
    """VSR as its repository keeps it, CREPE's tables in one folder, one of Flickr8k's files."""
    if edition:
        write_json(tmp_path / "edition.json", {"edition": "mini"})
    for name in ("random_dev", "random_test", "zeroshot_dev", "zeroshot_test"):
        path = tmp_path / "vsr" / f"{name.replace('_', '/')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [vsr_row(), vsr_row(0)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
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
