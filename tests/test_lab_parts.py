"""The lab's settings, training data, jobs and page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.registry import method_names
from compoclip_world.dataset import bundled_world
from compoclip_world.oracle import Oracle, Truth
from lab import data as lab_data
from lab.columns import COLUMNS, Difference, best_rate, merit
from lab.data import BAGS, PARAPHRASES, SCENES, VARIATIONS, DataSpec, write_data
from lab.ground import lab_world
from lab.job import DONE, Job, method_of, optim_of, outcome
from lab.page import (
    BEGIN,
    END,
    Finding,
    Line,
    effects_text,
    lab_table,
    record_text,
    section,
    table_text,
    write_section,
)
from lab.settings import Arm, Effect, LabSettings, read_settings

RECIPES = Path(__file__).parents[1] / "recipes" / "lab.json"
TABLES = (("relations", (("object", 0.05), ("relation", 0.95))), ("sentences", (("object", 1.0),)))
SPEC = DataSpec(lab_world(bundled_world()), count=24, tables=TABLES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "data"
    write_data(folder, SPEC)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def cells(table: str) -> list[list[str]]:
    """The cells of a Markdown table."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]


PLAIN = [{"name": "plain", "method": "clip-ft"}]


def arm(**changes: Any) -> dict[str, Any]:
    return {"arms": [{"name": "plain", "method": "x", **changes}]}


def settings_file(folder: Path, **changes: Any) -> Path:
    values = {"arms": PLAIN, "benchmarks": ["world-aro"], "control": "plain", **changes}
    path = folder / "lab.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("name", ["dial", "dial-photos", "proof", "proof-photos"])
def test_every_arm_of_the_recipes_can_be_made(name: str, data: Path) -> None:
    about = read_settings(RECIPES.with_name(f"compo-{name}.json"))
    made = [method_of(arm, data) for arm in about.arms]
    assert sum(method.name == "compo" for method in made) > 4
    assert about.arm(about.control) in about.arms
    settings = read_settings(RECIPES)
    methods = {arm.name: method_of(arm, data) for arm in settings.arms}
    assert [term.name for term in methods["fsc-global"].losses] == ["clip", "global_hn"]
    assert [term.name for term in methods["fsc-local"].losses] == ["clip", "local_hn"]
    assert "positive" not in [term.name for term in methods["hard-negatives"].losses]
    (bags,) = methods["dac"].plan.texts
    assert bags.record()["file"] == str(data / BAGS)


def test_every_recipe_has_an_arm_or_is_left_out(data: Path) -> None:
    settings = read_settings(RECIPES)
    same = {
        "clip": "clip-ft", "clip-ft-mosaic": "clip-ft", "fsc-clip-l14": "fsc-clip-b16",
        "trohn-img": "mirror-pairs",
    }  # fmt: skip
    varied = {
        "fsc-clip-b16", "fsc-clip-cc3m", "mosaic-clip-pretrain", "negclip-original", "trohn-text",
        "tsvlc-llm",
    }  # fmt: skip
    assert set(settings.left_out or ()) == set(same) | varied
    assert set(method_names()) == {arm.method for arm in settings.arms} | set(same) | varied
    for name, twin in same.items():
        one, two = (method_of(Arm("a", each), data).record() for each in (name, twin))
        assert one == two


def test_every_arm_has_as_many_steps_and_images(data: Path) -> None:
    settings = replace(read_settings(RECIPES), batch_size=8, steps=7)
    for arm in settings.arms:
        method = method_of(arm, data)
        source = open_source(str(data / f"{arm.table}.jsonl"))
        optim = optim_of(arm, method, settings, source, 0.25)
        epoch, _ = method.images.schedule(source, optim.batch_size, 0)
        assert round(optim.epochs * epoch) == 7, arm.name
        assert optim.batch_size * method.images.images_per_sample == 8, arm.name
        assert optim.lr == 0.25


def test_an_arm_is_compared_with_plain_fine_tuning_on_its_own_table() -> None:
    settings = read_settings(RECIPES)
    controls = {arm.name: settings.control_of(arm) for arm in settings.arms}
    assert controls["fsc-clip"] == controls["clip-ft"] == "clip-ft"
    assert controls["mosaic-clip"] == "clip-ft-relations"
    assert controls["clic"] == "clip-ft-sentences"
    assert controls["gnm-clip"] == "clip-ft-variations"


def test_the_quick_lab_has_some_of_the_arms_and_their_effects() -> None:
    whole, quick = read_settings(RECIPES), read_settings(RECIPES, quick=True)
    assert [arm.name for arm in quick.arms] == whole.quick["arms"]
    assert all(whole.arm(arm.name) == arm for arm in quick.arms)
    assert (len(quick.lrs), len(quick.lora_lrs)) == (1, 1)
    assert (quick.steps, quick.seeds) == (whole.steps, whole.seeds)
    names = {arm.name for arm in quick.arms} | {"base"}
    assert quick.effects == tuple(e for e in whole.effects if {e.arm, e.against} <= names)
    assert len(quick.effects) >= 6


def test_unknown_arms_and_fields_of_the_quick_lab_are_refused(tmp_path: Path) -> None:
    assert read_settings(settings_file(tmp_path), quick=True).arms[0].name == "plain"
    with pytest.raises(UsageError, match="no arm 'other'; there are: plain"):
        read_settings(settings_file(tmp_path, quick={"arms": ["other"]}), quick=True)
    for changes, message in (
        ({"arms": "plain"}, "quick: 'arms' must be a list of names"),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"items": 0}, "'items' must be more than 0"),
    ):
        with pytest.raises(CompoclipError, match=message):
            read_settings(settings_file(tmp_path, quick=changes), quick=True)


def test_a_rate_is_chosen_by_what_is_learnt_and_what_is_kept() -> None:
    low = dict.fromkeys((column.name for column in COLUMNS), 0.5)
    assert merit(low) == pytest.approx(0.5)
    # Twelve columns of compositionality share a half, four kept ones the other.
    assert merit({**low, "binding": 0.9}) == pytest.approx(0.5 + 0.4 / 12 / 2)
    assert merit({**low, "brittleness": 0.9}) == pytest.approx(0.5 - 0.4 / 12 / 2)
    assert merit({**low, "t2i": 0.2}) == pytest.approx(0.5 - 0.3 / 4 / 2)
    assert best_rate({1e-4: 0.5, 3e-4: 0.7, 1e-3: 0.6}) == 3e-4
    assert best_rate({1e-3: 0.7, 3e-4: 0.7, 1e-4: 0.6}) == 3e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": []}, "no arms"),
        ({"arms": 3}, "'arms' must be a list"),
        ({"arms": [3]}, r"arms\[0\]: not an object"),
        ({"arms": [{"name": "plain"}]}, "'method' is missing"),
        (arm(wise=1), "unknown field 'wise'"),
        (arm(method=3), "'method' must be a text"),
        ({"arms": [{"name": "plain", "method": "x"}] * 2}, "two arms are called 'plain'"),
        (arm(name="../x"), "use letters, digits and -"),
        (arm(name="base"), "not 'base'"),
        (arm(table="t"), "table: no 't'"),
        (arm(wise_ft=2), "wise_ft must be 0 to 1"),
        ({"control": "other"}, "control: no 'other'; there are: plain"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"seeds": []}, "different whole numbers"),
        ({"seeds": [-1]}, "different whole numbers"),
        (arm(seeds=[2, 2]), "different whole numbers"),
        ({"seeds": ["a"]}, "'seeds' must be a list of whole numbers"),
        ({"steps": 0}, "'steps' must be more than 0"),
        ({"ours": "nobody"}, "ours: no 'nobody'; there are: "),
        ({"steps": 1.5}, "'steps' must be a whole number"),
        ({"clip_grad": True}, "'clip_grad' must be a number"),
        ({"lrs": "high"}, "'lrs' must be a list"),
        ({"lrs": [0]}, "'lrs' must be numbers above 0"),
        ({"lrs": []}, "'lrs' must be numbers above 0"),
        ({"lora_lrs": [1e-3, "a"]}, "'lora_lrs' must be a list of numbers"),
        ({"rates": {"nobody": 1e-3}}, "rates: no 'nobody'; there are: "),
        ({"rates": {"clip-ft": "high"}}, "rates: 'clip-ft' must be above 0"),
        ({"tables": ["relations"]}, "'tables' must be an object"),
        (
            {"arms": [*PLAIN, {"name": "b", "method": "x", "table": "variations"}]},
            "arm 'b': no arm trains plain on 'variations'; add it",
        ),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"effects": [{"claim": "c"}]}, r"effects\[0\]: 'arm' is missing"),
        ({"effects": [{"expect": "better"}]}, "'expect' must be one of higher, lower, kept"),
    ],
)
def test_settings_that_make_no_lab_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompoclipError, match=message) as caught:
        read_settings(settings_file(tmp_path, **changes))
    assert "lab.json" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("arm", "nobody"), ("against", "nobody"), ("columns", ["taste"])],
)
def test_effects_name_what_exists(tmp_path: Path, field: str, value: object) -> None:
    effect = {"claim": "c", "arm": "plain", "against": "base", "columns": ["t2i"]}
    effect["expect"] = "lower"
    assert read_settings(settings_file(tmp_path, effects=[effect])).effects[0].margin == 0.03
    with pytest.raises(CompoclipError, match=f"effect 'c': {field}: no "):
        read_settings(settings_file(tmp_path, effects=[{**effect, field: value}]))


def test_unknown_methods_and_settings_are_refused() -> None:
    for method, settings, message in (
        ("negclop", {}, "no method 'negclop'; did you mean negclip"),
        ("negclip", {"gamma": 1}, "negclip has no setting 'gamma'; it has: missing_hn"),
        ("negclip", {"optim": 1}, "no setting 'optim'"),
    ):
        with pytest.raises(UsageError, match=message):
            method_of(Arm("a", method, settings), Path())


def test_captions_tell_a_scene_from_its_copy() -> None:
    oracle = Oracle()
    pairs = reworded = 0
    for row in lab_data._rows(SPEC):
        scene, copy = row.pair.scene_a, row.pair.scene_b
        for captions, mine, other in (
            (row.captions, scene, copy),
            (row.copy_captions, copy, scene),
        ):
            assert 1 <= len(captions) <= 2
            for text in captions:
                assert oracle.verdict(text, mine).truth is Truth.TRUE
                assert oracle.verdict(text, other).truth is Truth.FALSE
        for sentence, negative in row.bag:
            assert oracle.verdict(sentence, scene).truth is Truth.TRUE
            if negative is not None:
                assert oracle.verdict(negative, scene).truth is Truth.FALSE
                pairs += 1
        assert row.told.keys() == dict(TABLES).keys()
        for text in (t for captions in row.told.values() for t in captions):
            assert oracle.verdict(text, scene).truth is Truth.TRUE
        assert row.paraphrases.keys() <= set(row.captions)
        for text, others in row.paraphrases.items():
            assert text not in others
            for other in others:
                assert oracle.verdict(other, scene).truth is Truth.TRUE
                reworded += 1
    assert pairs > SPEC.count
    assert reworded > SPEC.count


def test_tables_hold_what_the_recipes_read(data: Path) -> None:
    scenes = open_source(str(data / SCENES))
    assert len(scenes) == SPEC.count
    assert scenes.brings() == {"negatives", "negative_image"}
    first, row = scenes[0], lines(data / SCENES)[0]
    assert first.captions == tuple(row["caption"])
    assert first.negatives == tuple(row["neg_caption"])
    assert first.image.is_file()
    assert first.negative_image.is_file()
    assert first.image.read_bytes() != first.negative_image.read_bytes()

    variations = open_source(str(data / VARIATIONS))
    groups = list(variations.column("group"))
    assert len(variations) == SPEC.count + SPEC.count // lab_data.GROUPED
    assert sorted(groups.count(name) for name in set(groups) - {""}) == [2] * (SPEC.count // 4)
    for table, _ in TABLES:
        rows = lines(data / f"{table}.jsonl")
        assert [row["image"] for row in rows] == [row["image"] for row in lines(data / SCENES)]
        assert len(open_source(str(data / f"{table}.jsonl"))) == SPEC.count
    written = method_of(Arm("a", "hard-positives", {"positives": PARAPHRASES}), data)
    assert written.plan.written == str(data / PARAPHRASES)
    assert {row["caption"] for row in lines(data / PARAPHRASES)} <= {
        text for row in lines(data / SCENES) for text in row["caption"]
    }
    assert {bag["id"] for bag in lines(data / BAGS)} == {r["image"] for r in lines(data / SCENES)}


def test_data_are_the_same_again_and_written_once(data: Path, tmp_path: Path) -> None:
    write_data(tmp_path / "data", SPEC)
    names = sorted(p.relative_to(data) for p in data.rglob("*") if p.is_file())
    assert names
    for name in names:
        assert (data / name).read_bytes() == (tmp_path / "data" / name).read_bytes()
    before = (data / SCENES).stat().st_mtime_ns
    write_data(data, SPEC)
    assert (data / SCENES).stat().st_mtime_ns == before
    with pytest.raises(CompoclipError, match="made with other settings"):
        write_data(data, replace(SPEC, seed=1))


def test_a_finished_job_of_other_settings_is_refused(tmp_path: Path) -> None:
    settings = LabSettings((Arm("a", "clip-ft"),), ("world-aro",), "a")
    job = Job(tmp_path, settings, settings.arms[0], 1, "w", rate=0.5)
    assert outcome(job) is None
    job.folder.mkdir(parents=True)
    record = {"seconds": 2.0, "speed": 3.0, "made_from": job.made_from()}
    (job.folder / DONE).write_text(json.dumps(record))
    found = outcome(job)
    assert found is not None
    assert (found.name, found.speed) == ("a-lr0.5-seed1", 3.0)
    more = replace(settings, arms=(*settings.arms, Arm("b", "negclip")), seeds=(1, 2, 3))
    assert outcome(replace(job, settings=more)) == found  # further arms and seeds change nothing
    assert outcome(replace(job, settings=replace(settings, lrs=(0.5, 1.0)))) == found
    assert outcome(replace(job, rate=1.0)) is None  # of its own folder
    assert outcome(replace(job, choosing=True)) is None  # trained, but on another suite
    for other in (
        replace(job, weights="v"),
        replace(job, settings=replace(settings, steps=3)),
        replace(job, arm=Arm("a", "negclip")),
    ):
        with pytest.raises(
            CompoclipError, match=r"made with other settings \(.* was .*\); delete it"
        ):
            outcome(other)


def difference(value: float, sd: float, p: float = 0.001, runs: int = 3) -> Difference:
    return Difference(value, value - 0.01, value + 0.01, p, sd, runs, 100)


FEW = replace(difference(0.05, 0.01), low=None, high=None, p=None, photos=1)


@pytest.mark.parametrize(
    ("found", "sign"),
    [
        (difference(0.05, 0.02), 1),
        (difference(-0.05, 0.02), -1),
        (difference(0.05, 0.025), 0),  # not more than two deviations
        (difference(0.05, 0.02, p=0.06), 0),
        (difference(0.05, math.nan, runs=1), 0),
        (FEW, 0),
    ],
)
def test_a_difference_counts_by_seeds_and_items(found: Difference, sign: int) -> None:
    assert found.sign == sign


@pytest.mark.parametrize(
    ("expect", "found", "verdict"),
    [
        ("higher", difference(0.05, 0.01), "**appears**"),
        ("lower", difference(0.05, 0.01), "**the opposite appears**"),
        ("lower", difference(-0.05, 0.01), "**appears**"),
        ("lower", difference(-0.05, 0.03), "undecided"),  # not significant, not excluded either
        ("higher", difference(-0.05, 0.03), "not higher by 3"),
        ("lower", difference(0.025, 0.02), "not lower by 3"),
        ("higher", difference(0.01, 0.01), "equivalent within 3 points"),  # 0.01 + 0.012 < 0.03
        ("higher", difference(0.01, 0.02), "undecided"),  # 0.01 + 2 * 0.02 / sqrt(3) > 0.03
        ("higher", difference(0.025, 0.001, p=0.2), "undecided"),  # 0.025 + 0.01 > 0.03
        ("lower", difference(-0.01, 0.01), "equivalent within 3 points"),
        ("lower", difference(-0.01, 0.02), "undecided"),
        ("kept", difference(0.0, 0.01), "**appears**"),
        ("kept", difference(-0.015, 0.001), "**appears**"),  # lower, but by less than matters
        ("kept", difference(-0.015, 0.02), "undecided"),  # 0.015 + 2 * 0.02 / sqrt(3) > 0.03
        ("kept", difference(-0.05, 0.01), "**the opposite appears**"),
        ("kept", difference(0.0, math.nan, runs=1), "not judged: one seed"),
        ("higher", FEW, "not judged: too few photos: 1"),
        ("kept", FEW, "not judged: too few photos: 1"),
        ("kept", None, "not run"),
    ],
)
def test_verdicts(expect: Any, found: Difference | None, verdict: str) -> None:
    effect = Effect("c", "a", "base", ("t2i",), expect)
    assert Finding(effect, "t2i", found).verdict == verdict


def test_the_table_shows_means_and_marks_and_the_record_all_columns(tmp_path: Path) -> None:
    values = {column.name: [0.5, 0.52, 0.54] for column in COLUMNS}
    marked = {"t2i": difference(-0.1, 0.01)}
    base_and_arm = [
        Line("base", {c.name: [0.6] for c in COLUMNS}, (), {}, {}),
        Line("arm", values, (90.0, 100.0, 110.0), marked, {"i2t": difference(0.1, 0.01)}),
    ]
    text = table_text(base_and_arm, ("object", "t2i", "taste"))
    assert len({len(row) for row in text.splitlines()}) == 1  # aligned
    header, _, *rows = cells(text)
    assert header == ["arm", "object", "t2i"]  # what is not measured is left out
    assert rows == [["base", "60.0", "60.0"], ["arm", "52.0", "52.0 b-"]]
    record = tmp_path / "lab.tsv"
    record.write_text(record_text(base_and_arm))
    columns, found = lab_table(record)
    assert columns == ["seeds", *(c.name for c in COLUMNS), "images/s"]
    assert found["base"] == {c.name: "60.0" for c in COLUMNS}
    assert (found["arm"]["object"], found["arm"]["t2i"]) == ("52.0 ± 2.0", "52.0 ± 2.0 b-")
    assert [found["arm"][name] for name in ("i2t", "images/s", "seeds")] == [
        *("52.0 ± 2.0 c+", "100 ± 10", "3")
    ]


def test_the_section_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    write_section(page, "new")
    expected = f"# before\n\n{BEGIN}\n\nnew\n\n{END}\n\nafter\n"
    assert page.read_text() == expected
    write_section(page, "new")
    assert page.read_text() == expected
    page.write_text(f"# no end\n{BEGIN}\n")
    with pytest.raises(CompoclipError, match="needs the lines"):
        write_section(page, "new")


def test_an_effect_in_one_image_has_no_interval() -> None:
    text = effects_text([Finding(Effect("c", "a", "base", ("t2i",), "higher"), "t2i", FEW)])
    assert cells(text)[2][3:5] == ["+5.0 [-]", "not judged: too few photos: 1"]
    assert math.isnan(FEW.least)
    assert math.isnan(FEW.most)


@pytest.mark.parametrize("ground", ["", "-photos"])
def test_the_proof_has_the_arms_of_the_lab_and_its_runs(ground: str) -> None:
    """It is run in the lab's folder, so what all arms share must be equal."""
    names = f"lab{ground}.json", f"compo-proof{ground}.json"
    lab, proof = (read_settings(RECIPES.with_name(name)) for name in names)
    assert not proof.effects
    assert {arm.name for arm in lab.arms} < {arm.name for arm in proof.arms}
    assert proof.seeds[: len(lab.seeds)] == lab.seeds
    for arm in lab.arms:
        job, same = (
            Job(Path("x"), each, each.arm(arm.name), 0, "w", 1e-3) for each in (lab, proof)
        )
        assert job.made_from() == same.made_from()
    parts = read_settings(RECIPES.with_name(names[1]), quick=True)
    assert {arm.method for arm in parts.arms} == {"compo"} == {parts.control, parts.ours}
    assert len(parts.lrs) == 1
    assert parts.seeds == proof.seeds
    whole, same = (Job(Path("x"), each, each.arm("compo"), 0, "w", 1e-3) for each in (proof, parts))
    assert whole.made_from() == same.made_from()


def test_settings_are_like_those_of_no_other_file(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.json", tmp_path / "other.json"
    mine.write_text('{"like": ["other.json"]}')
    for content in ("[]", '{"arms": 3}'):
        other.write_text(content)
        with pytest.raises(
            CompoclipError, match=r"other\.json: no settings of a lab; fix the file"
        ):
            read_settings(mine)
    for names in ('"other.json"', '["../other.json"]', '[""]', "[3]"):
        mine.write_text(f'{{"like": {names}}}')
        with pytest.raises(CompoclipError, match=r"'like' must be a list of names of files beside"):
            read_settings(mine)


def test_the_section_tells_choices_and_how_much_is_decided() -> None:
    arm = Arm("a", "clip-ft")
    settings = LabSettings((arm,), ("world-aro",), "a")
    effect = Effect("c", "a", "base", ("t2i", "i2t"), "higher")
    found = [
        Finding(effect, "t2i", difference(0.05, 0.01)),
        Finding(effect, "i2t", difference(0.01, 0.02)),
    ]
    choices = {"a": ({3e-4: 0.6, 1e-4: 0.5}, 3e-4), "b": ({1e-4: 0.5}, 0.0)}
    text = section(settings, [], found, choices, "made")
    assert "Decided: 1 of 2." in text
    rows = cells(text)
    assert ["a", "0.0001: 50.0, 0.0003: 60.0", "0.0003"] in rows
    assert ["b", "0.0001: 50.0", "not yet"] in rows
    assert [row[0] for row in rows if row[1:3] == ["a with base", "t2i"]] == ["c"]
    assert [row[:2] for row in rows if row[2:3] == ["i2t"]] == [["", ""]]
    assert "Learning rates" not in section(settings, [], [], {"a": ({}, 1e-3)}, "made")
