"""The text-only baseline: solves what is solvable from text, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Benchmark, Case, Form, ImageRef
from compoclip.benchmarks.solvability import Solvability, solvability

WORDS = ["cup", "hat", "dog", "cat", "car", "tree", "house", "ball", "bird", "fish"]


def ref(number: int) -> ImageRef:
    return ImageRef(Path(f"{number}.jpg"))


def solved(cases: list[Case]) -> Solvability:
    (found,) = solvability(Benchmark("made", tuple(cases), "0"))
    return found


def pair(rng: np.random.Generator) -> list[str]:
    return [str(word) for word in rng.choice(WORDS, 2, replace=False)]


def test_a_giveaway_word_is_found() -> None:
    rng = np.random.default_rng(0)
    cases = []
    for k in range(100):
        one, two = pair(rng)
        texts = (f"a {one} near a {two}", f"a {one} unlike a {two}")
        cases.append(Case(str(k), Form.CHOOSE_TEXT, (ref(k % 20),), texts, "s"))
    found = solved(cases)
    assert found.ngrams == 1.0
    assert found.chance == 0.5
    assert (found.n, found.of, found.metric) == (100, 100, "accuracy")
    assert found == solved(cases)


def test_length_alone_is_found() -> None:
    rng = np.random.default_rng(1)
    cases = []
    for k in range(100):
        one, two = pair(rng)
        texts = (f"a {one} {'so ' * int(rng.integers(1, 4))}{two}", f"a {one} {two}")
        cases.append(Case(str(k), Form.CHOOSE_TEXT, (ref(k),), texts[::-1], "s", truth=1))
    assert solved(cases).length == 1.0


def test_nothing_is_found_in_random_swaps() -> None:
    rng = np.random.default_rng(2)
    cases = []
    for k in range(400):
        one, two = pair(rng)
        texts = (f"a {one} on a {two}", f"a {two} on a {one}")
        cases.append(Case(str(k), Form.CHOOSE_TEXT, (ref(k),), texts, "s"))
    found = solved(cases)
    assert abs(found.ngrams - 0.5) < 4 * 0.025
    assert abs(found.length - 0.5) < 4 * 0.025


def test_equal_texts_count_their_share() -> None:
    same = [Case(str(k), Form.CHOOSE_TEXT, (ref(k),), ("a cup",) * 4, "s") for k in range(60)]
    found = solved(same)
    assert found.ngrams == found.length == found.chance == pytest.approx(0.25)
    triples = [Case(str(k), Form.TEXT_ONLY, (), (f"cup {k}",) * 3, "s") for k in range(60)]
    assert solved(triples).ngrams == solved(triples).chance == pytest.approx(1 / 3)


def test_statements_are_ranked() -> None:
    rng = np.random.default_rng(3)
    cases = []
    for k in range(200):
        truth = int(rng.integers(2))
        one, two = pair(rng)
        text = f"the {one} is {'near' if truth else 'unlike'} the {two} {k}"
        cases.append(Case(str(k), Form.BINARY, (ref(k),), (text,), "s", truth))
    found = solved(cases)
    assert found.metric == "auc"
    assert found.ngrams > 0.99
    # each statement once true and once false, of other images: nothing to learn
    twins = [
        Case(f"{k}/{t}", Form.BINARY, (ref(2 * k + t),), (case.texts[0],), "s", t)
        for k, case in enumerate(cases)
        for t in (0, 1)
    ]
    assert abs(solved(twins).ngrams - 0.5) < 0.1


def test_where_there_is_nothing_to_choose() -> None:
    groups = [Case(str(k), Form.GROUP, (ref(k), ref(k + 1)), ("a", "b"), "s") for k in range(60)]
    assert solvability(Benchmark("made", tuple(groups), "0")) == []
    few = [Case(str(k), Form.CHOOSE_TEXT, (ref(k),), ("a", "b"), "s") for k in range(49)]
    assert solvability(Benchmark("made", tuple(few), "0")) == []
    true = [Case(str(k), Form.BINARY, (ref(k),), ("a",), "s", 1) for k in range(60)]
    assert solvability(Benchmark("made", tuple(true), "0")) == []


def test_adding_words_gives_sugarcrepe_away(shared_data: Path) -> None:
    from compoclip.benchmarks.registry import load_benchmark

    folder = shared_data / "annotations" / "sugarcrepe"
    found = solved(
        list(load_benchmark("sugarcrepe:add_att", Path("x"), annotations=folder).content)
    )
    assert found.length > 0.98  # negatives of add_* are longer
