"""Hard negatives by replacing one word, in the manner of SugarCrepe (Hsieh et al., 2023).

A word that excludes it replaces an entity, modifier or relation of the caption: a member of the
same built-in family, a contradicting preposition (both in `exchange`), else an antonym or
co-hyponym of WordNet (docs/decisions.md, rules 4 and 5).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from compoclip.captions.lexicon import lexicon
from compoclip.captions.lists import word_lists
from compoclip.rewrites.attested import edit_level, preposition_level
from compoclip.rewrites.base import Refused
from compoclip.rewrites.driver import CandidateEdit, Proposal, Round, SampledRewrite
from compoclip.rewrites.edit import MAX_DRAWS, SpanChange, cased_like, inflect
from compoclip.rewrites.exclusion import (
    NOT_THINGS,
    entity,
    families,
    head_noun,
    is_living,
    modifier,
    verb,
)
from compoclip.rewrites.legality import (
    OCCURS,
    attribute_refusal,
    has_namesake,
    is_many,
    may_tie_alike,
    names_together,
    noun_refusal,
    only_listed,
    place_refusal,
    states_place,
    subject_of,
)
from compoclip.rewrites.reading import MentionLink, Reading, of_last
from compoclip.rewrites.relations import KNOWN_PHRASES, contradicting
from compoclip.rewrites.slots import preposition

_PARTICLES = frozenset(("up", "down"))
_BODILY = frozenset(("posture", "grazing", "playing"))
_HELD = frozenset(("in", "with", "wear", "hold", "carry"))
_SCREENS = frozenset(("computer", "controller", "nintendo", "remote", "video", "wii"))
_GAMES = frozenset(("enjoy", "play", "view", "watch"))
_AIR = frozenset(("air", "sky"))
_STATES = frozenset(("motion", "process", "progress", "route"))  # what one is "in", and not outside
_RIDDEN = frozenset(("feed", "ride"))
_WAYS = frozenset(("across", "along", "down", "from", "over", "through"))
_PLACING = frozenset(("above", "among", "at", "behind", "in", "in_front_of", "near", "on", "under"))
_WORN = frozenset(("pants", "shirt", "shoe", "short", "sock", "suit"))
_NOT_WITH = frozenset(("empty", "drain", "uncover"))
_RARE_MOTION = frozenset(("climb", "crawl", "dance", "jump", "swim"))
_REFLEXIVE = frozenset(("herself", "himself", "itself", "themselves"))
_GENDERS = {
    **dict.fromkeys(("boy", "gentleman", "guy", "male", "man"), "he"),
    **dict.fromkeys(("female", "girl", "lady", "woman"), "she"),
}
_PRONOUNS = {
    "he": frozenset(("he", "him", "himself", "his")),
    "she": frozenset(("her", "hers", "herself", "she")),
}
_LIFELESS = frozenset(("fake", "plush", "stuffed", "teddy", "toy"))
_GROUPS = frozenset(("group", "couple", "bunch", "herd", "row", "crowd", "pair", "line"))
TOO_FEW = "too-few-elements"
NO_CANDIDATE = "no-candidate"
CANDIDATES_PER_ELEMENT = 2

# --- The replaceable elements of a caption, each with its candidates. ---

_ADJECTIVE_TAGS = frozenset(("JJ", "JJR", "JJS"))
_NOUN_PARTS = ("NOUN", "PROPN")


class Element(NamedTuple):
    """Tokens [first, stop) that one of the weighted candidate lemmas may replace.

    kind: "entity", "modifier" or "relation". pos: part of speech of the candidates. tag: the form
    (Penn Treebank) that a candidate takes.
    """

    kind: str
    first: int
    stop: int
    pos: str
    tag: str
    candidates: tuple[tuple[str, int], ...]

    def form(self, lemma: str) -> str:
        """The candidate as it reads in the caption."""
        return inflect(lemma, self.tag) if self.pos in ("NOUN", "VERB", "ADJ") else lemma


def enough_elements(s: Reading) -> bool:
    """Return whether the caption has two entities and a relation or a modifier."""
    if len(s.mentions) < 2:
        return False
    related = any(m.link not in (MentionLink.START, MentionLink.COORDINATED) for m in s.mentions)
    return related or any(t.pos == "ADJ" for t in s.caption.tokens)


@of_last
def elements(s: Reading) -> tuple[Element, ...]:
    """All elements with at least one candidate, by kind, in order of place."""
    relations = list(_prepositions(s))
    inside = {i for e in relations for i in range(e.first, e.stop)}
    found = [*_entities(s), *_modifiers(s, inside), *relations, *_verbs(s, inside)]
    return tuple([element for element in found if element.candidates])


def _entities(s: Reading) -> Iterator[Element]:
    tokens = s.caption.tokens
    lows, lemmas = s.lows, s.lemmas
    for place, mention in enumerate(s.mentions):
        head = tokens[mention.head]
        lemma = lemmas[mention.head]
        if head.pos != "NOUN" or lemma in NOT_THINGS or not s.asserted(mention.head):
            continue
        if lemmas.count(lemma) > 1 or only_listed(s, place):
            continue
        if "body parts" in families(lemma, "NOUN"):
            continue  # who has a mouth has a nose
        first = mention.head
        while first > mention.first and (
            tokens[first - 1].pos in _NOUN_PARTS
            or (first == mention.head and names_together(tokens, first - 1))
        ):
            first -= 1
        compound = " ".join(lows[first : mention.head])
        plural = head.tag == "NNS" or any(map(is_many, tokens[mention.first : first]))
        if lows[first] == "decker":
            continue
        single = first > 0 and lows[first - 1] in ("a", "an")
        if single and plural:
            continue  # "a couple people"
        name = f"{compound} {lemma}".strip()
        options = entity(name, lemma, single=single, plural=plural)
        if first == mention.first or tokens[first - 1].pos != "ADJ":
            # Who wears one thing wears others.
            options = tuple([each for each in options if each[0] not in _WORN])
        tag = "NNS" if plural else "NN"
        yield Element("entity", first, mention.head + 1, "NOUN", tag, options)


def _modifiers(s: Reading, skipped: set[int]) -> Iterator[Element]:
    tokens = s.caption.tokens
    for index, token in enumerate(tokens):
        if token.pos != "ADJ" or token.tag not in _ADJECTIVE_TAGS or not s.asserted(index):
            continue
        if index in skipped or index in s.phrasal or names_together(tokens, index):
            continue
        if index + 1 < len(tokens) and s.lows[index + 1] == "fashioned":
            continue
        if index and tokens[index - 1].pos == "ADV" and s.lows[index - 1].endswith("ly"):
            continue  # "a dimly lit room"
        after = tokens[index + 1].pos if index + 1 < len(tokens) else "PUNCT"
        if after in ("ADP", "PUNCT") and index and s.lows[index - 1] in ("from", "in", "the"):
            continue  # "in the dark", "from high above"
        lemma = s.lemmas[index]
        if lemma == "same":
            yield from _same(s, index)
            continue
        owner = s.owner[index]
        if owner < 0 and token.tag == "JJR" and may_tie_alike(s, index, index + 2):
            continue
        known = s.described(index)
        if owner >= 0 and (s.unasserted or not known) and has_namesake(s, owner):
            continue
        head = s.head_lemma(owner) if owner >= 0 else head_noun(s.names[known[0]]) if known else ""
        options = modifier(lemma, token.tag, head)
        for node in known:
            options = tuple([each for each in options if not attribute_refusal(s, node, each[0])])
        yield Element("modifier", index, index + 1, "ADJ", token.tag, options)


def _same(s: Reading, index: int) -> Iterator[Element]:
    """ "the same colour" -> "a different colour"."""
    before = s.caption.tokens[index - 1] if index else None
    owner = s.owner[index]
    if before is None or before.text.lower() != "the" or owner < 0:
        return
    plural = s.caption.tokens[s.mentions[owner].head].tag == "NNS"
    text = "different" if plural else "a different"
    yield Element("modifier", index - 1, index + 1, "ADJ", "JJ", ((text, 1),))


def _prepositions(s: Reading) -> Iterator[Element]:
    for index, stop in KNOWN_PHRASES.spans(s.lows):
        if states_place(s, index, stop) and not _STATES.intersection(s.lows[stop : stop + 1]):
            options = contradicting(" ".join(s.lows[index:stop]))
            if options and place_refusal(s, index, stop) is not None:
                options = ()
            yield Element("relation", index, stop, "ADP", "IN", options)


def _verbs(s: Reading, skipped: set[int]) -> Iterator[Element]:
    tokens = s.caption.tokens
    for index, token in enumerate(tokens):
        if token.pos != "VERB" or s.owner[index] >= 0 or not s.asserted(index):
            continue
        if index in skipped or index in s.phrasal:
            continue
        lemma = s.lemmas[index]
        before = tokens[index - 1].pos if index else ""
        if before == "PART" or any(t.tag == "TO" for t in tokens[index + 1 : index + 3]):
            continue  # "getting ready to eat" is when one cuts
        if before == "ADJ" and lemma == "look":
            continue  # "a fresh looking salad"
        if "posture" in families(lemma, "VERB") and not acts(s, index):
            continue  # a plate stands as well as it lies
        after = s.lows[index + 1] if index + 1 < len(tokens) else ""
        if after and lexicon().known(f"{s.lows[index]} {after}", "NOUN"):
            continue  # "a washing machine"
        further = tokens[index + 1].pos if after else ""
        if "posture" in families(lemma, "VERB") and (further == "ADJ" or after in _PARTICLES):
            continue  # "sitting up in bed", "lying unconscious"
        transitive = index + 1 < len(tokens) and s.owner[index + 1] >= 0
        options = verb(lemma, transitive)
        unlikely = {"fly"}  # which people do not
        if not _SCREENS.isdisjoint(s.lows):
            unlikely |= _GAMES  # who plays a video game looks at it
        ways = s.lows[index + 1 : index + 6]
        if lemma in _RIDDEN and not _WAYS.isdisjoint(ways):
            continue  # one rides, and does not feed, a horse through a field
        if index and tokens[index - 1].pos == "VERB":
            continue  # "doing jumps"
        if not _AIR.isdisjoint(s.lows[index + 1 : index + 7]):
            unlikely |= {each for each, _ in options if "posture" in families(each, "VERB")}
        if lemma == "ride" and not transitive:
            unlikely |= {"run", "walk"}
        if after == "with":
            unlikely |= _NOT_WITH
        if token.tag == "VBN" or not acts(s, index):
            unlikely |= {each for each, _ in options if families(each, "VERB") & _BODILY}
        if after in _REFLEXIVE:
            options = ()
        options = tuple([each for each in options if each[0] not in unlikely])
        yield Element("relation", index, index + 1, "VERB", token.tag, options)


def acts(s: Reading, index: int) -> bool:
    """Return whether who does what the verb at `index` says is alive."""
    subject = subject_of(s, (index, index + 1))
    if subject < 0:
        subject = next((s.owner[i] for i in range(index, -1, -1) if s.owner[i] >= 0), -1)
    if subject < 0:
        return False
    mention = s.mentions[subject]
    if not _HELD.isdisjoint(mention.words):
        subject = mention.root  # "a man in a red shirt standing"
    elif s.head_lemma(subject) in _GROUPS and subject + 1 < len(s.mentions):
        subject += 1
    mention = s.mentions[subject]
    if "prepared food" in families(" ".join(s.lows[mention.head - 1 : mention.head + 1]), "NOUN"):
        return False  # a hot dog
    return is_living(s.head_lemma(subject)) and _LIFELESS.isdisjoint(
        s.lows[mention.first : mention.head]
    )


# --- Hard negatives by replacing one word. ---


def _proposed(s: Reading, rng: random.Random, parts: tuple[str, ...]) -> Iterator[Proposal]:
    """Replaces one element by a word of its kind that contradicts it, in the same word form."""
    if not enough_elements(s):
        yield Refused(TOO_FEW)
        return
    found = [element for element in elements(s) if element.pos in parts]
    shares = [min(CANDIDATES_PER_ELEMENT, len(element.candidates)) for element in found]
    for _ in range(MAX_DRAWS if found else 0):
        element = rng.choices(found, shares)[0]
        yield fluent(s, element, drawn_candidate(element, rng), f"replace:{element.kind}")


def replacement(
    name: str = "replace", parts: tuple[str, ...] = ("NOUN", "ADJ", "ADP", "VERB")
) -> SampledRewrite:
    """Return the rewrite that replaces one element.

    Args:
        name: Its name.
        parts: Parts of speech that may be replaced: NOUN (entities), ADJ (modifiers), ADP and VERB
            (relations).
    """
    return SampledRewrite(name, "5", False, NO_CANDIDATE, partial(_proposed, parts=parts))


REPLACE = replacement()


def drawn_candidate(element: Element, rng: random.Random) -> str:
    """Two candidates by weight (or the only one), then one of them uniformly."""
    words = [word for word, _ in element.candidates]
    weights = [weight for _, weight in element.candidates]
    drawn = []
    for _ in range(min(CANDIDATES_PER_ELEMENT, len(words))):
        at = rng.choices(range(len(words)), weights)[0]
        drawn.append(words.pop(at))
        del weights[at]
    return rng.choice(drawn)


def fluent(s: Reading, element: Element, word: str, rule: str) -> CandidateEdit:
    """Return the replacement of an element by a lemma, with how well it fits its new place."""
    if element.pos == "ADP":
        # The lists say which prepositions may stand for which, but not between what.
        return replaced(s, element, word, rule, preposition_level(s, element.first, word))
    head, old = element.stop - 1, s.lemmas[element.stop - 1]
    strict = word in _RARE_MOTION  # hardly any scene has somebody climb
    if element.pos == "VERB" and head + 1 < len(s.lows):  # captions show who does where:
        follows = s.caption.tokens[head + 1].pos, preposition(s.lows[head + 1])
        strict |= follows[0] == "ADP" and follows[1] not in _PLACING  # "runs for the ball"
    # What is in no family is known by its field alone, and an adjective by its opposite.
    known = element.pos == "VERB" or bool(families(old, element.pos))
    words = {**dict.fromkeys(range(element.first, head), ""), head: head_noun(word)}
    level = edit_level(s, words, strict=strict or not known)
    said = _GENDERS.get(old)
    # A man does not stand for a woman of whom "her" is said.
    agrees = said is None or said == _GENDERS.get(word) or _PRONOUNS[said].isdisjoint(s.lows)
    if (not known and level < 2) or (element.pos != "VERB" and not agrees):
        level = 0
    return replaced(s, element, word, rule, level)


def replaced(s: Reading, element: Element, word: str, rule: str, level: int = 2) -> CandidateEdit:
    """Return the replacement of an element by a lemma in the form of the element."""
    text = cased_like(element.form(word), s.caption, element.first)
    changes = [SpanChange(element.first, element.stop, text)]
    return CandidateEdit(rule, changes, level=level, refusal=partial(forbidden, s, element, word))


def forbidden(s: Reading, element: Element, word: str) -> str | None:
    """Why `word` may not replace the element in this caption, or None."""
    if element.kind == "entity":
        old = " ".join((*s.lows[element.first : element.stop - 1], s.lemmas[element.stop - 1]))
        return noun_refusal(s, word, old, plural=element.tag == "NNS")
    return OCCURS if s.holds(word) else None


# --- Rule-based hard negatives of TSVLC (Doveh et al., CVPR 2023): another word of the same
# list. ---
#
# The published rule takes any other word of the list, so that an open door may become a dirty one,
# which can hold as well. Here only words that exclude the original count, but in
# `tsvlc-rb-released`, which keeps to that rule, and to the list of actions of the released code:
# words such as "in", "on", "with", "holding" and "wearing", which make most of its edits.

NO_LIST = "no-list-applies"
CATEGORIES = ("colour", "material", "size", "state", "action")
RELEASED = ("colour", "material", "size", "state", "relation")
#: The words of each category.
WORDS = {name: frozenset(words) for name, words in word_lists(__file__, "tsvlc").table("").items()}
_PARTS = {"action": "VERB", "spatial": "ADP"}


def _listed(s: Reading, rng: random.Random, categories: tuple[str, ...]) -> Iterator[Proposal]:
    """Replaces one listed word: category uniform among those that apply, then word, then foil."""
    options = {c: found for c in categories if (found := listed(s, c))}
    for category in rng.sample(list(options), len(options)):
        yield Round()
        for _ in range(MAX_DRAWS):
            element, words = rng.choice(options[category])
            yield fluent(s, element, rng.choice(words), f"list:{category}")


def _any_word(
    s: Reading, rng: random.Random, categories: tuple[str, ...]
) -> Iterator[CandidateEdit]:
    """Replaces a listed word as it stands by any other of its list, true or not."""
    options = {c: found for c in categories if (found := said(s, c))}
    for _ in range(MAX_DRAWS if options else 0):
        category = rng.choice(list(options))
        place, words = rng.choice(options[category])
        change = SpanChange(place, place + 1, cased_like(rng.choice(words), s.caption, place))
        yield CandidateEdit(f"list:{category}", [change])


def said(s: Reading, category: str) -> list[tuple[int, list[str]]]:
    """The tokens that are words of the list, with all words of it that the caption has not.

    Of phrases ("in front of") only the single words are looked for, as in the released code; they
    take the place of other words all the same.
    """
    words = WORDS[category]
    others = sorted(words.difference(s.lows))
    return [(place, others) for place, low in enumerate(s.lows) if low in words]


def listed(s: Reading, category: str) -> list[tuple[Element, list[str]]]:
    """The elements whose word is in the list, with the words of it that exclude theirs."""
    words, found = WORDS[category], []
    for element in elements(s):
        tokens = s.caption.tokens[element.first : element.stop]
        said = {" ".join(t.text.lower() for t in tokens), " ".join(t.lemma.lower() for t in tokens)}
        if element.pos != _PARTS.get(category, "ADJ") or said.isdisjoint(words):
            continue
        foils = [word for word, _ in element.candidates if word in words]
        if foils:
            found.append((element, foils))
    return found


TSVLC_RB, TSVLC_RB_SPATIAL, TSVLC_RB_RELEASED = (
    SampledRewrite(name, version, False, NO_LIST, partial(propose, categories=categories))
    for name, version, propose, categories in (
        ("tsvlc-rb", "5", _listed, CATEGORIES),
        ("tsvlc-rb-spatial", "5", _listed, (*CATEGORIES, "spatial")),
        ("tsvlc-rb-released", "2", _any_word, RELEASED),
    )
)
