"""Graph negatives and the sampling of graph texts (MosaiCLIP)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import pytest

from compoclip.captions.clip_text import token_key
from compoclip.captions.parser import parse, parse_many
from compoclip.captions.subgraphs import phrase
from compoclip.captions.types import Caption, SceneGraph
from compoclip.rewrites.base import Refused, Rewritten, get_rewrite, rng_for
from compoclip.rewrites.graph_edits import (
    ATTR,
    CATEGORIES,
    JOIN,
    OBJ,
    REL,
    GraphVocabulary,
    Slot,
    Transform,
    slots_of,
)
from compoclip.rewrites.legality import NO_THING, NOT_ASSERTED
from compoclip.rewrites.mosaic import (
    ENOUGH_POSITIVES,
    NO_GRAPH,
    NO_SUBGRAPH,
    NOT_SURE,
    POSITIVE,
    TAKEN,
    GraphTexts,
    sample_graph_texts,
    usable_subgraphs,
)
from compoclip.rewrites.reading import read
from graph_captions import CAT, WORDS, graph_caption
from real_captions import coco

NEXT_TO = graph_caption("a cat next to a dog", [("cat", []), ("dog", [])], [(0, "next to", 1)])
CHASE = graph_caption("the dog chases cats", [("dog", []), ("cats", [])], [(0, "chases", 1)])


def every(transform: Transform, slot: Slot) -> list[Rewritten]:
    """Every valid negative of a slot."""
    negatives = (transform.make(slot, choice) for choice in product(*transform.lists(slot)))
    return [negative for negative in negatives if isinstance(negative, Rewritten)]


def candidates(caption: Caption, valid: bool = True) -> dict[tuple[str, str], set[str]]:
    """All negatives but the joined ones, by category and rule."""
    reading = read(caption)
    transform = Transform(reading, WORDS, valid)
    by_rule: dict[tuple[str, str], set[str]] = {}
    for subgraph in usable_subgraphs(reading)[0]:
        for slot in slots_of(subgraph):
            if slot.rule != JOIN:
                negatives = {negative.text for negative in every(transform, slot)}
                by_rule.setdefault((slot.category, slot.rule), set()).update(negatives)
    return {key: texts for key, texts in by_rule.items() if texts}


def test_all_valid_negatives_of_the_example() -> None:
    assert candidates(CAT) == {
        (OBJ, "replace-attribute"): {"blue cat", "crimson cat", "blue mat", "large dog"},
        (REL, "exchange-objects"): {"red mat sitting on black cat", "mat sitting on cat"},
        (REL, "replace-object"): {
            pair.format(word)
            for word in ("hat", "table")
            for pair in (
                *("black {} sitting on red mat", "black cat sitting on red {}"),
                *("{} sitting on mat", "cat sitting on {}", "{} next to dog", "mat next to {}"),
                *("red {} next to small dog", "red mat next to small {}"),
            )
        },
        (REL, "replace-relation"): {
            "black cat under red mat",
            "black cat wearing red mat",
            "cat under mat",
            "cat wearing mat",
        },
        (ATTR, "exchange-attributes"): {"red cat sitting on black mat"},
        (ATTR, "replace-attribute"): {
            "blue cat sitting on red mat",
            "crimson cat sitting on red mat",
            "black cat sitting on blue mat",
            "blue mat next to small dog",
            "red mat next to large dog",
        },
    }


def test_the_paper_filters_nothing() -> None:
    negatives = candidates(CAT, valid=False)
    assert "dog next to mat" in negatives[REL, "exchange-objects"]
    assert negatives[OBJ, "replace-attribute"] == {
        f"{word} {noun}" for word in WORDS.attributes for noun in ("cat", "mat", "dog")
    }
    assert {f"cat {word} mat" for word in WORDS.relations} <= negatives[REL, "replace-relation"]
    for key, texts in candidates(CAT).items():
        assert texts <= negatives[key]


def test_a_cat_next_to_a_dog_is_not_exchanged() -> None:
    assert (REL, "exchange-objects") not in candidates(NEXT_TO)
    assert "dog next to cat" in candidates(NEXT_TO, valid=False)[REL, "exchange-objects"]


def test_finite_verbs_and_nouns_keep_their_number() -> None:
    negatives = candidates(CHASE)
    assert negatives[REL, "exchange-objects"] == {"cats chase dog"}
    assert negatives[REL, "replace-object"] == {
        "hat chases cats",
        "table chases cats",
        "dog chases hats",
        "dog chases tables",
    }


def test_without_distinction_the_order_says_nothing() -> None:
    nouns = [("ball", ["red"]), ("ball", [])]
    alike = graph_caption("a red ball above a ball", nouns, [(0, "above", 1)])
    negatives = candidates(alike)
    assert (REL, "exchange-objects") not in negatives
    assert (REL, "replace-relation") not in negatives
    # The other ball may be blue.
    assert (OBJ, "replace-attribute") not in negatives
    apart = graph_caption(
        "a red ball above a black ball", [("ball", ["red"]), ("ball", ["black"])], [(0, "above", 1)]
    )
    negatives = candidates(apart)
    assert negatives[REL, "exchange-objects"] == {"black ball above red ball"}
    assert negatives[REL, "replace-relation"] == {
        "red ball under black ball",
        "red ball wearing black ball",
    }
    assert negatives[OBJ, "replace-attribute"] == {"blue ball"}


def test_what_the_caption_says_elsewhere_is_no_negative() -> None:
    both = graph_caption(
        "a black cat on a red mat on a black mat",
        [("cat", ["black"]), ("mat", ["red"]), ("mat", ["black"])],
        [(0, "on", 1), (1, "on", 2)],
    )
    texts = {t for texts in candidates(both, valid=True).values() for t in texts}
    assert "black mat" not in texts
    assert "red cat on black mat" not in texts  # it is not said, but there is another mat


@pytest.mark.parametrize("word", ["skier", "person", "shirt", "hand", "sky", "benches", "picture"])
def test_objects_that_may_be_there_as_well(word: str) -> None:
    reading = read(graph_caption("a man on a bench", [("man", []), ("bench", [])], [(0, "on", 1)]))
    transform = Transform(reading, GraphVocabulary((word,), ("red",), ("on",)))
    slots = [s for s in slots_of(reading.subgraphs[0]) if s.rule == "replace-object" and not s.node]
    assert isinstance(transform.draw(slots[0], random.Random(0)), Refused)


@pytest.mark.parametrize(
    ("words", "excluding"),
    [(("large", "blue"), {"blue cat"}), (("tiny", "huge", "striped", "golden"), {"golden cat"})],
)
def test_colours_exclude_colours_and_never_sizes(
    words: tuple[str, ...], excluding: set[str]
) -> None:
    reading = read(CAT)
    transform = Transform(reading, GraphVocabulary(("hat",), words, ("on",)))
    slot = next(slots_of(reading.subgraphs[0]))
    assert {negative.text for negative in every(transform, slot)} == excluding


def test_edits_name_the_changed_places() -> None:
    reading = read(CAT)
    transform = Transform(reading, WORDS)
    whole = reading.subgraphs[3]
    seen = {}
    for slot in slots_of(whole):
        for result in every(transform, slot):
            seen[result.text] = [
                (CAT.text[e.start : e.end], result.text[e.new_start : e.new_end])
                for e in result.edits
            ]
    assert seen["red mat sitting on black cat"] == [
        ("black", "red"),
        ("cat", "mat"),
        ("red", "black"),
        ("mat", "cat"),
    ]
    assert seen["black cat under red mat"] == [("sitting on", "under")]
    assert seen["red cat sitting on black mat"] == [("black", "red"), ("red", "black")]
    assert seen["black cat sitting on blue mat"] == [("red", "blue")]
    joined = [text for text in seen if text.startswith("black cat sitting on red mat ")]
    assert joined
    assert all(seen[t] == [("", t.removeprefix("black cat sitting on red mat "))] for t in joined)
    assert "black cat sitting on red mat near blue table" in joined


def check(texts: GraphTexts, caption: Caption, positives: int, negatives: int) -> None:
    """The promises of `GraphTexts`."""
    assert len(texts.positives) <= positives
    assert len(texts.negatives) <= negatives
    assert len(texts.pair) == len(texts.negatives)
    assert set(texts.pair) == set(range(len(texts.positives)))
    everything = [caption.text, *(t.text for t in (*texts.positives, *texts.negatives))]
    assert len({token_key(text) for text in everything}) == len(everything)
    assert all(t.keeps_meaning and t.rewrite == POSITIVE for t in texts.positives)
    assert all(not t.keeps_meaning and t.rewrite in CATEGORIES for t in texts.negatives)


@pytest.mark.parametrize(("positives", "negatives"), [(3, 6), (1, 1), (1, 6), (2, 3), (0, 6)])
@pytest.mark.parametrize("graph_filter", ["valid", "none"])
def test_limits_are_respected(
    positives: int, negatives: int, graph_filter: Literal["valid", "none"]
) -> None:
    for seed in range(15):
        texts = sample_graph_texts(
            CAT,
            random.Random(seed),
            positives=positives,
            negatives=negatives,
            vocabulary=WORDS,
            graph_filter=graph_filter,
        )
        check(texts, CAT, positives, negatives)
        if positives == negatives == 1:
            assert len(texts.positives) == len(texts.negatives) == 1
        if (positives, negatives) == (3, 6):
            assert len(texts.negatives) == 6
        if positives == 0:
            assert {r for _, r in texts.refused} == {ENOUGH_POSITIVES}


def share(weights: tuple[float, float, float], caption: Caption) -> dict[str, float]:
    drawn = Counter(
        sample_graph_texts(caption, random.Random(seed), weights, 1, 1, WORDS, graph_filter="none")
        .negatives[0]
        .rewrite
        for seed in range(300)
    )
    return {name: drawn[name] / 300 for name in CATEGORIES}


def test_categories_are_drawn_by_weight_among_those_that_are_not_empty() -> None:
    got = share((0.2, 0.3, 0.5), CAT)
    assert got[OBJ] == pytest.approx(0.2, abs=0.08)
    assert got[REL] == pytest.approx(0.3, abs=0.08)
    assert got[ATTR] == pytest.approx(0.5, abs=0.08)
    no_attributes = share((0.2, 0.3, 0.5), NEXT_TO)
    assert no_attributes == {OBJ: 0.0, REL: 1.0, ATTR: 0.0}
    one_object = graph_caption("a red ball", [("ball", ["red"])])
    texts = sample_graph_texts(
        replace(one_object, text="a red ball !"), random.Random(0), vocabulary=WORDS
    )
    assert {n.rewrite for n in texts.negatives} == {OBJ}
    # c_obj empty: 0.3 and 0.5 become 3/8 and 5/8.
    half = graph_caption("a red dog on a hat", [("dog", []), ("hat", ["red"])], [(0, "on", 1)])
    bare = share((0.0, 0.3, 0.5), half)
    assert bare[REL] == pytest.approx(0.375, abs=0.08)
    assert bare[OBJ] == 0.0


@pytest.mark.parametrize("weights", [(0.0, 0.0, 0.0), (-0.1, 0.5, 0.6)])
def test_senseless_weights(weights: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        sample_graph_texts(CAT, random.Random(0), weights)


def test_texts_that_clip_cannot_tell_apart_are_taken_once() -> None:
    # "BLACK  Cat ." and "black cat." are the same to CLIP: the caption is no positive of its own.
    same = graph_caption("BLACK cat", [("cat", ["black"])])
    texts = sample_graph_texts(same, random.Random(0), vocabulary=WORDS)
    assert texts == GraphTexts(refused=Counter({(POSITIVE, TAKEN): 1}))
    # Two words of the vocabulary that are one to CLIP give one negative.
    twice = GraphVocabulary(("hat", "HAT", "hat "), ("blue",), ("on",))
    for seed in range(10):
        drawn = sample_graph_texts(
            CHASE, random.Random(seed), vocabulary=twice, graph_filter="none"
        )
        check(drawn, CHASE, 3, 6)


def test_without_a_parse_or_with_nothing_to_say() -> None:
    plain = replace(parse("a cat on a mat"), graph=None)
    assert sample_graph_texts(plain, random.Random(0)).refused == {(POSITIVE, NO_GRAPH): 1}
    empty = replace(plain, graph=SceneGraph())
    assert sample_graph_texts(empty, random.Random(0)).refused == {(POSITIVE, NO_SUBGRAPH): 1}
    for name in (*CATEGORIES, POSITIVE):
        assert get_rewrite(name)(plain, random.Random(0)) == Refused(NO_GRAPH)


@pytest.mark.parametrize("text", ["a cat is not on a mat", "a cat or a dog on a mat"])
def test_what_is_not_asserted_is_no_positive(text: str) -> None:
    words = text.replace("dog on", "dog").split()
    nouns = [w for w in words if w in ("cat", "dog", "mat")]
    caption = graph_caption(text, [(n, []) for n in nouns], [(0, "on", len(nouns) - 1)])
    texts = sample_graph_texts(caption, random.Random(0), vocabulary=WORDS)
    assert not texts.positives
    assert texts.refused == {(POSITIVE, NOT_ASSERTED): 1}


def test_real_captions_keep_the_promises(shared_data: Path) -> None:
    captions = parse_many([first for first, *_ in coco(shared_data)[:50]])
    counts = Counter[str]()
    for number, caption in enumerate(captions):
        texts = sample_graph_texts(caption, rng_for(0, str(number), 0, "graph"))
        check(texts, caption, 3, 6)
        counts["negatives"] += len(texts.negatives)
        counts["none"] += not texts.negatives
        for result in texts.negatives:
            for edit in result.edits:
                assert 0 <= edit.start <= edit.end <= len(caption.text)
                assert 0 <= edit.new_start <= edit.new_end <= len(result.text)
    assert counts["negatives"] > 4.5 * len(captions)
    assert counts["none"] < 0.1 * len(captions)


# --- What a caption must mean, no doubled words, and bounded work. ---


@pytest.mark.parametrize(
    ("text", "positives"),
    [
        ("a man on a horse with a hat", {"man on horse"}),
        ("a close up of a red cat in a box", {"red cat", "cat in box", "red cat in box"}),
        ("black and white photo of a man on a boat", {"man on boat"}),
        ("a cat jumps to catch a ball in a garden", set()),
        ("bikes parked in a row and some men", {"bikes parked in row"}),
        ("a fat dog getting off", {"fat dog"}),
        ("a yellow hydrant and a man in a coat", {"yellow hydrant", "man in coat"}),
    ],
)
def test_positives_say_only_what_the_caption_must_mean(text: str, positives: set[str]) -> None:
    reading = read(parse(text))
    usable, refused = usable_subgraphs(reading)
    assert {phrase(subgraph) for subgraph in usable} == positives
    assert refused.keys() <= {NOT_SURE, NO_THING}


def test_no_text_doubles_a_word() -> None:
    hats = graph_caption(
        "a red top hat next to a tall hat", [("top hat", ["red"]), ("hat", ["tall"])], []
    )
    reading = read(hats)
    words = replace(WORDS, attributes=("top", "blue"))
    transform = Transform(reading, words, valid=False)
    slot = next(
        s for s in slots_of(usable_subgraphs(reading)[0][0]) if s.rule.startswith("replace")
    )
    assert transform.make(slot, ("top",)) == Refused("doubled-word")
    assert isinstance(transform.make(slot, ("blue",)), Rewritten)


def test_what_a_negative_says_is_looked_for_among_many_objects() -> None:
    """Once every choice of three objects was tried: 70 times 69 times 68 of them for each draw."""
    words = sorted(WORDS.objects) + [f"thing{i}" for i in range(65)]
    text = " near ".join(words)
    reading = read(graph_caption(text, [(w, []) for w in words], [(0, "near", 1)]))
    calls = 0
    links = reading.links

    class Counted(dict[tuple[int, int], Sequence[str]]):
        def get(self, key, default=None):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            return links.get(key, default)

    counted = replace(reading)
    vars(counted)["links"] = Counted(links)
    pair = reading.subgraphs[0]
    joined = next(s for s in slots_of(pair) if s.rule == JOIN)
    transform = Transform(counted, WORDS)
    assert isinstance(transform.make(joined, ("wearing", "blue", "cup")), Rewritten)
    assert calls < 10
