"""Benchmarks by name, editions, coverage of cases, and facts every benchmark must state."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmark_files import refuses, write_sugarcrepe, write_sugarcrepe_pp
from build.photos import write_photo
from build.tables import write_json
from compoclip.benchmarks import registry
from compoclip.benchmarks.case import SKILLS, Form, present
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import parse_targets
from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder


@pytest.mark.parametrize("name", benchmark_names())
def test_every_benchmark_states_its_facts(name: str) -> None:
    found = meta(name)
    assert found.id == name
    assert all((found.title, found.citation, found.source, found.licence, found.access))
    assert found.files or found.family
    assert set(found.skills.values()) <= set(SKILLS)
    assert all(0 < value < 1 for value in found.chance.values())
    assert all(count > 0 for count in found.expected.values())
    assert set(found.hashes) <= set(found.files)


def test_the_first_metric_of_every_form_is_set() -> None:
    assert set(FORMS) == set(Form)
    assert all(FORMS[form].metrics for form in Form)
    assert all(FORMS[form].name is form for form in Form)


def test_bad_specs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no benchmark 'sugercrepe'; did you mean sugarcrepe"):
        load_benchmark("sugercrepe", tmp_path)
    with pytest.raises(UsageError, match="known: aro"):
        load_benchmark("xyz", tmp_path)
    for spec in ("sugarcrepe:", "sugarcrepe:swap_obj,"):
        with pytest.raises(UsageError, match="expected name:part"):
            load_benchmark(spec, tmp_path)
    with pytest.raises(UsageError, match="no option 'annotation'; did you mean annotations"):
        load_benchmark("sugarcrepe", tmp_path, annotation=tmp_path)
    with pytest.raises(UsageError, match="no option 'subtasks'"):
        load_benchmark("sugarcrepe", tmp_path, subtasks=("swap_obj",))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sugarcrepe:swap_*", "`compoclip data fetch sugarcrepe --data ROOT` downloads"),
        ("retrieval:coco", "`compoclip data fetch retrieval:coco --data ROOT` downloads"),
        ("crepe_prod", "`compoclip data fetch crepe_prod --data ROOT` downloads"),
        ("retrieval:flickr8k", "Official files: .*Illinois.*by request form"),
        ("vismin_bench", "Official files: dataset-hub page mair-lab/vismin-bench"),
        ("half_truths", "Official files: dataset-hub page kbora/Half-Truths"),
        ("zero_shot:cifar-10", "Official files: repository Computer-Vision-in-the-Wild"),
        ("winoground", "Official files: .*accept the terms"),
    ],
)
def test_a_missing_file_names_how_to_get_it(
    tmp_path: Path, spec: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "a b"
    refuses(expected.replace("ROOT", re.escape(f"'{root}'")), "", spec, root)
    monkeypatch.chdir(tmp_path)
    refuses(expected.replace("ROOT", r"\."), "", spec, Path())
    own = tmp_path / "none"  # the user's own place
    told = refuses("no such file", "", "sugarcrepe", tmp_path / "root", annotations=own)
    assert "data fetch" not in told


def install(site: Path, package: str, code: str, **entries: str) -> None:
    """What pip leaves of a package with entry points: the module and its metadata."""
    site.mkdir(exist_ok=True)
    (site / f"{package}.py").write_text(code, encoding="utf-8")
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    (info / "METADATA").write_text(about, encoding="utf-8")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{''.join(lines)}")


TINY = """
from dataclasses import replace
from compoclip.benchmarks import files, meta
from compoclip.benchmarks.case import Benchmark, Case, Form, ImageRef

META = replace(meta("winoground"), id="tiny", files=("tiny/rows.json",))

def load(root, images=None, *, subtasks=()):
    path = root / "tiny" / "rows.json"
    rows = files.items(files.read_json(path), str(path))
    cases = tuple(
        Case(str(k), Form.CHOOSE_TEXT, (ImageRef(root / "tiny" / photo),), (right, wrong), "tiny")
        for k, (photo, right, wrong) in enumerate(rows)
    )
    return Benchmark("tiny", cases, files.data_hash({"rows": path}))
"""


def test_an_installed_package_adds_a_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "site", "tiny_bench", TINY, tiny="tiny_bench")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "tiny" in benchmark_names()
    assert "tiny_bench" not in sys.modules
    try:
        assert main(["data", "ls", "tiny", "--json"]) == 0
        assert '"tiny/rows.json"' in capsys.readouterr().out
        rows = [[f"{k}.jpg", f"right {k}", f"wrong {k}"] for k in range(6)]
        write_json(tmp_path / "tiny" / "rows.json", rows)
        for name, _, _ in rows:
            write_photo(tmp_path / "tiny" / name)
        assert "tiny" in [target.spec for target in parse_targets(["all"], tmp_path)]
        (target,) = parse_targets(["tiny"], tmp_path)
        quick = Options(resamples=20)
        (result,) = evaluate("m", FakeEncoder(), [target.load()], tmp_path / "out", quick)
        assert (result.benchmark, result.aggregates["micro"].n) == ("tiny", 6)
    finally:
        sys.modules.pop("tiny_bench", None)


def test_other_packages_that_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path / "site",
        "broken_bench",
        "import no_such_module_here",
        broken="broken_bench",
        wrong="json:loads",
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    refuses("'broken_bench' cannot be imported", "", "broken", tmp_path)
    refuses("must be a module with META and load", "", "wrong", tmp_path)


def test_an_edition_renames_and_expects_what_it_lists(tmp_path: Path) -> None:
    write_sugarcrepe(tmp_path)
    assert load_benchmark("sugarcrepe:swap_obj", tmp_path).expected == {"swap_obj": 245}
    write_json(tmp_path / "edition.json", {"edition": "world"})
    found = load_benchmark("sugarcrepe:swap_obj", tmp_path)
    assert found.name == "sugarcrepe@world"
    assert found.expected == {"swap_obj": 2}
    for bad in ({"edition": "a/b"}, {"edition": ""}, {}, []):
        write_json(tmp_path / "edition.json", bad)
        refuses(r"edition\.json", "", "sugarcrepe:swap_obj", tmp_path)


def test_editions_of_sets_count_queries(tmp_path: Path) -> None:
    write_json(tmp_path / "edition.json", {"edition": "world"})
    rows = [{"image": "val2014/1.jpg", "caption": ["a", "b", "c"]}]
    write_json(tmp_path / "coco" / "coco_karpathy_test.json", rows)
    found = load_benchmark("retrieval:coco", tmp_path)
    assert (found.name, found.expected) == ("retrieval_coco@world", {"i2t": 1, "t2i": 3})
    write_photo(tmp_path / "elevater" / "mnist" / "7" / "a.png")
    assert load_benchmark("zero_shot:mnist", tmp_path).expected == {"zero_shot": 1}


def test_a_directory_is_no_photo_and_text_only_needs_none(tmp_path: Path) -> None:
    write_sugarcrepe_pp(tmp_path)
    (tmp_path / "coco" / "val2017" / "1.jpg").mkdir(parents=True)
    used, missing = present(load_benchmark("sugarcrepe_pp", tmp_path))
    assert used == ()
    assert len(missing) == 1
    assert present(load_benchmark("sugarcrepe_pp_tot", tmp_path))[1] == ()
