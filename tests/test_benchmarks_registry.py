"""Benchmarks by name, editions, coverage of cases, and facts every benchmark must state."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from benchmark_files import (
    sugarcrepe_row,
    write_json,
    write_photo,
    write_sugarcrepe,
    write_sugarcrepe_pp,
)
from compoclip.benchmarks import registry
from compoclip.benchmarks.case import METRICS, Case, Form
from compoclip.benchmarks.coverage import present
from compoclip.benchmarks.registry import benchmark_names, load_benchmark, meta
from compoclip.benchmarks.skills import SKILLS
from compoclip.errors import CompoclipError, UsageError


def test_names_are_the_files_of_the_room() -> None:
    names = benchmark_names()
    assert set(names) >= {
        "aro",
        "hard_positives",
        "retrieval",
        "sugarcrepe",
        "sugarcrepe_pp",
        "sugarcrepe_pp_tot",
        "winoground",
        "zero_shot",
    }
    assert not {"files", "case", "registry", "coverage"} & set(names)


@pytest.mark.parametrize("name", benchmark_names())
def test_every_benchmark_states_its_facts(name: str) -> None:
    found = meta(name)
    assert found.id == name
    assert all((found.title, found.citation, found.source, found.licence, found.access))
    assert found.files
    assert set(found.skills.values()) <= set(SKILLS)
    assert all(0 < value < 1 for value in found.chance.values())
    assert all(count > 0 for count in found.expected.values())
    assert set(found.hashes) <= set(found.files)


def test_the_first_metric_of_every_form_is_set() -> None:
    assert set(METRICS) == set(Form)
    assert all(METRICS[form] for form in Form)


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


def test_other_packages_add_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_bench.py").write_text(
        "from dataclasses import replace\n"
        "from compoclip.benchmarks import winoground\n"
        "from compoclip.benchmarks.case import Benchmark\n"
        "META = replace(winoground.META, id='tiny')\n"
        "def load(root, images=None, *, subtasks=()):\n"
        "    return Benchmark('tiny', (), 'hash')\n",
        encoding="utf-8",
    )
    (tmp_path / "broken_bench.py").write_text("import no_such_module_here", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint(name, value, registry.GROUP)
        for name, value in (
            ("tiny", "tiny_bench"),
            ("broken", "broken_bench"),
            ("wrong", "json:loads"),
        )
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert "tiny" in benchmark_names()
    assert "tiny_bench" not in sys.modules
    assert load_benchmark("tiny", tmp_path).name == "tiny"
    with pytest.raises(CompoclipError, match="'broken_bench' cannot be imported"):
        load_benchmark("broken", tmp_path)
    with pytest.raises(CompoclipError, match="must be a module with META and load"):
        load_benchmark("wrong", tmp_path)


def test_an_edition_renames_and_expects_what_it_lists(tmp_path: Path) -> None:
    write_sugarcrepe(tmp_path)
    assert load_benchmark("sugarcrepe:swap_obj", tmp_path).expected == {"swap_obj": 245}
    write_json(tmp_path / "edition.json", {"edition": "world"})
    found = load_benchmark("sugarcrepe:swap_obj", tmp_path)
    assert found.name == "sugarcrepe@world"
    assert found.expected == {"swap_obj": 2}
    for bad in ({"edition": "a/b"}, {"edition": ""}, {}, []):
        write_json(tmp_path / "edition.json", bad)
        with pytest.raises(CompoclipError, match=r"edition\.json"):
            load_benchmark("sugarcrepe:swap_obj", tmp_path)


def test_editions_of_sets_count_queries(tmp_path: Path) -> None:
    write_json(tmp_path / "edition.json", {"edition": "world"})
    rows = [{"image": "val2014/1.jpg", "caption": ["a", "b", "c"]}]
    write_json(tmp_path / "coco" / "coco_karpathy_test.json", rows)
    found = load_benchmark("retrieval:coco", tmp_path)
    assert (found.name, found.expected) == ("retrieval_coco@world", {"i2t": 1, "t2i": 3})
    write_photo(tmp_path / "elevater" / "mnist" / "7" / "a.png")
    assert load_benchmark("zero_shot:mnist", tmp_path).expected == {"zero_shot": 1}


def test_cases_with_absent_photos_are_split_off(tmp_path: Path) -> None:
    rows = {str(k): sugarcrepe_row(filename=f"{k % 2}.jpg") for k in range(4)}
    write_sugarcrepe(tmp_path, swap_obj=rows)
    write_photo(tmp_path / "coco" / "val2017" / "1.jpg")
    found = load_benchmark("sugarcrepe:swap_obj", tmp_path)
    used, missing = present(found)
    assert isinstance(used, tuple)
    assert [case.id for case in used if isinstance(case, Case)] == ["swap_obj/1", "swap_obj/3"]
    assert missing == (str(tmp_path / "coco" / "val2017" / "0.jpg"),)
    write_photo(tmp_path / "coco" / "val2017" / "0.jpg")
    assert present(found) == (found.content, ())


def test_a_directory_is_no_photo_and_text_only_needs_none(tmp_path: Path) -> None:
    write_sugarcrepe_pp(tmp_path)
    (tmp_path / "coco" / "val2017" / "1.jpg").mkdir(parents=True)
    used, missing = present(load_benchmark("sugarcrepe_pp", tmp_path))
    assert used == ()
    assert len(missing) == 1
    assert present(load_benchmark("sugarcrepe_pp_tot", tmp_path))[1] == ()


def test_the_room_imports_no_torch() -> None:
    code = (
        "import sys; from compoclip.benchmarks.registry import benchmark_names; benchmark_names(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
