"""The rules that every rewrite asks: may two parts be exchanged, may a word take another's place.

Every rule returns the key of what forbids the edit, or None when it is legal (docs/decisions.md,
rules 4 to 6). Doubtful cases are forbidden: a lost negative costs little, a true one teaches the
wrong thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from compoclip.captions.lists import word_lists
from compoclip.captions.subgraphs import SubGraph, relation_words
from compoclip.captions.types import Token
from compoclip.rewrites.edit import ARTICLES, MASS_NOUNS
from compoclip.rewrites.exclusion import (
    EVERYWHERE,
    MAY_HOLD,
    NOT_THINGS,
    RELATED,
    both_people,
    contrast,
    deny,
    exclusive,
    families,
    head_noun,
    is_name_of_a_thing,
    is_part,
    related,
    same_thing,
)
from compoclip.rewrites.reading import Mention, MentionLink, Reading, of_last
from compoclip.rewrites.relations import SAYING_LITTLE, is_symmetric, preposition_synonyms, sense_of

SYMMETRIC = "symmetric-relation"
SAME_ROLE = "same-role"
NOT_ASSERTED = "not-asserted"
SAME_OWNER = "same-owner"
NUMBER = "number-differs"
SAME_PARTS = "same-parts"
OCCURS = "occurs-in-caption"
NO_THING = "names-no-thing"
NO_PLURAL = "has-no-plural"

# --- Exchanging two parts of a caption. ---

_OPEN_LINKS = (MentionLink.SYMMETRIC, MentionLink.COORDINATED, MentionLink.START)
_SAME_PLACE = (frozenset(("in", "at", "inside", "within")), frozenset(("on", "upon", "atop")))
_PLURAL_WORDS = word_lists(__file__, "rules").words("plural words")
_Span = tuple[int, int]


def arguments(s: Reading, x: int, z: int) -> str | None:
    """Why exchanging the things named by mentions x < z is illegal, or None."""
    mentions = s.mentions
    if not (s.asserted(mentions[x].head) or s.asserted(mentions[z].head)):
        return NOT_ASSERTED
    links = [m.link for m in mentions[x + 1 : z + 1]]
    if all(link in _OPEN_LINKS for link in links):
        return SYMMETRIC
    if (
        links[-1] in _OPEN_LINKS
        and MentionLink.ACTION not in links[:-1]
        and not (links[-1] is not MentionLink.SYMMETRIC and _heads_clause(mentions, z))
    ):
        return SYMMETRIC
    if links[-1] is MentionLink.COORDINATED and _same_statement(s, x, z):
        return SAME_ROLE
    return SAME_ROLE if _same_role(mentions, x, z) else None


def _same_statement(s: Reading, x: int, z: int) -> bool:
    """Whether both head clauses that continue alike: "a man on a bench and a boy on a bench"."""
    if not _heads_clause(s.mentions, x) or not _heads_clause(s.mentions, z):
        return False
    return related(s.head_lemma(x + 1), s.head_lemma(z + 1), "NOUN")


def _heads_clause(mentions: tuple[Mention, ...], place: int) -> bool:
    """Whether the caption goes on about this mention: "(and) a dog on a chair"."""
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
    """Whether both are tied to the same thing by the same words: "in a hat ... in a park"."""
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
    """Whether one of two singular-looking nouns is counted as many ("two fish") and one is not."""
    return _counted(s, a) != _counted(s, b)


def _counted(s: Reading, index: int) -> bool:
    place = s.owner[index]
    first = s.mentions[place].first if place >= 0 else index
    return any(map(is_many, s.caption.tokens[first:index]))


def is_many(token: Token) -> bool:
    """Whether the word before a noun counts it as more than one."""
    word = token.text.lower()
    return word in _PLURAL_WORDS or (token.pos == "NUM" and word not in ("one", "1", "a"))


def modifiers(s: Reading, a: int, b: int, pos: str) -> str | None:
    """Why exchanging the modifiers at tokens a and b is illegal, or None.

    Modifiers are adjectives, or nouns before nouns.
    """
    if not (s.asserted(a) or s.asserted(b)):
        return NOT_ASSERTED
    first, second = s.lemmas[a], s.lemmas[b]
    if related(first, second, pos):
        return RELATED
    if pos == "ADJ" and (refusal := contrast((first,), (second,))) is not None:
        return refusal
    owners_a, owners_b = described_by(s, a), described_by(s, b)
    if not owners_a or not owners_b or owners_a & owners_b:
        return SAME_OWNER
    for i in owners_a:
        for j in owners_b:
            if related(s.head_lemma(i), s.head_lemma(j), "NOUN"):
                return SAME_OWNER
    return None


def described_by(s: Reading, index: int) -> frozenset[int]:
    """Mentions that the modifier at token `index` may belong to.

    Inside a noun phrase that one; before one ("red and blue balls") that one; else ("the cat next
    to the mat is black") the phrase before it and all that this one may be tied to.
    """
    tokens = s.caption.tokens
    if s.owner[index] >= 0:
        return frozenset((s.owner[index],))
    after = index + 1
    while after < len(tokens) and s.owner[after] < 0 and _continues(tokens[after]):
        after += 1
    if after < len(tokens) and s.owner[after] >= 0 and tokens[after].pos not in ("DET", "PRON"):
        return frozenset((s.owner[after],))
    before = index
    while before >= 0 and s.owner[before] < 0:
        before -= 1
    if before < 0:
        return frozenset()
    place = s.owner[before]
    return frozenset(range(s.mentions[place].root, place + 1))


def _continues(token: Token) -> bool:
    return token.pos in ("ADJ", "CCONJ", "NUM") or token.text == ","


def phrases(s: Reading, x: int, z: int) -> str | None:
    """Why exchanging the whole noun phrases x < z is illegal, or None."""
    mine, theirs = _content(s, x), _content(s, z)
    if mine == theirs:
        return RELATED
    if related(mine[-1], theirs[-1], "NOUN") and not (
        mine[-1] == theirs[-1] and _contradict(mine[:-1], theirs[:-1])
    ):
        return RELATED
    return arguments(s, x, z)


def _content(s: Reading, mention: int) -> tuple[str, ...]:
    m = s.mentions[mention]
    words = [
        t.lemma.lower()
        for t in s.caption.tokens[m.first : m.stop]
        if t.pos not in ("DET", "PRON", "PUNCT")
    ]
    return tuple(words) or (s.caption.tokens[m.head].text.lower(),)


def _contradict(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether some modifier of one phrase excludes one of the other: red ball, blue ball."""
    return any(deny(a, b) for a in mine for b in theirs)


def verbs(s: Reading, a: _Span, b: _Span) -> str | None:
    """Why exchanging two verbs (spans of tokens, a before b) is illegal, or None.

    It is legal when both have an object of their own, or when they have different subjects.
    """
    tokens = s.caption.tokens
    if not (s.asserted(a[0]) or s.asserted(b[0])):
        return NOT_ASSERTED
    first, second = tokens[a[1] - 1].lemma.lower(), tokens[b[1] - 1].lemma.lower()
    if related(first, second, "VERB"):
        return RELATED
    if tokens[a[1] - 1].tag != tokens[b[1] - 1].tag:
        return NUMBER
    object_a, object_b = _object(s, a), _object(s, b)
    if object_a >= 0 and object_b >= 0:
        same = related(s.head_lemma(object_a), s.head_lemma(object_b), "NOUN")
        return SAME_ROLE if same else None
    if (object_a >= 0) != (object_b >= 0):
        return SAME_ROLE
    subject_a, subject_b = subject_of(s, a), subject_of(s, b)
    if subject_a < 0 or subject_b < 0 or subject_a == subject_b:
        return SAME_OWNER
    if related(s.head_lemma(subject_a), s.head_lemma(subject_b), "NOUN"):
        return SAME_OWNER
    starts_own = s.mentions[subject_b].link in (MentionLink.COORDINATED, MentionLink.SYMMETRIC)
    if starts_own or second in exclusive(first, "VERB"):
        return None
    return SAME_OWNER


def _object(s: Reading, verb: _Span) -> int:
    """The mention right after the verb, or -1."""
    return s.owner[verb[1]] if verb[1] < len(s.owner) else -1


def subject_of(s: Reading, verb: _Span) -> int:
    """The mention that is the subject of a verb, a token span; -1 when there is none.

    Only auxiliaries, adverbs or "that" may stand in between.
    """
    tokens, index = s.caption.tokens, verb[0] - 1
    while index >= 0 and s.owner[index] < 0:
        token = tokens[index]
        if token.pos not in ("AUX", "ADV") and token.text.lower() not in ("that", "which", "who"):
            return -1
        index -= 1
    return s.owner[index] if index >= 0 else -1


def nouns(s: Reading, i: int, j: int) -> str | None:
    """Why exchanging the nouns at tokens i < j (heads or modifiers) is illegal, or None."""
    tokens, x, z = s.caption.tokens, s.owner[i], s.owner[j]
    if x == z:
        return SAME_OWNER
    if related(s.lemmas[i], s.lemmas[j], "NOUN"):
        return RELATED
    if tokens[i].tag == "NN" and numbers_differ(s, i, j):
        return NUMBER
    if i != s.mentions[x].head and j != s.mentions[z].head:
        return modifiers(s, i, j, "NOUN")
    if s.asserted(i) != s.asserted(j) and _is_described(s, z if s.asserted(i) else x):
        return NOT_ASSERTED  # "no red fish" leaves room for a fish
    return arguments(s, x, z)


def _is_described(s: Reading, place: int) -> bool:
    mention = s.mentions[place]
    return any(t.pos == "ADJ" for t in s.caption.tokens[mention.first : mention.head])


def adverbs(s: Reading, i: int, j: int) -> str | None:
    """Why exchanging the adverbs at tokens i and j is illegal, or None.

    They must modify different verbs with different meanings.
    """
    tokens = s.caption.tokens
    if not (s.asserted(i) or s.asserted(j)):
        return NOT_ASSERTED
    if related(tokens[i].lemma.lower(), tokens[j].lemma.lower(), "ADV"):
        return RELATED
    first, second = _verb_before(tokens, i), _verb_before(tokens, j)
    if first is None or second is None or first is second:
        return SAME_OWNER
    if related(first.lemma.lower(), second.lemma.lower(), "VERB"):
        return SAME_OWNER
    return None


def _verb_before(tokens: tuple[Token, ...], index: int) -> Token | None:
    return next((t for t in reversed(tokens[:index]) if t.pos == "VERB"), None)


def same_parts(s: Reading, a: _Span, b: _Span) -> bool:
    """Whether the exchange only reorders parts joined by "and" or a symmetric relation.

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
    found: list[tuple[str, ...]] = []
    part: list[str] = []
    for word in words:
        if word is not None:
            part.append(word)
        elif part:
            found.append(tuple(part))
            part = []
    if part:
        found.append(tuple(part))
    found.sort()
    return found


# --- Whether a thing is a thing, what is said of it, and whether another may be meant. ---


def names_together(tokens: tuple[Token, ...], index: int) -> bool:
    """Whether the adjective at `index` and the noun after it are one name ("hot dog")."""
    if index + 1 >= len(tokens) or tokens[index].pos != "ADJ" or tokens[index + 1].pos != "NOUN":
        return False
    return is_name_of_a_thing(tokens[index].text.lower(), tokens[index + 1].lemma.lower())


def only_listed(s: Reading, place: int) -> bool:
    """Whether a mention is only named ("a star and a ball"): another thing may be there too."""
    mention = s.mentions[place]
    tied = mention.link not in (MentionLink.START, MentionLink.COORDINATED)
    following = s.mentions[place + 1] if place + 1 < len(s.mentions) else None
    tied = tied or (
        following is not None and following.link not in (MentionLink.START, MentionLink.COORDINATED)
    )
    described = any(t.pos == "ADJ" for t in s.caption.tokens[mention.first : mention.head])
    return not (tied or described)


def may_tie_alike(s: Reading, first: int, stop: int) -> bool:
    """Whether the relation at tokens [first, stop) may tie a thing to one of the same kind.

    "A star above a star" says nothing that "a star below a star" denies.
    """
    before = first
    while before >= 0 and s.owner[before] < 0:
        before -= 1
    if before < 0 or stop >= len(s.owner) or s.owner[stop] < 0:
        return False
    place = s.owner[before]
    right = s.head_lemma(s.owner[stop])
    return any(
        related(s.head_lemma(left), right, "NOUN")
        for left in range(s.mentions[place].root, place + 1)
    )


def has_namesake(s: Reading, *places: int) -> bool:
    """Whether a further mention may be of the same kind as one of these: what is denied of the one
    may be true of the other."""
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
    """Whether the preposition ties a thing to a thing, and is no part of a verb or of a clause."""
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
    """Whether two words of one part of speech cannot both hold, whatever captions they are from."""
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
    for own in s.attributes[node]:
        if related(own, word, "ADJ"):
            return RELATED
    for other in _namesakes(s)[node]:
        if not any(deny(said, word) for said in s.attributes[other]):
            return MAY_HOLD
    return None


@of_last
def _namesakes(s: Reading) -> tuple[tuple[int, ...], ...]:
    """For each object the others that may be of its kind."""
    named = tuple(enumerate(s.names))
    return tuple(
        [
            tuple([other for other, b in named if other != node and same_thing(a, b)])
            for node, a in named
        ]
    )


def place_refusal(s: Reading, first: int, stop: int) -> str | None:
    """Why no other preposition at tokens [first, stop) would deny this one, or None."""
    pairs = s.related_by(first, stop)
    for ends in pairs:
        said = s.attributes[ends[0]], s.attributes[ends[1]]
        if (refusal := restated(s, ends, said)) is not None:
            return refusal
    return RELATED if not pairs and may_tie_alike(s, first, stop) else None


def implied(negative: SubGraph, lemmas: tuple[str, ...], reading: Reading) -> bool:
    """Whether the caption's graph says what the negative says.

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

    def found(chosen: tuple[int, ...]) -> bool:
        """Whether objects behind those chosen can be chosen so that all relations are said."""
        at = len(chosen)
        if at == len(options):
            return True
        link = relation_words(negative.relations[at - 1]) if at else ""
        return any(
            place not in chosen
            and (at == 0 or _says(reading, chosen[-1], link, place))
            and found((*chosen, place))
            for place in options[at]
        )

    return found(())


def _says(reading: Reading, subject: int, words: str, target: int) -> bool:
    said = list(reading.links.get((subject, target), ()))
    if is_symmetric(words.split()):
        said += reading.links.get((target, subject), ())
    wanted = sense_of(words)
    return any(sense_of(each) == wanted for each in said)
