"""Training sets of minimal pairs: what is written, that it trains, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError
from compoclip_world import geometry
from compoclip_world.dataset import bundled_world, png_bytes
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.pairs import PairSet, pair, write_pair_set
from compoclip_world.scene import WorldConfig

CONFIG = WorldConfig(size=32)
SKILLS = (("swap-place", 3), ("relation", 2))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]


def test_twins_name_each_other(tmp_path: Path) -> None:
    assert write_pair_set(tmp_path / "set", PairSet(CONFIG, SKILLS, seed=3)) == 10
    rows = rows_of(tmp_path / "set")
    assert [row["group"] for row in rows[::2]] == [row["group"] for row in rows[1::2]]
    assert len({row["group"] for row in rows}) == 5
    by_image = {row["image"]: row for row in rows}
    for row in rows:
        twin = by_image[row["neg_image"]]
        assert row["neg_caption"] == twin["caption"] != row["caption"]
        assert twin["neg_image"] == row["image"]
    made = pair(CONFIG, 3, 1, "relation", "train")
    last = rows[-2]
    assert (last["caption"], last["neg_caption"]) == (made.caption_a, made.caption_b)
    assert (tmp_path / "set" / last["image"]).read_bytes() == png_bytes(made.scene_a, 32)


def test_no_false_caption_is_true_by_a_small_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [pair(bundled_world(), 0, i, "relation") for i in range(150)]
    monkeypatch.setattr(geometry, "_ahead", lambda along, across: along > 0)
    oracle = Oracle()
    for each in made:
        for text, scene in ((each.caption_a, each.scene_b), (each.caption_b, each.scene_a)):
            assert oracle.verdict(text, scene).truth is Truth.FALSE, text


def test_the_table_is_what_methods_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "set"
    asked = ["world", "pairs", f"--out={data}", "--size=32", "--skills", "relation=2", "count=2"]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 8
    source = open_source(str(data / "pairs.jsonl"))
    assert len(source) == 8
    assert source.brings() == {"group", "negatives", "negative_image"}
    groups = list(source.column("group"))
    assert [groups.count(name) for name in groups] == [2] * 8


@pytest.mark.parametrize(
    ("skills", "why"),
    [
        ("swap-hats=3", "no skill 'swap-hats'; known: swap-colour"),
        ("relation", "'relation' must be SKILL=COUNT"),
        ("relation=0", "with a count of 1 or more"),
        ("relation=many", "with a count of 1 or more"),
        ("relation=1 relation=2", "names a skill twice"),
    ],
)
def test_wrong_skills_are_refused(
    skills: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["world", "pairs", "--out", str(tmp_path / "set"), "--skills", *skills.split()]) == 2
    )
    assert why in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def test_a_world_without_such_pairs_leaves_nothing(tmp_path: Path) -> None:
    lonely = WorldConfig(size=32, objects=(1.0,), kinds=("ball",), colours=("red",))
    with pytest.raises(CompoclipError, match="no pair of skill 'object' fits split 'train'"):
        write_pair_set(tmp_path / "set", PairSet(lonely, (("object", 1),)))
    assert not (tmp_path / "set").exists()
