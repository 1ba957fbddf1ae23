"""Whatever bytes, cells or options: every reader ends with samples or with one line that names
the file."""

from __future__ import annotations

import gzip
import io
import json
import resource
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_files import examples
from build.spoil import VALUES, WORDS, in_bytes, in_value, spoil
from build.tables import write_csv, write_json, write_jsonl, write_text
from compoclip.archives import add_member
from compoclip.corpora.job import ParseJob, RewriteJob
from compoclip.corpora.run import process
from compoclip.corpora.shard import find_shards
from compoclip.data.decode import decode
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError
from compoclip.rewrites.records import Settings
from corpus_shards import jpeg

MOST_MEMORY = 500 << 20  # bytes more than before, for files of a few kilobytes
COLUMNS = ("image", "caption", "neg_caption", "neg_image", "group", "score", "split")
CELLS = (
    ("1.jpg", "a red cat", ["a blue cat"], [1], "g", 1.5, "train"),
    ("2.jpg", ["a dog", "two dogs"], ["no dog"], [0, 2], "g", 2, "train"),
    ("3.jpg", "ein Hünd", [], "1.jpg", "", None, "test"),
)
ROWS = [dict(zip(COLUMNS, cells)) for cells in CELLS]
CAPTIONED = [{"image": row["image"], "caption": row["caption"]} for row in ROWS]
NEGCLIP = [
    {"title": row["caption"], "filepath": row["image"], "neg_caption": row["neg_caption"]}
    for row in ROWS
]
SENTENCES = [{"raw": "a cat"}, {"raw": "two cats"}]
KARPATHY = [
    {"filename": f"{i}.jpg", "filepath": "train2014", "split": split, "sentences": SENTENCES}
    for i, split in enumerate(("train", "restval", "test"))
]
COCO = {
    "images": [{"id": i, "file_name": f"{i}.jpg"} for i in (7, 8)],
    "annotations": [{"image_id": i, "caption": "a cat"} for i in (7, 8, 7)],
}
TOKENS = "".join(f"{i // 2}.jpg#{i % 2}\ta cat\n" for i in range(6))
KAGGLE = "image,caption\n0.jpg,a cat\n0.jpg,a cat\n1.jpg,a cat\n"

Write = Callable[[Path, st.DataObject], Path]


def spoilt(name: str, write: Callable[[Path], Path], opened: str = "") -> Write:
    """A writer of one file that is spoilt; opened: what is opened, if it is not the file."""

    def write_spoilt(folder: Path, data: st.DataObject) -> Path:
        path = write(folder / name)
        path.write_bytes(spoil(data, path.read_bytes(), path.suffix))
        for photo in ("0.jpg", "1.jpg"):
            (folder / photo).write_bytes(jpeg())
        return folder / (opened or name)

    return write_spoilt


def write_flickr8k(folder: Path, data: st.DataObject) -> Path:
    """Official captions, and the list of a split."""
    listed = data.draw(st.sampled_from(("0.jpg\n2.jpg\n", *WORDS)))
    write_text(folder / "a.trainImages.txt", plain(listed))
    return spoilt("a.token.txt", lambda path: write_text(path, TOKENS))(folder, data)


def write_jsonl_gz(folder: Path, data: st.DataObject) -> Path:
    lines = spoil(data, write_jsonl(folder / "plain.jsonl", ROWS).read_bytes(), ".jsonl")
    (folder / "plain.jsonl").unlink()
    packed = gzip.compress(lines)
    path = folder / "a.jsonl.gz"
    path.write_bytes(in_bytes(data, packed) if data.draw(st.booleans()) else packed)
    return path


def plain(value: Any) -> str:
    """Text that can be encoded."""
    text = "" if value is None else str(value)
    return text.encode("utf-8", "replace").decode()


def spoilt_rows(data: st.DataObject) -> list[dict[str, Any]]:
    rows = in_value(data, json.loads(json.dumps(ROWS)))
    kept = [row for row in rows if isinstance(row, dict) and row] if isinstance(rows, list) else []
    return kept or ROWS


def write_parquet(folder: Path, data: st.DataObject) -> Path:
    """Rows with a value changed and a column of another type, or bytes changed."""
    rows = spoilt_rows(data)
    columns = [arrow([row.get(name) for row in rows]) for name in rows[0]]
    kinds = (None, pa.binary(), pa.large_string(), pa.float16(), pa.duration("s"))
    place, kind = data.draw(st.integers(0, len(columns) - 1)), data.draw(st.sampled_from(kinds))
    with suppress(pa.ArrowException, NotImplementedError):
        columns[place] = columns[place].cast(kind) if kind else columns[place].dictionary_encode()
    table = pa.Table.from_arrays(columns, [plain(name) for name in rows[0]])
    return save_table(folder / "a.parquet", table, data)


def arrow(values: list[Any]) -> Any:
    """Return the values, as texts where they are of several kinds."""
    try:
        return pa.array(values)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError):
        return pa.array([plain(value) for value in values])


def save_table(path: Path, table: pa.Table, data: st.DataObject) -> Path:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    raw = buffer.getvalue()
    path.write_bytes(in_bytes(data, raw) if data.draw(st.booleans()) else raw)
    return path


def write_images(folder: Path, data: st.DataObject) -> Path:
    """Parquet with the images inside."""
    images = [{"bytes": jpeg(), "path": None}, {"bytes": jpeg(), "path": "2.jpg"}]
    texts = ["a cat", plain(data.draw(st.sampled_from(("a dog", *VALUES))))]
    table = pa.table({"image": images, "caption": texts})
    return save_table(folder / "a.parquet", table, data)


def write_folder(folder: Path, data: st.DataObject) -> Path:
    """Photos and captions, of which one file has a strange name and one is spoilt."""
    for part in ("train", "more"):
        place = folder / "photos" / part
        place.mkdir(parents=True)
        files = {"a.jpg": jpeg(), "b.txt": b"a dog", "b.jpg": jpeg()}
        files["a.txt"] = spoil(data, b"a cat", ".txt")
        strange = plain(data.draw(st.sampled_from(WORDS))).replace("/", "_").replace("\0", "0")
        renamed = data.draw(st.sampled_from([*files]))
        files[strange[:80].rstrip(".") or "0"] = files.pop(renamed)
        for name, content in files.items():
            (place / name).write_bytes(content)
    return folder / "photos"


def write_shard(folder: Path, data: st.DataObject) -> Path:
    """Samples of which one member has another name, one value is changed, and bytes may be."""
    members = []
    for key, row in zip("abc", spoilt_rows(data)):
        members += [(f"{key}.jpg", jpeg()), (f"{key}.json", json.dumps(row, default=str).encode())]
    members += [("b.txt", b"a cat on a mat"), ("c.neg_image.png", b"x")]
    place = data.draw(st.integers(0, len(members) - 1))
    name = data.draw(st.sampled_from((members[place][0], *WORDS)))
    members[place] = (name, members[place][1])
    buffer = io.BytesIO()
    plain_names = {"format": tarfile.GNU_FORMAT, "errors": "surrogatepass"}
    with tarfile.open(fileobj=buffer, mode="w", **plain_names) as out:
        for name, content in members:
            add_member(out, name, content)
    raw = buffer.getvalue()
    spoilt_raw = in_bytes(data, raw) if data.draw(st.booleans()) else raw
    (folder / "train-0.tar").write_bytes(spoilt_raw)
    return folder


SOURCES: dict[str, Write] = {
    "csv": spoilt("a.csv", lambda path: write_csv(path, *ROWS)),
    "tsv": spoilt("a.tsv", lambda path: write_csv(path, *ROWS, delimiter="\t")),
    "negclip": spoilt("a.tsv", lambda path: write_csv(path, *NEGCLIP, delimiter="\t")),
    "jsonl": spoilt("a.jsonl", lambda path: write_jsonl(path, ROWS)),
    "metadata": spoilt("metadata.jsonl", lambda path: write_jsonl(path, ROWS), "."),
    "karpathy": spoilt("a.json", lambda path: write_json(path, {"images": KARPATHY})),
    "blip": spoilt("a.json", lambda path: write_json(path, CAPTIONED)),
    "coco": spoilt("a.json", lambda path: write_json(path, COCO)),
    "kaggle": spoilt("captions.txt", lambda path: write_text(path, KAGGLE)),
    "flickr8k": write_flickr8k,
    "jsonl_gz": write_jsonl_gz,
    "parquet": write_parquet,
    "images": write_images,
    "folder": write_folder,
    "shard": write_shard,
}
options = st.sampled_from((None, None, None, "caption", "image", "caption, neg_caption", "no", ""))
splits = st.sampled_from((None, None, "train", "all", "test", "nope", "", "\ud800"))


@contextmanager
def one_line(folder: Path) -> Iterator[None]:
    """Only CompoclipError may come out of the block, of one line that names a file there."""
    try:
        yield
    except CompoclipError as error:
        message = str(error)
        assert message.splitlines() == [message]
        assert str(folder) in message or folder.name in message, message


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_is_read_or_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = peak()

    @examples(40)
    @given(data=st.data(), image=options, caption=options, split=splits)
    def check(data: st.DataObject, image: str | None, caption: str | None, split: str) -> None:
        with tempfile.TemporaryDirectory(prefix="source-") as name:
            folder = Path(name)
            monkeypatch.setenv("XDG_CACHE_HOME", f"{name}/cache")
            path = SOURCES[kind](folder, data)
            columns = {"image_column": image, "caption_column": caption}
            with one_line(folder):
                source = open_source(str(path), split=split, **columns)
                columns_read = ("id", "captions", "group", "image_score")
                assert {len(list(source.column(name))) for name in columns_read} == {len(source)}
                assert len(source) > 0
                assert all(text.strip() for text in source.captions())
                assert all(count > 0 for count in source.left_out.values())
                assert source.brings() is not None
                assert source.describe()
                for sample in (source[index] for index in range(len(source))):
                    inside = isinstance(sample.image, bytes)
                    with one_line(Path(sample.id) if inside else folder):
                        decode(sample.image, name=sample.id if inside else "")

    check()
    assert peak() - before < MOST_MEMORY


@pytest.mark.parametrize("kind", ["jsonl", "jsonl_gz", "parquet", "images", "shard"])
def test_every_shard_of_a_corpus_is_made_or_left_out(kind: str) -> None:
    before = peak()
    jobs = st.sampled_from((ParseJob(), RewriteJob(Settings(("negclip", "replace"), seed=1))))

    @examples(20)
    @given(data=st.data(), column=options, job=jobs)
    def check(data: st.DataObject, column: str | None, job: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="corpus-") as name:
            folder = Path(name)
            (folder / "in").mkdir()
            path = SOURCES[kind](folder / "in", data)
            with one_line(folder):
                (shard,) = find_shards(str(path))
                outcome = process([shard], folder / "out", job, column=column)
                assert len(outcome.written) + len(outcome.bad) == 1
                for error in outcome.bad.values():
                    assert error.splitlines() == [error]
                    assert shard.name in error
                made = [p for p in (folder / "out").iterdir() if p.is_file()]
                assert [p.name for p in made] == list(outcome.written)

    check()
    assert peak() - before < MOST_MEMORY
