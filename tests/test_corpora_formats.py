"""Shards rewritten and parsed: what is added, what stays, and that training reads it."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build import tables
from build.tables import sample, write_text
from compoclip.archives import add_member
from compoclip.bounds import MAX_CAPTION_BYTES, MAX_TEXT_CHARACTERS
from compoclip.captions.parser import parse
from compoclip.captions.store import decode, encode
from compoclip.corpora.job import ParseJob, RewriteJob, parser_name
from compoclip.corpora.run import CorpusOutcome, process
from compoclip.corpora.shard import find_shards
from compoclip.data.columns import EMPTY_CAPTION, LONG_TEXT, NO_CAPTION, NO_TEXT
from compoclip.data.sources.open import open_source
from compoclip.data.sources.shards import BAD_JSON, BAD_NAME, BAD_TEXT, SECOND, TOO_LONG
from compoclip.errors import CompoclipError, UsageError
from compoclip.patterns import SHARD_FILES, names_shards
from compoclip.rewrites.base import Rewritten, get_rewrite, rng_for
from compoclip.rewrites.records import Settings
from corpus_shards import (
    CAPTIONS,
    captions,
    corpus,
    jpeg,
    rows_of,
    tar_members,
    write_jsonl,
    write_parquet,
    write_tar,
)

NAMES = ("negclip", "replace", "synonym")
JOB = RewriteJob(Settings(NAMES, seed=7))


def done(source: Path, out: Path, job: Any = JOB, **options: Any) -> CorpusOutcome:
    outcome = process(find_shards(str(source)), out, job, **options)
    assert outcome.bad == {}
    return outcome


def expected(id: str, text: str) -> dict[str, list[str]]:
    """What one caption gives, rewrite by rewrite."""
    cells: dict[str, list[str]] = {
        name: [] for name in ("neg_caption", "neg_rule", "positive", "positive_rule")
    }
    for name in NAMES if text else ():
        rewritten = get_rewrite(name)(parse(text), rng_for(7, id, 0, name))
        if isinstance(rewritten, Rewritten):
            cells["positive" if rewritten.keeps_meaning else "neg_caption"].append(rewritten.text)
            rules = cells["positive_rule" if rewritten.keeps_meaning else "neg_rule"]
            rules.append(f"{name} {rewritten.rule}")
    return cells


@pytest.mark.parametrize("kind", SHARD_FILES)
def test_rows_get_the_rewrites_of_their_captions(kind: str, tmp_path: Path) -> None:
    source = corpus(tmp_path / "in", kind, shards=2)
    outcome = done(source, tmp_path / "out")
    names = [f"000{kind}", f"001{kind}"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [*names, "manifest"]
    for shard, name in enumerate(names):
        rows, texts = rows_of(tmp_path / "out" / name), captions(shard)
        if kind == ".tar":
            by_key = {row["key"]: row for row in rows}
            for key, text in ((f"{i:04d}", text) for i, text in enumerate(texts) if text):
                assert by_key[key].items() >= expected(f"{name}/{key}", text).items()
            continue
        before = rows_of(source / name)
        for i, (row, old, text) in enumerate(zip(rows, before, texts, strict=True)):
            assert row == {**old, **expected(f"{name}#{i}", text)}
    total = outcome.total
    assert (total["rows"], total["captions"]) == (12, 10)
    assert total["left_out"] == {EMPTY_CAPTION: 2, NO_CAPTION: 2}
    made = total["rewrites"]["negclip"]
    assert made["made"] + sum(made["refused"].values()) == 10
    assert sum(made["rules"].values()) == made["made"]


def test_parquet_keeps_row_groups_metadata_types_and_compression(tmp_path: Path) -> None:
    table = pa.table(
        {
            "image": pa.array([{"bytes": b"\xff\xd8", "path": None}] * 3),
            "caption": pa.array(["a red car above a blue bus"] * 3).dictionary_encode(),
            "score": pa.array([1.5, None, 2.5], pa.float32()),
        }
    ).replace_schema_metadata({"huggingface": "{}"})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2, compression="zstd")
    done(tmp_path / "a.parquet", tmp_path / "out")
    file = pq.ParquetFile(tmp_path / "out" / "a.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(2)] == [2, 1]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.schema_arrow.metadata[b"huggingface"] == b"{}"
    assert file.read(table.column_names).equals(table)


def test_lists_of_captions_and_several_columns(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    first, second = "a red car above a blue bus", "a cat on a small table"
    write_parquet(folder / "a.parquet", [[first, second], [], None], id=["x", "y", "z"])
    outcome = done(folder, tmp_path / "out")
    row = rows_of(tmp_path / "out" / "a.parquet")[0]
    both = [expected("x", first), expected("x#1", second)]
    assert row["neg_caption"] == both[0]["neg_caption"] + both[1]["neg_caption"]
    assert outcome.total["left_out"] == {NO_CAPTION: 2}
    row_of_two = json.dumps({"id": "x", "a": first, "b": second})
    done(write_text(tmp_path / "a.jsonl", f"{row_of_two}\n\n"), tmp_path / "out2", column="a, b")
    (line,) = rows_of(tmp_path / "out2" / "a.jsonl")
    assert line["neg_caption"] == row["neg_caption"]


def test_json_lines_keep_their_bytes(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    old = '{"caption": "a red car above a blue bus", "weight": 1.50, "é": "\\u00e9"}'
    source.write_text(old + "\n \n" + old + "  \r\n", encoding="utf-8")
    done(source, tmp_path / "out")
    new = (tmp_path / "out" / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(new) == 2
    assert all(line.startswith(old[:-1] + ', "neg_caption": [') for line in new)
    done(write_jsonl(tmp_path / "a.jsonl.gz", CAPTIONS), tmp_path / "out2")
    data = (tmp_path / "out2" / "a.jsonl.gz").read_bytes()
    assert data[3:8] == bytes(5)  # no flags, no time
    assert len(gzip.decompress(data).splitlines()) == len(CAPTIONS)
    surrogate = '{"caption": "a \\ud800 red car above a blue bus"}\n'
    done(write_text(tmp_path / "s.jsonl", surrogate), tmp_path / "out3")
    assert "\ud800" in rows_of(tmp_path / "out3" / "s.jsonl")[0]["neg_caption"][0]


def test_tar_members_stay_as_they_are(tmp_path: Path) -> None:
    more = [
        ("._0000.jpg", b"mac"),
        *sample("b/0001", jpg=b"x", cls=b"7"),
        *sample("c", json=b"[1]"),
        *sample("d", txt=b"a red car above a blue bus", json=b"{}"),
        *sample("e", txt=b"a dog on a cat", json=b"{torn"),
        *sample("f", JSON=b'{"text": "a cup on a plate", "n": 1e2 }\n'),
    ]
    source = write_tar(tmp_path / "a.tar", CAPTIONS, more)
    with tarfile.open(source, "a") as tar:
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    outcome = done(source, tmp_path / "out")
    before, after = tar_members(source), tar_members(tmp_path / "out" / "a.tar")
    plain = [m for m in after if not m[0].lower().endswith(".json")]
    assert plain == [m for m in before if not m[0].lower().endswith(".json")]
    texts = {name: data.decode() for name, _, data in after if not name.endswith("jpg")}
    assert texts["c.json"] == "[1]"
    assert texts["e.json"] == "{torn"
    assert texts["d.json"].startswith('{"neg_caption": [')
    assert texts["f.JSON"].startswith('{"text": "a cup on a plate", "n": 1e2, "neg_caption"')
    assert texts["0001.json"].startswith('{"caption": "two cats on a small table", "n": 1.5')
    assert "b/0001.json" not in texts
    assert json.loads(texts["0000.json"])["neg_caption"]
    assert {time for name, time, _ in after if name == "0000.json"} == {1_700_000_000}
    assert outcome.total["left_out"][BAD_JSON] == 2
    with tarfile.open(tmp_path / "out" / "a.tar") as tar:
        assert tar.getmember("link.txt").issym()


@pytest.mark.parametrize("ends", [False, True])
def test_a_sample_stays_whole_around_what_belongs_to_none(ends: bool, tmp_path: Path) -> None:
    source = tmp_path / "a.tar"
    folder = tarfile.TarInfo("0")
    folder.type = tarfile.DIRTYPE
    with tarfile.open(source, "w") as tar:
        add_member(tar, "0/1.jpg", jpeg())
        tar.addfile(folder)
        add_member(tar, "0/.hidden", b"")
        add_member(tar, "0/1.txt", b"a red car above a blue bus")
        if ends:
            tar.addfile(folder)
    outcome = done(source, tmp_path / "out")
    assert outcome.total["rows"] == 1
    with tarfile.open(tmp_path / "out" / "a.tar") as tar:
        names = [member.name for member in tar]
    assert names == ["0/1.jpg", "0", "0/.hidden", "0/1.txt", "0/1.json", *(["0"] if ends else [])]
    (read,) = open_source(str(tmp_path / "out" / "a.tar"))
    assert read.captions == ("a red car above a blue bus",)
    assert read.negatives


def test_members_that_are_no_text_stay_and_are_counted(tmp_path: Path) -> None:
    text = "a red car above a blue bus"
    more = [
        ("a\udcff.txt", text.encode()),
        ("b.txt", b"caf\xe9"),
        ("c.json", b'{"caption": "caf\xe9"}'),
        ("d.txt", text.encode()),
        ("d.TXT", b"another"),
        ("e.txt", b"x" * (MAX_CAPTION_BYTES + 1)),
        ("f.json", json.dumps({"caption": [text, 5, "y" * (MAX_TEXT_CHARACTERS + 1)]}).encode()),
    ]
    source = write_tar(tmp_path / "a.tar", [], more)
    total = done(source, tmp_path / "out").total
    assert (total["rows"], total["captions"]) == (5, 2)
    assert total["left_out"] == {
        BAD_NAME: 1,
        BAD_TEXT: 1,
        BAD_JSON: 1,
        SECOND: 1,
        TOO_LONG: 1,
        NO_TEXT: 1,
        LONG_TEXT: 1,
        NO_CAPTION: 2,
    }
    after = {name: data for name, _, data in tar_members(tmp_path / "out" / "a.tar")}
    assert {name: after[name] for name, _ in more[:-1]} == dict(more[:-1])
    for key in "df":
        wanted = expected(f"a.tar/{key}", text)["neg_caption"]
        assert json.loads(after[f"{key}.json"])["neg_caption"] == wanted


@pytest.mark.parametrize("kind", [".parquet", ".jsonl.gz", ".tar"])
def test_stored_parses_give_the_same_rewrites(kind: str, tmp_path: Path) -> None:
    source = corpus(tmp_path / "in", kind, shards=1)
    parsed = done(source, tmp_path / "parsed", ParseJob())
    assert parsed.total["parses"]["objects"] > 8
    name = f"000{kind}"
    cells = [row["parse"] for row in rows_of(tmp_path / "parsed" / name)]
    stored = [cell for cell in cells if cell["records"]]
    text = captions(0)[0]
    assert stored[0] == {"parser": parser_name("hanta"), "records": [encode(parse(text))]}
    assert decode(text, stored[0]["records"][0]) == parse(text)
    plain = done(source, tmp_path / "plain")
    again = done(tmp_path / "parsed", tmp_path / "again")
    assert (plain.total["parsed"], plain.total.get("parses_read")) == (5, None)
    assert (again.total.get("parsed", 0), again.total["parses_read"]) == (0, 5)
    one, two = (rows_of(tmp_path / out / name) for out in ("plain", "again"))
    for field in JOB.fields:
        assert [row.get(field.name) for row in one] == [row.get(field.name) for row in two]


@pytest.mark.parametrize(
    "damage",
    [
        {"parser": "0/other"},
        {"records": ["[1,2"]},
        {"records": []},
        {"records": None},
        {"records": [7]},
    ],
    ids=str,
)
def test_parses_of_no_use_are_made_anew(damage: dict[str, Any], tmp_path: Path) -> None:
    text = "a red car above a blue bus"
    stored = {"parser": parser_name("hanta"), "records": [encode(parse(text))], **damage}
    row = {"id": "x", "caption": text, "parse": stored}
    outcome = done(tables.write_jsonl(tmp_path / "a.jsonl", [row]), tmp_path / "out")
    assert outcome.total["parsed"] == 1
    assert rows_of(tmp_path / "out" / "a.jsonl")[0].items() >= expected("x", text).items()


def test_shards_are_found_by_folder_file_or_pattern(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "in", ".parquet", shards=3)
    (folder / "notes.txt").write_text("")
    (folder / ".hidden.parquet").write_text("")
    names = ["000.parquet", "001.parquet", "002.parquet"]
    write_parquet(tmp_path / "hub" / "data" / "000.parquet", CAPTIONS)
    for spec, expected_names in (
        (str(folder), names),
        (f"{folder}/*1.parquet", names[1:2]),
        (f"{folder}/{{000..001}}.parquet", names[:2]),
        (f"{folder}/000.parquet", names[:1]),
        (str(tmp_path / "hub"), names[:1]),
    ):
        assert [p.name for p in find_shards(spec)] == expected_names
    write_tar(folder / "001.tar", CAPTIONS)
    for spec, error, message in (
        (str(folder), UsageError, r"several kinds \(.parquet, .tar\)"),
        (f"{folder}/{{001,../in/001}}.parquet", UsageError, "named 001.parquet"),
        (f"{folder}/x*.parquet", CompoclipError, "no shard there"),
    ):
        with pytest.raises(error, match=message):
            find_shards(spec)
    for text in ("a cat.", "a file a.parquet", "a {cat", "x" * 5000):
        assert names_shards(text) is False
    for text in ("*.tar", str(folder), "a.jsonl.gz", "{a.tar,b.tar}", f"{folder}/00*"):
        assert names_shards(text) is True
