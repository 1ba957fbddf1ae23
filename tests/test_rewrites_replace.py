"""Replacements: by families of words, lists and synonyms; what captions attest."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from count_attested import count_slots

from compoclip.captions.lexicon import lexicon
from compoclip.captions.parser import parse
from compoclip.captions.tagger import PLURAL_ONLY
from compoclip.captions.tagrules import TagRow
from compoclip.rewrites import exclusion as candidates
from compoclip.rewrites.attested import Attested
from compoclip.rewrites.ce_clip import CE_ADJ, CE_NOUN, CE_SWAP, CE_VERB
from compoclip.rewrites.edit import MASS_NOUNS
from compoclip.rewrites.exclusion import exclusive, families, may_coincide
from compoclip.rewrites.reading import EXCEPTIONS, read
from compoclip.rewrites.relations import CONTRADICTIONS, contradicting
from compoclip.rewrites.replace import (
    CATEGORIES,
    REPLACE,
    TSVLC_RB,
    TSVLC_RB_RELEASED,
    TSVLC_RB_SPATIAL,
    WORDS,
    drawn_candidate,
    elements,
    forbidden,
    replacement,
)
from compoclip.rewrites.slots import slots, words_of
from compoclip.rewrites.synonyms import SYNONYM, places, table
from rewrite_facts import results, rows, texts


def candidates_of(caption: str) -> dict[tuple[str, str], set[str]]:
    """(kind, words) -> candidates of every element."""
    parsed = parse(caption)
    return {
        (e.kind, " ".join(t.text for t in parsed.tokens[e.first : e.stop])): {
            e.form(word) for word, _ in e.candidates
        }
        for e in elements(read(parsed))
    }


# Caption | its elements: entities | modifiers | relations
ELEMENTS = rows("""
a red star above a house but no blue boat | star house | red | above
a dog on a mat without a leash | dog mat | | on
two blue fish above the three small trees | fish trees | blue small | above
a star and a red ball | ball | red | # a mug may be there too, but no second red ball
a red star above a star | | | # which of them is red, or above?
a fire hydrant next to a hot dog | fire_hydrant hot_dog | | next_to
a circle and a square of the same colour | square | the_same |
the boat is taller than the house | boat house | taller |
""")


@pytest.mark.parametrize(("caption", "entities", "modifiers", "relations"), ELEMENTS)
def test_elements_of_a_caption(caption: str, entities: str, modifiers: str, relations: str) -> None:
    kinds = {"entity": entities, "modifier": modifiers, "relation": relations}
    assert candidates_of(caption).keys() == {
        (kind, words.replace("_", " ")) for kind in kinds for words in kinds[kind].split()
    }


def test_full_candidate_set_of_a_relation_caption() -> None:
    options = candidates_of("a red star to the left of a large striped mug")
    assert set(options) == {
        ("entity", "star"),
        ("entity", "mug"),
        ("modifier", "red"),
        ("modifier", "large"),
        ("modifier", "striped"),
        ("relation", "to the left of"),
    }
    assert options["relation", "to the left of"] == {"to the right of"}
    assert options["modifier", "large"] == {"small"}
    assert {"blue", "green"} <= options["modifier", "red"]
    assert not {"crimson", "scarlet", "large"} & options["modifier", "red"]
    assert "cup" not in options["entity", "mug"]


PREPOSITIONS = rows("""
on | near | next to | on top of | in | at | by | above | over
above | on top of | over | on | near | to the left of
inside | in | within | near | on
in front of | near | next to | facing
next to | near | beside | with | in front of
to the left of | next to | above | left of
""")


@pytest.mark.parametrize("row", [*PREPOSITIONS, *([word] for word in CONTRADICTIONS)])
def test_a_preposition_contradicts_neither_itself_nor_its_like(row: list[str]) -> None:
    options = {word for word, _ in contradicting(row[0])}
    assert options
    assert options.isdisjoint(row)


@pytest.mark.parametrize(
    ("caption", "words", "candidate"),
    [
        ("a circle and a square of the same colour", "the same", "a different"),
        ("the spotted hat is bigger than the umbrella", "bigger", "smaller"),
        ("the boat is taller than the house", "taller", "shorter"),
    ],
)
def test_some_modifiers_have_one_candidate(caption: str, words: str, candidate: str) -> None:
    assert candidates_of(caption)["modifier", words] == {candidate}


def test_forms_follow_the_original() -> None:
    options = candidates_of("Two dogs are chasing a woman who rides an elephant.")
    assert {"cats", "horses"} <= options["entity", "dogs"]
    assert "man" in options["entity", "woman"]
    rewritten = texts(REPLACE, "A dog on an armchair.", 400)
    assert all(text[0].isupper() for text in rewritten)
    assert "An elephant on an armchair." in rewritten


def test_stuff_has_no_plural() -> None:
    for noun in ("sandwich", "carrot", "cup", "shirt"):
        many = dict(candidates.entity(noun, single=False, plural=True))
        assert many
        assert not MASS_NOUNS & many.keys()
        one = dict(candidates.entity(noun, single=True, plural=False))
        assert not {*MASS_NOUNS, *PLURAL_ONLY} & one.keys()


def test_no_candidate_is_a_synonym_or_a_kind_of_the_noun() -> None:
    for noun in ("dog", "man", "car", "table", "star", "mug", "bus", "street", "pizza", "window"):
        for word, weight in candidates.entity(noun, single=True, plural=False):
            assert weight >= 1
            assert word != noun
            assert not lexicon().related(noun, word, "NOUN") or not (
                families(noun, "NOUN") & families(word, "NOUN")
            )


def test_a_candidate_is_not_related_to_what_the_caption_names() -> None:
    reading = read(parse("a dog on a mat near a cat and a kitten"))
    dog = next(e for e in elements(reading) if e.kind == "entity")
    assert forbidden(reading, dog, "cat") == "occurs-in-caption"
    assert forbidden(reading, dog, "kitty") == "related-words"
    assert forbidden(reading, dog, "horse") is None


def test_families_exclude_and_coincide() -> None:
    assert may_coincide("mug", "cup", "NOUN")
    assert not may_coincide("mug", "bowl", "NOUN")
    assert "cup" not in exclusive("mug", "NOUN")
    assert set(exclusive("large", "ADJ")) == {"small", "medium"}
    assert exclusive("zyzzy", "NOUN") == ()
    for word, family in ("dog", "animals"), ("car", "vehicles"), ("chair", "furniture"):
        assert family in families(word, "NOUN")


@pytest.mark.parametrize(
    ("word", "noun", "opposite"),
    [
        ("old", "man", "young"),
        ("old", "house", "new"),
        ("short", "man", "tall"),
        ("short", "scarf", "long"),
    ],
)
def test_opposites_depend_on_the_thing(word: str, noun: str, opposite: str) -> None:
    assert dict(candidates.modifier(word, noun)).keys() == {opposite}


def test_verbs_keep_their_objects_possible() -> None:
    assert "sit" in dict(candidates.verb("stand", transitive=False))
    assert "sit" not in dict(candidates.verb("hold", transitive=True))
    assert candidates.verb("be", transitive=True) == ()


def test_up_to_two_candidates_then_one_evenly() -> None:
    """A candidate of weight 999 does not crowd out the other: both are drawn, one is taken."""
    options = ("cat", 999), ("horse", 1)
    drawn = [drawn_candidate(options, random.Random(i)) for i in range(400)]
    assert 140 < drawn.count("horse") < 260


def test_only_the_asked_kinds() -> None:
    rewrite = replacement(parts=("ADP", "VERB"))
    drawn = results(rewrite, "a red star above a large mug", 40)
    assert {result.rule for result in drawn} == {"replace:relation"}


EXCEPTION_ROWS = [(name, row) for name, table in EXCEPTIONS.items() for row in table.rows]


@pytest.mark.parametrize(("name", "row"), EXCEPTION_ROWS, ids=lambda x: getattr(x, "example", x))
def test_an_exception_holds_in_its_example(name: str, row: TagRow) -> None:
    words = read(parse(row.example)).columns
    places = range(len(words[0]))
    matching = [at for at in places if row in EXCEPTIONS[name][tuple(c[at] for c in words)]]
    assert any(all(holds(words, at) for holds in row.around) for at in matching)


# --- TSVLC's word lists and CE-CLIP's replacements. ---


def test_lists_are_read() -> None:
    lists = WORDS
    assert set(lists) == {*CATEGORIES, "spatial", "relation"}
    assert len(lists["relation"]) == 47
    assert {"in", "on", "with", "holding", "wearing", "in front of"} <= lists["relation"]
    assert lists["relation"].isdisjoint(lists["action"])
    assert {"red", "blue"} <= lists["colour"]
    assert "on top of" in lists["spatial"]
    assert all(word == word.strip().lower() for words in lists.values() for word in words)


def test_categories_that_apply_are_drawn_evenly() -> None:
    caption = "a red dog sitting on a large wooden chair under an open umbrella near a car"
    rules = Counter(r.rule for r in results(TSVLC_RB, caption, 500))
    assert set(rules) == {f"list:{c}" for c in CATEGORIES}
    assert min(rules.values()) > 65
    spatial = Counter(r.rule for r in results(TSVLC_RB_SPATIAL, caption, 500))
    assert set(spatial) == {*rules, "list:spatial"}


def test_as_released_any_other_word_of_the_list_takes_the_place() -> None:
    listed = WORDS["relation"]
    caption = "A man wearing a hat is on a covered wagon in front of it"
    by_place: dict[str, set[str]] = {}
    for result in results(TSVLC_RB_RELEASED, caption, 3000):
        (edit,) = result.edits
        assert (result.rule, result.rewrite) == ("list:relation", "tsvlc-rb-released")
        new = result.text[edit.new_start : edit.new_end]
        by_place.setdefault(caption[edit.start : edit.end], set()).add(new)
    # Words of the caption that are on the list, by themselves: not "in front of", nor "covered".
    said = {"wearing", "on", "in", "of"}
    assert set(by_place) == said
    assert all(words == listed - said for words in by_place.values())
    colours = results(TSVLC_RB_RELEASED, "An azure car", 300)
    assert {r.rule for r in colours} == {"list:colour"}
    assert {"A navy car", "An orange car", "A blue car"} <= {r.text for r in colours}
    categories = Counter(
        r.rule for r in results(TSVLC_RB_RELEASED, "a red dog on a wooden chair", 600)
    )
    assert set(categories) == {"list:colour", "list:relation", "list:material"}
    assert min(categories.values()) > 150  # the category first, evenly


def test_foils_come_from_the_same_list() -> None:
    words = {text.split()[1] for text in texts(TSVLC_RB, "a red car on a road")}
    assert words
    assert words <= WORDS["colour"] - {"red", "crimson", "scarlet", "maroon"}


def test_ce_types_touch_only_their_part_of_speech() -> None:
    caption = "a young man riding a small horse near a fence"
    for rewrite, originals in (
        (CE_ADJ, {"young", "small"}),
        (CE_NOUN, {"man", "young man", "horse", "fence"}),
        (CE_VERB, {"riding"}),
    ):
        rewritten = results(rewrite, caption)
        assert rewritten
        for result in rewritten:
            changed = {caption[e.start : e.end] for e in result.edits} - {"a"}
            assert len(changed) == 1
            assert changed <= originals
            assert result.rewrite == rewrite.name
    assert {result.rule for result in results(CE_SWAP, caption)} == {"swap:noun"}


# --- Synonyms: the published table, word forms, and where an entry does not fit. ---


def test_the_table_is_the_published_one() -> None:
    entries = table()
    assert Counter(e.kind for e in entries) == {"relation": 16, "attribute": 23}
    rows = {(e.word, e.synonym): e.rows for e in entries if e.kind == "relation"}
    assert rows["in", "within"] == 6173
    assert rows["riding on", "traveling on"] == 38
    assert {(e.word, e.synonym) for e in entries if e.never} == {("near", "next to")}
    loose = {(e.word, e.synonym) for e in entries if e.loose}
    assert {("red", "crimson"), ("white", "ivory"), ("near", "next to"), ("small", "tiny")} <= loose
    assert {("large", "big"), ("next to", "near"), ("in", "within")}.isdisjoint(loose)
    assert {("above", "on top of"), ("wearing", "in"), ("wears", "in"), ("by", "near")} <= loose


def test_synonyms_that_are_loose_have_a_rule_of_their_own() -> None:
    rules = {result.rule for result in results(SYNONYM, "a man wearing a red hat", 40)}
    assert rules == {"synonym:relation-loose", "synonym:attribute-loose"}


def test_bijective_entries_can_be_undone() -> None:
    """Putting the word back where its synonym stands gives the caption."""
    targets = Counter(e.synonym for e in table())
    sources = Counter(e.word for e in table())
    checked = 0
    for entry in table():
        if targets[entry.synonym] > 1 or sources[entry.word] > 1 or entry.kind == "relation":
            continue
        head = "sky" if entry.word == "clear" else "dog"
        caption = parse(f"the {entry.word} {head} on the grass")
        for place, (_, _, text) in places(read(caption)):
            if place == entry:
                changed = caption.text.replace(f" {entry.word} ", f" {text} ")
                assert changed.replace(entry.synonym, entry.word) == caption.text
                checked += 1
    assert checked >= 10


# --- Counts of the words that captions put side by side. ---


def named(text: str) -> set[tuple[str, str, str]]:
    """The slots of a caption by their words."""
    tokens = parse(text).tokens
    words, ends = words_of(tokens)
    pairs = slots(tokens, ends)
    return {(s.kind, words[s.left] if s.left >= 0 else "", words[s.right]) for s in pairs}


def test_slots_of_a_caption() -> None:
    assert named("A young man riding a brown horse on the beach.") == {
        ("mod", "young", "man"),
        ("a", "", "man"),
        ("subj", "man", "ride"),
        ("obj", "ride", "horse"),
        ("mod", "brown", "horse"),
        ("a", "", "horse"),
        ("np", "horse", "on"),
        ("pn", "on", "beach"),
        ("act", "man", "horse"),
        ("tie", "horse", "beach"),
        ("the", "", "beach"),
    }


def test_prepositions_of_several_words_are_one() -> None:
    slots_by_words = named("a cat sits on top of a car, a dog in front of it")
    assert {("vp", "sit", "on"), ("pn", "on", "car"), ("tie", "sit", "car")} <= slots_by_words
    assert ("act", "cat", "car") in slots_by_words
    assert ("np", "dog", "in_front_of") in slots_by_words


def test_a_verb_behind_a_place_is_said_of_what_is_there() -> None:
    slots_by_words = named("a dog in a field chasing a ball")
    assert ("subj", "dog", "chase") in slots_by_words
    assert ("subj", "field", "chase") not in slots_by_words


def test_a_pronoun_takes_no_words_that_follow_it() -> None:
    slots_by_words = named("a dog sees it on a field")
    assert ("pn", "on", "field") in slots_by_words
    assert {kind for kind, *_ in slots_by_words}.isdisjoint({"vp", "tie", "act"})
    assert ("act", "dog", "ball") in named("a dog which chases a ball")


def test_levels_are_words_then_classes() -> None:
    seen = [parse(t) for t in ("a man riding a horse", "a man riding a cow", "a girl riding a dog")]
    attested = Attested(count_slots(seen))
    assert attested.level("obj", "ride", "horse") == 2
    assert attested.level("obj", "ride", "zebra") == 1
    assert attested.level("obj", "ride", "fork") == 0
