"""Facts that are probed: the regression, intervals, sides of scenes, texts, small runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from build.photos import write_photo
from build.tables import write_jsonl
from compoclip.errors import CompoclipError
from compoclip_world.dataset import bundled_world
from compoclip_world.export.pairs import TASKS
from compoclip_world.oracle import is_false, is_true
from compoclip_world.pairs import pair
from lab import facts, probes
from lab.facts import PHOTO_SKILLS, SKILLS, SOURCES, Fact, shown, texts_of
from lab.probes import PARTS, Answers, ask, encode_texts, fit_pairs, part_of, score

# --- The regression. ---


def pairs_of(count: int, width: int, step: float) -> np.ndarray:
    """Return (count, 2, width) of noise; the first feature of the sides differs by 2 * step."""
    pairs = np.random.default_rng(0).normal(size=(count, 2, width)).astype(np.float32)
    pairs[:, :, 0] = 0.1 * pairs[:, :, 0] + np.array([step, -step], dtype=np.float32)
    return pairs


@pytest.mark.parametrize("width", [5, 300])
def test_a_fact_that_is_there_is_found_and_another_is_not(width: int) -> None:
    part = np.array([part_of(number) for number in range(400)])
    test = part == "test"
    accuracies = []
    for step in (1.0, 0.0):
        pairs = pairs_of(400, width, step)
        answers = ask(fit_pairs(pairs, part), pairs[test], np.flatnonzero(test))
        accuracies.append(score([answers]).accuracy)
    there, absent = accuracies
    assert there.value == 1.0
    assert absent.low < 0.5 < absent.high
    assert absent.value == pytest.approx(0.5, abs=0.12)


def test_features_that_never_vary_count_nothing() -> None:
    pairs = pairs_of(40, 3, 1.0)
    pairs[:, :, 2] = 7.0
    part = np.array([part_of(number) for number in range(40)])
    probe = fit_pairs(pairs, part)
    moved = pairs.copy()
    moved[:, :, 2] = 1e6
    clusters = np.arange(40)
    assert ask(probe, moved, clusters).right.all()
    assert not ask(fit_pairs(np.zeros_like(pairs), part), pairs, clusters).right.all()


def test_every_part_needs_a_pair() -> None:
    with pytest.raises(CompoclipError, match="too few pairs for the part 'choose'"):
        fit_pairs(pairs_of(2, 3, 1.0), np.array(["fit", "test"]))
    assert {part_of(number) for number in range(20)} == set(PARTS)


def test_scores_are_means_over_facts() -> None:
    right = np.array([[True, True], [True, False]])
    wrong = np.zeros((6, 2), dtype=bool)
    mean = score([Answers(right, np.array([0, 1])), Answers(wrong, np.arange(6))])
    assert (mean.accuracy.value, mean.both.value, mean.pairs) == (0.375, 0.25, 8)
    assert mean.accuracy.low < 0.375 < mean.accuracy.high <= 0.5


# --- The facts. ---


def test_every_task_of_the_world_has_facts() -> None:
    assert set(SKILLS) == set(TASKS)
    assert {skill.source for skill in SKILLS.values()} == set(SOURCES)


@pytest.mark.parametrize("source", SOURCES)
def test_sides_of_scenes_are_the_oracle_s(source: str) -> None:
    world = replace(bundled_world(), **SOURCES[source].world)
    facts_of_source = [
        fact for skill in SKILLS.values() if skill.source == source for fact in skill.facts
    ]
    served = 0
    for number in range(12):
        scenes = pair(world, 0, number, source, "val")
        for fact in facts_of_source:
            side = shown(fact, scenes)
            if side is None:
                continue
            served += 1
            which, first, second = side
            ordered = (scenes.scene_a, scenes.scene_b)[:: 1 - 2 * which]
            assert first in fact.first
            assert second in fact.second
            for text, scene, other in ((first, *ordered), (second, *ordered[::-1])):
                assert is_true(text, scene)
                assert is_false(text, other)
    assert served >= 8


@pytest.mark.parametrize("name", SKILLS)
def test_texts_of_the_test_have_other_wordings(name: str) -> None:
    skill = SKILLS[name]
    for fact in skill.facts[:2]:
        pairs = texts_of(skill, fact, 30, 10)
        assert pairs == texts_of(skill, fact, 30, 10)
        assert [sides.test for sides in pairs].count(True) == 10
        assert len({(sides.first, sides.second) for sides in pairs}) == 40
        held_out = facts.held_out(fact)
        for sides in pairs:
            texts = [text.lower() for text in (sides.first, sides.second)]
            assert texts[0] != texts[1]
            if skill.wordings is None and sides.test:
                assert any(word in text for word in held_out for text in texts)


def test_texts_of_a_relation_are_no_bag_of_words() -> None:
    skill = SKILLS["left_right"]
    pairs = texts_of(skill, skill.facts[0], 100, 20)
    left = [sum(" left" in getattr(sides, name) for sides in pairs) for name in ("first", "second")]
    assert min(left) > 35
    assert sum(left) == len(pairs)


def test_sentences_of_the_test_are_no_others() -> None:
    for name in ("negation", "negation_missing"):
        wordings = SKILLS[name].wordings
        assert wordings is not None
        assert set(wordings.first).isdisjoint(wordings.first_test)
        assert set(wordings.second).isdisjoint(wordings.second_test)


def test_too_few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_PATIENCE", 1)
    with pytest.raises(CompoclipError, match="too few texts say 'a ball'"):
        texts_of(SKILLS["object"], Fact(("a ball",), ("a mug",)), 10, 100)


# --- Small runs. ---


def run(out: Path, *arguments: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    assert probes.main(["--out", str(out), *arguments]) == 0
    record = json.loads((out / "probes.json").read_text())
    assert len(record["weights"]) == 32
    skills: dict[str, dict[str, dict[str, dict[str, float]]]] = record["skills"]
    return skills


def test_a_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("object", "bind_colour")
    small = {name: replace(SKILLS[name], facts=SKILLS[name].facts[:1]) for name in names}
    monkeypatch.setattr(probes, "SKILLS", small)
    sources = {skill.source: replace(SOURCES[skill.source], pairs=40) for skill in small.values()}
    monkeypatch.setattr(probes, "SOURCES", sources)
    monkeypatch.setattr(probes, "QUICK", probes.Effort(1.0, (40, 10)))
    skills = run(tmp_path, "--quick")
    assert list(skills) == list(names)
    assert list(skills["object"]) == ["image", "patches", "zero-shot", "text", "known text"]
    assert skills["object"]["image"]["accuracy"]["value"] == 1.0
    assert skills["object"]["text"]["pairs"] == 10
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80

    monkeypatch.setattr(probes, "encode", None)  # features are cached
    assert run(tmp_path, "--quick") == skills
    assert capsys.readouterr().out == printed


def test_a_run_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"replace_object": PHOTO_SKILLS["replace_object"][:1]}
    monkeypatch.setattr(probes, "PHOTO_SKILLS", facts)
    colours = {"man": "red", "woman": "blue"}
    for table, count in (("photos", 6), ("dev", 2), ("test", 4)):
        rows = []
        for number in range(count):
            for who, colour in colours.items():
                name = f"images/{table}-{number}-{who}.png"
                write_photo(tmp_path / name, colour=colour, size=(64, 64 + number))
                captions = [f"A {who} sits .", f"There is a {who} .", f"The {who} .", "A picture ."]
                rows.append({"image": name, "caption": captions})
        write_jsonl(tmp_path / f"{table}.jsonl", rows)
    skills = run(tmp_path / "out", "--photos", str(tmp_path))
    assert list(skills["replace_object"]) == ["image", "patches", "zero-shot", "known text"]
    assert skills["replace_object"]["image"]["accuracy"]["value"] == 1.0
    assert skills["replace_object"]["known text"]["pairs"] == 4


@pytest.mark.parametrize(
    ("captions", "side"),
    [
        (["A man .", "Two men .", "the MAN"], 0),
        (["A woman .", "Two women .", "a lady"], 1),
        (["A man .", "Two men ."], None),
        (["A man .", "Two men .", "a man and a woman"], None),
    ],
)
def test_photos_are_of_a_side_when_captions_agree(captions: list[str], side: int | None) -> None:
    assert PHOTO_SKILLS["replace_object"][0].side_of(captions) == side


def test_photos_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match="no such file; write the folder with python -m lab"):
        probes.main(["--out", str(tmp_path / "out"), "--photos", str(tmp_path)])


def test_equal_texts_have_equal_rows() -> None:
    model = probes.load_model("bundled")
    rows = encode_texts(model, ["a star", "a mug", "a star"])
    assert (rows[0] == rows[2]).all()
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-5)
