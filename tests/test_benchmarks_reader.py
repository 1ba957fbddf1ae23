"""What a reader's few lines become: parts, options, hash, expected counts and rules; and one clear
line when there is nothing to read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.tables import write_json
from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, TiePolicy
from compoclip.benchmarks.entries import meta_of
from compoclip.benchmarks.reader import CaseReader, Loading
from compoclip.benchmarks.registry import load_benchmark, meta, option_types
from compoclip.benchmarks.sources import RemoteFile
from compoclip.errors import CompoclipError, UsageError
from test_benchmarks_registry import install

ENTRY = {
    "title": "Cups",
    "citation": "Nobody, Cups, 2026",
    "source": "repository nobody/cups",
    "licence": "MIT",
    "images": ["cups/images", "coco/val2017"],
    "chance": "1/2",
    "parts": {"red": ["attribute", 3, 120, "0" * 32], "blue": ["attribute", 2], "odd": ["object"]},
    "repository": "nobody/cups@1234/data",
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


def write(root: Path) -> Path:
    row = {"image": "a/1.png", "caption": "a cup", "foil": "a mug"}
    for name in META.parts:
        write_json(root / "cups" / f"{name}.json", [{**row, "part": p} for p in (name, "odd")])
    return root


def test_facts_come_from_one_entry() -> None:
    assert META.parts == ("red", "blue", "odd")
    assert META.files == ("cups/red.json", "cups/blue.json", "cups/odd.json")
    assert META.expected == {"red": 3, "blue": 2}
    assert META.hashes == {"cups/red.json": "0" * 32}
    base = "https://raw.githubusercontent.com/nobody/cups/1234/data"
    assert META.remote[0] == RemoteFile("cups/red.json", f"{base}/red.json", 120)
    assert set(META.sources) == {*META.files, "coco/val2017"}  # the photos are known to all
    assert META.items == 5


def test_the_default_load(tmp_path: Path) -> None:
    root = write(tmp_path)
    found = CUPS.load(root)
    assert [(case.id, case.subtask) for case in found.content.cases] == [
        ("red/0", "red"),
        ("blue/0", "blue"),
    ]
    assert found.expected == {"red": 3, "blue": 2}
    assert found.skills == {"red": "attribute", "blue": "attribute"}
    assert (found.headline, found.ties) == ("both", {"": TiePolicy.FIRST})
    assert found.left_out == {}
    one = CUPS.load(root, subtasks=("r*",))
    assert (one.headline, set(one.aggregates)) == ("micro", {"micro", "macro", "reds"})
    assert one.data_hash != found.data_hash
    assert CUPS.load(root, tmp_path / "p").content.images[0].path == tmp_path / "p" / "a" / "1.png"


def test_options_are_the_arguments_of_the_function(tmp_path: Path) -> None:
    root = write(tmp_path)
    assert CUPS.options == {"annotations": "Path | None", "most": "int | None"}
    capped = CUPS.load(root, most=1)
    assert capped.left_out == {"beyond 1": 2}
    assert capped.data_hash != CUPS.load(root).data_hash
    moved = CUPS.load(tmp_path / "nowhere", annotations=root / "cups")
    assert moved.data_hash == CUPS.load(root).data_hash


def test_nothing_to_read_is_one_clear_line(tmp_path: Path) -> None:
    root = write(tmp_path)
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
    root = write(tmp_path)
    code = Path(__file__).read_text(encoding="utf-8")
    install(tmp_path / "site", "cups_bench", code, cups="cups_bench:CUPS")
    monkeypatch.syspath_prepend(tmp_path / "site")
    try:
        assert option_types("cups") == CUPS.options
        assert meta("cups").title == "Cups"
        assert load_benchmark("cups:red,blue", root).name == "cups"
    finally:
        sys.modules.pop("cups_bench", None)
