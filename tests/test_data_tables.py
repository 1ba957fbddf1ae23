"""CSV, TSV, JSON lines and Parquet: columns, ids, embedded images, and malformed files."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build.photos import snapshot
from build.tables import write_parquet, write_rows, write_text
from compoclip.bounds import MAX_TEXT_CHARACTERS
from compoclip.corpora import shard as corpora
from compoclip.data.columns import (
    EMPTY_CAPTION,
    EMPTY_CELL,
    EXTRA_COLUMNS,
    LONG_TEXT,
    NO_CAPTION,
    NO_IMAGE,
    NO_LABEL,
    NO_TEXT,
)
from compoclip.data.decode import decode
from compoclip.data.options import PackSpec
from compoclip.data.pack import pack
from compoclip.data.sources import Sample, Source, tables
from compoclip.data.sources.open import Request, open_source
from compoclip.data.written import read_bags, read_written_texts
from compoclip.errors import CompoclipError, UsageError
from compoclip.records import read_records

pytestmark = pytest.mark.usefixtures("user_cache")


def open_table(*files: Path, **options: Any) -> Source:
    return tables.open_tables(files, Request(str(files[0]), **options))


READ: dict[str, tuple[str, str, dict[str, object], list[str]]] = {
    "semicolons": ("t.csv", "Image;Caption\n1.jpg;a dog, a cat\n", {}, ["a dog, a cat"]),
    "bars and blanks": ("t.csv", "image | CAPTION\n1.jpg | a dog\n", {}, ["a dog"]),
    "tabs": ("t.csv", 'image\tcaption\n1.jpg\t"a, b"\n', {}, ["a, b"]),
    "commas in a .tsv": ("t.tsv", "image,caption\n1.jpg,a dog\n", {}, ["a dog"]),
    "blanks after commas": ("t.csv", 'image, caption\n1.jpg, "a, b"\n', {}, ["a, b"]),
    "quotes": ("t.csv", 'image,caption\n1.jpg,"Go" it\n', {"quoting": False}, ['"Go" it']),
    "quotes in tabs": ("t.tsv", 'image\ttext\n1.jpg\t"Go\n', {"quoting": False}, ['"Go']),
    "results.csv": (
        "results.csv",
        'image_name| comment_number| comment\n1.jpg| 0| "Go" it says\n1.jpg| 4   No bar\n',
        {},
        ['"Go" it says', "No bar"],
    ),
    "a column of results.csv": (
        "results.csv",
        "image_name| comment_number| comment\n1.jpg| 0| A dog\n",
        {"caption_column": "comment_number"},
        ["0"],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_delimiters_headers_and_quotes(tmp_path: Path, case: str) -> None:
    name, text, options, captions = READ[case]
    (tmp_path / "1.jpg").touch()
    source = open_source(str(write_text(tmp_path / name, text)), **options)  # type: ignore[arg-type]
    assert list(source.captions()) == captions


@pytest.mark.parametrize(
    "name", ["t.csv", "t.tsv", "t.jsonl", "t.json", "t.parquet", "captions.txt"]
)
def test_rows_of_one_photo_are_one_sample(tmp_path: Path, name: str) -> None:
    for number in range(3):  # the reader of captions.txt looks for the photos
        (tmp_path / f"{number}.jpg").touch()
    rows = [{"image": f"{i % 3}.jpg", "caption": f"text {i}"} for i in range(7)]
    rows.insert(1, {"image": "0.jpg", "caption": " "})
    source = open_source(str(write_rows(tmp_path / name, rows)))
    assert [Path(sample.image).name for sample in source] == ["0.jpg", "1.jpg", "2.jpg"]
    assert list(source.column("captions")) == [
        ("text 0", "text 3", "text 6"),
        ("text 1", "text 4"),
        ("text 2", "text 5"),
    ]
    assert dict(source.left_out) == {EMPTY_CAPTION: 1}
    if name != "captions.txt":  # whose reader knows photos, not rows
        assert source.describe().endswith(", 3 photos from 7 rows")
    if name not in ("captions.txt", "t.json"):
        assert list(source.column("id")) == ["0.jpg#0", "1.jpg#2", "2.jpg#3"]


@pytest.mark.parametrize("column", ["neg_caption", "pos_caption", "group", "score"])
def test_rows_that_bring_more_stay_samples(tmp_path: Path, column: str) -> None:
    rows = [{"image": "0.jpg", "caption": f"text {i}", column: ""} for i in range(3)]
    rows[2][column] = "0.5"
    source = open_source(str(write_rows(tmp_path / "t.csv", rows)))
    assert list(source.column("id")) == ["0.jpg#0", "0.jpg#1", "0.jpg#2"]
    assert "photos from" not in source.describe()


@pytest.mark.parametrize("cell", [None, float("nan"), "nan", " None ", ""])
@pytest.mark.parametrize("column", [*EXTRA_COLUMNS, "label"])
def test_an_empty_cell_of_any_column_brings_nothing(
    column: str, cell: object, tmp_path: Path
) -> None:
    row = {"image": "0.jpg", "caption": "a cat", column: cell}
    source = open_source(str(write_rows(tmp_path / "t.jsonl", [row])))
    assert (source.brings(), source.left_out) == (frozenset(), {})
    assert (source[0].score, source[0].image_score) == (None, None)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet"])
def test_several_columns_of_captions_and_a_folder_of_images(tmp_path: Path, name: str) -> None:
    rows = [{"img": f"{i}.jpg", "one": f"text {i}", "two": f"other {i}"} for i in range(5)]
    path, root = write_rows(tmp_path / name, rows), tmp_path / "photos"
    source = open_table(path, images=root, image_column="img", caption_column="one, two")
    assert list(source) == [
        Sample(f"{i}.jpg#{i}", root / f"{i}.jpg", (f"text {i}", f"other {i}")) for i in range(5)
    ]
    assert source.left_out == {}
    assert name in source.describe()
    with pytest.raises(IndexError):
        source[5]


LEFT_OUT: dict[str, tuple[list[object], list[str], dict[str, int]]] = {
    "lists": ([["x", 3, "", "y"]], ["x", "y"], {NO_TEXT: 1, EMPTY_CAPTION: 1}),
    "lists as text": (["['x y', \"it's\"]", "[sic] z"], ["x y", "it's", "[sic] z"], {}),
    "blank": (["  ", None, ["", "kept"]], ["kept"], {EMPTY_CAPTION: 2, NO_CAPTION: 2}),
    "words for an empty cell": (
        ["nan", "NaN", "None", "<NA>", "a naan bread"],
        ["a naan bread"],
        {EMPTY_CELL: 4, NO_CAPTION: 4},
    ),
    "no texts": ([5, float("nan"), "y"], ["y"], {NO_TEXT: 1, NO_CAPTION: 2}),
    "too long": (
        [["x" * MAX_TEXT_CHARACTERS, "x" * (MAX_TEXT_CHARACTERS + 1), None]],
        ["x" * MAX_TEXT_CHARACTERS],
        {NO_TEXT: 1, LONG_TEXT: 1},
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_is_no_caption_is_left_out_and_counted(tmp_path: Path, case: str) -> None:
    cells, captions, left_out = LEFT_OUT[case]
    rows = [{"image": f"{i}.jpg", "caption": cell} for i, cell in enumerate(cells)]
    source = open_table(write_rows(tmp_path / "a.jsonl", rows))
    assert list(source.captions()) == captions
    assert source.left_out == left_out


_PHOTO = {"image": "0.jpg"}
LACKING: dict[str, tuple[list[dict[str, object]], dict[str, Any], int, dict[str, int]]] = {
    "caption": ([_PHOTO, {"image": "1.jpg", "caption": "a cat"}], {}, 1, {NO_CAPTION: 1}),
    "image": ([{"caption": "a"}, {"image": "1.jpg", "caption": "a cat"}], {}, 1, {NO_IMAGE: 1}),
    "label": ([_PHOTO, {"image": "1.jpg", "label": "x"}], {"needs": "labels"}, 1, {NO_LABEL: 1}),
    "label or caption": (
        [{**_PHOTO, "label": "x"}, {"image": "1.jpg", "caption": "a cat"}],
        {"needs": "captions or labels"},
        2,
        {},
    ),
    "named column": (
        [{**_PHOTO, "caption": "x"}, {"image": "1.jpg", "words": "a cat"}],
        {"caption_column": "words"},
        1,
        {NO_CAPTION: 1},
    ),
    "another usual name": (
        [{**_PHOTO, "caption": "x"}, {"image": "1.jpg", "caption": "y", "title": "z"}],
        {},
        2,
        {},
    ),
    "long": (
        [*({"image": f"{i}.jpg"} for i in range(1500)), {"image": "x.jpg", "caption": "a cat"}],
        {},
        1,
        {NO_CAPTION: 1500},
    ),
}


@pytest.mark.parametrize("case", LACKING)
def test_the_first_rows_of_json_may_lack_columns(tmp_path: Path, case: str) -> None:
    rows, options, samples, left_out = LACKING[case]
    for name in ("a.jsonl", "a.json"):
        source = open_source(str(write_rows(tmp_path / name, rows)), **options)
        assert (len(source), source.left_out) == (samples, left_out), name


def test_paths_of_windows_are_read_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "im").mkdir()
    for name in ("im/1.jpg", "im\\2.jpg"):
        (tmp_path / name).write_bytes(b"")
    rows = "".join(f"{name},a cat\n" for name in ("im\\1.jpg", "im\\2.jpg", "im\\3.jpg"))
    source = open_table(write_text(tmp_path / "t.csv", f"image,caption\n{rows}"))
    assert [sample.image for sample in source] == [
        tmp_path / "im" / "1.jpg",
        tmp_path / "im\\2.jpg",  # a name of this system
        tmp_path / "im\\3.jpg",
    ]
    with pytest.raises(CompoclipError, match=r"not found; check .* backslashes: folders .* by /"):
        decode(source[2].image)
    (tmp_path.parent / "out.jpg").write_bytes(b"")
    outside = write_text(tmp_path / "o.csv", "image,caption\n..\\out.jpg,a cat\n")
    with pytest.raises(CompoclipError, match="lies outside"):
        open_table(outside)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl"])
def test_wrong_column_lists_the_columns(name: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / name, [{"path": "1.jpg", "words": "x"}])
    for image, caption, message in (
        ("path", "caption", "no column 'caption'; the columns are: path, words"),
        (None, None, "no caption column .*; name it with --caption-column, one of: path, words"),
        ("img", "words", "no column 'img'"),
    ):
        with pytest.raises(UsageError, match=message):
            open_table(path, image_column=image, caption_column=caption)


@pytest.mark.parametrize(
    "image", ["../../etc/passwd", "/etc/passwd", "a/../../b.jpg", "x\0.jpg", "http://h/a.jpg"]
)
def test_image_paths_may_not_leave_the_folder(tmp_path: Path, image: str) -> None:
    path = write_text(tmp_path / "a.jsonl", json.dumps({"image": image, "caption": "x"}))
    with pytest.raises(CompoclipError, match=r"a\.jsonl, line 1: "):
        open_table(path, images=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", b"image,caption\n1.jpg,x,y\n", "line 2 has 3 cells, the header has 2"),
        ("a.csv", b'image,caption\n1.jpg,"x\n', "check quoting"),
        ("a.csv", b"image,caption\n1.jpg,\xff\xfe\n", "not UTF-8"),
        ("a.csv", b"", "has no columns; name a file with a header and rows"),
        ("a.csv", b"image,caption\n", "has a header and no rows; add rows"),
        ("a.jsonl", b'{"image": "1.jpg"\n', "line 1: not valid JSON"),
        ("a.jsonl", b"[1]\n", "line 1: expected a JSON object"),
        ("a.jsonl", b'{"image": 3, "caption": "x"}\n', "is not the path of an image"),
        ("a.jsonl", b'\n{"image": "1", "caption": "\\ud800"}\n', "line 2: .* not valid text"),
        ("a.jsonl", b'{"image": "\\udfff", "caption": "x"}\n', "line 1: .* not valid text"),
        ("a.jsonl", b'{"image": "1", "caption": "x", "caption": "y"}\n', "line 1: .*'caption' occ"),
        ("a.jsonl", b'\n{"image": "1", "caption": "\xff"}\n', "line 2 is not UTF-8 text"),
        ("a.csv", b"image,caption\n1.jpg,ok\n1.jpg,\xff\n", "line 3 is not UTF-8 text"),
        ("a.csv", b"image,caption,caption\n1.jpg,x,y\n", "two columns are called 'caption'; keep"),
        ("a.csv", b'image,caption,"two\nlines"\n1.jpg,x\n', "has 2 cells"),
        ("a.csv", b'"an\nimage","a\ncaption"\n1.jpg,x\n', "no image column found"),
        ("a.csv", b"1.jpg,x\n2.jpg,y\n", "no header, its first line holds '1.jpg'; write a line i"),
        ("a.tsv", b"0\t" + b"9j/4" * 40 + b"\n", "no header, its first line holds '9j/49j/4"),
        ("a.parquet", b"PAR1 not really", "not a whole Parquet file"),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CompoclipError, match=reason) as raised:
        open_table(path)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_parquet_text_that_is_not_utf8_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    captions = pa.array([b"a red cup", b"caf\xe9"])
    unchecked = pa.Array.from_buffers(pa.string(), len(captions), captions.buffers())
    write_parquet(path, {"image": ["1.jpg", "2.jpg"], "caption": unchecked})
    for read in (open_table, lambda path: list(read_records(path))):
        with pytest.raises(CompoclipError, match=r"a\.parquet: holds text that is not UTF-8"):
            read(path)


def parquet_of_images(path: Path, first: int, count: int, struct: bool) -> None:
    images: list[object] = [f"image {i}".encode() * 3 for i in range(first, first + count)]
    if struct:
        images = [{"bytes": data, "path": None} for data in images]
    captions = [f"c{i}" if i % 5 else "" for i in range(first, first + count)]
    write_parquet(path, {"image": images, "text": captions}, row_group_size=50)


@pytest.mark.parametrize("struct", [False, True])
def test_embedded_images_at_random(tmp_path: Path, struct: bool) -> None:
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    parquet_of_images(files[0], 0, 130, struct)
    parquet_of_images(files[1], 130, 70, struct)
    source = open_table(*files)
    assert len(source) == 160
    assert source.left_out == {EMPTY_CAPTION: 40, NO_CAPTION: 40}
    for at in (source, pickle.loads(pickle.dumps(source))):  # noqa: S301 our own object
        for index in (159, 0, 77, 103):
            number = int(at[index].captions[0][1:])
            assert at[index].image == f"image {number}".encode() * 3
            file, row = ("a", number + 1) if number < 130 else ("b", number - 129)
            assert at[index].id == f"{file}.parquet, row {row}"


def test_embedded_images_are_copied_anew_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet_of_images(path, 0, 10, True)
    open_table(path)
    copy = next(tmp_path.glob(".a.parquet*"))
    before = copy.stat().st_mtime_ns
    open_table(path)
    assert copy.stat().st_mtime_ns == before
    parquet_of_images(path, 100, 10, True)
    os.utime(path, ns=(1, 1))
    assert open_table(path)[0].image == b"image 101" * 3


@pytest.mark.parametrize("place", [300, -300, -40])
def test_a_damaged_copy_of_embedded_images_is_made_again(
    place: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [bytes([k]) * 100 for k in range(9)]
    path = write_parquet(tmp_path / "t.parquet", {"image": images, "caption": ["a"] * 9})
    open_table(path)
    copy = next(tmp_path.glob(".t.parquet*"))
    data = bytearray(copy.read_bytes())
    if place == 300:  # an image
        place = data.index(images[4])
    data[place : place + 8] = b"damaged!"
    copy.write_bytes(data)
    for printed in ("copying the images of t.parquet once", ""):
        capsys.readouterr()
        assert [sample.image for sample in open_table(path)] == images
        error = capsys.readouterr().err
        assert printed in error if printed else not error


def test_extra_columns_beside_embedded_images(tmp_path: Path) -> None:
    names = ("image", "text", "neg_caption", "neg_image", "group", "score", "image_score")
    rows: list[tuple[object, ...]] = [
        (b"cat", "a cat", ["a dog"], b"dog", "x", 1.5, 20.0),
        (b"cup", "a cup", ["a jug", "a can"], None, None, None, None),
        (b"owl", "", None, b"hen", None, None, None),  # left out
        (b"car", "a car", [], b"bus", "x", 0.5, None),
    ]
    files = []
    for part in (rows[:2], rows[2:]):
        columns = {name: [row[i] for row in part] for i, name in enumerate(names)}
        files.append(write_parquet(tmp_path / f"{len(files)}.parquet", columns))
    source = open_table(*files)
    assert source.brings() == {"negatives", "negative_image", "group"}
    for at in (source, pickle.loads(pickle.dumps(source))):  # noqa: S301 our own object
        assert [sample.image for sample in at] == [b"cat", b"cup", b"car"]
        assert [sample.negatives for sample in at] == [("a dog",), ("a jug", "a can"), ()]
        assert [sample.negative_image for sample in at] == [b"dog", None, b"bus"]
        assert list(at.column("group")) == ["x", "", "x"]
        assert list(at.column("score")) == [1.5, None, 0.5]
        assert list(at.column("image_score")) == [20.0, None, None]
    copies = {path.name for path in tmp_path.glob(".*")}
    open_table(*files)
    assert {path.name for path in tmp_path.glob(".*")} == copies  # each column keeps its copy
    assert len(copies) == 4


def test_embedded_images_with_paths_or_rows_of_others(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    images, texts = [b"a", b"b", b"c"], ["one", "two", "three"]
    write_parquet(path, {"image": images, "text": texts, "neg_image": [[2], [0, 1], []]})
    assert [sample.neighbours for sample in open_table(path)] == [(2,), (0,), ()]
    write_parquet(path, {"image": images, "text": texts, "neg_image": ["x.png", "", None]})
    os.utime(path, ns=(1, 1))
    assert [s.negative_image for s in open_table(path)] == [tmp_path / "x.png", None, None]
    write_parquet(path, {"image": ["a.png"], "text": ["one"], "neg_image": [b"b"]})
    os.utime(path, ns=(2, 2))
    (sample,) = open_table(path)
    assert (sample.image, sample.negative_image) == (tmp_path / "a.png", b"b")
    other = write_parquet(tmp_path / "b.parquet", {"image": [b"a"], "text": ["one"]})
    with pytest.raises(CompoclipError, match=r"b\.parquet: holds images in other columns"):
        open_table(path, other)


def test_dictionaries_and_bytes_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array(["a cat", "a dög", None, "a cat"])
    columns = {
        "image": pa.array([f"{i}.jpg" for i in range(4)]).dictionary_encode(),
        "one": texts.dictionary_encode(),
        "two": texts.cast(pa.binary()),
        "several": pa.array([[b"x", b"\xff"], [], None, [b"y"]]),
        "neg_caption": pa.array([b"no", None, b"['a', 'b']", b""]),
    }
    write_parquet(path, columns)
    for column in ("one", "two"):
        source = open_table(path, caption_column=column)
        assert list(source.captions()) == ["a cat", "a dög", "a cat"]
        assert source.left_out == {NO_CAPTION: 1}
        assert source[0].image == tmp_path / "0.jpg"
        assert [sample.negatives for sample in source] == [("no",), (), ()]
    source = open_table(path, caption_column="several")
    assert list(source.captions()) == ["x", "y"]
    assert source.left_out == {NO_TEXT: 1, NO_CAPTION: 2}
    images = pa.array([b"one", b"two", b"one"]).dictionary_encode()
    write_parquet(path, {"image": images, "text": ["a", "b", "c"]})
    os.utime(path, ns=(1, 1))
    assert [sample.image for sample in open_table(path)] == [b"one", b"two", b"one"]


@pytest.mark.parametrize(
    ("columns", "caption", "reason"),
    [
        ({"image": [1], "text": ["a"]}, None, "'image' holds int64, not image paths or bytes"),
        ({"image": ["1.jpg"], "text": [3.5]}, None, "'text' holds double, not captions; choose"),
        ({"image": [b"x"]}, "image", "column 'image' holds images, not captions"),
    ],
)
def test_columns_of_another_kind(
    columns: dict[str, Any], caption: str | None, reason: str, tmp_path: Path
) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(UsageError, match=reason):
        open_table(path, caption_column=caption)


LISTS = {
    "list": pa.list_(pa.string()),
    "large": pa.large_list(pa.large_string()),
    "fixed": pa.list_(pa.string(), 2),
    "view": pa.list_view(pa.string()),
    "large view": pa.large_list_view(pa.string()),
    "codes": pa.list_(pa.dictionary(pa.int32(), pa.string())),
    "bytes": pa.list_(pa.binary(), 2),
}


@pytest.mark.parametrize("kind", LISTS)
def test_captions_in_lists_of_every_kind(kind: str, tmp_path: Path) -> None:
    texts = [["a cat", "a dog"], ["a cup", "a mug"]]
    as_bytes = [[text.encode() for text in row] for row in texts]
    cells = pa.array(as_bytes if kind == "bytes" else texts, LISTS[kind])
    path = write_parquet(tmp_path / "a.parquet", {"image": ["1.jpg", "2.jpg"], "caption": cells})
    assert [[*sample.captions] for sample in open_table(path)] == texts
    shard = corpora.opened_shard(path, None, (), corpora.new_counts())
    assert [[*row.captions] for rows, _ in shard.batches for row in rows] == texts


def test_a_column_that_occurs_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [pa.array([name]) for name in ("1.jpg", "x", "y")]
    pq.write_table(pa.Table.from_arrays(texts, ["image", "caption", "caption"]), path)
    with pytest.raises(CompoclipError, match=r"a\.parquet: two columns are called 'caption'; keep"):
        open_table(path)
    blank = write_text(tmp_path / "b.csv", "image,caption,,\n1.jpg,x,,\n")
    assert open_table(blank)[0].captions == ("x",)  # unnamed columns may be many


def test_an_image_in_a_table_is_named_by_file_and_row(tmp_path: Path) -> None:
    good = snapshot(8, 8)
    for name, images in (("a", [good, good]), ("b", [good, b"junk", good])):
        table = {"image": images, "text": [f"{name} {i}" for i in range(len(images))]}
        write_parquet(tmp_path / f"{name}.parquet", table)
    with pytest.raises(CompoclipError, match=r": b\.parquet, row 2: not an image of a known"):
        pack(Request(str(tmp_path)), tmp_path / "pack", PackSpec())
    other = write_parquet(tmp_path / "more" / "a.parquet", {"image": [good], "text": ["x"]})
    source = open_table(tmp_path / "a.parquet", other)
    assert list(source.column("id"))[2] == f"{other}, row 1"  # of one name in two folders


def test_texts_beside_the_data_must_be_texts(tmp_path: Path) -> None:
    for text in ("half \ud800", "x" * (MAX_TEXT_CHARACTERS + 1)):
        shown = r"must be a .*ud800" if text[0] == "h" else "more than 65,536 characters"
        row = {"caption": "a", "positive": text, "id": "a", "sentences": ["x", text]}
        path = write_text(tmp_path / "a.jsonl", f"\n{json.dumps(row)}")
        for read in (read_written_texts, read_bags):
            with pytest.raises(CompoclipError, match=f"line 2: .*{shown}"):
                read(path)


@pytest.mark.parametrize("column", ["caption", "image"])
def test_a_damaged_column_says_fetch_it_again(column: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"image": [b"one", b"two"], "caption": ["a cat", "a dog"]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    chunks = pq.ParquetFile(path).metadata.row_group(0)
    place = table.column_names.index(column)
    start = chunks.column(place).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:start] + b"\xff" * 12 + data[start + 12 :])
    with pytest.raises(CompoclipError, match=r"not a whole Parquet file .*fetch the file again"):
        open_table(path)
