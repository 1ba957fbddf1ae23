"""One call opens every format by its path, and refuses what it does not know; Hugging Face."""

from __future__ import annotations

import base64
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from build.photos import encode
from build.tables import write_csv, write_json, write_jsonl, write_rows, write_tar, write_text
from compoclip.benchmarks.case import Retrieval
from compoclip.benchmarks.targets import parse_targets
from compoclip.cli.main import main
from compoclip.corpora.shard import find_shards as corpus_shards
from compoclip.data.decode import Picture, decode
from compoclip.data.places import names_data
from compoclip.data.sources.open import Request, open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.patterns import names_shards
from compoclip.search.photos import list_photos

pytestmark = pytest.mark.usefixtures("user_cache")

TAR = [("1.jpg", b"x"), ("1.txt", b"x")]
BLIP = json.dumps({"image": "1.jpg", "caption": "x", "image_id": "coco_1"})
ROW = json.dumps({"image": "1.jpg", "caption": "x"})
CSV = "image,caption\n1.jpg,x\n"
NEGCLIP = "\ttitle\tfilepath\tneg_caption\n0\tx\t1.jpg\t['y']\n"
COCO = {
    "images": [{"id": 1, "file_name": "1.jpg"}],
    "annotations": [{"image_id": 1, "caption": "x"}],
}


def write(path: Path, content: str) -> None:
    """Write a file of text, of rows or of members, as its name says."""
    if path.suffix == ".tar":
        write_tar(path, TAR)
    elif path.suffix in (".gz", ".parquet"):
        write_rows(path, [{"image": "1.jpg", "caption": "x"}])
    else:
        path.write_text(content)


@pytest.mark.parametrize(
    ("name", "content", "spec", "kind"),
    [
        ("a.csv", CSV, "a.csv", "table"),
        ("a.CSV", CSV, "a.CSV", "table"),
        ("a.jsonl", ROW, "a.jsonl", "table"),
        ("a.jsonl.gz", "", "a.jsonl.gz", "table"),
        ("part-0.jsonl", ROW, ".", "table"),
        ("a-0.jsonl", ROW, "a-{0..0}.jsonl", "table"),
        ("a.tsv", NEGCLIP, "a.tsv", "NegCLIP"),
        ("a.json", f"[{ROW}]", "a.json", "table"),
        ("a.json", f"[{BLIP}]", "a.json", "Karpathy"),
        ("a.json", json.dumps(COCO), "a.json", "COCO"),
        ("a.tar", "", "a.tar", "webdataset"),
        ("a.tar", "", ".", "webdataset"),
        ("metadata.jsonl", ROW, ".", "table"),
        ("train-0.parquet", "", ".", "table"),
    ],
)
def test_a_format_is_recognised_by_name_and_content(
    name: str, content: str, spec: str, kind: str, tmp_path: Path
) -> None:
    write(tmp_path / name, content)
    source = open_source(str(tmp_path / spec))
    assert source.describe().startswith(kind)
    assert list(source.column("captions")) == [("x",)]


NAMES = ("p-*.jsonl", "p-{0..1}.jsonl", "{p-0,p-1}.jsonl", "{p-0.jsonl,p-1.jsonl}")
TARS = [name.replace("p-", "s-").replace("jsonl", "tar") for name in NAMES]


@pytest.mark.parametrize("spec", [*NAMES, "p-*", *TARS, "s-*", "rows", "shards", "mixed"])
def test_every_command_reads_the_files_that_a_name_stands_for(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        row = {"image": f"{number}.jpg", "caption": f"a cat {number}"}
        for place in ("", "rows/data/"):
            write_jsonl(tmp_path / f"{place}p-{number}.jsonl", [row])
        for place in ("", "shards/data/", "mixed/"):
            members = [(f"{number}.jpg", b"x"), (f"{number}.txt", b"a cat %d" % number)]
            write_tar(tmp_path / f"{place}s-{number}.tar", members)
    write_tar(tmp_path / "mixed" / "data" / "s-9.tar", TAR)  # the folder itself comes first
    name, captions = str(tmp_path / spec), ["a cat 0", "a cat 1"]
    assert [*open_source(name).captions()] == captions
    assert len(list_photos(Request(name)).names) == 2
    (target,) = parse_targets([f"retrieval:{name},split=all"], tmp_path)
    target.check()
    content = target.load().content
    assert isinstance(content, Retrieval)
    assert [*content.texts] == captions
    assert [file.name[2:3] for file in corpus_shards(name)] == ["0", "1"]
    assert names_shards(name)
    assert main(["data", "audit", f"--train={name}", "--json"]) in (0, 1)
    of_training = capsys.readouterr().out
    assert main(["data", "audit", f"--data={name}", "--json"]) in (0, 1)
    assert capsys.readouterr().out == of_training


def test_names_that_stand_for_no_file_or_for_several_kinds(tmp_path: Path) -> None:
    write_text(tmp_path / "1.csv", CSV)
    write_jsonl(tmp_path / "0.jsonl", [{"image": "1.jpg", "caption": "x"}])
    name = str(tmp_path / "{0.jsonl,1.csv}")
    for read in (open_source, corpus_shards, lambda spec: list_photos(Request(spec))):
        with pytest.raises(UsageError, match=r"several kinds \(.csv, .jsonl\); name those you"):
            read(name)
    for spec, missing in (("q-*.tar", "q-*.tar"), ("q-{0..1}.tar", "q-0.tar")):
        with pytest.raises(CompoclipError, match=rf"{re.escape(missing)}: not found; check the"):
            open_source(str(tmp_path / spec))
        with pytest.raises(UsageError, match=r"no such folder"):
            parse_targets([f"retrieval:{tmp_path / spec}"], tmp_path)
    write_text(tmp_path / "a-0.tar.gz", "x")
    for spec in ("a-*.tar.gz", "a-0.tar.gz"):
        with pytest.raises(CompoclipError, match=r"a-0.tar.gz: only plain .tar .* decompress it"):
            open_source(str(tmp_path / spec))


def test_named_columns_of_a_negclip_table(tmp_path: Path) -> None:
    path = str(write_text(tmp_path / "a.tsv", NEGCLIP))
    same = open_source(path, image_column="filepath", caption_column="title")
    assert same[0].negatives == ("y",)
    assert open_source(path, caption_column="neg_caption")[0].captions == ("y",)
    with pytest.raises(UsageError, match="no column 'oops'; the columns are: , title"):
        open_source(path, caption_column="oops")


def test_folders_of_json_lines(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "val-0"):
        write_jsonl(tmp_path / f"{name}.jsonl.gz", [{"image": f"{name}.jpg", "caption": name}])
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


def test_a_pattern_of_files_that_are_read_alone_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text('{"annotations": [], "images": []}')
        (tmp_path / f"{name}.txt").write_text("1.jpg#0\ta dog\n")
    for pattern, form in (("*.json", "COCO annotations"), ("{a,b}.txt", "token files")):
        with pytest.raises(UsageError, match=f"names 2 files, and {form} are read from one"):
            open_source(str(tmp_path / pattern))


def test_unknown_format_names_the_nearest_forms(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "a.xlsx").touch()
    for name, error, message in (
        ("a.txt", UsageError, r"unknown format.* lines name\.jpg#k<TAB>caption"),
        ("a.xlsx", UsageError, "unknown format.* table of images and captions"),
        ("gone.csv", CompoclipError, r"gone\.csv: not found"),
    ):
        with pytest.raises(error, match=message):
            open_source(str(tmp_path / name))


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
    table = str(write_text(tmp_path / "a.csv", CSV))
    with pytest.raises(UsageError, match=r"^https://example\.org/coco: not supported"):
        open_source(table, images=Path("https://example.org/coco"))


def test_data_in_the_folder_of_a_split_are_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / "0.tar", TAR)
    with pytest.raises(UsageError, match=r"its data are in .*train; name that folder"):
        open_source(str(tmp_path))


def test_names_of_data_are_told_from_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("image,caption\n")
    for name in ("a.csv", "{a,b}.csv", "a.csv=0.5 none.csv=0.5", "hf:owner/name/train"):
        assert names_data(name), name
    assert not names_data(str(tmp_path))
    assert not names_data("none.csv")


def test_a_name_of_the_hub_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, message in (
        ("flickr30k", "check the path.*hf download nlphuji/flickr30k --repo-type dataset"),
        ("rows.csv", r"nlphuji/rows\.csv: not found; check the path"),
    ):
        with pytest.raises(CompoclipError, match=message):
            open_source(f"nlphuji/{spec}")
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "s3:" / "a.csv", CSV)
    assert len(open_source("./s3:/a.csv")) == 1


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", TAR)
    write_text(tmp_path / "a.csv", CSV)
    write_json(tmp_path / "k.json", {"images": []})
    for name, option, message in (
        ("a.tar", {"split": "dev"}, "a.tar: names no splits, so takes no --split dev"),
        ("a.tar", {"images": tmp_path}, "webdataset shards take no --images"),
        ("a.csv", {"split": "dev"}, "names no splits, so takes no --split dev"),
        ("k.json", {"caption_column": "caption"}, "Karpathy's files take no --caption-column"),
    ):
        with pytest.raises(UsageError, match=message):
            open_source(str(tmp_path / name), **option)  # type: ignore[arg-type]


def test_what_other_trainers_write_is_read_or_named(tmp_path: Path) -> None:
    photos = tmp_path / "elsewhere"
    photos.mkdir()
    pictures = [encode(picture(n), "JPEG") for n in range(3)]
    for n, content in enumerate(pictures):
        (photos / f"{n}.jpg").write_bytes(content)
    question = {"from": "human", "value": "<image>\nDescribe."}
    answers = [{"from": "gpt", "value": f"dog {n}"} for n in range(3)]
    llava = [
        {"image": f"{n}.jpg", "conversations": [question, answer]}
        for n, answer in enumerate(answers)
    ]
    other = {"image": "3.jpg", "conversations": [{"text": "no turn of a known form"}]}  # left out
    write_json(photos / "llava.json", [*llava, other])
    rows = [{"filepath": f"{photos}/{n}.jpg", "title": f"dog {n}"} for n in range(3)]
    write_csv(tmp_path / "absolute.csv", *rows)
    for spec in (photos / "llava.json", tmp_path / "absolute.csv"):
        source = open_source(str(spec))
        assert list(source.column("captions")) == [("dog 0",), ("dog 1",), ("dog 2",)], spec
        assert [Path(source[n].image).read_bytes() for n in range(3)] == pictures

    write_tar(tmp_path / "dotted.tar", [("s0.input.jpg", pictures[0]), ("s0.outputs.txt", b"x")])
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
    assert decode(open_source(str(tmp_path / "deep.tsv"))[0].image).size == (20, 16)


# --- Data sets of Hugging Face's library, made by itself and read without a network. ---


ROWS = 12


def colour(row: int) -> tuple[int, int, int]:
    return (20 * row, 255 - 20 * row, 90)


def picture(row: int) -> Image.Image:
    return Image.new("RGB", (20, 16), colour(row))


def shows(image: Picture, row: int) -> bool:
    return decode(image).getpixel((0, 0)) == colour(row)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")
    datasets.disable_progress_bars()
    return datasets


def made(library: Any, **columns: Any) -> Any:
    usual = {
        "image": [picture(row) for row in range(ROWS)],
        "captions": [[f"a square {row}", f"a box {row}"] for row in range(ROWS)],
        "number": list(range(ROWS)),
    }
    data = library.Dataset.from_dict({**usual, **columns})
    return data if "image" in columns else data.cast_column("image", library.Image())


def test_a_saved_data_set_by_split(library: Any, tmp_path: Path) -> None:
    data = made(library)
    library.DatasetDict({"train": data, "val": data.select([2, 5])}).save_to_disk(tmp_path / "d")
    for spec in (f"hf:{tmp_path / 'd'}", f"hf:{tmp_path / 'd'}/train"):
        source = open_source(spec)
        assert len(source) == ROWS
        sample = source[3]
        assert sample.captions == ("a square 3", "a box 3")
        assert isinstance(sample.image, bytes)
        assert shows(sample.image, 3)
        assert source.bare(3).image == b""
        assert list(source.column("id")) == [f"row {row + 1}" for row in range(ROWS)]
        assert source.brings() == frozenset()
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert again[3] == sample
    # Rows that were selected, not copied, are those that are read.
    few = open_source(f"hf:{tmp_path / 'd'}", split="val")
    assert [captions[0] for captions in few.column("captions")] == ["a square 2", "a square 5"]
    assert shows(few[1].image, 5)
    with pytest.raises(UsageError, match="no split 'test'; it has: train, val"):
        open_source(f"hf:{tmp_path / 'd'}", split="test")
    every = open_source(f"hf:{tmp_path / 'd'}", split="all")
    assert list(every.column("id"))[-2:] == ["val row 1", "val row 2"]
    assert shows(every[ROWS + 1].image, 5)


def test_rows_of_a_single_part_say_their_splits(library: Any, tmp_path: Path) -> None:
    """Flickr30k has one part, "test", whose column `split` tells the three apart."""
    data = made(library, split=["train"] * 8 + ["val"] * 2 + ["test"] * (ROWS - 10))
    library.DatasetDict({"test": data}).save_to_disk(tmp_path / "d")
    for spec in (f"hf:{tmp_path / 'd'}", f"hf:{tmp_path / 'd'}/test"):
        sizes = {split: len(open_source(spec, split=split)) for split in ("train", "val", "test")}
        assert sizes == {"train": 8, "val": 2, "test": ROWS - 10}
        assert len(open_source(spec)) == 8


def test_a_folder_of_parquet_as_the_library_reads_it(library: Any, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    made(library).to_parquet(tmp_path / "p" / "train-00000-of-00001.parquet")
    source = open_source(f"hf:{tmp_path / 'p'}/train")
    assert [source[row].captions[1] for row in (0, 11)] == ["a box 0", "a box 11"]
    assert shows(source[11].image, 11)
    assert str(tmp_path / "p") in source.describe()
    with pytest.raises(CompoclipError, match="cannot be opened") as raised:
        open_source(f"hf:{tmp_path / 'p'}/nope")
    assert "\n" not in str(raised.value)


def test_images_as_bytes_and_as_paths(library: Any, tmp_path: Path) -> None:
    for row in range(ROWS):
        picture(row).save(tmp_path / f"{row}.png")
    made(library, image=[encode(picture(row)) for row in range(ROWS)]).save_to_disk(tmp_path / "b")
    assert shows(open_source(f"hf:{tmp_path / 'b'}")[4].image, 4)

    made(library, image=[f"{row}.png" for row in range(ROWS)]).save_to_disk(tmp_path / "paths")
    spec = f"hf:{tmp_path / 'paths'}"
    with pytest.raises(UsageError, match="say with --images"):
        open_source(spec)
    assert open_source(spec, images=tmp_path)[4].image == tmp_path / "4.png"
    made(library, image=["../x.png"] * ROWS).save_to_disk(tmp_path / "outside")
    with pytest.raises(CompoclipError, match=r"row 1.*\.\./x\.png"):
        open_source(f"hf:{tmp_path / 'outside'}", images=tmp_path)

    files = made(library, image=[str(tmp_path / f"{row}.png") for row in range(ROWS)])
    files.cast_column("image", library.Image()).save_to_disk(tmp_path / "files")
    assert shows(open_source(f"hf:{tmp_path / 'files'}")[4].image, 4)


def test_columns_and_what_is_left_out(library: Any, tmp_path: Path) -> None:
    captions = [f"a square {row}" for row in range(ROWS)]
    captions[1] = " "
    more, negatives = (
        [f"{word} {row}" for row in range(ROWS)] for word in ("one more", "no square")
    )
    made(library, title=captions, more=more, neg_caption=negatives).save_to_disk(tmp_path / "d")
    spec = f"hf:{tmp_path / 'd'}"
    source = open_source(spec, caption_column="title,more", image_column="image")
    assert source[1].captions == ("one more 1",)
    assert source[0].negatives == ("no square 0",)
    assert source.brings() == {"negatives"}
    assert sum(source.left_out.values()) == 1
    left = open_source(spec, caption_column="title")
    assert len(left) == ROWS - 1
    assert shows(left[1].image, 2)
    with pytest.raises(UsageError, match="no column 'nope'; the columns are: image, captions"):
        open_source(spec, caption_column="nope")
    with pytest.raises(UsageError, match="column 'image' holds images, not captions"):
        open_source(spec, caption_column="image")


# --- Without the library. ---


def test_what_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"a stream cannot be trained on.*hf:me/data/train"):
        open_source("hf-stream:me/data/train")
    with pytest.raises(CompoclipError, match=r"hf:me/data/SPLIT"):
        open_source("me/data")

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(CompoclipError, match="pip install datasets"):
        open_source("hf:me/data/train")


def test_names_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library is asked for; it answers with why there is nothing."""
    asked: list[Any] = []

    class Library:
        @staticmethod
        def load_dataset(name: str, config: str | None, split: str) -> Any:
            asked.append((name, config, split))
            raise ConnectionError("no network\nat all")

        @staticmethod
        def is_progress_bar_enabled() -> bool:
            return False

        @staticmethod
        def disable_progress_bars() -> None: ...

    monkeypatch.setattr("importlib.import_module", lambda name: Library)
    for spec in ("hf:train", "hf:"):
        with pytest.raises(UsageError, match="name data set and split"):
            open_source(spec)
    for spec in ("hf:me/data/train", "hf:me/data:small/val[:10%]", "hf:mnist/test"):
        with pytest.raises(CompoclipError, match="ConnectionError: no network at all") as raised:
            open_source(spec)
        assert "\n" not in str(raised.value)
    assert asked == [
        ("me/data", None, "train"),
        ("me/data", "small", "val[:10%]"),
        ("mnist", None, "test"),
    ]


def test_a_column_of_images_goes_before_one_of_file_names(library: Any, tmp_path: Path) -> None:
    names = [f"{row}.jpg" for row in range(ROWS)]
    made(library, file_name=names).save_to_disk(tmp_path / "d")
    source = open_source(f"hf:{tmp_path / 'd'}")
    assert len(source) == ROWS
    assert shows(source[3].image, 3)
    made(library, file_name=names).rename_column("image", "photo").save_to_disk(tmp_path / "o")
    with pytest.raises(UsageError, match=r"'file_name' holds paths: .* --image-column photo"):
        open_source(f"hf:{tmp_path / 'o'}")
