"""Rules shared by all rewrites: which parts may be exchanged, which words may be replaced.

Rules of exchange return whether it is legal; rules of replacement return the key of what forbids
it, or None (docs/decisions.md, rules 4 to 6). Doubtful cases are forbidden: a lost negative costs
little, a true one teaches the wrong thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, product
from typing import cast

from compoclip.captions.lexicon import lexicon
from compoclip.captions.lists import word_lists
from compoclip.captions.subgraphs import SubGraph, relation_words
from compoclip.captions.types import Token
from compoclip.rewrites.edit import ARTICLES, MASS_NOUNS
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
from compoclip.rewrites.reading import Mention, MentionLink, Reading, of_last
from compoclip.rewrites.relations import SAYING_LITTLE, is_symmetric, preposition_synonyms, sense_of

SYMMETRIC = "symmetric-relation"
NOT_ASSERTED = "not-asserted"
OCCURS = "occurs-in-caption"
NO_THING = "names-no-thing"
NO_PLURAL = "has-no-plural"

# --- Whether an exchange of two parts of a caption changes what it says. ---

_OPEN_LINKS = (MentionLink.SYMMETRIC, MentionLink.COORDINATED, MentionLink.START)
_SAME_PLACE = (frozenset(("in", "at", "inside", "within")), frozenset(("on", "upon", "atop")))
_PLURAL_WORDS = word_lists(__file__, "rules").words("plural words")
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
    asserted = s.asserted(mentions[x].head) or s.asserted(mentions[z].head)
    return asserted and not _same_role(mentions, x, z)


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


def _same_role(mentions: tuple[Mention, ...], x: int, z: int) -> bool:
    """Return whether the same words tie both to the same thing: "in a hat ... in a park"."""
    (words_x, root_x), (words_z, root_z) = _governor(mentions, x), _governor(mentions, z)
    if root_x != root_z or not words_x or not words_z:
        return False
    if words_x == words_z:
        return True
    last_x, last_z = words_x[-1], words_z[-1]
    if mentions[x].link is not MentionLink.PLACE or mentions[z].link is not MentionLink.PLACE:
        return False
    if last_x == last_z or any({last_x, last_z} <= group for group in _SAME_PLACE):
        return True
    return {last_x, last_z} != {"on", "in"} and (
        " ".join(words_z) in preposition_synonyms(" ".join(words_x))
    )


def numbers_differ(s: Reading, a: int, b: int) -> bool:
    """Return whether exactly one of two singular-looking nouns is counted as many ("two fish")."""
    counted = []
    for index in (a, b):
        first = s.mentions[s.owner[index]].first if s.owner[index] >= 0 else index
        counted.append(any(map(is_many, s.caption.tokens[first:index])))
    return counted[0] != counted[1]


def is_many(token: Token) -> bool:
    """Return whether the word before a noun counts it as more than one."""
    word = token.text.lower()
    return word in _PLURAL_WORDS or (token.pos == "NUM" and word not in ("one", "1", "a"))


def modifiers(s: Reading, a: int, b: int, pos: str) -> bool:
    """Return whether the modifiers at tokens a and b, adjectives or nouns, may be exchanged."""
    first, second = s.lemmas[a], s.lemmas[b]
    if not (s.asserted(a) or s.asserted(b)) or related(first, second, pos):
        return False
    if pos == "ADJ" and contrast((first,), (second,)) is not None:
        return False
    heads = [[s.head_lemma(i) for i in described_by(s, at)] for at in (a, b)]
    return all(heads) and not any(related(*pair, "NOUN") for pair in product(*heads))


def described_by(s: Reading, index: int) -> frozenset[int]:
    """Mentions that the modifier at token `index` may belong to.

    Inside a noun phrase that one; before one ("red and blue balls") that one; else ("the cat next
    to the mat is black") the phrase before it and all that this one may be tied to.
    """
    tokens = s.caption.tokens
    if s.owner[index] >= 0:
        return frozenset((s.owner[index],))
    after = index + 1
    while (
        after < len(tokens)
        and s.owner[after] < 0
        and (tokens[after].pos in ("ADJ", "CCONJ", "NUM") or tokens[after].text == ",")
    ):
        after += 1
    if after < len(tokens) and s.owner[after] >= 0 and tokens[after].pos not in ("DET", "PRON"):
        return frozenset((s.owner[after],))
    return frozenset(_behind(s, index))


def _behind(s: Reading, index: int) -> range:
    """The mentions that what stands at token `index`, in none, may belong to; none at the start."""
    while index >= 0 and s.owner[index] < 0:
        index -= 1
    if index < 0:
        return range(0)
    return range(s.mentions[s.owner[index]].root, s.owner[index] + 1)


def phrases(s: Reading, x: int, z: int) -> bool:
    """Return whether the whole noun phrases x < z may be exchanged."""
    mine, theirs = _content(s, x), _content(s, z)
    red_or_blue = mine[-1] == theirs[-1] and any(
        deny(a, b) for a, b in product(mine[:-1], theirs[:-1])
    )
    apart = red_or_blue or not related(mine[-1], theirs[-1], "NOUN")
    return mine != theirs and apart and arguments(s, x, z)


def _content(s: Reading, mention: int) -> tuple[str, ...]:
    m = s.mentions[mention]
    words = [
        t.lemma.lower()
        for t in s.caption.tokens[m.first : m.stop]
        if t.pos not in ("DET", "PRON", "PUNCT")
    ]
    return tuple(words) or (s.caption.tokens[m.head].text.lower(),)


def verbs(s: Reading, a: _Span, b: _Span) -> bool:
    """Return whether two verbs (spans of tokens, a before b) may be exchanged.

    Both have an object of their own, or they have different subjects.
    """
    tokens = s.caption.tokens
    first, second = s.lemmas[a[1] - 1], s.lemmas[b[1] - 1]
    alike = related(first, second, "VERB") or tokens[a[1] - 1].tag != tokens[b[1] - 1].tag
    if alike or not (s.asserted(a[0]) or s.asserted(b[0])):
        return False
    objects = [(*s.owner, -1)[stop] for _, stop in (a, b)]  # right after the verb
    if max(objects) >= 0:
        return min(objects) >= 0 and not related(*map(s.head_lemma, objects), "NOUN")
    subjects = [subject_of(s, verb) for verb in (a, b)]
    if min(subjects) < 0 or related(*map(s.head_lemma, subjects), "NOUN"):
        return False
    starts_own = s.mentions[subjects[1]].link in (MentionLink.COORDINATED, MentionLink.SYMMETRIC)
    return starts_own or second in exclusive(first, "VERB")


def subject_of(s: Reading, verb: _Span) -> int:
    """The mention that is the subject of a verb, a token span; -1 without one.

    Only auxiliaries, adverbs or "that" may stand in between.
    """
    tokens, index = s.caption.tokens, verb[0] - 1
    while index >= 0 and s.owner[index] < 0:
        token = tokens[index]
        if token.pos not in ("AUX", "ADV") and token.text.lower() not in ("that", "which", "who"):
            return -1
        index -= 1
    return s.owner[index] if index >= 0 else -1


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
    verbs = [s.lemmas[each[-1]] for each in before if each]
    return len(verbs) == 2 and not related(*verbs, "VERB")


def same_parts(s: Reading, a: _Span, b: _Span) -> bool:
    """Return whether the exchange only reorders parts joined by "and" or a symmetric relation.

    "A dog on a couch and a cat on a couch" says the same with its animals exchanged.
    """
    old = items(s)
    new = [*old[: a[0]], *old[slice(*b)], *old[a[1] : b[0]], *old[slice(*a)], *old[b[1] :]]
    return old == new or (None in old and parts_of(s) == parts(new))


@of_last
def parts_of(s: Reading) -> list[tuple[str, ...]]:
    """The parts of the caption itself."""
    return parts(items(s))


_AS_ITEMS: dict[str, str | None] = {
    **dict.fromkeys(("and", "or", "but", ",", ";", ".")),
    **dict.fromkeys(ARTICLES, "a"),
}


@of_last
def items(s: Reading) -> list[str | None]:
    """The words of the caption, None at coordinations and symmetric links."""
    words = [_AS_ITEMS.get(word, word) for word in s.lows]
    for before, mention in zip(s.mentions, s.mentions[1:]):
        if mention.link is MentionLink.SYMMETRIC:
            words[before.stop : mention.first] = [None] * (mention.first - before.stop)
    return words


def parts(words: list[str | None]) -> list[tuple[str, ...]]:
    """The stretches between the Nones, in alphabetical order: what is said, whatever the order."""
    runs = (tuple(run) for said, run in groupby(words, lambda word: word is not None) if said)
    return sorted(cast(Iterable[tuple[str, ...]], runs))


# --- Whether a thing is a thing, what is said of it, and whether another may be meant. ---


def names_together(tokens: tuple[Token, ...], index: int) -> bool:
    """Return whether the adjective at `index` and the noun after it are one name ("hot dog")."""
    if index + 1 >= len(tokens) or tokens[index].pos != "ADJ" or tokens[index + 1].pos != "NOUN":
        return False
    adjective = tokens[index].text.lower()
    if families(adjective, "ADJ") & UNIVERSAL:
        return False  # "red star"
    phrase = f"{adjective} {tokens[index + 1].lemma.lower()}"
    return bool(families(phrase, "NOUN")) or lexicon().known(phrase, "NOUN")


def only_listed(s: Reading, place: int) -> bool:
    """Return whether a mention is only listed ("a star and a ball"): more may be in the image."""
    listing = (MentionLink.START, MentionLink.COORDINATED)
    tied = any(mention.link not in listing for mention in s.mentions[place : place + 2])
    return not (tied or _is_described(s, place))


def may_tie_alike(s: Reading, first: int, stop: int) -> bool:
    """Return whether the relation at tokens [first, stop) may tie a thing to one of the same kind.

    "A star above a star" says nothing that "a star below a star" denies.
    """
    if stop >= len(s.owner) or s.owner[stop] < 0:
        return False
    right = s.head_lemma(s.owner[stop])
    return any(related(s.head_lemma(left), right, "NOUN") for left in _behind(s, first))


def has_namesake(s: Reading, *places: int) -> bool:
    """Return whether another mention may be of the same kind as one of these: a claim that is
    false of one may be true of the other."""
    return any(
        related(s.head_lemma(place), s.head_lemma(other), "NOUN")
        for place in places
        for other in range(len(s.mentions))
        if other != place
    )


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
    for other, name in enumerate(s.names):
        if other not in ends and (same_thing(name, subject) or same_thing(name, target)):
            return MAY_HOLD
    return None


def states_place(s: Reading, first: int, stop: int) -> bool:
    """Return whether the preposition relates two things and belongs to no verb or clause."""
    tokens = s.caption.tokens
    if not s.asserted(first) or (stop - first == 1 and tokens[first].pos not in ("ADP", "ADV")):
        return False
    if first and tokens[first - 1].tag == "VBN" and tokens[first].text.lower() in ("in", "with"):
        return False
    if first and tokens[first - 1].pos == "ADJ" and tokens[first].text.lower() == "with":
        return False
    owner = s.owner[stop] if stop < len(tokens) else -1
    if owner < 0 or s.mentions[owner].first != stop:
        return tokens[stop - 1].text.lower() in ("left", "right")
    if tokens[first].text.lower() == "with" and tokens[stop].tag == "PRP$":
        return False
    return tokens[s.mentions[owner].head].lemma.lower() not in NOT_THINGS


_IN_ROOMS = frozenset(("fixtures", "appliances"))

# --- Putting a word in the place of another. ---


def words_exclude(a: Token, b: Token) -> bool:
    """Return whether two words of one part of speech exclude each other in any caption."""
    first, second = a.lemma.lower(), b.lemma.lower()
    if a.pos == "ADP":
        if not SAYING_LITTLE.isdisjoint((first, second)):
            return False
        return first != second and second not in preposition_synonyms(first)
    if a.pos == "PRON" and (a.tag != b.tag or a.tag.startswith("W")):
        return False  # "that" of "a chair that turns" is no "it"
    if a.pos == "ADJ":
        return deny(first, second)
    if a.pos == "NUM" and not {"one", "1"}.isdisjoint((first, second)):
        return False  # "one dog" and "two dogs" differ in the noun too
    if (a.tag == "NNS" and second in MASS_NOUNS) or (b.tag == "NNS" and first in MASS_NOUNS):
        return False  # "two dogs" give no "two breads"
    if a.pos == "NOUN" and both_people(first, second):
        return False
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
    if head in EVERYWHERE or (old and both_people(old, word)):
        return MAY_HOLD
    if families(head, "NOUN") & _IN_ROOMS & families(head_noun(old), "NOUN") and any(
        "rooms" in families(name, "NOUN") or head_noun(name) == "room" for name in s.things
    ):
        return MAY_HOLD  # where a bath is, there may be a shower
    owners = (old,) if old else s.things
    if any(is_part(owner, word) or is_part(word, owner) for owner in owners):
        return MAY_HOLD
    return None


def attribute_refusal(s: Reading, node: int, word: str) -> str | None:
    """Why an attribute of an object may not give way to `word`, or None.

    `word` excludes the attribute. Refused is what the caption has already, what means the same as
    another attribute of the object, and what another object of that kind may be: "a red ball near a
    ball".
    """
    if s.holds(word):
        return OCCURS
    if any(related(own, word, "ADJ") for own in s.attributes[node]):
        return RELATED
    may_hold = any(
        other != node
        and same_thing(s.names[node], name)
        and not any(deny(said, word) for said in s.attributes[other])
        for other, name in enumerate(s.names)
    )
    return MAY_HOLD if may_hold else None


def place_refusal(s: Reading, first: int, stop: int) -> str | None:
    """Why no other preposition at tokens [first, stop) would deny this one, or None."""
    pairs = s.related_by(first, stop)
    for ends in pairs:
        said = s.attributes[ends[0]], s.attributes[ends[1]]
        if (refusal := restated(s, ends, said)) is not None:
            return refusal
    return RELATED if not pairs and may_tie_alike(s, first, stop) else None


def implied(negative: SubGraph, lemmas: tuple[str, ...], reading: Reading) -> bool:
    """Return whether the caption's graph says what the negative says.

    lemmas: those of the negative's objects. The caption's objects may be named otherwise (a
    synonym or a more special word) and have more attributes; symmetric relations count both ways.
    """
    graph = reading.graph
    options = [
        [
            place
            for place, said in enumerate(graph.objects)
            if same_thing(reading.names[place], lemma)
            and all(
                any(related(own.name, a.name, "ADJ") for own in said.attributes)
                for a in node.attributes
            )
        ]
        for lemma, node in zip(lemmas, negative.objects)
    ]

    def says(subject: int, words: str, target: int) -> bool:
        said = list(reading.links.get((subject, target), ()))
        if is_symmetric(words.split()):
            said += reading.links.get((target, subject), ())
        wanted = sense_of(words)
        return any(sense_of(each) == wanted for each in said)

    def found(chosen: tuple[int, ...]) -> bool:
        """Return whether the choice of objects can be completed so that all relations occur."""
        at = len(chosen)
        if at == len(options):
            return True
        link = relation_words(negative.relations[at - 1]) if at else ""
        return any(
            place not in chosen
            and (at == 0 or says(chosen[-1], link, place))
            and found((*chosen, place))
            for place in options[at]
        )

    return found(())
