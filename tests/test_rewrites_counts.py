"""Counts of words of one's own: made, read by `rewrite` and `train`, and part of what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.corpora.job import CorpusRow, RewriteJob, new_counts
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import load_model
from compoclip.rewrites.attested import counts_digest, read_counts
from compoclip.rewrites.records import Settings
from method_data import arguments, write_world
from record_files import lines, write_lines

# Rides that few captions show.
SEEN = [f"a man riding a {animal} in a field" for animal in ("whale", "rabbit", "turtle", "goat")]
CAPTION = "a man riding a horse in a field"
FEW = ("--epochs=0.8", "--warmup=1", "--workers=0")


def run(*arguments: str | Path) -> int:
    return main(["rewrite", *map(str, arguments)])


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Counts in which every pair of a handful of captions is met often."""
    folder = tmp_path_factory.mktemp("counts")
    captions = write_lines(folder / "captions.txt", SEEN)
    assert run(captions, "--count-words", "-o", folder / "words.xz") == 0
    return folder / "words.xz"


def test_counts_are_of_different_captions_and_the_same_again(
    counts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = write_lines(tmp_path / "captions.txt", [*SEEN, *SEEN, ""])
    out = tmp_path / "again.xz"
    capsys.readouterr()
    assert run(captions, "--count-words", "-o", out, "--json", "--workers", "1") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["captions"] == len(SEEN)
    assert said["least"] == 1
    assert out.read_bytes() == counts.read_bytes()
    assert counts_digest(out) == counts_digest(counts)
    found = read_counts(out)
    assert said["pairs"] == len(found)
    assert found["obj ride whale"] == 1
    assert found["subj man ride"] == 4


def test_tables_and_training_data_are_counted_too(tmp_path: Path, counts: Path) -> None:
    table = tmp_path / "c.csv"
    table.write_text("title\n" + "\n".join(SEEN))
    assert run(table, "--column", "title", "--count-words", "-o", tmp_path / "c.xz") == 0
    assert read_counts(tmp_path / "c.xz") == read_counts(counts)
    world = write_world(tmp_path / "world")
    assert run(world / "plain.jsonl", "--count-words", "-o", tmp_path / "w.xz") == 0
    assert read_counts(tmp_path / "w.xz")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{captions}", "--count-words"), "name the file to write with -o"),
        (("a dog on a mat", "--count-words", "-o", "{out}"), "no such file"),
        (("{captions}", "--count-words", "-o", "{captions}"), "is the input itself"),
        (("{captions}", "--count-words", "-o", "{out}", "--counts", "{out}"), "leave one"),
        (("{empty}", "--count-words", "-o", "{out}"), "holds no captions"),
        (("{captions}", "-o", "{out}.jsonl", "--counts", "{captions}"), "not a file of counts"),
        (("a dog", "--counts", "{out}"), "cannot read the counts"),
    ],
)
def test_what_does_not_go_is_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "captions": write_lines(tmp_path / "captions.txt", SEEN),
        "empty": write_lines(tmp_path / "empty.txt", [""]),
        "out": tmp_path / "out.xz",
    }
    assert run(*(each.format(**places) for each in arguments)) in (1, 2)
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error
    assert not places["out"].exists()


def test_texts_depend_on_the_counts_and_not_on_workers(counts: Path, tmp_path: Path) -> None:
    captions = write_lines(tmp_path / "captions.txt", [CAPTION, *SEEN] * 60)
    made = {}
    for name, options in {
        "without": (),
        "one": ("--counts", counts),
        "two": ("--counts", counts, "--workers", "2"),
    }.items():
        out = tmp_path / f"{name}.jsonl"
        names = "replace,ce-noun,graph-obj"
        assert run(captions, "-o", out, "--rewrites", names, *options) == 0
        made[name] = lines(out)
    assert made["one"] == made["two"]
    assert {record["counts"] for record in made["one"]} == {counts_digest(counts)}
    assert "counts" not in made["without"][0]
    assert [r["text"] for r in made["one"]] != [r["text"] for r in made["without"]]


def test_a_file_of_records_made_with_other_counts_is_not_gone_on_with(
    counts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions, out = write_lines(tmp_path / "captions.txt", SEEN), tmp_path / "o.jsonl"
    assert run(captions, "-o", out, "--rewrites", "replace") == 0
    assert run(captions, "-o", out, "--rewrites", "replace", "--counts", counts) == 2
    assert "other settings" in capsys.readouterr().err


def job(counts: tuple[Path, str] | None) -> tuple[RewriteJob, list[dict[str, Any]]]:
    made = RewriteJob(Settings(("replace", "ce-noun"), counts=counts))
    rows = [CorpusRow(str(number), (CAPTION,)) for number in range(40)]
    return made, made.make(rows, new_counts())


def test_shards_take_counts(counts: Path) -> None:
    with_counts, texts = job((counts, counts_digest(counts)))
    without, before = job(None)
    assert with_counts.settings()["counts"] == counts_digest(counts)
    assert "counts" not in without.settings()
    assert texts != before


def drawn(plan: TextPlan) -> list[str]:
    samples = (Sample(str(number), Path("none.jpg"), (CAPTION,)) for number in range(40))
    return [text.text for sample in samples for text in plan.draw(sample, 0)[0]]


def test_plans_with_and_without_counts_live_side_by_side(counts: Path) -> None:
    parsed = {CAPTION: parse(CAPTION)}
    names = ("replace", "ce-noun")
    plain = TextPlan(CaptionPlan(names), parsed=parsed)
    own = TextPlan(CaptionPlan(names, counts=str(counts)), parsed=parsed)
    before = drawn(plain)
    assert drawn(own) != before
    assert drawn(plain) == before
    with pytest.raises(CompoclipError, match="cannot read the counts"):
        TextPlan(CaptionPlan(names, counts="absent.xz"), parsed=parsed)


def test_a_file_that_changes_under_a_worker_is_noticed(counts: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.xz"
    copy.write_bytes(counts.read_bytes())
    settings = Settings(("replace",), counts=(copy, "another"))
    with pytest.raises(CompoclipError, match="changed while it was in use"):
        RewriteJob(settings).make([CorpusRow("0", (CAPTION,))], new_counts())


def test_training_takes_counts_records_them_and_notices_others_on_resume(
    counts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = write_world(tmp_path / "world")
    words = tmp_path / "words.xz"
    words.write_bytes(counts.read_bytes())

    def train(out: str, *options: str, method: str = "negclip") -> int:
        return main([*arguments(world, method, tmp_path / out), *FEW, *options])

    given = f"--counts={words}"
    assert train("part", given, "--stop-after=2") == 0
    # Other counts in the same place.
    assert run(world / "plain.jsonl", "--count-words", "-o", words) == 0
    capsys.readouterr()
    assert train("part", given, "--resume") == 1
    said = capsys.readouterr().err
    assert "with other settings: words.xz changed; use" in said
    words.write_bytes(counts.read_bytes())
    assert train("part", given, "--resume", "--workers=2") == 0
    record = load_model(tmp_path / "part" / "model").provenance
    assert record["sources"] == {"words.xz": counts_digest(counts)}
    assert "counts" not in record["texts"]
    assert train("none", given, method="clip-ft") == 2
    assert "--counts goes with rewrites" in capsys.readouterr().err
