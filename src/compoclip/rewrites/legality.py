"""Rules shared by all rewrites: which parts may be exchanged, which words may be replaced.

Rules of exchange return whether it is legal; rules of replacement return the key of what forbids
it, or None (docs/decisions.md, rules 4 to 6). Doubtful cases are forbidden: a lost negative costs
little, a true one teaches the wrong thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product

from compoclip.captions.lexicon import lexicon
from compoclip.captions.subgraphs import SubGraph, relation_words
from compoclip.captions.types import Token
from compoclip.rewrites.edit import ARTICLES, MASS_NOUNS, RULES
from compoclip.rewrites.exclusion import (
    EVERYWHERE,
    MAY_HOLD,
    NOT_THINGS,
    RELATED,
    UNIVERSAL,
    both_people,
    contrast,
    deny,
    exclusive,
    families,
    head_noun,
    is_part,
    related,
    same_thing,
)
from compoclip.rewrites.reading import EXCEPTIONS, STARTS, Mention, MentionLink, Reading
from compoclip.rewrites.relations import RELATIONS, is_symmetric, preposition_synonyms, sense_of

SYMMETRIC = "symmetric-relation"
NOT_ASSERTED = "not-asserted"
OCCURS = "occurs-in-caption"
NO_THING = "names-no-thing"
NO_PLURAL = "has-no-plural"
FIXED_COUNT = "fixed-count"

# --- Whether an exchange of two parts of a caption changes what it says. ---

_OPEN_LINKS = (MentionLink.SYMMETRIC, *STARTS)
_SAME_PLACE = (frozenset(("in", "at", "inside", "within")), frozenset(("on", "upon", "atop")))
_Span = tuple[int, int]


def arguments(s: Reading, x: int, z: int) -> bool:
    """Return whether the things named by mentions x < z may be exchanged."""
    mentions = s.mentions
    *before, last = (m.link for m in mentions[x + 1 : z + 1])
    if last in _OPEN_LINKS and MentionLink.ACTION not in before:
        listed = last is MentionLink.SYMMETRIC or not _heads_clause(mentions, z)
        if listed or all(link in _OPEN_LINKS for link in before):
            return False
    if (
        last is MentionLink.COORDINATED
        and _heads_clause(mentions, x)
        and _heads_clause(mentions, z)
        and related(s.head_lemma(x + 1), s.head_lemma(z + 1), "NOUN")
    ):
        return False  # "a man on a bench and a boy on a bench"
    if not (s.asserted(mentions[x].head) or s.asserted(mentions[z].head)):
        return False
    # Whether the same words tie both to the same thing: "in a hat ... in a park".
    (words_x, root_x), (words_z, root_z) = _governor(mentions, x), _governor(mentions, z)
    if root_x != root_z or not words_x or not words_z:
        return True
    if words_x == words_z:
        return False
    ends = {words_x[-1], words_z[-1]}
    if not mentions[x].link is mentions[z].link is MentionLink.PLACE:
        return True
    if len(ends) == 1 or any(ends <= group for group in _SAME_PLACE):
        return False
    return ends == {"on", "in"} or " ".join(words_z) not in preposition_synonyms(" ".join(words_x))


def _heads_clause(mentions: tuple[Mention, ...], place: int) -> bool:
    """Return whether the caption goes on about this mention: "(and) a dog on a chair"."""
    return place + 1 < len(mentions) and mentions[place + 1].root == place


def _governor(mentions: tuple[Mention, ...], place: int) -> tuple[tuple[str, ...], int]:
    """The link words and clause of a mention; those of its list when it stands in one."""
    while (
        place
        and mentions[place].link is MentionLink.COORDINATED
        and not _heads_clause(mentions, place)
    ):
        place -= 1
    return mentions[place].words, mentions[place].root


def numbers_differ(s: Reading, *nouns: int) -> bool:
    """Return whether exactly one of two singular-looking nouns is counted as many ("two fish")."""
    firsts = [s.mentions[s.owner[i]].first if s.owner[i] >= 0 else i for i in nouns]
    counted = [any(map(is_many, s.caption.tokens[a:b])) for a, b in zip(firsts, nouns)]
    return counted[0] != counted[1]


def is_many(token: Token) -> bool:
    """Return whether the word before a noun counts it as more than one."""
    word = token.text.lower()
    return word in RULES["plural words"] or (token.pos == "NUM" and word not in ("one", "1", "a"))


def modifiers(s: Reading, a: int, b: int, pos: str) -> bool:
    """Return whether the modifiers at tokens a and b, adjectives or nouns, may be exchanged."""
    first, second = s.lemmas[a], s.lemmas[b]
    if not (s.asserted(a) or s.asserted(b)) or related(first, second, pos):
        return False
    if pos == "ADJ" and contrast((first,), (second,)) is not None:
        return False
    heads = [[s.head_lemma(i) for i in _described_by(s, at)] for at in (a, b)]
    return all(heads) and not any(related(*pair, "NOUN") for pair in product(*heads))


def _described_by(s: Reading, index: int) -> Iterable[int]:
    """Mentions that the modifier at token `index` may belong to."""
    tokens = s.caption.tokens
    if s.owner[index] >= 0:
        return (s.owner[index],)
    after = index + 1
    while (
        after < len(tokens)
        and s.owner[after] < 0
        and (tokens[after].pos in ("ADJ", "CCONJ", "NUM") or tokens[after].text == ",")
    ):
        after += 1
    if after < len(tokens) and s.owner[after] >= 0 and tokens[after].pos not in ("DET", "PRON"):
        return (s.owner[after],)
    return _behind(s, index)


def _behind(s: Reading, index: int) -> range:
    """The mentions that what stands at token `index`, in none, may belong to; none at the start."""
    place = s.last_mention(index)
    return range(s.mentions[place].root, place + 1) if place >= 0 else range(0)


def phrases(s: Reading, x: int, z: int) -> bool:
    """Return whether the whole noun phrases x < z may be exchanged."""
    mine, theirs = _content(s, x), _content(s, z)
    red_or_blue = mine[-1] == theirs[-1] and any(
        deny(a, b) for a, b in product(mine[:-1], theirs[:-1])
    )
    apart = red_or_blue or not related(mine[-1], theirs[-1], "NOUN")
    return mine != theirs and apart and arguments(s, x, z)


def _content(s: Reading, mention: int) -> tuple[str, ...]:
    first, stop, head, *_ = s.mentions[mention]
    tokens = s.caption.tokens[first:stop]
    words = [t.lemma.lower() for t in tokens if t.pos not in ("DET", "PRON", "PUNCT")]
    return tuple(words) or (s.lows[head],)


def verbs(s: Reading, i: int, j: int) -> bool:
    """Return whether the verbs at tokens i < j may be exchanged.

    Both have an object of their own, or they have different subjects.
    """
    first, second = s.lemmas[i], s.lemmas[j]
    alike = related(first, second, "VERB") or s.caption.tokens[i].tag != s.caption.tokens[j].tag
    if alike or not (s.asserted(i) or s.asserted(j)):
        return False
    objects = [s.owner_at(verb + 1) for verb in (i, j)]  # right after the verb
    if max(objects) >= 0:
        return min(objects) >= 0 and not related(*map(s.head_lemma, objects), "NOUN")
    subjects = [subject_of(s, verb) for verb in (i, j)]
    if min(subjects) < 0 or related(*map(s.head_lemma, subjects), "NOUN"):
        return False
    starts_own = s.mentions[subjects[1]].link in (MentionLink.COORDINATED, MentionLink.SYMMETRIC)
    return starts_own or second in exclusive(first, "VERB")


def subject_of(s: Reading, verb: int) -> int:
    """The mention that is the subject of the verb at a token; -1 without one.

    Only auxiliaries, adverbs or "that" may stand in between.
    """
    for index in range(verb - 1, -1, -1):
        if s.owner[index] >= 0:
            return s.owner[index]
        between = s.caption.tokens[index].pos in ("AUX", "ADV")
        if not between and s.lows[index] not in ("that", "which", "who"):
            break
    return -1


def nouns(s: Reading, i: int, j: int) -> bool:
    """Return whether the nouns at tokens i < j (heads or modifiers) may be exchanged."""
    x, z = s.owner[i], s.owner[j]
    if x == z or related(s.lemmas[i], s.lemmas[j], "NOUN"):
        return False
    if s.caption.tokens[i].tag == "NN" and numbers_differ(s, i, j):
        return False
    if i != s.mentions[x].head and j != s.mentions[z].head:
        return modifiers(s, i, j, "NOUN")
    if s.asserted(i) != s.asserted(j) and _is_described(s, z if s.asserted(i) else x):
        return False  # "no red fish" leaves room for a fish
    return arguments(s, x, z)


def _is_described(s: Reading, place: int) -> bool:
    mention = s.mentions[place]
    return any(t.pos == "ADJ" for t in s.caption.tokens[mention.first : mention.head])


def adverbs(s: Reading, i: int, j: int) -> bool:
    """Return whether the adverbs at tokens i and j may be exchanged: those of unlike verbs."""
    if not (s.asserted(i) or s.asserted(j)) or related(s.lemmas[i], s.lemmas[j], "ADV"):
        return False
    before = [[n for n in range(at) if s.caption.tokens[n].pos == "VERB"] for at in (i, j)]
    verbs = [s.lemmas[indices[-1]] for indices in before if indices]
    return len(verbs) == 2 and not related(*verbs, "VERB")


def same_parts(s: Reading, a: _Span, b: _Span) -> bool:
    """Return whether the exchange only reorders parts joined by "and" or a symmetric relation.

    "A dog on a couch and a cat on a couch" says the same with its animals exchanged.
    """
    old = items(s)
    new = [*old[: a[0]], *old[slice(*b)], *old[a[1] : b[0]], *old[slice(*a)], *old[b[1] :]]
    return old == new or (None in old and parts_of(s) == parts(new))


_AS_ITEMS: dict[str, str | None] = {
    **dict.fromkeys(("and", "or", "but", ",", ";", ".")),
    **dict.fromkeys(ARTICLES, "a"),
}


@lru_cache(maxsize=1)
def items(s: Reading) -> list[str | None]:
    """Return the words of the caption, None at coordinations and symmetric links."""
    words = [_AS_ITEMS.get(word, word) for word in s.lows]
    for before, mention in zip(s.mentions, s.mentions[1:]):
        if mention.link is MentionLink.SYMMETRIC:
            for place in range(before.stop, mention.first):
                words[place] = None
    return words


def parts(words: list[str | None]) -> list[tuple[str, ...]]:
    """Split at None; return the sorted runs, so that captions with reordered parts are equal."""
    runs: list[list[str]] = [[]]
    for word in words:
        if word is not None:
            runs[-1].append(word)
        elif runs[-1]:
            runs.append([])
    return sorted(map(tuple, runs if runs[-1] else runs[:-1]))


@lru_cache(maxsize=1)
def parts_of(s: Reading) -> list[tuple[str, ...]]:
    """Return the parts of the caption itself."""
    return parts(items(s))


# --- Tests on nouns: is it a thing, which attributes modify it, can it refer to another thing? ---


def names_together(tokens: tuple[Token, ...], index: int) -> bool:
    """Return whether the adjective at `index` and the noun after it are one name ("hot dog")."""
    if index + 1 >= len(tokens) or tokens[index].pos != "ADJ" or tokens[index + 1].pos != "NOUN":
        return False
    adjective = tokens[index].text.lower()
    if families(adjective, "ADJ") & UNIVERSAL:
        return False  # "red star"
    phrase = f"{adjective} {tokens[index + 1].lemma.lower()}"
    return bool(families(phrase, "NOUN")) or lexicon().contains(phrase, "NOUN")


def only_listed(s: Reading, place: int) -> bool:
    """Return whether a mention is only listed ("a star and a ball"): more may be in the image."""
    tied = any(mention.link not in STARTS for mention in s.mentions[place : place + 2])
    return not (tied or _is_described(s, place))


def may_tie_alike(s: Reading, first: int, stop: int) -> bool:
    """Return whether the relation at tokens [first, stop) may tie two things of one kind.

    "A star above a star" says nothing that "a star below a star" denies.
    """
    if (owner := s.owner_at(stop)) < 0:
        return False
    right = s.head_lemma(owner)
    return any(related(s.head_lemma(left), right, "NOUN") for left in _behind(s, first))


def has_namesake(s: Reading, *places: int) -> bool:
    """Return whether another mention may be of the same kind as one of these, so that a claim that
    is false of one may be true of the other."""
    heads = [s.head_lemma(place) for place in range(len(s.mentions))]
    pairs = ((place, other) for place in places for other in range(len(heads)) if other != place)
    return any(related(heads[place], heads[other], "NOUN") for place, other in pairs)


def restated(
    s: Reading, ends: tuple[int, int], attributes: tuple[Sequence[str], Sequence[str]]
) -> str | None:
    """Why it may not matter which of two related objects is which, or None.

    "A ball above a ball" says what "a ball below a ball" does, unless an attribute of the one
    excludes one of the other. With a third ball in the caption, either may be true of that one.
    """
    subject, target = (s.names[end] for end in ends)
    if same_thing(subject, target) and not any(deny(a, b) for a, b in product(*attributes)):
        return RELATED
    others = [name for other, name in enumerate(s.names) if other not in ends]
    third = any(same_thing(name, subject) or same_thing(name, target) for name in others)
    return MAY_HOLD if third else None


def states_place(s: Reading, first: int, stop: int) -> bool:
    """Return whether the preposition relates two things and belongs to no verb or clause."""
    tokens, low = s.caption.tokens, s.lows[first]
    if not s.asserted(first) or (stop - first == 1 and tokens[first].pos not in ("ADP", "ADV")):
        return False
    if first and tokens[first - 1].tag == "VBN" and low in ("in", "with"):
        return False
    if first and tokens[first - 1].pos == "ADJ" and low == "with":
        return False
    owner = s.owner_at(stop)
    if owner < 0 or s.mentions[owner].first != stop:
        return s.lows[stop - 1] in ("left", "right")
    return not (low == "with" and tokens[stop].tag == "PRP$") and (
        s.head_lemma(owner) not in NOT_THINGS
    )


# --- Putting a word in the place of another. ---


def words_exclude(a: Token, b: Token) -> bool:
    """Return whether two words of one part of speech exclude each other in any caption."""
    first, second = a.lemma.lower(), b.lemma.lower()
    match a.pos:
        case "ADP":
            clear = RELATIONS["saying little"].isdisjoint((first, second))
            return clear and first != second and second not in preposition_synonyms(first)
        case "ADJ":
            return deny(first, second)
        case "PRON" if a.tag != b.tag or a.tag.startswith("W"):
            return False  # "that" of "a chair that turns" is no "it"
        case "NUM" if {first, second} & {"one", "1"}:
            return False  # "one dog" and "two dogs" differ in the noun too
        case "NOUN" if both_people(first, second):
            return False
    if (a.tag == "NNS" and second in MASS_NOUNS) or (b.tag == "NNS" and first in MASS_NOUNS):
        return False  # "two dogs" give no "two breads"
    return not related(first, second, a.pos)


def noun_refusal(s: Reading, word: str, old: str = "", *, plural: bool = False) -> str | None:
    """Why the thing named `old` may not give way to `word`, or None.

    Refused is what is no thing, is in the caption already, is a kind of something in it, or may be
    there as well. old: "" when the word is a further thing. plural: `old` is.
    """
    head = head_noun(word)
    if plural and word in MASS_NOUNS:
        return NO_PLURAL
    if head in NOT_THINGS or word in NOT_THINGS:
        return NO_THING
    if s.holds(word):
        return OCCURS
    if any(same_thing(name, word) for name in s.things):
        return RELATED
    kinds = families(head, "NOUN") & families(head_noun(old), "NOUN")
    inside = kinds & {"fixtures", "appliances"} and any(
        "rooms" in families(name, "NOUN") or head_noun(name) == "room" for name in s.things
    )
    if head in EVERYWHERE or (old and both_people(old, word)) or inside:
        return MAY_HOLD  # where a bath is, there may be a shower
    owners = (old,) if old else s.things
    parts = any(is_part(owner, word) or is_part(word, owner) for owner in owners)
    return MAY_HOLD if parts else None


def attribute_refusal(s: Reading, node: int, word: str) -> str | None:
    """Why an attribute of an object, which `word` excludes, may not give way to it, or None.

    Refused is what the caption has already, what means the same as another attribute of the object,
    and what another object of that kind may be: "a red ball near a ball".
    """
    if s.holds(word):
        return OCCURS
    if any(related(attribute, word, "ADJ") for attribute in s.attributes[node]):
        return RELATED
    for other, name in enumerate(s.names):
        namesake = other != node and same_thing(s.names[node], name)
        if namesake and not any(deny(said, word) for said in s.attributes[other]):
            return MAY_HOLD
    return None


def place_refusal(s: Reading, first: int, stop: int) -> str | None:
    """Why no other preposition at tokens [first, stop) would deny this one, or None."""
    pairs = s.related_by(first, stop)
    refusals = (restated(s, (a, b), (s.attributes[a], s.attributes[b])) for a, b in pairs)
    alike = not pairs and may_tie_alike(s, first, stop)
    return RELATED if alike else next(filter(None, refusals), None)


def count_refusal(s: Reading, number: int, head: int) -> str | None:
    """Why another number may not take the place of that of the things at token `head`, or None.

    Refused are measures, scores and idioms, what everybody has as many of, bounds ("at least two")
    and numbers that follow from another word ("two dogs, one black and one white"). With another
    mention of such things it is open how many there are.
    """
    words = s.lows[number + 1 : head + 1]
    by_nature = "body parts" in families(s.lemmas[head], "NOUN")
    if not s.asserted(number):
        return NOT_ASSERTED
    if by_nature or not RULES["not counted"].isdisjoint(words):
        return FIXED_COUNT
    if EXCEPTIONS["counts"].first(s.columns, number):
        return FIXED_COUNT
    return MAY_HOLD if has_namesake(s, s.owner[number]) else None


def implied(negative: SubGraph, lemmas: tuple[str, ...], reading: Reading) -> bool:
    """Return whether the caption's graph says what the negative says.

    lemmas: those of the negative's objects. The caption's objects may be named otherwise (a
    synonym or a more special word) and have more attributes; symmetric relations count both ways.
    """
    options = [
        [
            place
            for place, said in enumerate(reading.graph.objects)
            if same_thing(reading.names[place], lemma)
            and all(
                any(related(attribute.name, a.name, "ADJ") for attribute in said.attributes)
                for a in node.attributes
            )
        ]
        for lemma, node in zip(lemmas, negative.objects)
    ]

    def says(subject: int, words: str, target: int) -> bool:
        said = list(reading.links.get((subject, target), ()))
        if is_symmetric(words.split()):
            said += reading.links.get((target, subject), ())
        return sense_of(words) in map(sense_of, said)

    def completable(chosen: tuple[int, ...]) -> bool:
        """Return whether the choice of objects can be completed so that all relations occur."""
        at = len(chosen)
        if at == len(options):
            return True
        link = relation_words(negative.relations[at - 1]) if at else ""
        return any(
            place not in chosen
            and (at == 0 or says(chosen[-1], link, place))
            and completable((*chosen, place))
            for place in options[at]
        )

    return completable(())
