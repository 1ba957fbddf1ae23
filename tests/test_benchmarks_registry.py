"""Benchmarks by name, editions, facts; what an entry and a reader's few lines become."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import expect_one_line, refuses, write_sugarcrepe, write_sugarcrepe_pp
from build.photos import write_photo
from build.tables import write_json, write_text
from compoclip.benchmarks import files, registry
from compoclip.benchmarks.case import SKILLS, Aggregate, Case, Form, ImageRef, TiePolicy, present
from compoclip.benchmarks.entries import entries, meta_of, rule_of
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.reader import CaseReader, Loading
from compoclip.benchmarks.registry import load_benchmark, meta, reader
from compoclip.benchmarks.table import reader_of
from compoclip.benchmarks.targets import parse_targets
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.forms import FORMS
from evaluation_helpers import flat, results_of, rule_value


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


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("sugercrepe", {}, "no benchmark 'sugercrepe'; did you mean sugarcrepe"),
        ("xyz", {}, "known: aro"),
        ("sugarcrepe:", {}, "expected name:part"),
        ("sugarcrepe:swap_obj,", {}, "expected name:part"),
        ("sugarcrepe", {"annotation": Path()}, "no option 'annotation'; did you mean annotations"),
        ("sugarcrepe", {"subtasks": ("swap_obj",)}, "no option 'subtasks'"),
    ],
)
def test_bad_specs(tmp_path: Path, spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_benchmark(spec, tmp_path, **options)


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


def test_a_missing_file_of_the_user_s_is_not_to_be_fetched(tmp_path: Path) -> None:
    place = tmp_path / "none"
    told = refuses("no such file", "", "sugarcrepe", tmp_path / "root", annotations=place)
    assert "data fetch" not in told


def install(site: Path, package: str, code: str, **entries: str) -> None:
    """What pip leaves of a package with entry points: the module and its metadata."""
    info = site / f"{package}-1.0.dist-info"
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    write_text(site / f"{package}.py", code)
    write_text(info / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    write_text(info / "entry_points.txt", f"[{registry.GROUP}]\n{''.join(lines)}")


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
        result = results_of(target.load(), tmp_path / "out", allow_partial=False)
        assert (result.benchmark, result.aggregates["micro"].n) == ("tiny", 6)
    finally:
        sys.modules.pop("tiny_bench", None)


def test_other_packages_that_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"broken": "broken_bench", "wrong": "json:loads"}
    install(tmp_path / "site", "broken_bench", "import no_such_module_here", **entries)
    monkeypatch.syspath_prepend(tmp_path / "site")
    refuses("'broken_bench' cannot be imported", "", "broken", tmp_path)
    refuses("must be a module with META and load", "", "wrong", tmp_path)


def test_an_edition_renames_and_expects_what_it_lists(tmp_path: Path) -> None:
    write_sugarcrepe(tmp_path)
    assert load_benchmark("sugarcrepe:swap_obj", tmp_path).expected == {"swap_obj": 245}
    write_json(tmp_path / "edition.json", {"edition": "world"})
    found = load_benchmark("sugarcrepe:swap_obj", tmp_path)
    assert (found.name, found.expected) == ("sugarcrepe@world", {"swap_obj": 2})
    rows = [{"image": "val2014/1.jpg", "caption": ["a", "b", "c"]}]
    write_json(tmp_path / "coco" / "coco_karpathy_test.json", rows)
    found = load_benchmark("retrieval:coco", tmp_path)
    assert (found.name, found.expected) == ("retrieval_coco@world", {"i2t": 1, "t2i": 3})
    write_photo(tmp_path / "elevater" / "mnist" / "7" / "a.png")
    assert load_benchmark("zero_shot:mnist", tmp_path).expected == {"zero_shot": 1}
    for bad in ({"edition": "world", "more": 1}, {"edition": "a/b"}, {"edition": ""}, {}, []):
        write_json(tmp_path / "edition.json", bad)
        refuses(r"edition\.json", "", "sugarcrepe:swap_obj", tmp_path)


def test_a_directory_is_no_photo_and_text_only_needs_none(tmp_path: Path) -> None:
    write_sugarcrepe_pp(tmp_path)
    (tmp_path / "coco" / "val2017" / "1.jpg").mkdir(parents=True)
    used, missing = present(load_benchmark("sugarcrepe_pp", tmp_path))
    assert used == ()
    assert len(missing) == 1
    assert present(load_benchmark("sugarcrepe_pp_tot", tmp_path))[1] == ()


# --- A reader: parts, options, hash, expected counts and rules. ---


FACTS: dict[str, Any] = {
    "title": "Cups",
    "citation": "Nobody, Cups, 2026",
    "source": "made up",
    "licence": "CC0",
}
ENTRY = {
    **FACTS,
    "images": ["cups/images"],
    "chance": "1/2",
    "parts": {"red": ["attribute", 3], "blue": ["attribute", 2], "odd": ["object"]},
    "folder": "cups",
    "file": "{part}.json",
}
META = meta_of("cups", ENTRY)


def _cases(
    data: Loading, *, annotations: Path | None = None, most: int | None = None
) -> Iterator[Case]:
    """Every file holds rows of all parts."""
    for part in data.parts:
        path = (annotations or data.root / "cups") / f"{part}.json"
        for index, where, row in data.rows(part, path, "take other parts"):
            if most is not None and index >= most:
                data.left_out[f"beyond {most}"] += 1
                continue
            image = files.photo(data.photos("cups/images"), row, "image", where)
            texts = files.texts(row, ("caption", "foil"), where)
            said = files.text(row, "part", where)
            yield Case(f"{part}/{index}", Form.CHOOSE_TEXT, (image,), texts, said)
    data.stated.append(f"most {most}")


CUPS = CaseReader(
    META,
    _cases,
    {"both": Aggregate(("red", "blue")), "reds": Aggregate(("red",))},
    "both",
    TiePolicy.FIRST,
    usual=("red", "blue"),
    empty="no rows of PARTS; fetch it again",
)


def write_cups(root: Path) -> Path:
    row = {"image": "a/1.png", "caption": "a cup", "foil": "a mug"}
    for name in META.parts:
        write_json(root / "cups" / f"{name}.json", [{**row, "part": p} for p in (name, "odd")])
    return root


def test_the_default_load(tmp_path: Path) -> None:
    root = write_cups(tmp_path)
    found = CUPS.load(root)
    items = [(case.id, case.subtask) for case in found.content.cases]
    assert items == [("red/0", "red"), ("blue/0", "blue")]
    assert found.expected == {"red": 3, "blue": 2}
    assert found.skills == {"red": "attribute", "blue": "attribute"}
    assert (found.headline, found.ties) == ("both", {"": TiePolicy.FIRST})
    assert found.left_out == {}
    one = CUPS.load(root, subtasks=("r*",))
    assert (one.headline, set(one.aggregates)) == ("micro", {"micro", "macro", "reds"})
    assert (one.expected, one.skills) == ({"red": 3}, {"red": "attribute"})
    assert one.data_hash != found.data_hash
    assert CUPS.load(root, tmp_path / "p").content.images[0].path == tmp_path / "p" / "a" / "1.png"


def test_options_are_the_arguments_of_the_function(tmp_path: Path) -> None:
    root = write_cups(tmp_path)
    kinds = {name: option.kind for name, option in CUPS.options.items()}
    assert kinds == {"annotations": Path | None, "most": int | None}
    capped = CUPS.load(root, most=1)
    assert capped.left_out == {"beyond 1": 2}
    assert capped.data_hash != CUPS.load(root).data_hash
    moved = CUPS.load(tmp_path / "nowhere", annotations=root / "cups")
    assert moved.data_hash == CUPS.load(root).data_hash


def test_types_of_options_are_known_when_the_function_runs() -> None:
    def cases(data: Loading, *, most: "Absent" = 1) -> Iterator[Case]:  # type: ignore[name-defined]  # noqa: F821, UP037
        yield from ()

    with pytest.raises(UsageError, match="name 'Absent' is not defined; import it outside"):
        CaseReader(CUPS.meta, cases).options  # noqa: B018


def test_nothing_to_read_is_one_clear_line(tmp_path: Path) -> None:
    root = write_cups(tmp_path)
    with pytest.raises(UsageError, match="cups: no sub-task 'green'"):
        CUPS.load(root, subtasks=("green",))
    with pytest.raises(CompoclipError, match=r"red\.json: no rows of red, blue; fetch it again"):
        CUPS.load(root, most=0)
    (root / "cups" / "blue.json").unlink()
    with pytest.raises(CompoclipError, match=r"blue\.json: no such file; take other parts"):
        CUPS.load(root)
    write_json(root / "cups" / "red.json", [{"part": "red"}])
    with pytest.raises(CompoclipError, match=r"red\.json: row 0: no key 'image'; is this"):
        CUPS.load(root, subtasks=("red",))


def test_another_package_may_name_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cups(tmp_path)
    code = Path(__file__).read_text(encoding="utf-8")
    install(tmp_path / "site", "cups_bench", code, cups="cups_bench:CUPS")
    monkeypatch.syspath_prepend(tmp_path / "site")
    try:
        assert reader("cups").options == CUPS.options
        assert meta("cups").title == "Cups"
        assert load_benchmark("cups:red,blue", root).name == "cups"
    finally:
        sys.modules.pop("cups_bench", None)


# --- An entry of a table: what its keys say, and what they refuse. ---


CUPS_ENTRY = {
    **FACTS,
    "images": ["cups/photos"],
    "chance": "1/3",
    "parts": {"color": ["attribute", 2], "size": ["attribute"]},
    "file": "cups/cups.json",
    "form": "choose-text",
    "part": "{about}",
    "id": "{part}/{count}",
    "photos": ["photo"],
    "named": {"last": 1, "suffix": ".png"},
    "texts": ["said.true", "said.false*2"],
    "labels": {"maker": "maker?"},
    "unique": True,
}


def cup_row(**changes: Any) -> dict[str, Any]:
    said = {"true": "a red cup", "false": ["a blue cup", "a green cup"]}
    return {"photo": "http://x/1", "about": " Color", "said": said, **changes}


def cups_reader(**changes: Any) -> CaseReader:
    entry = {**CUPS_ENTRY, **changes}
    return reader_of(meta_of("cups", entry), entry)


def test_an_entry_makes_items(tmp_path: Path) -> None:
    rows = [cup_row(maker=""), cup_row(photo="a.JPG", about="size", maker=3)]
    write_json(tmp_path / "cups" / "cups.json", rows)
    entry = {"ties": "first", "rules": {"paper": {"micro": "all"}}, "headline": "paper"}
    found = cups_reader(**entry).load(tmp_path)
    texts = ("a red cup", "a blue cup", "a green cup")
    one, two = (ImageRef(tmp_path / "cups" / "photos" / name) for name in ("1.png", "a.JPG"))
    assert found.content == (
        Case("color/0", Form.CHOOSE_TEXT, (one,), texts, "color"),
        Case("size/0", Form.CHOOSE_TEXT, (two,), texts, "size", labels={"maker": "3"}),
    )
    assert (found.headline, found.ties) == ("paper", {"": TiePolicy.FIRST})
    assert found.aggregates["paper"] == Aggregate(("color", "size"), "micro")
    assert (found.expected, cups_reader().meta.chance) == ({"color": 2}, {"": 1 / 3})
    assert {*cups_reader(places={"images": "a", "vg": "b"}).options} == {"annotations", "vg_images"}


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([], {}, "no rows; fetch"),
        ({}, {}, "no rows; fetch"),
        ([3], {}, "row 0 must be an object, found 3"),
        ([cup_row(about="shape")], {}, "row 0: 'about' 'shape' is unknown; known: color, size"),
        ([cup_row(said=3)], {}, "row 0: 'said' must be an object"),
        ([cup_row(said={"false": ["a", "b"]})], {}, "row 0: 'said': no key 'true'"),
        ([cup_row(said={"true": "a", "false": ["a"]})], {}, "'said.false' must hold 2 texts, not"),
        ([cup_row(photo="..")], {"named": {}}, "leads outside"),
        ([cup_row(), cup_row()], {}, "row 1: the same as .*row 0"),
        ([cup_row(right=3)], {"truth": "right"}, "'right' 3 is no place among 3 candidates"),
        ([cup_row(right=0.5)], {"truth": "right"}, "'right' 0.5 is no place among 3 candidates"),
        ([cup_row(a=0)], {"truth": "a", "texts": ["said.true"]}, "is no place among 1 candidate; "),
        ([cup_row(a=[])], {"texts": ["a.0"]}, "row 0: 'a': the list is empty; fetch"),
        ([cup_row(a="x")], {"among": {"a": ["y", "z"]}}, "'a' 'x' is unknown; known: y, z"),
        ([cup_row(), cup_row()], {"key": "photo"}, "row 1: 'photo': 'http://x/1' occurs twice"),
        ([["a", "b"]], {"values": ["photo"]}, r"row 0: expected \[photo\], found 2"),
        ([cup_row(box=0)], {"box": ["box"] * 4}, "a box of 0 x 0 pixels is empty"),
    ],
)
def test_malformed_rows(tmp_path: Path, rows: Any, changes: dict[str, Any], message: str) -> None:
    path = write_json(tmp_path / "cups" / "cups.json", rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        cups_reader(**changes).load(tmp_path)
    expect_one_line(caught.value, str(path))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (",['a']", "'false' must hold 2"),
        (",a", "'false' must be a Python list"),
        ("", "no key 'false'"),
    ],
)
def test_lists_in_cells(tmp_path: Path, cell: str, message: str) -> None:
    head = "photo,about,true,false" if cell else "photo,about,true"
    path = write_text(tmp_path / "cups" / "cups.csv", f"{head}\n1,color,a{cell}\n")
    entry = {"file": "cups/cups.csv", "texts": ["true", "false*2"], "columns": ["photo", "about"]}
    with pytest.raises(CompoclipError, match=f"row 1: {message}") as caught:
        cups_reader(**entry).load(tmp_path)
    expect_one_line(caught.value, str(path))


PUBLISHED: dict[str, tuple[tuple[float, ...], dict[str, float]]] = {
    "sugarcrepe": (
        (90.92, 80.08, 69.20, 61.22, 63.96, 77.21, 68.79),
        {"vl_compo": 73.03, "paper": 76.55, "replace": 80.07, "swap": 62.59, "add": 73.00},
    ),
    "sugarcrepe_pp": ((90, 60, 30, 50, 10), {"replace": 60, "swap": 30, "clic": 45}),
    "imagecode": ((50.70, 15.06), {"vl_compo": 21.72}),
    "svo_probes": ((84.07, 79.73, 88.62), {"vl_compo": 84.14}),
    "crepe_prod": ((18.96, 17.26, 34.90), {"vl_compo": 23.71}),
    "eqben": ((3.04, 4.52, 37.34, 22.2, 6.1, 1.0, 77.79), {"vl_compo": 26.49, "kubric": 9.77}),
    "valse": (
        (69.31, 57.58, 64.52, 61.89, 58.18, 65.98, 77.78, 71.76, 54.94, 51.92, 90.14),
        {"vl_compo": 67.53, "counting": 61.53},
    ),
    "whatsup": ((30.58, 30.88, 43.26, 50.68, 46.29, 47.08), {"vl_compo": 41.46}),
    "mmvp_vlm": ((0, 0, 13.333, 0, 0, 13.333, 13.333, 6.667, 13.333), {"vl_compo": 6.67}),
}
"""Benchmark -> published scores of CLIP by sub-task, and the means that they have to give."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_rules_return_the_published_means(name: str) -> None:
    scores, expected = PUBLISHED[name]
    about = meta(name)
    table = flat(dict(zip(about.parts, scores, strict=True)), about.expected)
    for rule, value in expected.items():
        found = rule_of(entries()[name]["rules"][rule], {"all": about.parts, "chosen": about.parts})
        assert rule_value(found, table) == pytest.approx(value, abs=0.011), rule
