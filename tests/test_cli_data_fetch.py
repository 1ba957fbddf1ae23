"""`compoclip data fetch` from a local server: what is fetched, checked, said and refused."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark_files import SUGARCREPE
from build.tables import write_zip as zipped
from compoclip.benchmarks import fetch as fetching
from compoclip.benchmarks.check import check
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import meta
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from test_cli_data import official_like
from web_server import Site, served

Capture = pytest.CaptureFixture[str]
SOURCES = {k: v for name in benchmark_names() for k, v in meta(name).sources.items()}


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
    about = meta("sugarcrepe").__dict__
    small = [replace(source, size=0, md5="") for source in meta("sugarcrepe").sources.values()]
    monkeypatch.setitem(about, "remote", tuple(small))
    monkeypatch.setitem(about, "hashes", {})
    monkeypatch.setitem(about, "expected", dict.fromkeys(SUGARCREPE, 2))
    return site


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a command puts what it fetches."""
    return tmp_path / "root"


@pytest.fixture
def arguments(mirror: Site, root: Path) -> list[str]:
    return ["data", "fetch", "sugarcrepe", "--data", str(root), "--url-base", mirror.url]


def test_fetch_annotations_and_photos(
    mirror: Site, root: Path, arguments: list[str], capsys: Capture
) -> None:
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_fetch_asks_first(
    mirror: Site,
    root: Path,
    arguments: list[str],
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(arguments) == 2
    assert "add --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
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
        fetching.find_missing(["sugarcrepe"], tmp_path)


def test_a_missing_file_ends_with_one_line(
    mirror: Site, arguments: list[str], capsys: Capture
) -> None:
    del mirror.files[fetching.rebased(SOURCES["sugarcrepe/swap_att.json"].url, "")]
    assert main([*arguments, "--yes"]) == 1
    assert "answers 404" in capsys.readouterr().err.splitlines()[-1]


def test_official_checksums_are_asked_of_a_mirror(site: Site, tmp_path: Path) -> None:
    (job,) = [
        each
        for each in fetching.find_missing(["cola"], tmp_path, annotations_only=True).jobs
        if each.target.startswith("cola/")
    ]
    known = (56_746, "", next(iter(meta("cola").hashes.values())))
    assert (job.size, job.md5, job.blake2b) == known
    site.files[fetching.rebased(job.url, "")] = b"[]"
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
    job = SOURCES[target]
    site.files[fetching.rebased(job.url, "")] = content.encode()
    assert job.checked_by == "nothing known"
    if not wrong:
        line = fetching.fetch(job, tmp_path, url_base=site.url)
        assert line.endswith(f"{len(content)} bytes, not verified: no published checksum known")
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
    job = SOURCES["visual7w"]
    assert job.checked_by == "nothing, and plain http"
    path = fetching.rebased(job.url, "")
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
    assert line.endswith("visual7w: 2 files, not verified: no published checksum known")


def test_what_is_not_verified_is_said(arguments: list[str], capsys: Capture) -> None:
    assert main([*arguments, "--yes", "--annotations-only"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("nothing known") == len(SUGARCREPE)
    assert captured.err.count("not verified: no published checksum known") == len(SUGARCREPE)
    assert "7 files fetched, 7 of them not verified: no published checksum known; " in captured.out
    assert main(["data", "ls", "svo_probes", "vsr"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no published checksum known: not verified when fetched") == 1
    assert main(["data", "ls", "valse"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no published checksum known, plain http: not verified when fetched") == 1


def test_both_folders_of_visual_genome(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "cola").symlink_to(shared_data / "annotations" / "cola")
    lack = fetching.find_missing(["cola"], tmp_path)
    assert [job.target for job in lack.jobs] == ["vg/VG_100K", "vg/VG_100K_2"]
    assert "photos missing" in next(iter(lack.jobs.values()))


def test_sets_of_families(tmp_path: Path) -> None:
    lack = fetching.find_missing(["retrieval:coco"], tmp_path)
    assert [job.target for job in lack.jobs] == [
        "coco/coco_karpathy_test.json",
        "coco/val2014",
    ]
    with pytest.raises(UsageError, match="retrieval: no set 'cocoa'; did you mean coco"):
        fetching.find_missing(["retrieval:cocoa"], tmp_path)
    with pytest.raises(UsageError, match="family"):
        fetching.find_missing(["retrieval"], tmp_path)
