"""Whatever bytes, cells or options: every reader ends with samples or with one line that names
the file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import resource
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
NASTY: tuple[Any, ...] = (
    *(None, True, -1, 5, 10**30, 1.5, float("nan"), float("inf"), [], {}, [[]], [None], {"a": [1]}),
    *("", " ", "\0", "\ud800", "é\u2028", "a\r\nb", "x" * 70_000, "-1", "nan", "1e999", "[1, 2]"),
    *("['a', 'b']", "[" * 3000, "{'a'}", "[99, 0]", "[10000000000000000000000000]", '"', "a,b\t"),
    *("../x.jpg", "/etc/passwd", "http://h/a.jpg", "a/b.jpg", "1.jpg", ".", "test", "train", "#0"),
    *(["x", 5, None], ["\ud800"], ["x"] * 300, [0, 1], [-1], [1 << 70], {"bytes": "x"}),
)
CHUNKS = (
    b"",
    b"\0",
    b"\n",
    b'"',
    b",",
    b"\t",
    b"{",
    b"]",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\\ud800",
)
CHUNKS += (b"9" * 5000, b"[" * 5000, b"\0" * 1024, b"\x1f\x8b", b"-512", b"\xff" * 12, b"\x80\0")


@dataclass
class Tamper:
    """Replaces the value number `at` that is written, and edits the bytes of the file number
    `file`: of each edit the place and the length as parts of the file, and what comes there."""

    at: int
    value: Any
    file: int
    edits: list[tuple[float, float, bytes]]
    values: int = 0
    files: int = 0

    def __call__(self, value: Any) -> Any:
        self.values += 1
        return self.value if self.values == self.at else value

    def save(self, path: Path, data: bytes) -> None:
        self.files += 1
        if self.files == self.file:
            for place, length, chunk in self.edits:
                start = int(place * len(data))
                data = data[:start] + chunk + data[start + int(length * length * 40) :]
        path.write_bytes(data)


places = st.floats(0, 1, exclude_max=True)
tampers = st.builds(
    Tamper,
    at=st.integers(0, 24),
    value=st.sampled_from(NASTY),
    file=st.integers(0, 2),
    edits=st.lists(st.tuples(places, places, st.sampled_from(CHUNKS)), min_size=1, max_size=3),
)
words = st.sampled_from((None, None, None, "caption", "image", "caption, neg_caption", "nope", ""))
splits = st.sampled_from((None, None, "train", "all", "test", "nope", "", "\ud800"))

COLUMNS = ("image", "caption", "neg_caption", "neg_image", "group", "score", "split")


def rows(tamper: Tamper) -> list[dict[str, Any]]:
    cells = (
        ("1.jpg", "a red cat", ["a blue cat"], [1], "g", 1.5, "train"),
        ("2.jpg", ["a dog", "two dogs"], ["no dog"], [0, 2], "g", 2, "train"),
        ("3.jpg", "ein Hünd", [], "1.jpg", "", None, "test"),
    )
    return [{str(tamper(name)): tamper(cell) for name, cell in zip(COLUMNS, row)} for row in cells]


def flat(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.encode("utf-8", "replace").decode()


def delimited(tamper: Tamper, names: dict[str, str], delimiter: str) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter)
    table = rows(tamper)
    writer.writerow([names.get(flat(key), flat(key)) for key in table[0]])
    writer.writerows([flat(cell) for cell in row.values()] for row in table)
    return buffer.getvalue().encode()


def lines(tamper: Tamper) -> bytes:
    return "\n".join(json.dumps(row, default=str) for row in rows(tamper)).encode()


def write_jsonl_gz(folder: Path, tamper: Tamper) -> Path:
    tamper.save(folder / "plain", lines(tamper))
    tamper.save(folder / "a.jsonl.gz", gzip.compress((folder / "plain").read_bytes()))
    return folder / "a.jsonl.gz"


def arrow(values: list[Any]) -> Any:
    """An array of the values, as texts where they are of several kinds."""
    try:
        return pa.array(values)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError):
        return pa.array([flat(value) for value in values])


def write_parquet(folder: Path, tamper: Tamper) -> Path:
    table = rows(tamper)
    columns = [arrow([row.get(name) for row in table]) for name in table[0]]
    kinds = (None, pa.binary(), pa.large_string(), "dictionary", pa.float16(), pa.duration("s"))
    for place in range(len(columns)):
        kind = tamper(None)
        kind = kinds[hash(repr(kind)) % len(kinds)] if kind is not None else None
        try:
            column = columns[place]
            columns[place] = column.dictionary_encode() if kind == "dictionary" else column
            columns[place] = column.cast(kind) if isinstance(kind, pa.DataType) else columns[place]
        except (pa.ArrowException, NotImplementedError):
            pass
    buffer = io.BytesIO()
    names = [flat(name) for name in table[0]]
    pq.write_table(pa.Table.from_arrays(columns, names), buffer)
    tamper.save(folder / "a.parquet", buffer.getvalue())
    return folder / "a.parquet"


def write_images(folder: Path, tamper: Tamper) -> Path:
    """Parquet with the images inside."""
    images = [{"bytes": jpeg(), "path": None}, {"bytes": jpeg(), "path": "2.jpg"}]
    texts = [flat(tamper(text)) for text in ("a cat", "a dog")]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"image": images, "caption": texts}), buffer)
    tamper.save(folder / "a.parquet", buffer.getvalue())
    return folder / "a.parquet"


def write_json(folder: Path, tamper: Tamper, value: Any) -> Path:
    tamper.save(folder / "a.json", json.dumps(value, default=str).encode())
    return folder / "a.json"


def write_karpathy(folder: Path, tamper: Tamper) -> Path:
    images = [
        tamper(
            {
                str(tamper("filename")): tamper(f"{i}.jpg"),
                "filepath": tamper("train2014"),
                "split": tamper(part),
                "sentences": tamper([tamper({"raw": tamper("a cat")}), {"raw": "two cats"}]),
            }
        )
        for i, part in enumerate(("train", "restval", "test"))
    ]
    return write_json(folder, tamper, tamper({"images": tamper(images)}))


def write_blip(folder: Path, tamper: Tamper) -> Path:
    table = [{key: row[key] for key in ("image", "caption") if key in row} for row in rows(tamper)]
    return write_json(folder, tamper, table)


def write_coco(folder: Path, tamper: Tamper) -> Path:
    images = [{"id": tamper(i), str(tamper("file_name")): tamper(f"{i}.jpg")} for i in (7, 8)]
    texts = [tamper({"image_id": tamper(i), "caption": tamper("a cat")}) for i in (7, 8, 7)]
    return write_json(folder, tamper, {"images": tamper(images), "annotations": tamper(texts)})


def write_tokens(folder: Path, tamper: Tamper) -> Path:
    texts = [f"{flat(tamper(f'{i // 2}.jpg'))}#{i % 2}\t{flat(tamper('a cat'))}" for i in range(6)]
    tamper.save(folder / "a.token.txt", "\n".join(texts).encode())
    for name in ("0.jpg", "1.jpg"):
        (folder / name).write_bytes(jpeg())
    if tamper.at % 2:
        tamper.save(folder / "a.trainImages.txt", flat(tamper("0.jpg\n2.jpg")).encode())
    return folder / "a.token.txt"


def write_kaggle(folder: Path, tamper: Tamper) -> Path:
    text = "".join(f"{flat(tamper(f'{i}.jpg'))},{flat(tamper('a cat'))}\n" for i in (0, 0, 1))
    tamper.save(folder / "captions.txt", f"image,caption\n{text}".encode())
    (folder / "0.jpg").write_bytes(jpeg())
    return folder / "captions.txt"


def file_name(value: Any) -> str:
    """A name that a file can have."""
    return f"{flat(value).replace('/', '_').replace(chr(0), '0')[:80]}".rstrip(".") or "0"


def write_folder(folder: Path, tamper: Tamper) -> Path:
    for part in ("train", "more"):
        place = folder / "photos" / file_name(tamper(part))
        place.mkdir(parents=True, exist_ok=True)
        for stem in "ab":
            tamper.save(place / file_name(tamper(f"{stem}.txt")), flat(tamper("a cat")).encode())
            tamper.save(place / file_name(tamper(f"{stem}.jpg")), jpeg())
    return folder / "photos"


def write_shard(folder: Path, tamper: Tamper) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", errors="surrogatepass") as out:
        for key, row in zip("abc", rows(tamper)):
            parts = [("jpg", jpeg()), ("json", json.dumps(row, default=str).encode())]
            parts += [("txt", flat(tamper("a cat on a mat")).encode())] * (key == "b")
            parts += [("neg_image.png", b"x")] * (key == "c")
            for kind, data in parts:
                add_member(out, str(tamper(f"{key}.{kind}")), data)
    tamper.save(folder / "train-0.tar", buffer.getvalue())
    return folder


def written(name: str, content: Callable[[Tamper], bytes], opened: str = "") -> Any:
    """A writer of one file; opened: what is opened, where it is not the file."""

    def write(folder: Path, tamper: Tamper) -> Path:
        tamper.save(folder / name, content(tamper))
        return folder / (opened or name)

    return write


NEGCLIP = {"image": "filepath", "caption": "title", "split": ""}
SOURCES: dict[str, Callable[[Path, Tamper], Path]] = {
    "csv": written("a.csv", lambda tamper: delimited(tamper, {}, ",")),
    "tsv": written("a.tsv", lambda tamper: delimited(tamper, {}, "\t")),
    "negclip": written("a.tsv", lambda tamper: delimited(tamper, NEGCLIP, "\t")),
    "jsonl": written("a.jsonl", lines),
    "metadata": written("metadata.jsonl", lines, "."),
    **{
        name.removeprefix("write_"): write
        for name, write in list(globals().items())
        if name.startswith("write_") and name != "write_json"
    },
}


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


def bounded(examples: int) -> Any:
    """The same examples in every run."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_is_read_or_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = peak()

    @bounded(60)
    @given(tamper=tampers, image=words, caption=words, split=splits)
    def check(tamper: Tamper, image: str | None, caption: str | None, split: str | None) -> None:
        with tempfile.TemporaryDirectory(prefix="source-") as name:
            folder = Path(name)
            monkeypatch.setenv("XDG_CACHE_HOME", f"{name}/cache")
            path = SOURCES[kind](folder, tamper)
            with one_line(folder):
                source = open_source(
                    str(path), image_column=image, caption_column=caption, split=split
                )
                columns = ("id", "captions", "group", "image_score")
                assert {len(list(source.column(name))) for name in columns} == {len(source)}
                assert len(source) > 0
                assert all(text.strip() for text in source.captions())
                assert all(count > 0 for count in source.left_out.values())
                assert source.brings() is not None
                assert source.describe()
                for index in range(len(source)):
                    sample = source[index]
                    inside = isinstance(sample.image, bytes)
                    with one_line(Path(sample.id) if inside else folder):
                        decode(sample.image, name=sample.id if inside else "")

    check()
    assert peak() - before < MOST_MEMORY


@pytest.mark.parametrize("kind", ["jsonl", "jsonl_gz", "parquet", "images", "shard"])
def test_every_shard_of_a_corpus_is_made_or_left_out(kind: str) -> None:
    before = peak()
    jobs = (ParseJob(), RewriteJob(Settings(("negclip", "replace"), seed=1)))

    @bounded(40)
    @given(tamper=tampers, column=words)
    def check(tamper: Tamper, column: str | None) -> None:
        with tempfile.TemporaryDirectory(prefix="corpus-") as name:
            folder = Path(name)
            (folder / "in").mkdir()
            SOURCES[kind](folder / "in", tamper)
            with one_line(folder):
                (*_, shard) = find_shards(str(folder / "in"))
                job = jobs[tamper.at % 2]
                outcome = process([shard], folder / "out", job, column=column)
                assert len(outcome.written) + len(outcome.bad) == 1
                for error in outcome.bad.values():
                    assert error.splitlines() == [error]
                    assert shard.name in error
                made = [p for p in (folder / "out").iterdir() if p.is_file()]
                assert [p.name for p in made] == list(outcome.written)

    check()
    assert peak() - before < MOST_MEMORY
