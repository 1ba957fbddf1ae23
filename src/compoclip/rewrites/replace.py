"""Hard negatives by replacing one word, in the manner of SugarCrepe (Hsieh et al., 2023).

A word that excludes it replaces an entity, modifier or relation of the caption: a member of the
same built-in family, a contradicting preposition (both in `exchange`), else an antonym or
co-hyponym of WordNet (docs/decisions.md, rules 4 and 5). Words that stay for what stands around
them are rows of data/exceptions.txt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import NamedTuple

from compoclip.captions.lexicon import lexicon
from compoclip.captions.lists import word_lists
from compoclip.captions.tagger import inflect
from compoclip.captions.types import NOUNS
from compoclip.rewrites.attested import edit_level, preposition_level
from compoclip.rewrites.base import Refused
from compoclip.rewrites.driver import NO_CANDIDATE, CandidateEdit, Proposal, Round, SampledRewrite
from compoclip.rewrites.edit import ARTICLES, MAX_DRAWS, RULES, SpanChange, cased_like
from compoclip.rewrites.exclusion import (
    NOT_THINGS,
    Weighted,
    entity,
    families,
    head_noun,
    is_living,
    members,
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
from compoclip.rewrites.reading import EXCEPTIONS, STARTS, Reading
from compoclip.rewrites.relations import KNOWN_PHRASES, contradicting
from compoclip.rewrites.slots import preposition

TOO_FEW = "too-few-elements"
_GENDERS = RULES.keys_of("genders")
_SHARE = 2  # candidates that are sampled of an element

# --- The replaceable elements of a caption, each with its candidates. ---


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
    candidates: Weighted

    def form(self, lemma: str) -> str:
        """The candidate as it reads in the caption."""
        return inflect(lemma, self.tag) if self.pos in ("NOUN", "VERB", "ADJ") else lemma


def enough_elements(s: Reading) -> bool:
    """Return whether the caption has two entities and a relation or a modifier."""
    related = any(m.link not in STARTS for m in s.mentions)
    return len(s.mentions) > 1 and (related or any(t.pos == "ADJ" for t in s.caption.tokens))


@lru_cache(maxsize=1)
def elements(s: Reading) -> tuple[Element, ...]:
    """All elements with at least one candidate, by kind, in order of place."""
    relations = list(_prepositions(s))
    taken = s.phrasal.union(s.unasserted, *(range(e.first, e.stop) for e in relations))
    free = [i for i in range(len(s.lows)) if i not in taken]
    all_elements = [*_entities(s), *_modifiers(s, free), *relations, *_verbs(s, free)]
    return tuple([element for element in all_elements if element.candidates])


def _entities(s: Reading) -> Iterator[Element]:
    tokens = s.caption.tokens
    for place, mention in enumerate(s.mentions):
        head, lemma = tokens[mention.head], s.lemmas[mention.head]
        if head.pos != "NOUN" or lemma in NOT_THINGS or not s.asserted(mention.head):
            continue
        if s.lemmas.count(lemma) > 1 or only_listed(s, place):
            continue
        if "body parts" in families(lemma, "NOUN"):
            continue  # who has a mouth has a nose
        first = mention.head
        while first > mention.first and (
            tokens[first - 1].pos in NOUNS
            or (first == mention.head and names_together(tokens, first - 1))
        ):
            first -= 1
        plural = head.tag == "NNS" or any(map(is_many, tokens[mention.first : first]))
        single = first > 0 and s.lows[first - 1] in ARTICLES
        if s.lows[first] == "decker" or (single and plural):
            continue  # "a couple people"
        name = " ".join((*s.lows[first : mention.head], lemma))
        options = entity(name, single=single, plural=plural)
        if first == mention.first or tokens[first - 1].pos != "ADJ":
            # Who wears one thing wears others.
            options = tuple([option for option in options if option[0] not in RULES["worn"]])
        yield Element("entity", first, mention.head + 1, "NOUN", "NNS" if plural else "NN", options)


def _modifiers(s: Reading, free: list[int]) -> Iterator[Element]:
    tokens = s.caption.tokens
    for index in free:
        token, owner, lemma = tokens[index], s.owner[index], s.lemmas[index]
        if token.pos != "ADJ" or token.tag not in ("JJ", "JJR", "JJS"):
            continue
        if names_together(tokens, index) or EXCEPTIONS["modifiers"].first(s.columns, index):
            continue
        if lemma == "same":  # "the same colour" -> "a different colour"
            if index and s.lows[index - 1] == "the" and owner >= 0:
                plural = tokens[s.mentions[owner].head].tag == "NNS"
                text = "different" if plural else "a different"
                yield Element("modifier", index - 1, index + 1, "ADJ", "JJ", ((text, 1),))
            continue
        if owner < 0 and token.tag == "JJR" and may_tie_alike(s, index, index + 2):
            continue
        nodes = s.described(index)
        if owner >= 0 and (s.unasserted or not nodes) and has_namesake(s, owner):
            continue
        head = s.head_lemma(owner) if owner >= 0 else head_noun(s.names[nodes[0]]) if nodes else ""
        options = modifier(lemma, head)
        for node in nodes:
            options = tuple(
                [option for option in options if not attribute_refusal(s, node, option[0])]
            )
        yield Element("modifier", index, index + 1, "ADJ", token.tag, options)


def _prepositions(s: Reading) -> Iterator[Element]:
    for index, stop in KNOWN_PHRASES.spans(s.lows):
        # What one is "in", and not outside: "in progress".
        if states_place(s, index, stop) and not {*s.lows[stop : stop + 1]} & RULES["states"]:
            options = contradicting(" ".join(s.lows[index:stop]))
            if options and place_refusal(s, index, stop) is not None:
                options = ()
            yield Element("relation", index, stop, "ADP", "IN", options)


def _verbs(s: Reading, free: list[int]) -> Iterator[Element]:
    tokens = s.caption.tokens
    for index in free:
        token, lemma = tokens[index], s.lemmas[index]
        if token.pos != "VERB" or s.owner[index] >= 0:
            continue
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        options = verb(lemma, after is not None and s.owner[index + 1] >= 0)
        if not options or EXCEPTIONS["verbs"].first(s.columns, index):
            continue
        posture, alive = "posture" in families(lemma, "VERB"), acts(s, index)
        if posture and not alive:
            continue  # a plate stands as well as it lies
        if after and lexicon().contains(f"{s.lows[index]} {after.text.lower()}", "NOUN"):
            continue  # "a washing machine"
        if posture and after and (after.pos == "ADJ" or after.text.lower() in ("up", "down")):
            continue  # "sitting up in bed", "lying unconscious"
        unlikely = " ".join(EXCEPTIONS["unlikely verbs"].every(s.columns, index)).split()
        unlikely += [] if alive else ["/posture", "/grazing", "/playing"]
        named = [members(entry[1:], "VERB") if entry[0] == "/" else (entry,) for entry in unlikely]
        unfit = set(chain.from_iterable(named))
        options = tuple([option for option in options if option[0] not in unfit])
        yield Element("relation", index, index + 1, "VERB", token.tag, options)


def acts(s: Reading, index: int) -> bool:
    """Return whether who does what the verb at `index` says is alive."""
    subject = subject_of(s, index)
    if subject < 0:
        subject = s.last_mention(index)
    if subject < 0:
        return False
    mention = s.mentions[subject]
    if not RULES["had"].isdisjoint(mention.words):
        subject = mention.root  # "a man in a red shirt standing"
    elif s.head_lemma(subject) in RULES["groups"] and subject + 1 < len(s.mentions):
        subject += 1
    first, _, head, *_ = s.mentions[subject]
    if "prepared food" in families(" ".join(s.lows[head - 1 : head + 1]), "NOUN"):
        return False  # a hot dog
    return is_living(s.head_lemma(subject)) and RULES["lifeless"].isdisjoint(s.lows[first:head])


# --- Hard negatives by replacing one word. ---


def _proposed(s: Reading, rng: random.Random, parts: tuple[str, ...]) -> Iterator[Proposal]:
    """Replaces one element by a word of its kind that contradicts it, in the same word form."""
    if not enough_elements(s):
        yield Refused(TOO_FEW)
        return
    matching = [element for element in elements(s) if element.pos in parts]
    shares = list(accumulate(min(_SHARE, len(element.candidates)) for element in matching))
    for _ in range(MAX_DRAWS if matching else 0):
        element = rng.choices(matching, cum_weights=shares)[0]
        word = drawn_candidate(element.candidates, rng)
        yield fluent(s, element, word, f"replace:{element.kind}")


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


def drawn_candidate(candidates: Weighted, rng: random.Random) -> str:
    """Two candidates by weight (or the only one), then one of them uniformly."""
    left, sampled = list(candidates), list[tuple[str, int]]()
    for _ in range(min(_SHARE, len(left))):
        sampled += rng.choices(left, [weight for _, weight in left])
        left.remove(sampled[-1])  # no two are alike
    return rng.choice(sampled)[0]


def fluent(s: Reading, element: Element, word: str, rule: str) -> CandidateEdit:
    """Return the replacement of an element by a lemma, with how well it fits its new place."""
    head, old = element.stop - 1, s.lemmas[element.stop - 1]
    if element.pos == "ADP":
        # The lists say which prepositions may stand for which, but not between what.
        level = preposition_level(s, element.first, word)
    else:
        verbal = element.pos == "VERB"
        strict = word in RULES["rare motion"]  # hardly any scene has somebody climb
        if verbal and head + 1 < len(s.lows):  # captions show who does where: "runs for the ball"
            placed = preposition(s.lows[head + 1]) in RULES["of a deed"]
            strict |= s.caption.tokens[head + 1].pos == "ADP" and not placed
        # What is in no family is known by its field alone, and an adjective by its opposite.
        classified = verbal or bool(families(old, element.pos))
        words = {**dict.fromkeys(range(element.first, head), ""), head: head_noun(word)}
        level = edit_level(s, words, strict=strict or not classified)
        # A man does not stand for a woman of whom "her" is said.
        said = _GENDERS.get(old)
        agrees = said in (None, _GENDERS.get(word)) or RULES[f"of {said}"].isdisjoint(s.lows)
        if (not classified and level < 2) or not (verbal or agrees):
            level = 0

    def changes() -> list[SpanChange]:
        text = cased_like(element.form(word), s.caption, element.first)
        return [SpanChange(element.first, element.stop, text)]

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


def _listed(s: Reading, rng: random.Random, categories: tuple[str, ...]) -> Iterator[Proposal]:
    """Replaces one listed word: category uniform among those that apply, then word, then foil."""
    options = {f"list:{c}": listed for c in categories if (listed := _in_list(s, c))}
    return in_rounds(s, rng, options, lambda candidates: rng.choice(candidates)[0])


def in_rounds(
    s: Reading,
    rng: random.Random,
    options: Mapping[str, Sequence[Element]],
    choose: Callable[[Weighted], str],
) -> Iterator[Proposal]:
    """Propose replacements of the elements of one rule after the other, the rules in any order."""
    for rule in rng.sample(list(options), len(options)):
        yield Round()
        for _ in range(MAX_DRAWS):
            element = rng.choice(options[rule])
            yield fluent(s, element, choose(element.candidates), rule)


def _in_list(s: Reading, category: str) -> list[Element]:
    """The elements whose word is in the list, with the words of it that exclude theirs."""
    words, listed = WORDS[category], []
    part = {"action": "VERB", "spatial": "ADP"}.get(category, "ADJ")
    for element in elements(s):
        said = {" ".join(forms[element.first : element.stop]) for forms in (s.lows, s.lemmas)}
        foils = tuple([candidate for candidate in element.candidates if candidate[0] in words])
        if element.pos == part and foils and said & words:
            listed.append(element._replace(candidates=foils))
    return listed


def _any_word(s: Reading, rng: random.Random, categories: tuple[str, ...]) -> Iterator[Proposal]:
    """Replaces a listed word, not a phrase, by any other of its list, true or not."""
    places = {c: [i for i, low in enumerate(s.lows) if low in WORDS[c]] for c in categories}
    options = [category for category in categories if places[category]]
    for _ in range(MAX_DRAWS if options else 0):
        category = rng.choice(options)
        place = rng.choice(places[category])
        word = rng.choice(sorted(WORDS[category].difference(s.lows)))
        change = SpanChange(place, place + 1, cased_like(word, s.caption, place))
        yield CandidateEdit(f"list:{category}", [change])


TSVLC_RB, TSVLC_RB_SPATIAL, TSVLC_RB_RELEASED = (
    SampledRewrite(name, version, False, NO_LIST, partial(propose, categories=categories))
    for name, version, propose, categories in (
        ("tsvlc-rb", "5", _listed, CATEGORIES),
        ("tsvlc-rb-spatial", "5", _listed, (*CATEGORIES, "spatial")),
        ("tsvlc-rb-released", "2", _any_word, RELEASED),
    )
)
