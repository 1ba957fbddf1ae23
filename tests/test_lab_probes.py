"""Reports of the lab: facts that are probed, and comparisons at equal effort."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compoclip.errors import CompoclipError, UsageError
from compoclip_world.dataset import bundled_world
from compoclip_world.export.pairs import TASKS
from compoclip_world.oracle import is_false, is_true
from compoclip_world.pairs import pair
from lab import facts, probes
from lab.effort import RATE, Searched, propose, read_effort, run_effort
from lab.facts import PHOTO_SKILLS, SKILLS, SOURCES, Fact, shown, texts_of
from lab.probes import PARTS, Answers, ask, encode_texts, fit_pairs, part_of, score
from lab_helpers import Here
from test_lab_run import SETTINGS

# --- Facts: the regression, intervals, sides of scenes, texts, small runs ---


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
    assert absent.low is not None
    assert absent.high is not None
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
    found = score([Answers(right, np.array([0, 1])), Answers(wrong, np.arange(6))])
    assert (found.accuracy.value, found.both.value, found.pairs) == (0.375, 0.25, 8)
    assert found.accuracy.low is not None
    assert found.accuracy.high is not None
    assert found.accuracy.low < 0.375 < found.accuracy.high <= 0.5


def test_every_task_of_the_world_has_facts() -> None:
    assert set(SKILLS) == set(TASKS)
    assert {skill.source for skill in SKILLS.values()} == set(SOURCES)


@pytest.mark.parametrize("source", SOURCES)
def test_sides_of_scenes_are_the_oracle_s(source: str) -> None:
    world = replace(bundled_world(), **SOURCES[source].world)
    of_source = [skill for skill in SKILLS.values() if skill.source == source]
    served = 0
    for number in range(12):
        scenes = pair(world, 0, number, source, "val")
        for skill in of_source:
            for fact in skill.facts:
                side = shown(fact, scenes)
                if side is None:
                    continue
                served += 1
                which, first, second = side
                ordered = (scenes.scene_a, scenes.scene_b)[:: 1 - 2 * which]
                assert first in fact.first
                assert second in fact.second
                for text, own, other in ((first, *ordered), (second, *ordered[::-1])):
                    assert is_true(text, own)
                    assert is_false(text, other)
    assert served >= 8


@pytest.mark.parametrize("name", SKILLS)
def test_texts_of_the_test_have_other_wordings(name: str) -> None:
    skill = SKILLS[name]
    for fact in skill.facts[:2]:
        pairs = texts_of(skill, fact, 30, 10)
        assert pairs == texts_of(skill, fact, 30, 10)
        assert [each.test for each in pairs].count(True) == 10
        assert len({(each.first, each.second) for each in pairs}) == 40
        held_out = facts.held_out(fact)
        for each in pairs:
            texts = [text.lower() for text in (each.first, each.second)]
            assert texts[0] != texts[1]
            if skill.wordings is None:
                named = any(word in text for word in held_out for text in texts)
                assert named or not each.test


def test_texts_of_a_relation_are_no_bag_of_words() -> None:
    skill = SKILLS["left_right"]
    pairs = texts_of(skill, skill.facts[0], 100, 20)
    left = [sum(" left" in getattr(each, side) for each in pairs) for side in ("first", "second")]
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


def run(out: Path, *arguments: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    assert probes.main(["--out", str(out), *arguments]) == 0
    record = json.loads((out / "probes.json").read_text())
    assert len(record["weights"]) == 32
    skills: dict[str, dict[str, dict[str, dict[str, float]]]] = record["skills"]
    return skills


def test_a_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("object", "bind_colour")
    small = {name: replace(SKILLS[name], facts=SKILLS[name].facts[:1]) for name in chosen}
    monkeypatch.setattr(probes, "SKILLS", small)
    sources = {skill.source: replace(SOURCES[skill.source], pairs=40) for skill in small.values()}
    monkeypatch.setattr(probes, "SOURCES", sources)
    monkeypatch.setattr(probes, "QUICK", probes.Effort(1.0, (40, 10)))
    skills = run(tmp_path, "--quick")
    assert list(skills) == list(chosen)
    assert list(skills["object"]) == ["image", "patches", "zero-shot", "text", "known text"]
    assert skills["object"]["image"]["accuracy"]["value"] == 1.0
    assert skills["object"]["text"]["pairs"] == 10
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80

    def never(*_: object) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(probes, "encode", never)
    assert run(tmp_path, "--quick") == skills
    assert capsys.readouterr().out == printed


def test_a_run_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probes, "PHOTO_SKILLS", {"replace_object": PHOTO_SKILLS["replace_object"][:1]}
    )
    (tmp_path / "images").mkdir()
    colours = {"man": "red", "woman": "blue"}
    for table, count in (("photos", 6), ("dev", 2), ("test", 4)):
        rows = []
        for number in range(count):
            for who, colour in colours.items():
                name = f"images/{table}-{number}-{who}.png"
                Image.new("RGB", (64, 64 + number), colour).save(tmp_path / name)
                captions = [f"A {who} sits .", f"There is a {who} .", f"The {who} .", "A picture ."]
                rows.append(json.dumps({"image": name, "caption": captions}))
        (tmp_path / f"{table}.jsonl").write_text("\n".join(rows))
    skills = run(tmp_path / "out", "--photos", str(tmp_path))
    assert list(skills["replace_object"]) == ["image", "patches", "zero-shot", "known text"]
    assert skills["replace_object"]["image"]["accuracy"]["value"] == 1.0
    assert skills["replace_object"]["known text"]["pairs"] == 4


def test_photos_are_of_a_side_when_captions_agree() -> None:
    man = PHOTO_SKILLS["replace_object"][0]
    assert man.side_of(["A man .", "Two men .", "the MAN"]) == 0
    assert man.side_of(["A woman .", "Two women .", "a lady"]) == 1
    assert man.side_of(["A man .", "Two men ."]) is None
    assert man.side_of(["A man .", "Two men .", "a man and a woman"]) is None


def test_photos_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match="no such file; write the folder with python -m lab"):
        probes.main(["--out", str(tmp_path / "out"), "--photos", str(tmp_path)])


def test_equal_texts_have_equal_rows() -> None:
    model = probes.load_model("bundled")
    rows = encode_texts(model, ["a star", "a mug", "a star"])
    assert (rows[0] == rows[2]).all()
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-5)


# --- Comparisons at equal effort ---


RANGES = {RATE: [1e-4, 1e-2], "strength": [0.1, 3.0]}


def test_proposals_are_a_function_of_the_trials_before() -> None:
    recipe = Searched("compo", "compo", RANGES)
    told: list[tuple[dict[str, float], float]] = []
    for number in range(6):
        point = dict(propose(recipe, told))
        assert point == propose(recipe, told)
        assert point.keys() == RANGES.keys()
        for name, (low, high) in RANGES.items():
            assert 0.99 * low <= point[name] <= 1.01 * high
        told.append((point, float(-number)))
    assert len({json.dumps(point) for point, _ in told}) == 6


def write_settings(folder: Path, base: Path, **changes: object) -> Path:
    """A comparison of two recipes by a few steps, on three benchmarks."""
    names = ("control", "scenes", "batch_size", "warmup", "items", "choice_items")
    shared = {name: getattr(SETTINGS, name) for name in names}
    arms = [{"name": "clip-ft", "method": "clip-ft"}]
    lab = {**shared, "model": str(base), "arms": arms, "benchmarks": ["world-foils"]}
    (folder / "lab.json").write_text(json.dumps(lab))
    effort = {
        "lab": "lab.json",
        "positions": 8000,
        "trials": 2,
        "trial_share": 0.5,
        "shares": [0.5, 1.0],
        "seeds": [0],
        "against": ["base", "negclip"],
        "shown": ["bind_colour"],
        "judged_on": ["world-foils"],
        "kept_on": ["world-retrieval-style"],
        "apart": ["world-strict"],
        "recipes": [
            {"name": "clip-ft", "method": "clip-ft", "search": {RATE: [1e-4, 1e-3]}},
            {"name": "negclip", "method": "negclip", "search": {RATE: [1e-4, 1e-3]}},
        ],
    }
    path = folder / "effort.json"
    path.write_text(json.dumps({**effort, **changes}))
    return path


@pytest.mark.slow
def test_a_comparison_runs_to_its_tables_and_resumes(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("lab.pool.Workers", Here)
    effort, settings = read_effort(write_settings(tmp_path, world / "base"))
    out = tmp_path / "out"
    numbers, text = run_effort(effort, settings, out, budget=1e6, workers=1)
    assert {name: len(told) for name, told in numbers["trials"].items()} == {
        "clip-ft": 2,
        "negclip": 2,
    }
    for name, told in numbers["trials"].items():
        assert numbers["chosen"][name] == max(told, key=lambda pair: pair[1])[0]
    costs = {
        name: json.loads((out / "costs" / f"{name}.json").read_text())["positions"]
        for name in ("clip-ft", "negclip")
    }
    assert costs["negclip"] > 1.5 * costs["clip-ft"]  # a negative for nearly every caption
    steps = {
        path.parent.name: len(path.read_text().splitlines())
        for path in out.glob("runs/*/train.jsonl")
    }
    assert steps
    header = text.splitlines()[0]
    assert "gain at 0.5" in header
    assert "gain at 1" in header
    rows = [line.split("|")[1].strip() for line in text.split("\n\n")[0].splitlines()[2:]]
    assert rows == ["base", "clip-ft", "negclip"]
    assert "strict bind_colour" in text
    assert ["against base" in header, "against negclip" in header] == [True, True]
    by_recipe = {line.split("|")[1].strip(): line for line in text.split("\n\n")[0].splitlines()}
    assert by_recipe["negclip"].count("[") == 1  # against the base alone
    assert by_recipe["clip-ft"].count("[") == 2
    chosen_table = text.split("\n\n")[-1].splitlines()
    assert [line.split("|")[1].strip() for line in chosen_table[2:]] == ["clip-ft", "negclip"]
    assert f"lr {numbers['chosen']['negclip'][RATE]:g}" in chosen_table[-1]
    header, blind, base, *rows = (
        line.split("\t") for line in (out / "effort.tsv").read_text().splitlines()
    )
    assert [blind[0], base[:3]] == ["blind", ["base", "0", "0"]]
    assert [row[:3] for row in rows] == [
        [name, share, "0"] for share in ("0.5", "1") for name in ("clip-ft", "negclip")
    ]
    gain = next(line for line in text.splitlines() if "| negclip" in line).split("|")[3].strip()
    assert rows[-1][header.index("gain")] == gain
    assert any(name.startswith("strict") for name in header)
    summary = (out / "summary.md").read_text().splitlines()
    assert "bind colour" in summary[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in summary[2:]]
    assert cells[0][:2] == ["chance", "0"]
    gains = {row[0]: row[1] for row in cells[1:]}
    assert gains["negclip"] == gain
    assert [*gains] == sorted(gains, key=lambda name: -float(gains[name]))
    before = (out / "effort.md").read_text()
    capsys.readouterr()
    again, same = run_effort(effort, settings, out, budget=1e6, workers=1)
    assert (again, same + "\n") == (json.loads(json.dumps(numbers)), before)
    assert "0 of 4 runs to do" in capsys.readouterr().err
    recipes = [
        {**row, "chosen": numbers["chosen"][row["name"]], "merits": [50.0, 51.5]}
        for row in json.loads((tmp_path / "effort.json").read_text())["recipes"]
    ]
    recorded, settings = read_effort(write_settings(tmp_path, world / "base", recipes=recipes))
    numbers, text = run_effort(recorded, settings, out, budget=1e6, workers=1)
    assert numbers["trials"] == {}
    assert [line for line in text.splitlines() if "| 50.0 to 51.5" in line][1].startswith("| negcl")
    assert (out / "effort.tsv").read_text().splitlines()[3:] == ["\t".join(row) for row in rows]


def test_a_comparison_of_some_recipes(world: Path, tmp_path: Path) -> None:
    effort, _ = read_effort(write_settings(tmp_path, world / "base"))
    assert [recipe.name for recipe in effort.only(["negclip"]).recipes] == ["negclip"]
    with pytest.raises(UsageError, match="no recipe 'compo'; there are: clip-ft, negclip"):
        effort.only(["compo"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipes": []}, "'recipes' must be a list"),
        ({"recipes": [{"name": "a", "method": "negclip"}]}, r"recipes\[0\]: 'search' is missing"),
        ({"positions": "many"}, "'positions' must be a whole number"),
        ({"speed": 1}, "unknown field 'speed'"),
    ],
)
def test_malformed_comparisons_are_one_line(
    world: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(CompoclipError, match=words):
        read_effort(write_settings(tmp_path, world / "base", **changes))
