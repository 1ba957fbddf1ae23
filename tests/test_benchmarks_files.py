"""Shared reading helpers: every malformed input ends in one line that names the file."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmark_files import vg_row
from build.tables import write_parquet, write_zip
from compoclip.archives import read_members
from compoclip.benchmarks import arrow_tables, files, tables
from compoclip.captions.chunks import pre_caption
from compoclip.data.prompts import fill, read_index, read_names, read_templates
from compoclip.errors import CompoclipError, closest


def _write(tmp_path: Path, text: str | bytes, name: str = "x.json") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _jsonl(path: Path) -> list[tuple[object, object]]:
    return [(key, row) for key, _, row in tables.read_annotations(path, kind=".jsonl")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON (Expecting property name enclosed in double quotes: line 1"),
        ('{"a": 1, "a": 2}', "key 'a' occurs twice"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("[" * 200_000, "nested too deeply"),
        ("", "not valid JSON"),
        ("1" * 5000, "a number has thousands of digits"),
        ('{"a": "\\ud83d"}', "Half a character: line 1 column 8"),
    ],
)
def test_bad_json_names_the_file(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(CompoclipError) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_file_and_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match="no such file; do this"):
        files.read_json(tmp_path / "none.json", "do this")
    with pytest.raises(CompoclipError, match="cannot be read"):
        files.read_json(tmp_path)
    with pytest.raises(CompoclipError, match="no such file"):
        files.file_hash(tmp_path / "none.json")


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert files.read_json(_write(tmp_path, b"\xef\xbb\xbf[1]")) == [1]


def test_jsonl_counts_lines_and_keeps_line_separators_in_strings(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"a": 1}\n\n{"a": "x\u2028y"}\r\n')
    assert _jsonl(path) == [(1, {"a": 1}), (3, {"a": "x\u2028y"})]
    with pytest.raises(CompoclipError, match=r"line 2: expected a JSON object, found \[2\]"):
        _jsonl(_write(tmp_path, '{"a": 1}\n[2]\n'))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"caption": None}, "found None"),
        ({"caption": 3}, r"found 3 \(int\)"),
        ({"caption": []}, r"found \[\]"),
        ({"caption": "  "}, "is empty"),
        ({"caption": True}, "found True"),
        ({}, "f: row 1: no key 'caption'"),
    ],
)
def test_text_fields(row: dict[str, object], message: str) -> None:
    with pytest.raises(CompoclipError, match=message):
        files.text(row, "caption", "f: row 1")


def test_text_keeps_white_space() -> None:
    assert files.text({"caption": " a dog "}, "caption", "f") == " a dog "


def test_box_is_left_upper_right_lower() -> None:
    assert files.box(vg_row(), "f") == (1, 2, 4, 6.5)
    beyond = vg_row(bbox_x=-1, bbox_y=-2)  # as the official code, which crops with black there
    assert files.box(beyond, "f") == (-1, -2, 2, 2.5)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (vg_row(bbox_w=0), "a box of 0 x 4.5 pixels is empty"),
        (vg_row(bbox_h=-3), "a box of 3 x -3 pixels is empty"),
        (vg_row(bbox_y="2"), "'bbox_y' must be a number, found '2'"),
        (vg_row(bbox_y=True), "'bbox_y' must be a number"),
        (vg_row(bbox_h=float("nan")), "'bbox_h' must be a number"),
        ({"bbox_y": 1, "bbox_w": 2, "bbox_h": 3}, "no key 'bbox_x'"),
    ],
)
def test_bad_boxes(row: dict[str, object], message: str) -> None:
    with pytest.raises(CompoclipError, match=message):
        files.box(row, "f")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            (name, "leads outside the image folder")
            for name in ("../1.jpg", "a/../../b.jpg", "/etc/passwd", "C:\\x.jpg", "C:x.jpg")
        ),
        *((name, "leads outside the image folder") for name in ("a\\b", "a\0b", ".")),
        *(
            (name, "is longer than a file name can be")
            for name in ("x" * 256, "a/" + "\u00e9" * 200 + ".jpg", "a/" * 600 + "b.jpg")
        ),
    ],
)
def test_image_names_that_are_refused(name: str, words: str) -> None:
    with pytest.raises(CompoclipError, match=words):
        files.image_path(Path("photos"), name, "f: row 1")


def test_image_names_inside_the_root() -> None:
    assert files.image_path(Path("r"), "val2014/a..b.jpg", "f") == Path("r/val2014/a..b.jpg")


def test_identifiers_are_unique_across_types() -> None:
    seen: set[object] = set()
    assert files.identifier({"id": 3}, "id", "f", seen) == "3"
    with pytest.raises(CompoclipError, match="occurs twice"):
        files.identifier({"id": "3"}, "id", "f", seen)
    for bad in (True, None, "", 1.5):
        with pytest.raises(CompoclipError, match=r"'id' (must be|is empty)"):
            files.identifier({"id": bad}, "id", "f", set())


def test_data_hash_depends_on_bytes_and_extra_but_not_on_place(tmp_path: Path) -> None:
    one, two = _write(tmp_path, "a", "1"), _write(tmp_path, "b", "2")
    copy = _write(tmp_path, "a", "elsewhere")
    base = files.data_hash({"x": one, "y": two})
    assert base == files.data_hash({"y": two, "x": copy})
    different = [
        files.data_hash({"x": two, "y": one}),
        files.data_hash({"x": one}),
        files.data_hash({"x": one, "y": two}, ["tagger 2"]),
    ]
    assert len({base, *different}) == 4
    assert len(base) == 32


def test_pre_caption_follows_the_published_clean_up() -> None:
    raw = '  A "Red" dog*runs:  (fast);  over~#1, on.the grass! \n'
    assert pre_caption(raw, 30) == "a red dog runs fast over 1, on the grass"
    assert pre_caption("one  two three", 2) == "one two"


def test_templates_take_both_placeholders_and_leave_other_braces(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"pets": ["a {c}.", "{x} of {}"], "cars": ["no place"]}')
    templates = read_templates(path, "pets")
    assert fill(templates, "{c} cat {}") == ("a {c} cat {}.", "{x} of {c} cat {}")
    with pytest.raises(CompoclipError, match="needs the placeholder"):
        read_templates(path, "cars")
    with pytest.raises(CompoclipError, match="nothing for data set 'pet'; did you mean pets"):
        read_templates(path, "pet")
    for bad in ("[]", '["{} {c}"]', "[3]", '[""]', '{"pets": {"cat": ["{}"]}}'):
        with pytest.raises(CompoclipError):
            read_templates(_write(tmp_path, bad), "pets")


def test_templates_from_a_text_file(tmp_path: Path) -> None:
    path = _write(tmp_path, "a {}\n\nthe {c}.\n", "t.txt")
    assert read_templates(path, "any") == ("a {}", "the {c}.")
    with pytest.raises(CompoclipError, match="no templates"):
        read_templates(_write(tmp_path, "\n", "t.txt"), "any")


def test_the_first_alias_names_the_class(tmp_path: Path) -> None:
    path = _write(tmp_path, '[["happy", "smiling"], "sad"]')
    assert read_names(path, "fer-2013") == ("happy", "sad")
    for bad in ("[[]]", '[""]', "[1]", "3", "{}"):
        with pytest.raises(CompoclipError):
            read_names(_write(tmp_path, bad), "fer-2013")
    with pytest.raises(CompoclipError, match="names no class"):
        read_index(_write(tmp_path, "{}"))


def test_no_more_than_a_stated_size_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ANNOTATION_BYTES", 40)
    path = _write(tmp_path, "[" + " " * 40 + "]")
    for read in (files.read_json, _jsonl, files.read_text):
        with pytest.raises(CompoclipError, match="MiB, which no file of annotations has") as caught:
            read(path)
        assert str(caught.value).startswith(str(path))
    with pytest.raises(CompoclipError, match="which no file of annotations has"):
        list(tables.read_annotations(_write(tmp_path, "a,b\n" + "1,2\n" * 12, "x.csv"), ("a",)))
    archive = write_zip(tmp_path / "x.zip", dict.fromkeys("ab", "x" * 30))
    assert read_members(archive, {"one": "a"}, 40)["one"][1] == b"x" * 30
    with pytest.raises(CompoclipError, match=r"x.zip: b: more than .* MiB"):
        read_members(archive, {"one": "a", "two": "b"}, 40)


def test_texts_of_every_kind_in_an_arrow_file(tmp_path: Path) -> None:
    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.large_list(pa.large_string()))
    table = pa.table(
        {str(kind): pa.array([["a"] if "list" in str(kind) else "a"], kind) for kind in kinds}
    )
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table)
    (row,) = arrow_tables.table_rows(path, table.column_names)
    assert row == dict(zip(map(str, kinds), ("a", "a", "a", ["a"])))


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([Decimal("1.5")], "holds decimal128"),
        ([date(2020, 1, 1)], "holds date32"),
        ([None], "holds null"),
        (pa.array([["a", "b"]], pa.list_(pa.string(), 2)), ""),
        (pa.array(["a"], pa.large_string()), ""),
        (pa.array(["a"], pa.string_view()), ""),
    ],
)
def test_a_column_of_other_values_is_named(cells: Any, said: str, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"number": cells, "text": ["two dogs"]})
    if not said:
        assert arrow_tables.table_rows(path, ("number", "text"))[0].keys() == {"number", "text"}
        return
    with pytest.raises(CompoclipError, match=f"column 'number' {said}.*, no texts or numbers"):
        arrow_tables.table_rows(path, ("number", "text"))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["x" * 300_000] * 20, "more than 4 MiB"),
        ([None] * 5001, "more than the 5,000 rows"),
        ([[None] * 60_001], "or 60,000 values"),
    ],
    ids=["long texts", "rows", "values"],
)
def test_small_tables_that_unpack_to_much(
    tmp_path: Path, column: list[object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ANNOTATION_BYTES", 4 << 20)
    monkeypatch.setattr(arrow_tables, "MAX_ANNOTATION_ROWS", 5000)
    monkeypatch.setattr(arrow_tables, "MAX_ANNOTATION_VALUES", 60_000)
    path = write_parquet(tmp_path / "x.parquet", {"caption": column})
    assert path.stat().st_size < 1 << 20
    with pytest.raises(CompoclipError, match=message) as caught:
        arrow_tables.table_rows(path, ("caption",))
    assert str(caught.value).startswith(str(path))


def test_hints_are_short_whatever_names_a_file_holds() -> None:
    hint = closest("x", ["a\nb", *(f"{k} {'y' * 99}" for k in range(5000))])
    assert hint.isprintable()
    assert len(hint) < 1100
