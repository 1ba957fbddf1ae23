"""The lab's settings, training data, jobs and page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build.tables import read_jsonl, write_json
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.registry import method_names
from compoclip_world.dataset import bundled_world
from compoclip_world.oracle import is_false, is_true
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
from lab_helpers import cells

RECIPES = Path(__file__).parents[1] / "recipes" / "lab.json"
TABLES = (("relations", (("object", 0.05), ("relation", 0.95))), ("sentences", (("object", 1.0),)))
SPEC = DataSpec(lab_world(bundled_world()), count=24, tables=TABLES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "data"
    write_data(folder, SPEC)
    return folder


@pytest.fixture(scope="module")
def recipes() -> LabSettings:
    return read_settings(RECIPES)


# --- The settings of the recipes. ---


def test_every_recipe_has_an_arm_or_is_left_out(recipes: LabSettings, data: Path) -> None:
    same = {
        "clip": "clip-ft", "clip-ft-mosaic": "clip-ft", "fsc-clip-l14": "fsc-clip-b16",
        "trohn-img": "mirror-pairs",
    }  # fmt: skip
    left_out = set(recipes.left_out or ())
    assert set(method_names()) == {arm.method for arm in recipes.arms} | left_out
    assert same.keys() <= left_out
    for name, twin in same.items():
        one, two = (method_of(Arm("a", method), data).record() for method in (name, twin))
        assert one == two


def test_every_arm_has_its_method_and_as_many_steps_and_images(
    recipes: LabSettings, data: Path
) -> None:
    settings = replace(recipes, batch_size=8, steps=7)
    methods = {arm.name: method_of(arm, data) for arm in settings.arms}
    for arm in settings.arms:
        images = methods[arm.name].images
        source = open_source(str(data / f"{arm.table}.jsonl"))
        optim = optim_of(arm, methods[arm.name], settings, source, 0.25)
        epoch, _ = images.schedule(source, optim.batch_size, 0)
        assert round(optim.epochs * epoch) == 7, arm.name
        assert optim.batch_size * images.images_per_sample == 8, arm.name
        assert optim.lr == 0.25
    assert [term.name for term in methods["fsc-global"].losses] == ["clip", "global_hn"]
    assert [term.name for term in methods["fsc-local"].losses] == ["clip", "local_hn"]
    assert "positive" not in [term.name for term in methods["hard-negatives"].losses]
    (bags,) = methods["dac"].plan.texts
    assert bags.record()["file"] == str(data / BAGS)


def test_an_arm_is_compared_with_plain_fine_tuning_on_its_own_table(recipes: LabSettings) -> None:
    controls = {arm.name: recipes.control_of(arm) for arm in recipes.arms}
    assert controls["fsc-clip"] == controls["clip-ft"] == "clip-ft"
    assert controls["mosaic-clip"] == "clip-ft-relations"
    assert controls["clic"] == "clip-ft-sentences"
    assert controls["gnm-clip"] == "clip-ft-variations"


def test_the_quick_lab_has_some_of_the_arms_and_their_effects(recipes: LabSettings) -> None:
    quick = read_settings(RECIPES, quick=True)
    assert [arm.name for arm in quick.arms] == recipes.quick["arms"]
    assert all(recipes.arm(arm.name) == arm for arm in quick.arms)
    assert (len(quick.lrs), len(quick.lora_lrs)) == (1, 1)
    assert (quick.steps, quick.seeds) == (recipes.steps, recipes.seeds)
    names = {arm.name for arm in quick.arms} | {"base"}
    assert quick.effects == tuple(e for e in recipes.effects if {e.arm, e.against} <= names)
    assert len(quick.effects) >= 6


@pytest.mark.parametrize("name", ["dial", "dial-photos", "proof", "proof-photos"])
def test_every_arm_of_the_studies_of_compo_can_be_made(name: str, data: Path) -> None:
    study = read_settings(RECIPES.with_name(f"compo-{name}.json"))
    methods = [method_of(arm, data) for arm in study.arms]
    assert sum(method.name == "compo" for method in methods) > 4
    assert study.arm(study.control) in study.arms


@pytest.mark.parametrize("ground", ["", "-photos"])
def test_the_proof_has_the_arms_of_the_lab_and_its_runs(ground: str) -> None:
    """It is run in the lab's folder, so what all arms share must be equal."""
    path = RECIPES.with_name(f"compo-proof{ground}.json")
    lab, proof = read_settings(RECIPES.with_name(f"lab{ground}.json")), read_settings(path)
    parts = read_settings(path, quick=True)

    def made_from(settings: LabSettings, arm: str) -> dict[str, Any]:
        return Job(Path("x"), settings, settings.arm(arm), 0, "w", 1e-3).made_from()

    assert not proof.effects
    assert {arm.name for arm in lab.arms} < {arm.name for arm in proof.arms}
    assert proof.seeds[: len(lab.seeds)] == lab.seeds
    for arm in lab.arms:
        assert made_from(lab, arm.name) == made_from(proof, arm.name)
    assert {arm.method for arm in parts.arms} == {"compo"} == {parts.control, parts.ours}
    assert len(parts.lrs) == 1
    assert parts.seeds == proof.seeds
    assert made_from(proof, "compo") == made_from(parts, "compo")


# --- Settings that are refused. ---


PLAIN = {"name": "plain", "method": "clip-ft"}
BESIDE = "'like' must be a list of names of files beside"


def read(folder: Path, **changes: Any) -> LabSettings:
    """Settings of one arm, with changes; those of the quick lab if it differs."""
    values = {"arms": [PLAIN], "benchmarks": ["world-aro"], "control": "plain", **changes}
    return read_settings(write_json(folder / "lab.json", values), quick="quick" in changes)


def arm(**changes: Any) -> dict[str, Any]:
    return {"arms": [{"name": "plain", "method": "x", **changes}]}


def effect(**changes: Any) -> dict[str, Any]:
    values = {"claim": "c", "arm": "plain", "against": "base", "columns": ["t2i"]}
    return {"effects": [{**values, "expect": "lower", **changes}]}


def test_settings_have_defaults_and_the_quick_lab_names_arms(tmp_path: Path) -> None:
    assert read(tmp_path, quick={}).arms[0].name == "plain"
    assert read(tmp_path, **effect()).effects[0].margin == 0.03
    with pytest.raises(UsageError, match="no arm 'other'; there are: plain"):
        read(tmp_path, quick={"arms": ["other"]})


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
            {"arms": [PLAIN, {"name": "b", "method": "x", "table": "variations"}]},
            "arm 'b': no arm trains plain on 'variations'; add it",
        ),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"effects": [{"claim": "c"}]}, r"effects\[0\]: 'arm' is missing"),
        (effect(expect="better"), "'expect' must be one of higher, lower, kept"),
        (effect(arm="nobody"), "effect 'c': arm: no "),
        (effect(against="nobody"), "effect 'c': against: no "),
        (effect(columns=["taste"]), "effect 'c': columns: no "),
        ({"quick": {"arms": "plain"}}, "quick: 'arms' must be a list of names"),
        ({"quick": {"colour": 1}}, "unknown field 'colour'"),
        ({"quick": {"items": 0}}, "'items' must be more than 0"),
        ({"photos": {"dev": "x"}}, "photos: 'dev' must be a whole number"),
        ({"photos": {"colour": 1}}, "photos: unknown field 'colour'"),
        ({"photos": 3}, "photos: not an object"),
        ({"photos": {"dev": 3}, **arm(table="scenes")}, "table: no 'scenes'"),
    ],
)
def test_settings_that_make_no_lab_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompoclipError, match=message) as caught:
        read(tmp_path, **changes)
    assert "lab.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "names", "message"),
    [
        ("[]", ["other.json"], r"other\.json: no settings of a lab; fix the file"),
        ('{"arms": 3}', ["other.json"], r"other\.json: no settings of a lab; fix the file"),
        *(("{}", names, BESIDE) for names in ("other.json", ["../other.json"], [""], [3])),
    ],
)
def test_settings_are_like_files_of_settings_beside_them(
    tmp_path: Path, content: str, names: Any, message: str
) -> None:
    (tmp_path / "other.json").write_text(content)
    path = write_json(tmp_path / "mine.json", {"like": names})
    with pytest.raises(CompoclipError, match=message):
        read_settings(path)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("negclop", {}, "no method 'negclop'; did you mean negclip"),
        ("negclip", {"gamma": 1}, "negclip has no setting 'gamma'; it has: missing_hn"),
        ("negclip", {"optim": 1}, "no setting 'optim'"),
    ],
)
def test_unknown_methods_and_settings_are_refused(
    method: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        method_of(Arm("a", method, settings), Path())


# --- The training data. ---


def test_captions_tell_a_scene_from_its_copy() -> None:
    pairs = reworded = 0
    for row in lab_data._rows(SPEC):
        scene, copy = row.pair.scene_a, row.pair.scene_b
        for captions, shown, other in (
            (row.captions, scene, copy),
            (row.copy_captions, copy, scene),
        ):
            assert 1 <= len(captions) <= 2
            assert all(is_true(text, shown) and is_false(text, other) for text in captions)
        assert all(is_true(sentence, scene) for sentence, _ in row.bag)
        negatives = [negative for _, negative in row.bag if negative is not None]
        assert all(is_false(negative, scene) for negative in negatives)
        pairs += len(negatives)
        assert row.told.keys() == dict(TABLES).keys()
        assert all(is_true(text, scene) for captions in row.told.values() for text in captions)
        assert row.paraphrases.keys() <= set(row.captions)
        for text, others in row.paraphrases.items():
            assert text not in others
            assert all(is_true(other, scene) for other in others)
            reworded += len(others)
    assert pairs > SPEC.count
    assert reworded > SPEC.count


def test_tables_hold_what_the_recipes_read(data: Path) -> None:
    scenes, rows = open_source(str(data / SCENES)), read_jsonl(data / SCENES)
    assert len(scenes) == SPEC.count
    assert scenes.brings() == {"negatives", "negative_image"}
    first = scenes[0]
    assert first.captions == tuple(rows[0]["caption"])
    assert first.negatives == tuple(rows[0]["neg_caption"])
    assert first.image.read_bytes() != first.negative_image.read_bytes()

    variations = open_source(str(data / VARIATIONS))
    groups = list(variations.column("group"))
    assert len(variations) == SPEC.count + SPEC.count // lab_data.GROUPED
    assert sorted(groups.count(name) for name in set(groups) - {""}) == [2] * (SPEC.count // 4)
    images = [row["image"] for row in rows]
    for table, _ in TABLES:
        assert [row["image"] for row in read_jsonl(data / f"{table}.jsonl")] == images
        assert len(open_source(str(data / f"{table}.jsonl"))) == SPEC.count
    written = method_of(Arm("a", "hard-positives", {"positives": PARAPHRASES}), data)
    assert written.plan.written == str(data / PARAPHRASES)
    captions = {text for row in rows for text in row["caption"]}
    assert {row["caption"] for row in read_jsonl(data / PARAPHRASES)} <= captions
    assert {bag["id"] for bag in read_jsonl(data / BAGS)} == set(images)


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


# --- Jobs. ---


def test_a_finished_job_of_other_settings_is_refused(tmp_path: Path) -> None:
    settings = LabSettings((Arm("a", "clip-ft"),), ("world-aro",), "a")
    job = Job(tmp_path, settings, settings.arms[0], 1, "w", rate=0.5)
    assert outcome(job) is None
    record = {"seconds": 2.0, "speed": 3.0, "made_from": job.made_from()}
    write_json(job.folder / DONE, record)
    finished = outcome(job)
    assert finished is not None
    assert (finished.name, finished.speed) == ("a-lr0.5-seed1", 3.0)
    more = replace(settings, arms=(*settings.arms, Arm("b", "negclip")), seeds=(1, 2, 3))
    assert outcome(replace(job, settings=more)) == finished  # further arms and seeds change nothing
    assert outcome(replace(job, settings=replace(settings, lrs=(0.5, 1.0)))) == finished
    assert outcome(replace(job, rate=1.0)) is None  # which has a folder of its own
    assert outcome(replace(job, choosing=True)) is None  # trained, but on another suite
    for changes in (
        {"weights": "v"},
        {"settings": replace(settings, steps=3)},
        {"arm": Arm("a", "negclip")},
    ):
        message = r"made with other settings \(.* was .*\); delete it"
        with pytest.raises(CompoclipError, match=message):
            outcome(replace(job, **changes))


# --- Rates, differences, verdicts. ---


def test_a_rate_is_chosen_by_what_is_learnt_and_what_is_kept() -> None:
    low = dict.fromkeys((column.name for column in COLUMNS), 0.5)
    assert merit(low) == pytest.approx(0.5)
    # Twelve columns of compositionality share a half, four of what the base can do the other.
    assert merit({**low, "binding": 0.9}) == pytest.approx(0.5 + 0.4 / 12 / 2)
    assert merit({**low, "brittleness": 0.9}) == pytest.approx(0.5 - 0.4 / 12 / 2)
    assert merit({**low, "t2i": 0.2}) == pytest.approx(0.5 - 0.3 / 4 / 2)
    assert best_rate({1e-4: 0.5, 3e-4: 0.7, 1e-3: 0.6}) == 3e-4
    assert best_rate({1e-3: 0.7, 3e-4: 0.7, 1e-4: 0.6}) == 3e-4


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


# --- The page. ---


def test_the_table_shows_means_and_marks_and_the_record_all_columns(tmp_path: Path) -> None:
    values = {column.name: [0.5, 0.52, 0.54] for column in COLUMNS}
    marked = {"t2i": difference(-0.1, 0.01)}
    base_and_arm = [
        Line("base", {c.name: [0.6] for c in COLUMNS}, (), {}, {}),
        Line("arm", values, (90.0, 100.0, 110.0), marked, {"i2t": difference(0.1, 0.01)}),
    ]
    text = table_text(base_and_arm, ("object", "t2i", "taste"))
    assert cells(text) == [
        ["arm", "object", "t2i"],  # what is not measured is left out
        ["base", "60.0", "60.0"],
        ["arm", "52.0", "52.0 b-"],
    ]
    record = tmp_path / "lab.tsv"
    record.write_text(record_text(base_and_arm))
    columns, rows = lab_table(record)
    assert columns == ["seeds", *(c.name for c in COLUMNS), "images/s"]
    assert rows["base"] == {c.name: "60.0" for c in COLUMNS}
    expected = dict.fromkeys(values, "52.0 ± 2.0")
    expected |= {"t2i": "52.0 ± 2.0 b-", "i2t": "52.0 ± 2.0 c+"}
    assert rows["arm"] == {**expected, "images/s": "100 ± 10", "seeds": "3"}


def test_the_section_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    for _ in range(2):
        write_section(page, "new")
        assert page.read_text() == f"# before\n\n{BEGIN}\n\nnew\n\n{END}\n\nafter\n"
    page.write_text(f"# no end\n{BEGIN}\n")
    with pytest.raises(CompoclipError, match="needs the lines"):
        write_section(page, "new")


def test_an_effect_in_one_image_has_no_interval() -> None:
    text = effects_text([Finding(Effect("c", "a", "base", ("t2i",), "higher"), "t2i", FEW)])
    assert cells(text)[1][3:5] == ["+5.0 [-]", "not judged: too few photos: 1"]
    assert math.isnan(FEW.least)
    assert math.isnan(FEW.most)


def test_the_section_tells_choices_and_how_much_is_decided() -> None:
    settings = LabSettings((Arm("a", "clip-ft"),), ("world-aro",), "a")
    effect = Effect("c", "a", "base", ("t2i", "i2t"), "higher")
    findings = [
        Finding(effect, "t2i", difference(0.05, 0.01)),
        Finding(effect, "i2t", difference(0.01, 0.02)),
    ]
    choices = {"a": ({3e-4: 0.6, 1e-4: 0.5}, 3e-4), "b": ({1e-4: 0.5}, 0.0)}
    text = section(settings, [], findings, choices, "made")
    assert "Decided: 1 of 2." in text
    rows = cells(text)
    assert ["a", "0.0001: 50.0, 0.0003: 60.0", "0.0003"] in rows
    assert ["b", "0.0001: 50.0", "not yet"] in rows
    assert [row[0] for row in rows if row[1:3] == ["a with base", "t2i"]] == ["c"]
    assert [row[:2] for row in rows if row[2:3] == ["i2t"]] == [["", ""]]
    assert "Learning rates" not in section(settings, [], [], {"a": ({}, 1e-3)}, "made")
