"""Result bundles: what is in them, and that a changed outcome, hash or version is refused."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from list_bundles import PAGE, bundles, listed

from build.models import edit_json
from build.tables import write_json, write_jsonl
from compoclip.benchmarks.entries import official_hash
from compoclip.benchmarks.files import file_hash
from compoclip.benchmarks.registry import load_benchmark
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.bundle import BUNDLE, digest_of, write_bundle
from compoclip.evaluation.results import load_results
from compoclip.evaluation.verify import verify_bundle
from report_study import make_study

RESULT = "results/negclip/hard_positives.json"
ITEMS = "results/negclip/hard_positives.parquet"


def write_run(run: Path, identity: Mapping[str, Any], **provenance: Any) -> Path:
    """Write what a run of NegCLIP leaves: the record of its model, configuration and log."""
    totals = {"steps": 20, "images": 80, "texts": 160, "seconds": 3.5}
    provenance = {"method": "negclip", "torch": "2.11", "run": totals, **provenance}
    record = {"compoclip": "0.1.0", "identity": identity, "provenance": provenance}
    write_json(run / "model" / "compoclip.json", record)
    (run / "config.yaml").write_text("# a run\nmethod: negclip\nlr: 1.0e-05\ndata: photos.csv\n")
    lines = [{"step": k, "loss": 2.5, "images": 4 * k, "texts": 8 * k} for k in (10, 20)]
    write_jsonl(run / "train.jsonl", lines)
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder and results of its model and its base on forms of every kind."""
    folder = tmp_path_factory.mktemp("made")
    results = make_study(folder, photos=14, models=("base", "negclip"), resamples=40)
    run = write_run(folder / "run", load_results(results / "negclip")[0].identity)
    words = [str(run), "--results", str(results), "--against", "hard-positives"]
    assert main(["bundle", *words, "--out", str(folder / "bundle")]) == 0
    assert main(["bundle", *words, "--out", str(folder / "bundle.zip")]) == 0
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))


def sealed(bundle: Path) -> None:
    """Make the hashes again, as somebody does who changes a file and knows of them."""
    manifest = json.loads((bundle / BUNDLE).read_text())
    manifest.pop("digest")
    manifest["files"] = {name: file_hash(bundle / name) for name in manifest["files"]}
    (bundle / BUNDLE).write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))


def with_outcome(path: Path, column: str) -> None:
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[0] = 1.0 - values[0]
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array(values, pa.float64())), path)


def test_a_bundle_as_made_is_verified(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(made / "bundle", "bundle")
    places = [str(made / "bundle"), str(made / "bundle.zip"), str(tmp_path / "b.tar.gz")]
    assert main(["verify", *places, "--json"]) == 0
    for report in json.loads(capsys.readouterr().out).values():
        assert report["wrong"] == []
        assert "hashes of 25 files" in report["checked"]
        assert "paired tests with the base" in report["checked"]
        assert sum(line.startswith("scores and intervals") for line in report["checked"]) == 10
        unchecked = "\n".join(report["unchecked"])
        assert "negclip on retrieval_flickr8k: " in unchecked  # ranks hang on the whole gallery
        assert "hard_positives: 0" not in unchecked
        assert "sugarcrepe: a part of the benchmark, 14 of 20 items" in unchecked
        assert "that the weights give these scores" in unchecked
    page = (made / "bundle" / "page.md").read_text()
    assert "negclip against base (base)" in page
    assert "published" in page


def with_other_page(bundle: Path) -> None:
    path = bundle / "page.md"
    text = path.read_text()
    first = re.search(r"\d+\.\d", text)
    assert first is not None
    path.write_text(text.replace(first[0], "99.9", 1))


def with_another_file(bundle: Path) -> None:
    (bundle / "results" / "note.txt").write_text("the best of all")
    edit_json(bundle / BUNDLE, lambda d: d["files"].update({"results/note.txt": ""}))


def worse_weights(data: Any) -> None:
    data["identity"]["weights"] = "0" * 32


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    # what is changed -> how, and what says so when hashes are made again
    "outcome": (
        lambda b: with_outcome(b / ITEMS, "used.augmented"),
        r"hard_positives.parquet: cannot be read .*the augmented of 'attribute'",
    ),
    "outcome under another policy": (
        lambda b: with_outcome(b / ITEMS, "strict.original"),
        r"item attribute/0 of attribute: strict original is .*, its scores give",
    ),
    "score": (
        lambda b: edit_json(
            b / RESULT, lambda d: d["aggregates"]["replace"].update(value=0.99, high=1.0)
        ),
        r"negclip on hard_positives: replace: value is 0.99, the items give",
    ),
    "interval": (
        lambda b: edit_json(b / RESULT, lambda d: d["aggregates"]["replace"].update(low=0.0)),
        r"replace: low is 0, the items give",
    ),
    "weight hash": (
        lambda b: edit_json(b / "run" / "compoclip.json", worse_weights),
        r"bundle.json: run: weights is .*, the files have '0000",
    ),
    "version": (
        lambda b: edit_json(b / RESULT, lambda d: d["versions"].update(torch="9.9")),
        r"results of negclip on hard_positives: versions: torch is .*, the files have '9.9'",
    ),
    "annotations": (
        lambda b: edit_json(b / RESULT, lambda d: d.update(data_hash="1" * 32)),
        r"different annotations|annotations is .*, the files have '1111",
    ),
    "test": (
        lambda b: edit_json(b / "comparison.json", lambda d: d[0]["headlines"][0].update(p=1e-9)),
        r"comparison.json: 0: headlines: 0: p is 1e-09, the items give",
    ),
    "log": (
        lambda b: (b / "run" / "train.jsonl").write_text('{"step": 10}\n'),
        r"run/train.jsonl: ends at step 10, the run at 20",
    ),
    "page": (
        with_other_page,
        r"page.md: the line '.*' has 99.9, the other files give ",
    ),
    "another file": (
        with_another_file,
        r"results/note.txt: is no file of a bundle",
    ),
    "resamples": (
        lambda b: edit_json(b / RESULT, lambda d: d.update(resamples=10**9)),
        rf"{RESULT}: resamples must lie between 0 and 100000, found 1000000000 \(int\)",
    ),
    "method": (
        lambda b: (b / "run" / "config.yaml").write_text("method: clip-ft\n"),
        r"run/config.yaml: is of the method clip-ft, the model of negclip",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_change_is_refused_by_name(name: str, bundle: Path) -> None:
    change, words = CHANGES[name]
    change(bundle)
    sealed(bundle)
    wrong = verify_bundle(bundle).wrong
    assert any(re.search(words, line) for line in wrong), wrong


def test_every_file_with_another_hash_is_named(bundle: Path) -> None:
    names = json.loads((bundle / BUNDLE).read_text())["files"]
    for name in names:
        with (bundle / name).open("ab") as file:
            file.write(b"\n")
    pairs = [line.partition(": has the hash ") for line in verify_bundle(bundle).wrong]
    assert {name for name, words, _ in pairs if words} == {*names}


def test_changes_of_the_list_itself_are_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_json(bundle / BUNDLE, lambda d: d["machine"].update(cores=4096))
    assert main(["verify", str(bundle)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"compoclip verify: {bundle}: bundle.json: was changed: its digest is another"
    (bundle / "page.md").unlink()
    (bundle / "more.txt").write_text("new")
    wrong = verify_bundle(bundle).wrong
    assert "page.md: is missing" in wrong
    assert "more.txt: is not listed in bundle.json" in wrong
    (bundle / "link").symlink_to("/etc/hostname")
    with pytest.raises(CompoclipError, match="is a link"):
        verify_bundle(bundle)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "malformed, or of another version"),
        ('{"bundle": 2, "facts": {}, "files": {}}', "malformed, or of another version"),
    ],
)
def test_a_folder_that_is_no_bundle_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"bundle.json: no such file"):
        verify_bundle(tmp_path)
    (tmp_path / BUNDLE).write_text(content)
    with pytest.raises(CompoclipError, match=message):
        verify_bundle(tmp_path)


def test_archives_that_lead_outside_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("../bundle.json", "{}")
    with pytest.raises(CompoclipError, match="leads outside the archive"):
        verify_bundle(tmp_path / "b.zip")
    assert not (tmp_path.parent / BUNDLE).exists()


def test_a_run_that_cannot_be_bundled_is_refused(made: Path, tmp_path: Path) -> None:
    def refused(message: str, run: Path, results: Path, out: Path = tmp_path / "out") -> None:
        with pytest.raises(CompoclipError, match=message):
            write_bundle(run, results, out)
        assert not (tmp_path / "out").exists()

    refused("holds no model", tmp_path, made / "results")
    refused("no results of the weights", made / "run", made / "results" / "base")
    refused("already exists", made / "run", made / "results", made / "bundle")
    refused("already exists", made / "run", made / "results", made / "bundle.zip")
    twice = tmp_path / "twice"
    shutil.copytree(made / "results", twice / "a")
    shutil.copytree(made / "results", twice / "b")
    refused("two results of base on foils@world", made / "run", twice)


def test_the_hash_of_official_annotations_is_known(shared_data: Path) -> None:
    for name in ("sugarcrepe", "sugarcrepe_pp"):
        loaded = load_benchmark(name, shared_data / "annotations")
        assert official_hash(name, loaded.content.counts()) == loaded.data_hash
    assert official_hash("sugarcrepe", ["swap_obj"]) not in ("", loaded.data_hash)


def test_the_hash_of_other_annotations_is_unknown() -> None:
    hashes = [
        official_hash(*asked)
        for asked in (("cola", ["multi_object"]), ("sugarcrepe", ["swap_obj"]))
    ]
    assert all(hashes)
    for name, part in (("sugarcrepe@world", "swap_obj"), ("retrieval", "coco/i2t"), ("eqben", "")):
        assert official_hash(name, [part]) == ""


def test_a_forged_page_of_other_code_is_refused(tmp_path: Path) -> None:
    """Its words may differ, for other code wrote them; its numbers may not."""
    for path in bundles():
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / "b")
        with_other_page(tmp_path / "b")
        sealed(tmp_path / "b")
        wrong = verify_bundle(tmp_path / "b").wrong
        assert [line for line in wrong if line.startswith("page.md: the line")] == wrong
        assert len(wrong) == 1


def test_community_bundles_are_verified_and_listed() -> None:
    places = bundles()
    assert places
    assert [line for path in places for line in verify_bundle(path).wrong] == []
    assert all(path.stat().st_size < 2e6 for path in places if path.is_file())
    assert PAGE.read_text(encoding="utf-8").endswith(listed())
