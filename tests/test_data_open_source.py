"""One call opens every format by its path, and refuses what it does not know."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from compoclip.corpora.shard import find_shards as corpus_shards
from compoclip.data.decode import decode
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from data_samples import encode, make_tar


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def tar(path: Path) -> None:
    make_tar(path, [("1.jpg", b"x"), ("1.txt", b"x")])


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


BLIP = json.dumps({"image": "1.jpg", "caption": "x", "image_id": "coco_1"})
ROW = json.dumps({"image": "1.jpg", "caption": "x"})
NEGCLIP = "\ttitle\tfilepath\tneg_caption\n0\tx\t1.jpg\t['y']\n"
COCO = {
    "images": [{"id": 1, "file_name": "1.jpg"}],
    "annotations": [{"image_id": 1, "caption": "x"}],
}
CASES: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    # file to write, how, what to open, what it is taken for
    "csv": ("a.csv", text("image,caption\n1.jpg,x\n"), "a.csv", "table"),
    "upper case": ("a.CSV", text("image,caption\n1.jpg,x\n"), "a.CSV", "table"),
    "jsonl": ("a.jsonl", text(ROW), "a.jsonl", "table"),
    "compressed jsonl": (
        "a.jsonl.gz",
        lambda path: path.write_bytes(gzip.compress(ROW.encode())),
        "a.jsonl.gz",
        "table",
    ),
    "folder of jsonl": ("part-0.jsonl", text(ROW), ".", "table"),
    "several": ("a-0.jsonl", text(ROW), "a-{0..0}.jsonl", "table"),
    "negclip": ("a.tsv", text(NEGCLIP), "a.tsv", "NegCLIP"),
    "rows": ("a.json", text(f"[{ROW}]"), "a.json", "table"),
    "blip": ("a.json", text(f"[{BLIP}]"), "a.json", "Karpathy"),
    "coco": ("a.json", text(json.dumps(COCO)), "a.json", "COCO"),
    "shard": ("a.tar", tar, "a.tar", "webdataset"),
    "folder of shards": ("a.tar", tar, ".", "webdataset"),
    "metadata": ("metadata.jsonl", text(ROW), ".", "table"),
    "parquet folder": (
        "train-0.parquet",
        lambda path: pq.write_table(pa.table({"image": ["1.jpg"], "text": ["x"]}), path),
        ".",
        "table",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_recognised(tmp_path: Path, case: str) -> None:
    name, write, spec, kind = CASES[case]
    write(tmp_path / name)
    source = open_source(str(tmp_path / spec))
    assert source.describe().startswith(kind)
    assert [source[i].captions for i in range(len(source))] == [("x",)]


def test_named_columns_of_a_negclip_table(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(NEGCLIP)
    path = str(tmp_path / "a.tsv")
    same = open_source(path, image_column="filepath", caption_column="title")
    assert same[0].negatives == ("y",)
    assert open_source(path, caption_column="neg_caption")[0].captions == ("y",)
    with pytest.raises(UsageError, match="no column 'oops'; the columns are: , title"):
        open_source(path, caption_column="oops")


def test_folders_of_json_lines(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "val-0"):
        line = json.dumps({"image": f"{name}.jpg", "caption": name}).encode()
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(line))
    (tmp_path / ".hidden.jsonl.gz").write_bytes(b"x")
    everything = open_source(str(tmp_path), split="all")
    assert list(everything.captions()) == ["train-0", "train-1", "val-0"]
    source = open_source(str(tmp_path))
    assert list(source.captions()) == ["train-0", "train-1"]
    assert source.left_out == {"file of split 'val' (--split all takes it)": 1}
    assert open_source(str(tmp_path), split="train").left_out == {}
    with pytest.raises(UsageError, match="no split 'test'; it has: train, val"):
        open_source(str(tmp_path), split="test")
    (tmp_path / "more.jsonl").write_text(ROW)
    with pytest.raises(UsageError, match=r"several kinds \(.jsonl, .jsonl.gz\)"):
        open_source(str(tmp_path))
    (tmp_path / "val-0.jsonl.gz").write_bytes(b"\x1f\x8bcut")
    with pytest.raises(CompoclipError, match=r"val-0.jsonl.gz: not a whole .gz file"):
        open_source(str(tmp_path / "val-0.jsonl.gz"))


def test_splits_of_a_folder_of_shards(tmp_path: Path) -> None:
    for split in ("train", "test"):
        tar(tmp_path / f"{split}-000000.tar")
    assert open_source(str(tmp_path), split="test")[0].id == "test-000000.tar/1"
    assert len(open_source(str(tmp_path), split="all")) == 2
    source = open_source(str(tmp_path))
    assert [source[i].id for i in range(len(source))] == ["train-000000.tar/1"]
    assert source.left_out == {"file of split 'test' (--split all takes it)": 1}
    with pytest.raises(UsageError, match="no split 'dev'; it has: test, train"):
        open_source(str(tmp_path), split="dev")


def test_unknown_format_names_the_nearest_forms(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "a.xlsx").touch()
    for name, form in (
        ("a.txt", "lines name.jpg#k<TAB>caption"),
        ("a.xlsx", "table of images and captions"),
    ):
        with pytest.raises(UsageError, match="unknown format") as raised:
            open_source(str(tmp_path / name))
        assert form in str(raised.value)
    with pytest.raises(CompoclipError, match=r"gone\.csv: not found"):
        open_source(str(tmp_path / "gone.csv"))


@pytest.mark.parametrize(
    "spec",
    [
        "https://example.org/a/train-000.tar",
        "s3://bucket/train-{000..009}.tar",
        "pipe:aws s3 cp s3://bucket/a.tar -",
        "hf://datasets/nlphuji/flickr30k",
        "gs://bucket/rows.parquet",
        "file:///data/rows.csv",
    ],
)
def test_what_is_elsewhere_is_not_supported(spec: str, tmp_path: Path) -> None:
    for reading in (open_source, corpus_shards):
        with pytest.raises(UsageError, match=r"not supported: .*download it first") as raised:
            reading(spec)
        assert str(raised.value).startswith(f"{spec}: ")
    (tmp_path / "a.csv").write_text("image,caption\n1.jpg,x\n")
    with pytest.raises(UsageError, match=r"^https://example\.org/coco: not supported"):
        open_source(str(tmp_path / "a.csv"), images=Path("https://example.org/coco"))


def test_a_name_of_the_hub_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        CompoclipError, match=r"check the path.*hf download nlphuji/flickr30k --repo-type dataset"
    ):
        open_source("nlphuji/flickr30k")
    with pytest.raises(CompoclipError, match=r"nlphuji/rows\.csv: not found; check the path"):
        open_source("nlphuji/rows.csv")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a.csv").write_text("image,caption\n1.jpg,x\n")
    assert len(open_source("./s3:/a.csv")) == 1


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar")
    (tmp_path / "a.csv").write_text("image,caption\n1.jpg,x\n")
    (tmp_path / "k.json").write_text('{"images": []}')
    for name, option, message in (
        (
            "a.tar",
            {"split": "dev"},
            "a.tar: names no splits, so takes no --split dev",
        ),
        ("a.tar", {"images": tmp_path}, "webdataset shards take no --images"),
        ("a.csv", {"split": "dev"}, "names no splits, so takes no --split dev"),
        ("k.json", {"caption_column": "caption"}, "Karpathy's files take no --caption-column"),
    ):
        with pytest.raises(UsageError, match=message):
            open_source(str(tmp_path / name), **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["table", "shard", "folder"])
def test_labels_instead_of_captions(form: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,label\n1.jpg,cat\n2.jpg,dog\n3.jpg,\n")
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    members = [(f"{k}.{kind}", data) for k in (1, 2, 3) for kind, data in [("jpg", b"x")]]
    make_tar(
        tmp_path / "a.tar",
        [*members[:1], ("1.cls", b"0"), members[1], ("2.cls", b"1\n"), members[2]],
    )
    for name in ("cat/1.jpg", "dog/deep/2.jpg", "3.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    spec = str(tmp_path / {"table": "a.csv", "shard": "a.tar", "folder": "photos"}[form])
    with pytest.raises(UsageError, match="the data have labels, not captions"):
        open_source(spec)
    source = open_source(spec, needs="labels")
    assert [source[k].label for k in range(2)] == ["cat", "dog"]
    assert source.left_out == {"sample without a label": 1}
    assert len(open_source(spec, needs="photos")) == 3
    assert source.classes == (() if form == "table" else ("cat", "dog"))


def test_what_other_trainers_write_is_read_or_named(tmp_path: Path) -> None:
    """Shards, JSON, base64 and absolute paths as other programs write them."""
    photos = tmp_path / "elsewhere"
    photos.mkdir()
    pictures = [encode(Image.new("RGB", (size, 16)), "JPEG") for size in (16, 17, 18)]
    for n, content in enumerate(pictures):
        (photos / f"{n}.jpg").write_bytes(content)

    llava = [
        {
            "image": f"{n}.jpg",
            "conversations": [
                {"from": "human", "value": "<image>\nDescribe."},
                {"from": "gpt", "value": f"dog {n}"},
            ],
        }
        for n in range(3)
    ]
    (photos / "llava.json").write_text(json.dumps(llava))
    rows = [f"{photos}/{n}.jpg,dog {n}" for n in range(3)]
    (tmp_path / "absolute.csv").write_text("\n".join(["filepath,title", *rows]))
    for spec in (photos / "llava.json", tmp_path / "absolute.csv"):
        source = open_source(str(spec))
        assert list(source.column("captions")) == [("dog 0",), ("dog 1",), ("dog 2",)], spec
        assert [Path(source[n].image).read_bytes() for n in range(3)] == pictures

    make_tar(tmp_path / "dotted.tar", [("s0.input.jpg", pictures[0]), ("s0.outputs.txt", b"x")])
    words = r"found end in input.jpg, outputs.txt.*KEY.jpg.*KEY.txt"
    with pytest.raises(CompoclipError, match=words):
        open_source(str(tmp_path / "dotted.tar"))

    text = base64.b64encode(pictures[0]).decode()
    for image in (text, f"data:image/jpeg;base64,{text}"):
        (tmp_path / "base64.tsv").write_text(f"image\tcaption\n{image}\ta dog\n")
        with pytest.raises(CompoclipError) as caught:
            open_source(str(tmp_path / "base64.tsv"))
        assert f"base64.tsv, row 1: '{image[:20]}" in str(caught.value)
        assert "looks like a picture in base64, not a path; write the" in str(caught.value)
        assert len(str(caught.value)) < 400 < len(text)
    deep = tmp_path.joinpath(*["a" * 90] * 3)  # a path without an ending
    deep.parent.mkdir(parents=True)
    deep.write_bytes(pictures[0])
    name = deep.relative_to(tmp_path)
    (tmp_path / "deep.tsv").write_text(f"image\tcaption\n{name}\ta dog\n")
    assert decode(open_source(str(tmp_path / "deep.tsv"))[0].image).size == (16, 16)
