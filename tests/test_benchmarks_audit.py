"""Audits of made cases with known defects and of official files, and the text-only baseline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmark_files import write_sugarcrepe
from build.tables import write_json
from compoclip.benchmarks.audit import (
    FAULTS,
    MEANING,
    Audit,
    Kind,
    audit,
    audit_training,
    exchanged,
    synonymous,
)
from compoclip.benchmarks.case import Benchmark, Case, Classification, Form, ImageRef, Retrieval
from compoclip.benchmarks.files import IGNORED, same, same_bag
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.solvability import Solvability, rules_of_thumb, solvability
from compoclip.cli.data_audit import audit_text
from compoclip.cli.main import main
from compoclip.data.sources import Sample

Capture = pytest.CaptureFixture[str]
A, B = ImageRef(Path("a.jpg")), ImageRef(Path("b.jpg"))


def choice(name: str, *texts: str, truth: int = 0, image: ImageRef = A) -> Case:
    return Case(name, Form.CHOOSE_TEXT, (image,), texts, "s", truth)


def statement(name: str, truth: int, text: str) -> Case:
    return Case(name, Form.BINARY, (A,), (text,), "s", truth)


def kinds_of(*cases: Case) -> dict[str, set[tuple[Kind, str]]]:
    found: dict[str, set[tuple[Kind, str]]] = {case.id: set() for case in cases}
    for defect in audit(Benchmark("made", cases, "0")).defects:
        found[defect.id].add((defect.kind, defect.level))
    return found


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [
        ("a cat.", "a cat.", "stored"),
        ("A cat .", "a  cat.", "tokenized"),
        ("a cat, a dog", "a cat a dog.", "words"),
        ("the cat's hat", "the cat s hat", "letters"),
        ("a cat", "a dog", None),
        ("a cat and a dog", "a dog and a cat", None),
    ],
)
def test_the_level_at_which_texts_are_the_same(a: str, b: str, level: str | None) -> None:
    assert same(a, b) == same(b, a) == level


def test_the_same_words_in_another_order() -> None:
    assert same_bag("A cat on a dog.", "a dog on a cat") == "words"
    assert same_bag("the cat's dog", "s dog, the cat") == "letters"
    assert same_bag("a cat a cat", "a cat a dog") is None
    assert same_bag("a cat cat", "a a cat") is None


@pytest.mark.parametrize(
    ("a", "b", "pair"),
    [
        ("a big dog runs", "a large dog runs", ("big", "large")),
        ("a dog", "a hot dog", None),
        ("a dog runs", "the cat runs", ("a dog", "the cat")),
        ("a dog runs fast now", "the cat sat on now", None),
        ("dogs", "cats", ("dogs", "cats")),
    ],
)
def test_the_one_stretch_that_differs(a: str, b: str, pair: tuple[str, str] | None) -> None:
    assert exchanged(a, b) == pair


def test_synonyms_are_of_wordnet() -> None:
    assert synonymous("big", "large")
    assert synonymous("kids", "children")
    assert synonymous("couch", "sofa")
    assert not synonymous("big", "small")
    assert not synonymous("man", "men")
    assert not synonymous("dog", "animal")
    assert not synonymous("xyzzy", "plugh")


def test_every_kind_says_what_it_means() -> None:
    assert set(MEANING) == set(Kind)
    assert set(Kind) > FAULTS


STORED, SHUFFLED = (Kind.EQUAL, "stored"), (Kind.SAME_WORDS, "words")
SAME_IMAGE, CONTRADICTION = (Kind.SAME_IMAGE, ""), (Kind.CONTRADICTION, "")
DEFECTS: list[tuple[Case, set[tuple[Kind, str]]]] = [
    (choice("fine", "a red cup", "a blue cup"), set()),
    (choice("stored", "a cup", "a hat", "a cup"), {STORED, SHUFFLED}),
    (choice("tokens", "a cap", "A  CAP"), {(Kind.EQUAL, "tokenized"), SHUFFLED}),
    (choice("strictest", "a tie.", "a tie", "a tie."), {STORED, SHUFFLED}),
    (choice("truth", "a wig", "a pin", truth=1), set()),
    (choice("synonym", "a big hat", "a large hat"), {(Kind.SYNONYM, "")}),
    (choice("order", "a cat on a dog", "a dog on a cat"), {SHUFFLED}),
    (choice("long", "word " * 80, "a word"), {(Kind.LONG, "")}),
    (choice("again", "a red cup", "a blue cup"), {(Kind.DUPLICATE, "")}),
    (choice("other image", "a red cup", "a blue cup", image=B), set()),
    (choice("other truth", "a red cup", "a blue cup", truth=1), set()),
    (
        Case("positives", Form.TRIPLE, (A,), ("a cup", "A cup", "a hat"), "s"),
        {(Kind.SAME_POSITIVES, "tokenized")},
    ),
    (Case("negative", Form.TRIPLE, (A,), ("a cup", "one cup", "one cup"), "s"), {STORED}),
    (Case("texts", Form.TEXT_ONLY, (), ("a cup", "a mug", "a cup"), "s"), {STORED, SHUFFLED}),
    (Case("images", Form.CHOOSE_IMAGE, (A, B, A), ("a cup",), "s"), {SAME_IMAGE}),
    (Case("wrong images", Form.CHOOSE_IMAGE, (A, B, B), ("a cup",), "s"), set()),
    (Case("group", Form.GROUP, (A, A), ("a b", "b a"), "s"), {SAME_IMAGE, SHUFFLED}),
    (statement("true", 1, "a cup is left"), {CONTRADICTION}),
    (statement("false", 0, "a cup is left"), {CONTRADICTION}),
    (statement("true again", 1, "a cup is left"), {CONTRADICTION, (Kind.DUPLICATE, "")}),
    (statement("another", 1, "a hat"), set()),
]


def test_the_defects_of_items_of_every_form() -> None:
    assert kinds_of(*(case for case, _ in DEFECTS)) == {case.id: kinds for case, kinds in DEFECTS}


def test_galleries_and_classes() -> None:
    gallery = Retrieval((A, B), ("a cup", "a hat", "A cup"), ((0, 0), (0, 1), (1, 2)))
    (defect,) = audit(Benchmark("made", gallery, "0")).defects
    assert (defect.subtask, defect.kind, defect.level) == ("t2i", Kind.REPEATED, "tokenized")
    assert defect.id.endswith("b.jpg text 0")
    classes = Classification((A, B), (0, 1), ("Crane", "cup", "crane"), (("c",),) * 3)
    (defect,) = audit(Benchmark("made", classes, "0")).defects
    assert (defect.id, defect.kind) == ("/a.jpg", Kind.SAME_CLASS)


def test_boxes_and_damaged_images(tmp_path: Path) -> None:
    Image.new("RGB", (20, 10)).save(tmp_path / "ok.png")
    (tmp_path / "bad.png").write_bytes(b"no image")

    def boxed(name: str, box: tuple[float, float, float, float] | None, file: str) -> Case:
        return choice(name, "a cup", f"a hat {name}", image=ImageRef(tmp_path / file, box))

    cases = (
        boxed("in", (0, 0, 20, 10), "ok.png"),
        boxed("beyond", (5, 5, 30, 8), "ok.png"),
        boxed("out", (20, 0, 30, 5), "ok.png"),
        boxed("empty", (3, 3, 3.4, 9), "ok.png"),
        boxed("absent", (0, 0, 1, 1), "none.png"),
        boxed("bad", None, "bad.png"),
    )
    found = kinds_of(*cases)
    assert found["in"] == found["absent"] == found["bad"] == set()
    assert found["beyond"] == {(Kind.BOX_BEYOND, "")}
    assert found["out"] == found["empty"] == {(Kind.BOX_OUTSIDE, "")}
    decoded = audit(Benchmark("made", cases, "0"), decoding=True)
    assert ("s", "bad") in decoded.faulty
    assert ("s", "beyond") not in decoded.faulty
    assert decoded.faults == {"box-outside": 2, "image-undecodable": 1}


def official(shared: Path, name: str) -> Benchmark:
    folder = shared / "annotations" / name.partition(":")[0]
    return load_benchmark(name, Path("none"), annotations=folder)


def numbers(found: Audit, kind: Kind) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for defect in found.defects:
        if defect.kind is kind:
            counts.setdefault(defect.subtask, Counter())[defect.level] += 1
    return counts


def test_sugarcrepe_of_the_publication(shared_data: Path) -> None:
    found = audit(official(shared_data, "sugarcrepe"))
    words = numbers(found, Kind.SAME_WORDS)
    assert (words["swap_att"]["words"], words["swap_obj"]["words"], len(words)) == (408, 164, 2)
    assert not {Kind.EQUAL, Kind.LONG} & found.counts.keys()


def test_sugarcrepe_pp_of_the_publication(shared_data: Path) -> None:
    edited = official(shared_data, "sugarcrepe_pp")
    found = audit(edited)
    equal = [each.id for each in found.defects if each.kind is Kind.EQUAL]
    assert equal == ["swap_obj/2", "swap_obj/8"]
    positives = found.counts[Kind.SAME_POSITIVES]
    assert (positives["stored"], positives["letters"]) == (1, 4)
    words = numbers(found, Kind.SAME_WORDS)
    assert words["swap_att"] == {"words": 384}
    assert words["swap_obj"] == {"words": 161, "letters": 2}
    by_part = found.by_subtask[Kind.SAME_WORDS]
    assert by_part["swap_att"] == {"": 384, "words": 384, "letters": 384}
    assert by_part["swap_obj"] == {"": 163, "words": 161, "letters": 163}
    told = audit_text(found)
    assert "    in swap_att 384, swap_obj 161 words / 163 letters\n" in told
    for level, ignored in IGNORED.items():
        assert f"  {level}: {ignored}" in told


def test_negclip_negatives_of_the_publication(shared_data: Path, capsys: Capture) -> None:
    path = shared_data / "annotations" / "negclip" / "valid_neg_clip.tsv"
    assert main(["data", "audit", "--train", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["audits"]
    assert (found["rows"], found["negatives"]) == (4839, 7370)
    assert found["counts"]["negative-equals-caption"]["tokenized"] == 11


def test_training_rows(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "1.png")
    rows = [
        Sample("1", tmp_path / "1.png", ("a red cup", "a cup"), ("a blue cup", "A cup", "a cup")),
        Sample("2", tmp_path / "2.png", ("A red cup",), ("a blue cup", "a blue cup")),
    ]
    found = audit_training("made", rows)
    assert found.items == {"rows": 2, "captions": 3, "negatives": 5}
    assert found.missing == (str(tmp_path / "2.png"),)
    told = {(each.subtask, each.id, each.kind, each.level) for each in found.defects}
    assert told == {
        ("negative", "1#1", Kind.EQUAL, "tokenized"),
        ("negative", "1#1", Kind.SAME_WORDS, "words"),
        ("negative", "1#2", Kind.EQUAL, "stored"),
        ("negative", "1#2", Kind.SAME_WORDS, "words"),
        ("caption", "2", Kind.MISSING, ""),
        ("caption", "2#0", Kind.REPEATED, "tokenized"),
        ("negative", "2#1", Kind.DUPLICATE, ""),
    }


def test_the_verb_lists_defects(tmp_path: Path, capsys: Capture) -> None:
    same_text = {"filename": "1.jpg", "caption": "a cup", "negative_caption": "A cup ."}
    root = write_sugarcrepe(tmp_path, swap_obj={"5": same_text})
    write_json(root / "edition.json", {"edition": "mini"})
    out = tmp_path / "list.jsonl"
    arguments = ["data", "audit", "sugarcrepe", "--data", str(root)]
    assert main([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "sugarcrepe@mini: 13 items, 1 faulty" in printed
    assert "negative-equals-caption" in printed
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    (fault,) = [row for row in rows if row["fault"]]
    assert (fault["benchmark"], fault["subtask"], fault["id"], fault["level"]) == (
        "sugarcrepe@mini",
        "swap_obj",
        "swap_obj/5",
        "words",
    )
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["audits"][0]["faulty"] == 1
    assert main(["data", "audit", "sugarcreep", "--data", str(root)]) == 2
    assert main(["data", "audit", "--train", str(tmp_path / "none.tsv")]) == 1
    (tmp_path / "own.csv").touch()
    assert main(["data", "audit", str(tmp_path / "own.csv")]) == 2
    assert "own.csv: is a file; name captioned photos with --data" in capsys.readouterr().err


# --- The text-only baseline: solves what is solvable from text, and nothing else. ---


WORDS = ["cup", "hat", "dog", "cat", "car", "tree", "house", "ball", "bird", "fish"]


def ref(number: int) -> ImageRef:
    return ImageRef(Path(f"{number}.jpg"))


def solved(cases: list[Case]) -> Solvability:
    (found,) = solvability(Benchmark("made", tuple(cases), "0"))
    return found


def alike(form: Form, number: int, *texts: str, truth: int = 0, images: int = 1) -> list[Case]:
    """So many items of other images with the same texts."""
    return [
        Case(str(k), form, tuple(ref(k + n) for n in range(images)), texts, "s", truth)
        for k in range(number)
    ]


def of_two_words(number: int, seed: int, *templates: str, truth: int = 0) -> list[Case]:
    """Choices between texts by templates, about words and a number of times that are drawn."""
    rng = np.random.default_rng(seed)
    cases = []
    for k in range(number):
        one, two = (str(word) for word in rng.choice(WORDS, 2, replace=False))
        so = "so " * int(rng.integers(1, 4))
        texts = tuple(text.format(one=one, two=two, so=so) for text in templates)
        cases.append(Case(str(k), Form.CHOOSE_TEXT, (ref(k % 100),), texts, "s", truth))
    return cases


def test_a_giveaway_word_is_found() -> None:
    cases = of_two_words(60, 0, "a {one} near a {two}", "a {one} unlike a {two}")
    found = solved(cases)
    assert (found.ngrams, found.chance) == (1.0, 0.5)
    assert (found.n, found.of, found.metric) == (60, 60, "accuracy")
    assert found == solved(cases)


def test_length_alone_is_found() -> None:
    assert solved(of_two_words(60, 1, "a {one} {two}", "a {one} {so}{two}")).length == 1.0
    late = of_two_words(60, 1, "a {one} {two}", "a {one} {so}{two}", truth=1)
    assert solved(late).length == 1.0


def test_nothing_is_found_in_random_swaps() -> None:
    found = solved(of_two_words(400, 2, "a {one} on a {two}", "a {two} on a {one}"))
    assert abs(found.ngrams - 0.5) < 4 * 0.025
    assert abs(found.length - 0.5) < 4 * 0.025


def test_equal_texts_count_their_share() -> None:
    found = solved(alike(Form.CHOOSE_TEXT, 60, *["a cup"] * 4))
    assert found.ngrams == found.length == found.chance == pytest.approx(0.25)
    triples = [Case(str(k), Form.TEXT_ONLY, (), (f"cup {k}",) * 3, "s") for k in range(60)]
    assert solved(triples).ngrams == solved(triples).chance == pytest.approx(1 / 3)
    halves = alike(Form.HALF_TRUTH, 60, *["a cup"] * 3)
    assert solved(halves).ngrams == solved(halves).chance == 0.5  # the longer true text aside
    (rule,) = rules_of_thumb(Benchmark("made", tuple(halves), "0"))
    assert rule.value == rule.chance == 0.5


def test_statements_are_ranked() -> None:
    texts = ["the {one} is unlike the {two}", "the {one} is near the {two}"]
    choices = of_two_words(200, 3, *texts)
    cases = [
        Case(str(k), Form.BINARY, (ref(k),), (f"{case.texts[k % 2]} {k}",), "s", k % 2)
        for k, case in enumerate(choices)
    ]
    found = solved(cases)
    assert found.metric == "auc"
    assert found.ngrams > 0.99
    # Each statement is true of one image and false of another: nothing to learn.
    twins = [
        Case(f"{k}/{truth}", Form.BINARY, (ref(2 * k + truth),), case.texts, "s", truth)
        for k, case in enumerate(cases)
        for truth in (0, 1)
    ]
    assert abs(solved(twins).ngrams - 0.5) < 0.1


@pytest.mark.parametrize(
    "cases",
    [
        alike(Form.GROUP, 60, "a", "b", images=2),
        alike(Form.CHOOSE_TEXT, 49, "a", "b"),
        alike(Form.BINARY, 60, "a", truth=1),
    ],
    ids=["pairs of images", "too few", "true statements alone"],
)
def test_where_there_is_nothing_to_choose(cases: list[Case]) -> None:
    assert solvability(Benchmark("made", tuple(cases), "0")) == []


def test_adding_words_gives_sugarcrepe_away(shared_data: Path) -> None:
    (found,) = solvability(official(shared_data, "sugarcrepe:add_att"))
    assert found.length > 0.98  # negatives of add_* are longer
