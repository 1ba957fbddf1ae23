"""The world's suite: the official readers load it, the oracle agrees with it, bytes are stable."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from PIL import Image

from compoclip.benchmarks.audit import audit
from compoclip.benchmarks.case import (
    SKILLS,
    Benchmark,
    Case,
    Form,
    present,
)
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites import crepe
from compoclip_world.captions import captions_for
from compoclip_world.export import aro
from compoclip_world.export.pairs import STRICT_TASKS, TASKS, UNSEEN_WORDINGS
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.export.suite import BUILDERS, write_suite
from compoclip_world.export.texts import changed_words, phrases_of, seemly, with_synonym
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.parser import parse
from compoclip_world.sampling import generator, held_out_attributes, held_out_in, scene_for
from compoclip_world.scene import Scene, WorldConfig

pytestmark = pytest.mark.usefixtures("warm_workers")

ITEMS = 20
CONFIG = WorldConfig(size=32)
ORACLE = Oracle()


@dataclass(frozen=True)
class Suite:
    root: Path
    parts: dict[str, Part]
    benchmarks: dict[str, Benchmark]
    scenes: dict[Path, Scene]

    def cases(self, name: str) -> tuple[Case, ...]:
        return self.benchmarks[name].content


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    root = tmp_path_factory.mktemp("world") / "suite"
    parts = write_suite(root, SuiteSpec(CONFIG, ITEMS))
    loaded = [target.load() for target in parse_targets([str(root)], Path("unused"))]
    return Suite(
        root,
        {part.id: part for part in parts},
        {benchmark.name: benchmark for benchmark in loaded},
        {root / path: scene for part in parts for path, scene in part.images.items()},
    )


def truths(case: Case, suite: Suite) -> list[list[Truth]]:
    """The oracle's verdicts, a row for each image of the case."""
    scenes = [suite.scenes[ref.path] for ref in case.images]
    return [[ORACLE.verdict(text, scene).truth for text in case.texts] for scene in scenes]


def test_every_part_loads_with_all_items_and_images(suite: Suite) -> None:
    assert set(suite.benchmarks) == set(suite.parts)
    for name, benchmark in suite.benchmarks.items():
        part = suite.parts[name]
        assert benchmark.content.counts() == dict(part.items) == dict(benchmark.expected)
        assert present(benchmark) == (benchmark.content, ())
        assert set(benchmark.skills.values()) <= set(SKILLS)
        assert set(part.about) == set(part.items)


def test_sub_tasks_have_the_asked_size(suite: Suite) -> None:
    for name in ("world-sugarcrepe", "world-sugarcrepe-pp", "world-hard-positives", "world-aro"):
        assert set(suite.parts[name].items.values()) == {ITEMS}
    assert set(suite.parts["world-foils"].items.values()) == {2 * (ITEMS * 2 // 5)}
    assert len(suite.parts["world-sugarcrepe"].items) == 7
    assert set(suite.parts["world-foils"].items) == set(TASKS)


def test_the_default_places_need_no_suite_file(suite: Suite) -> None:
    for spec in ("sugarcrepe", "sugarcrepe_pp", "hard_positives", "winoground", "retrieval:coco"):
        benchmark = load_benchmark(spec, suite.root)
        assert benchmark.name.endswith("@world")
        assert present(benchmark)[1] == ()
    foils = load_benchmark("foils:bind_*", suite.root)
    assert set(foils.skills) == {"bind_colour", "bind_size", "bind_pattern"}


def test_images_are_written_once_and_all_are_used(suite: Suite) -> None:
    written = set(suite.root.rglob("*.png"))
    assert written == set(suite.scenes)
    with Image.open(next(iter(written))) as image:
        assert (image.size, image.mode) == ((32, 32), "RGB")
    assert len({path.read_bytes() for path in written}) == len(written)


def test_no_item_is_faulty(suite: Suite, tmp_path: Path) -> None:
    write_suite(tmp_path / "aro", SuiteSpec(CONFIG, 60), builders={"aro": aro.build})
    more = [target.load() for target in parse_targets([str(tmp_path / "aro")], Path("unused"))]
    assert sum(len(each.content.cases) for each in more) == 240
    for benchmark in (*suite.benchmarks.values(), *more):
        assert not audit(benchmark).faulty, benchmark.name


def test_texts_are_true_or_false_as_their_items_say(suite: Suite) -> None:
    true, false = Truth.TRUE, Truth.FALSE
    expected = {
        Form.CHOOSE_TEXT: [[true, false]],
        Form.TRIPLE: [[true, true, false]],
        Form.GROUP: [[true, false], [false, true]],
    }
    names = (
        "sugarcrepe",
        "sugarcrepe-pp",
        "foils",
        "aro",
        "hard-positives",
        "winoground",
        "strict",
    )
    for case in (case for name in names for case in suite.cases(f"world-{name}")):
        verdicts = truths(case, suite)
        if case.subtask.endswith("_order"):
            assert verdicts[0][0] is true not in verdicts[0][1:]
        else:
            assert verdicts == expected[case.form], case
            assert len(set(case.texts)) == len(case.texts)


def test_pairs_of_pictures_and_captions_are_of_every_task(suite: Suite) -> None:
    winoground, strict = suite.cases("world-winoground"), suite.cases("world-strict")
    assert {case.form for case in (*winoground, *strict)} == {Form.GROUP}
    tags = Counter(case.labels["tag"] for case in winoground)
    assert tags == dict.fromkeys(TASKS, ITEMS * 2 // 5)
    assert "group_left_right" in suite.benchmarks["world-winoground"].aggregates
    subtasks = Counter(case.subtask for case in strict)
    assert subtasks == dict.fromkeys(STRICT_TASKS, ITEMS * 2 // 5)


def test_words_alone_tell_nothing_about_foils(suite: Suite) -> None:
    cases = suite.cases("world-foils")
    for task in TASKS:
        right = Counter(case.texts[0] for case in cases if case.subtask == task)
        wrong = Counter(case.texts[1] for case in cases if case.subtask == task)
        assert right == wrong


def test_relations_are_told_apart(suite: Suite) -> None:
    words = {
        "left_right": ("left", "right"),
        "above_below": ("above", "below", "over", "under", "beneath", "higher", "lower"),
        "negation": ("no",),
        "negation_missing": ("missing",),
    }
    for case in suite.cases("world-foils"):
        if case.subtask in words:
            assert all(set(text.split()) & set(words[case.subtask]) for text in case.texts), case
    labels = Counter(case.labels.get("relation") for case in suite.cases("world-aro"))
    shares = [labels[name] for name in labels if name]
    assert len(shares) == 8
    assert max(shares) - min(shares) <= 1


def test_unseen_negations_are_in_words_that_no_rewrite_has(suite: Suite) -> None:
    written = {denial.lower().split("{", 1)[0].strip() for denial in crepe._DENIED}
    starts = [wording.split("{", 1)[0].strip() for wording in UNSEEN_WORDINGS]
    assert not written & {*starts} - {"the"}
    met = [
        next(start for start in starts if case.texts[0].startswith(start))
        for case in suite.cases("world-strict")
        if case.subtask == "negation_unseen"
    ]
    assert len({*met}) >= 3


def test_a_swap_only_moves_words(suite: Suite) -> None:
    for case in suite.cases("world-sugarcrepe"):
        if case.subtask.startswith("swap"):
            first, second = (
                sorted(w for w in text.replace(",", "").split() if w not in ("a", "an"))
                for text in case.texts
            )
            assert first == second
        elif case.subtask.startswith("add"):
            left, right = (text.replace(",", "").split() for text in case.texts)
            left, right = (["a" if w == "an" else w for w in words] for words in (left, right))
            assert not Counter(left) - Counter(right) - Counter(["and"]), case.texts
            assert len(right) > len(left)


@pytest.mark.parametrize(("name", "captions"), [("retrieval", 5), ("retrieval-style", 1)])
def test_retrieval_captions_fit_one_image_only(suite: Suite, name: str, captions: int) -> None:
    content = suite.benchmarks[f"world-{name}"].content
    assert (len(content.images), len(content.texts)) == (ITEMS, captions * ITEMS)
    for image, text in content.pairs:
        for other, ref in enumerate(content.images):
            truth = ORACLE.verdict(content.texts[text], suite.scenes[ref.path]).truth
            assert truth is (Truth.TRUE if other == image else Truth.FALSE)


def test_zero_shot_classes_are_what_is_shown(suite: Suite) -> None:
    sizes = {"kinds": 24, "compounds": 24, "novel-compounds": 24, "looks": 2 * ITEMS}
    for name, classes in sizes.items():
        content = suite.benchmarks[f"world-zero-shot-{name}"].content
        assert len(content.classes) == classes
        for ref, label in zip(content.images, content.labels):
            scene = suite.scenes[ref.path]
            for k, prompts in enumerate(content.prompts):
                for prompt in prompts:
                    truth = ORACLE.verdict(prompt, scene).truth
                    assert truth is (Truth.TRUE if k == label else Truth.FALSE), prompt
    colours = suite.benchmarks["world-zero-shot-colours"].content
    for ref, label in zip(colours.images, colours.labels):
        assert suite.scenes[ref.path].things[0].colour == colours.classes[label]


def test_splits_never_meet(suite: Suite) -> None:
    held = held_out_attributes(CONFIG)
    trained = [scene_for(CONFIG, 0, "train", i) for i in range(300)]
    assert not set(trained) & set(suite.scenes.values())
    for path, scene in suite.scenes.items():
        novel = "novel-compounds" in path.parts
        assert bool(held_out_in(scene, CONFIG)[0]) is novel, path
    unseen = suite.benchmarks["world-zero-shot-novel-compounds"].content
    assert {tuple(name.split(" ")[1:]) for name in unseen.classes} == held
    texts = [c.text for i, s in enumerate(trained) for c in captions_for(s, CONFIG, 0, i)]
    texts += [
        t for name in ("sugarcrepe", "foils") for c in suite.cases(f"world-{name}") for t in c.texts
    ]
    for colour, kind in held:
        assert not any(f"{colour} {kind}" in text.lower() for text in texts)


def files_of(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_bytes_depend_on_the_spec_alone(tmp_path: Path) -> None:
    spec = SuiteSpec(CONFIG, 4, seed=3, split="val")
    (tmp_path / "empty").mkdir()
    for name, workers in (("a", 1), ("empty", 2)):
        write_suite(tmp_path / name, spec, workers)
    first = files_of(tmp_path / "a")
    assert first == files_of(tmp_path / "empty")
    assert not list(tmp_path.glob(".*"))
    other_seed = replace(spec, seed=4)
    write_suite(tmp_path / "c", other_seed, benchmarks=("sugarcrepe", "winoground"))
    other = files_of(tmp_path / "c")
    for name in ("sugarcrepe/replace_obj.json", "winoground/examples.jsonl"):
        assert first[name] != other[name]
    record = json.loads(first["suite.json"])
    assert record["made_by"]["seed"] == 3
    assert json.loads(first["edition.json"]) == {"edition": "world"}


def test_bad_specs_and_places(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="never holds training scenes"):
        SuiteSpec(CONFIG, split="train")
    with pytest.raises(UsageError, match="give at least 2"):
        SuiteSpec(CONFIG, 1)
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("keep me", encoding="utf-8")
    with pytest.raises(CompoclipError, match="already exists"):
        write_suite(full, SuiteSpec(CONFIG, 2))
    assert files_of(full) == {"notes.txt": b"keep me"}
    with pytest.raises(CompoclipError, match="cannot be written"):
        write_suite(full / "notes.txt" / "suite", SuiteSpec(CONFIG, 2))


TINY = WorldConfig(size=32, kinds=("star", "mug"), colours=("red", "blue"))


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(spec: SuiteSpec) -> list[Part]:
        raise OSError(28, "No space left")

    for config, items, benchmark, builders, message in (
        (CONFIG, 2, "aro", {"aro": build}, "No space left"),
        (TINY, 40, "retrieval", BUILDERS, "only 33 of 40 images have 5 captions of their own"),
        (TINY, 4, "confusable", BUILDERS, "only 0 of 1 group of neighbours came up"),
        (TINY, 4, "winoground", BUILDERS, "no pair of skill 'inside' fits split 'test'"),
    ):
        with pytest.raises(CompoclipError, match=message) as caught:
            write_suite(tmp_path / "suite", SuiteSpec(config, items), 1, (benchmark,), builders)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def test_text_helpers() -> None:
    rng = generator("test")
    assert changed_words("a red star", "a blue star") == ("red", "blue")
    assert changed_words("an orange cup by a key", "a red cup by a key") == ("orange", "red")
    assert with_synonym("a green star", "green", rng) == "an emerald star"
    assert with_synonym("two green stars", "green", rng) == "two emerald stars"
    assert with_synonym("a green star", "blue", rng) is None
    phrases = ("over", "left of", "to the left of")
    assert phrases_of(phrases, "a cup to the left of a key") == "to the left of"
    assert phrases_of(("over",), "a cover") is None


def test_unseemly_captions() -> None:
    colour, kind = min(held_out_attributes(CONFIG))
    for text in (
        f"a {colour} {kind}",
        "a striped key",
        "a box inside a star",
        "a mug around a key",
    ):
        assert not seemly(parse(text), CONFIG), text
    for text in ("a plain key", "a star inside a box", "a ring around a star"):
        assert seemly(parse(text), WorldConfig(holdout_attribute=0.0, holdout_relation=0.0)), text
