"""Zero-shot sets in the layouts of ELEVATER, CLIP_benchmark and hubs: all read the same photos."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import ImageColor

from benchmark_files import expect_one_line, refuses
from build.photos import plain
from build.tables import write_json, write_parquet, write_tar, write_text, write_zip
from compoclip.archives import Members
from compoclip.benchmarks.case import Classification, present
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import CompoclipError

SET, TABLE = Path("elevater") / "shapes", "test-00000-of-00001.parquet"
NAMES = ("box", "disc", "star shape")
LABELS = (0, 2, 1, 0)
COLOURS = ("red", "green", "blue", "white")


def encoded(k: int) -> bytes:
    return plain(COLOURS[k], (4, 3))


def write_index(folder: Path) -> None:
    write_zip(folder / "test.zip", {f"inner/my {k}.png": encoded(k) for k in range(4)})
    lines = [f"test.zip@inner/my {k}.png {label}\n" for k, label in enumerate(LABELS)]
    write_text(folder / "test.txt", "".join(lines))
    write_text(folder / "labels.txt", "\n".join(NAMES) + "\n")


def coco_rows() -> dict[str, list[dict[str, object]]]:
    """The photos of `write_index` in the layout of COCO, ids neither in order nor without gaps."""
    return {
        "images": [{"id": 9 - k, "file_name": f"test.zip@inner/my {k}.png"} for k in range(4)],
        "annotations": [
            {"id": k, "image_id": 9 - k, "category_id": 10 * label + 1}
            for k, label in enumerate(LABELS)
        ],
        "categories": [{"id": 10 * k + 1, "name": NAMES[k]} for k in (2, 0, 1)],
    }


def write_coco(folder: Path) -> None:
    write_index(folder)
    for name in ("test.txt", "labels.txt"):
        (folder / name).unlink()
    write_json(folder / "test_meta.json", coco_rows())


def write_shards(folder: Path, vectors: bool = False) -> None:
    for shard, photos in (("10.tar", (2, 3)), ("2.tar", (0, 1))):
        members = []
        for k in photos:
            label = (f"s{k}.cls", str(LABELS[k]).encode())
            if vectors:
                stream = io.BytesIO()
                np.save(stream, (np.arange(3) == LABELS[k]) | (np.arange(3) == 1))
                label = (f"s{k}.npy", stream.getvalue())
            members += [label, (f"s{k}.png", encoded(k))]
        write_tar(folder / "test" / shard, members)
    write_text(folder / "classnames.txt", "\n".join(NAMES))
    write_text(folder / "zeroshot_classification_templates.txt", "a {c}\nthe {c}\n")


def write_table(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded(k), "path": f"{k}.png"} for k in range(4)]
    label = {"names": names or NAMES, "_type": "ClassLabel"}
    feature = {"info": {"features": {"label": label}}}
    table = pa.table({"image": images, "label": list(LABELS)})
    table = table.replace_schema_metadata({"huggingface": json.dumps(feature)})
    pq.write_table(table, folder / TABLE)
    pq.write_table(table.slice(0, 1), folder / "train-00000-of-00001.parquet")


def write_folders(folder: Path) -> None:
    (folder / "train").mkdir(parents=True)
    for k, label in enumerate(LABELS):
        path = folder / "test" / NAMES[label].replace(" ", "_") / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(k))


LAYOUTS = {
    "index": write_index,
    "coco": write_coco,
    "shards": write_shards,
    "table": write_table,
    "folders": write_folders,
}


def content_of(root: Path, name: str = "shapes", **options: object) -> Classification:
    content = load_benchmark(f"zero_shot:{name}", root, **options).content
    assert isinstance(content, Classification)
    return content


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_photos_and_classes(tmp_path: Path, layout: str) -> None:
    LAYOUTS[layout](tmp_path / SET)
    found = load_benchmark("zero_shot:shapes", tmp_path)
    content = content_of(tmp_path)
    assert content.classes == NAMES
    assert present(found) == (content, ())
    (target,) = parse_targets([f"zero_shot:{tmp_path / SET}"], tmp_path)
    named = target.load().content  # of a user's own set, so to be turned upright
    assert (named.labels, named.classes) == (content.labels, NAMES)
    assert named.images == tuple(replace(ref, upright=True) for ref in content.images)
    members = Members()
    shown = {
        ref.decoded(members).getpixel((0, 0)): label
        for ref, label in zip(content.images, content.labels)
    }
    assert shown == {ImageColor.getrgb(name): label for name, label in zip(COLOURS, LABELS)}
    assert len({ref.photo for ref in content.images}) == 4


def test_templates_beside_shards_and_shards_in_order_of_numbers(tmp_path: Path) -> None:
    write_shards(tmp_path / SET)
    content = content_of(tmp_path)
    assert content.prompts[2] == ("a star shape", "the star shape")
    assert [ref.member for ref in content.images] == ["s0.png", "s1.png", "s2.png", "s3.png"]


def test_vectors_of_labels_are_tags(tmp_path: Path) -> None:
    write_shards(tmp_path / SET, vectors=True)
    content = content_of(tmp_path, metric="map11")
    assert content.tags == ((0, 1), (1, 2), (1,), (0, 1))
    assert content.labels == ()
    refuses("has 2 labels, which accuracy cannot score", "", "zero_shot:shapes", tmp_path)


def test_an_index_with_several_labels_and_absent_photos(tmp_path: Path) -> None:
    folder = tmp_path / SET
    write_index(folder)
    lines = ["test.zip@inner/my 0.png 0,2,0", "test.zip@gone.png 1", "no.zip@x.png 2", "a/b.png 2"]
    path = write_text(folder / "other.txt", "\n".join(lines))
    found = load_benchmark("zero_shot:shapes", tmp_path, metric="map11", annotations=path)
    assert isinstance(found.content, Classification)
    assert found.content.tags == ((0, 2), (1,), (2,), (2,))
    used, missing = present(found)
    assert isinstance(used, Classification)
    assert used.tags == ((0, 2),)
    gone = ("a/b.png", "no.zip@/x.png", "test.zip@/gone.png")
    assert missing == tuple(str(folder / name) for name in gone)
    assert found.headline == "map11"


INDEX: list[tuple[str, str]] = [
    ("", "lists no photo"),
    ("photo.png", "expected 'archive.zip@path label"),
    ("test.zip@inner/my 0.png cat", "labels 'cat' must be whole numbers"),
    ("test.zip@inner/my 0.png 1,", "must be whole numbers"),
    ("test.zip@inner/my 0.png -1", "must be whole numbers"),
    ("test.zip@inner/my 0.png 99999999999", "must be whole numbers"),
    ("test.zip@../../etc/passwd 1", "leads outside"),
    ("../x.zip@a.png 1", "leads outside"),
    ("/etc/passwd 1", "leads outside"),
    ("labels.txt@a.png 1", "labels.txt: cannot be unpacked"),
    ("a.png 1\na.png 1", "'a.png' is listed twice"),
]


@pytest.mark.parametrize(("text", "message"), INDEX)
def test_malformed_indexes(tmp_path: Path, text: str, message: str) -> None:
    write_index(tmp_path / SET)
    write_text(tmp_path / SET / "test.txt", text)
    file = "labels.txt" if "unpacked" in message else "test.txt"
    refuses(message, file, "zero_shot:shapes", tmp_path)


COCO: list[tuple[str, object, str]] = [
    ("images", None, "needs categories, images"),
    ("images", {}, "'images' must be a list"),
    ("images", [], "annotations 0: no image 9 in the file"),
    ("images", [7], "images 0 needs id; it has: 7"),
    ("images", [{"id": 9}, *coco_rows()["images"][1:]], "images 0: no key 'file_name'"),
    ("images", [{"id": True, "file_name": "a"}], "'id' must be a whole number or a text"),
    ("images", [{"id": 9, "file_name": "../a.png"}, *coco_rows()["images"][1:]], "leads outside"),
    ("images", [*coco_rows()["images"], {"id": 9, "file_name": "b"}], "'id': 9 occurs twice"),
    ("images", [*coco_rows()["images"], {"id": 1, "file_name": "b"}], "images 4: no annotation"),
    ("annotations", [{"image_id": 9, "category_id": 3}], "no category 3 in the file"),
    ("annotations", [{"image_id": True, "category_id": 3}], "'image_id' must be a whole number"),
    ("categories", [{"id": 1, "name": ""}], "categories 0: 'name' is empty"),
]


@pytest.mark.parametrize(("key", "value", "message"), COCO)
def test_malformed_coco_files(tmp_path: Path, key: str, value: object, message: str) -> None:
    write_coco(tmp_path / SET)
    rows: dict[str, object] = {**coco_rows(), key: value}
    if value is None:
        del rows[key]
    write_json(tmp_path / SET / "test_meta.json", rows)
    refuses(message, "test_meta.json", "zero_shot:shapes", tmp_path)


def test_coco_categories_keep_their_toolkit_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "elevater" / "hateful-memes"
    write_coco(folder)
    rows = coco_rows()
    rows["categories"] = [{"id": 1, "name": "benign"}, {"id": 21, "name": "other"}]
    rows["annotations"] = [row for row in rows["annotations"] if row["category_id"] != 11]
    rows["images"] = [row for row in rows["images"] if row["id"] != 7]
    write_json(folder / "test_meta.json", rows)
    content = content_of(tmp_path, "hateful-memes")
    assert content.classes == ("meme", "hatespeech meme")
    assert content.labels == (0, 1, 0)


def leading_back(data: bytearray) -> bytes:
    """A tar of which the first member has a size below 0: itself again."""
    data[124:136] = (2**96 - 512).to_bytes(12, "big")
    header = data[:148] + b" " * 8 + data[156:512]
    data[148:156] = b"%06o\0 " % sum(header)
    return bytes(data)


Member = tuple[str, bytes]
PHOTO = ("s0.png", encoded(0))
SHARDS: list[tuple[list[Member] | Callable[[bytearray], bytes], str]] = [
    ([("s0.cls", b"cat"), PHOTO], "2.tar@s0.png: label 'cat' is neither a number from 0 nor the"),
    (lambda data: b"not a tar" * 100, "2.tar: not a whole tar file"),
    (leading_back, "2.tar: not a whole tar file .*size below 0"),
]


@pytest.mark.parametrize(("spoilt", "message"), SHARDS)
def test_malformed_shards(
    tmp_path: Path, spoilt: list[Member] | Callable[[bytearray], bytes], message: str
) -> None:
    write_shards(tmp_path / SET)
    path = tmp_path / SET / "test" / "2.tar"
    if callable(spoilt):
        path.write_bytes(spoilt(bytearray(path.read_bytes())))
    else:
        write_tar(path, spoilt)
    refuses(message, "2.tar", "zero_shot:shapes", tmp_path)


LEFT_OUT: list[tuple[list[Member], str, int]] = [
    ([("alone.cls", b"1")], "sample without an image", 4),
    ([PHOTO], "sample without a label", 4),
    ([("s0.cls", b"-1"), PHOTO], "sample without a label", 4),
    ([("s0.npy", b"no array"), PHOTO], ".npy member that is no vector of 0 and 1", 4),
    (
        [("s0.cls", b"1"), PHOTO, ("s0.jpg", encoded(1))],
        "second image, .txt or .json member of a sample",
        5,
    ),
    ([("\udcff.png", encoded(0))], "tar member whose name is not UTF-8", 4),
]


@pytest.mark.parametrize(("members", "reason", "count"), LEFT_OUT)
def test_what_a_shard_holds_beside_photos_with_labels_is_counted(
    tmp_path: Path, members: list[Member], reason: str, count: int
) -> None:
    write_shards(tmp_path / SET)
    write_tar(tmp_path / SET / "test" / "3.tar", members)
    found = load_benchmark("zero_shot:shapes", tmp_path)
    assert found.left_out[reason] == 1
    assert found.content.counts() == {"zero_shot": count}


@pytest.mark.parametrize("pattern", ["*.tar", "{1..2}.tar", "{1.tar,2.tar}"])
def test_a_target_may_be_a_pattern(pattern: str, tmp_path: Path) -> None:
    members = [[(f"s{k}.cls", b"%d" % k), (f"s{k}.png", encoded(k))] for k in range(2)]
    for number, shard in enumerate(members, start=1):
        write_tar(tmp_path / f"{number}.tar", shard)
    classes = write_text(tmp_path / "names.txt", "box\ndisc\n")
    (target,) = parse_targets([f"zero_shot:{tmp_path / pattern},classes={classes}"], tmp_path)
    target.check()
    found = target.load()
    assert isinstance(found.content, Classification)
    assert (found.content.labels, found.content.classes) == ((0, 1), ("box", "disc"))
    assert found.name == f"zero_shot_{pattern}"


@pytest.mark.parametrize("layout", ["shards", "table", "index"])
def test_labels_beyond_the_names_of_the_data(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / SET
    label, number = 2, 2
    if layout == "shards":
        write_shards(folder)
        write_text(folder / "classnames.txt", "box\n" + "9" * 5000)
    elif layout == "table":
        write_table(folder, "box", "disc")
    else:
        write_index(folder)
        write_text(folder / "test.txt", "test.zip@inner/my 0.png 3")
        label, number = 3, 3
    message = f"label {label} has no name among the {number}"
    for index in (None, write_text(tmp_path / "index.json", "{}")):
        refuses(message, str(folder), "zero_shot:shapes", tmp_path, index=index)


def test_labels_beyond_the_names_of_a_published_set(tmp_path: Path) -> None:
    folder = tmp_path / "elevater" / "cifar-10"
    write_shards(folder)
    write_text(folder / "classnames.txt", "airplane\nautomobile")
    refuses("label 2 has no name among the 2", str(folder), "zero_shot:cifar-10", tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": [b"x"], "label": [0]}, "no image column found; name it with image_column="),
        ({"image": [b"x"], "kind": [0]}, "1 x sample without a label.; call the column of labels"),
        ({"image": [b"x"], "label": [[]]}, "1 x sample without a label"),
        ({"image": [b"x"], "label": [0]}, "the data do not name their classes"),
        (b"PAR1", "not a whole Parquet file"),
    ],
)
def test_malformed_tables(tmp_path: Path, columns: Any, message: str) -> None:
    path = write_parquet(tmp_path / SET / "test.parquet", {} if columns == b"PAR1" else columns)
    if columns == b"PAR1":
        path.write_bytes(columns)
    refuses(message, "shapes", "zero_shot:shapes", tmp_path)


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("test.zip", "gone.png"),
        ("test/2.tar", "gone.png"),
        (TABLE, "image:x"),
        (TABLE, "image:99"),
        ("bad.zip", "a"),
        ("bad.tar", "a"),
        ("gone.zip", "a"),
    ],
)
def test_members_that_cannot_be_read_are_one_line(tmp_path: Path, path: str, member: str) -> None:
    write_index(tmp_path)
    write_shards(tmp_path)
    write_table(tmp_path)
    for name in ("bad.zip", "bad.tar"):
        (tmp_path / name).write_bytes(b"no" * 600)
    members = Members()
    assert members(tmp_path / TABLE, "image:2") == encoded(2)
    with pytest.raises(CompoclipError) as caught:
        members(tmp_path / path, member)
    expect_one_line(caught.value, Path(path).name)
