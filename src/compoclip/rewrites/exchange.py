"""Whether exchanging two parts of a caption changes what it says: rules 4 and 6 of
docs/decisions.md.

Every function returns the key of the rule that forbids the exchange, or None when it is legal.
Doubtful cases are forbidden: a lost negative costs little, a true one teaches the wrong thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from compoclip.captions.lexicon import lexicon
from compoclip.captions.tagwords import PREPOSITIONS, preposition_synonyms
from compoclip.captions.types import Token, word_set
from compoclip.rewrites.edit import ARTICLES
from compoclip.rewrites.structure import Mention, MentionLink, Structure, of_last

# --- Built-in families of words that exclude one another, for words of everyday pictures. ---
#
# Every family is a row of cells (see data/families.txt). Words of one cell may name the same thing
# ("mug/cup", "red/crimson") and never replace each other; words of different cells of a family
# exclude each other. WordNet's co-hyponyms do not promise that: by its hierarchy a "dog" may turn
# into a "pet" and "large" into "tall", which can still be true.

#: Families that any visible thing has a value of, so values of two of them can hold together.
UNIVERSAL = frozenset(("colour", "size", "pattern", "material", "shape"))
PEOPLE = frozenset(("people", "occupations", "athletes"))
_FILE = Path(__file__).with_name("data") / "families.txt"
Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Index:
    """Where each word stands: word -> (family, cell) pairs, and the cells of every family."""

    places: Mapping[str, tuple[tuple[str, int], ...]]
    cells: Mapping[str, Cells]


@lru_cache(maxsize=1)
def _sections() -> Mapping[str, tuple[str, ...]]:
    """The lines of each section of the families file."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return {name: tuple(lines) for name, lines in found.items()}


def _families(pos: str) -> Iterator[tuple[str, str]]:
    section = "NOUN" if pos == "PROPN" else pos
    for line in _sections().get(section, ()):
        name, _, cells = line.partition(": ")
        yield name, cells
    if pos == "ADJ":
        yield from ((line, line) for line in _sections()["OPPOSITES"])


@lru_cache(maxsize=8)
def _index(pos: str) -> _Index:
    cells: dict[str, Cells] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    for family, text in _families(pos):
        row = tuple(tuple(cell.replace("_", " ").split("/")) for cell in text.split())
        cells[family] = row
        for number, cell in enumerate(row):
            for word in cell:
                places.setdefault(word, []).append((family, number))
    return _Index({word: tuple(found) for word, found in places.items()}, cells)


@lru_cache(maxsize=1)
def not_things() -> frozenset[str]:
    """Nouns that name nothing one could exchange for another: measures, parts of the picture."""
    return frozenset(word for line in _sections()["NOT THINGS"] for word in line.split())


def families(lemma: str, pos: str) -> frozenset[str]:
    """Names of the families that hold the word; empty when it is in none."""
    return frozenset(family for family, _ in _index(pos).places.get(lemma.lower(), ()))


def names_people(lemma: str) -> bool:
    """Whether the noun names people, by their age, role or sport."""
    return bool(families(lemma, "NOUN") & PEOPLE) or may_coincide(lemma, "person", "NOUN")


def may_coincide(a: str, b: str, pos: str) -> bool:
    """Whether the lists put both words into one cell somewhere, so that they can mean the same."""
    places = _index(pos).places
    return a == b or not set(places.get(a.lower(), ())).isdisjoint(places.get(b.lower(), ()))


@lru_cache(maxsize=16384)
def exclusive(lemma: str, pos: str) -> tuple[str, ...]:
    """First words of the other cells of every family of the word: what it certainly is not."""
    index = _index(pos)
    found: dict[str, None] = {}
    for family, number in index.places.get(lemma.lower(), ()):
        for other, cell in enumerate(index.cells[family]):
            if other != number and not any(may_coincide(lemma, w, pos) for w in cell):
                found[cell[0]] = None
    return tuple(found)


# --- Whether exchanging two parts of a caption changes what it says (docs/decisions.md, rules 4
# and 6). ---

SYMMETRIC = "symmetric-relation"
SAME_ROLE = "same-role"
NOT_ASSERTED = "not-asserted"
RELATED = "related-words"
SAME_OWNER = "same-owner"
NUMBER = "number-differs"
INDEPENDENT = "independent-attributes"
SAME_PARTS = "same-parts"

_OPEN_LINKS = (MentionLink.SYMMETRIC, MentionLink.COORDINATED, MentionLink.START)
_SAME_PLACE = (frozenset(("in", "at", "inside", "within")), frozenset(("on", "upon", "atop")))
_PLURAL_WORDS = word_set("these those both many several few various multiple some")
_HUMAN = word_set("people beings occupations athletes")
Span = tuple[int, int]


@lru_cache(maxsize=1 << 18)
def related(a: str, b: str, pos: str) -> bool:
    """Whether two lemmas can mean the same or one is a kind of the other.

    WordNet looks at every sense ("skirt" is also a woman); nouns that stand in different built-in
    families are known to differ.
    """
    if a == b or may_coincide(a, b, pos):
        return True
    if pos == "NOUN":
        in_a, in_b = families(a, pos), families(b, pos)
        if in_a and in_b and not in_a & in_b and not (in_a & _HUMAN and in_b & _HUMAN):
            return False
    first, second = sorted((a, b))
    return lexicon().related(first, second, pos)


def arguments(s: Structure, x: int, z: int) -> str | None:
    """Exchange of the things that mentions x < z name."""
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


def _same_statement(s: Structure, x: int, z: int) -> bool:
    """Whether both head clauses that go on alike: "a man on a bench and a boy on a bench"."""
    if not _heads_clause(s.mentions, x) or not _heads_clause(s.mentions, z):
        return False
    return related(head_lemma(s, x + 1), head_lemma(s, z + 1), "NOUN")


def _heads_clause(mentions: tuple[Mention, ...], place: int) -> bool:
    """Whether something is said about this mention after it: "(and) a dog on a chair"."""
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


def numbers_differ(s: Structure, a: int, b: int) -> bool:
    """Whether one of two singular-looking nouns is counted as many ("two fish") and one is not."""
    return _counted(s, a) != _counted(s, b)


def _counted(s: Structure, index: int) -> bool:
    place = s.owner[index]
    first = s.mentions[place].first if place >= 0 else index
    return any(map(_is_many, s.caption.tokens[first:index]))


def _is_many(token: Token) -> bool:
    word = token.text.lower()
    return word in _PLURAL_WORDS or (token.pos == "NUM" and word not in ("one", "1", "a"))


def modifiers(s: Structure, a: int, b: int, pos: str) -> str | None:
    """Exchange of the modifiers at tokens a and b (adjectives, or nouns before nouns)."""
    if not (s.asserted(a) or s.asserted(b)):
        return NOT_ASSERTED
    first, second = s.lemmas[a], s.lemmas[b]
    if related(first, second, pos):
        return RELATED
    if pos == "ADJ" and independent(first, second):
        return INDEPENDENT
    owners_a, owners_b = described_by(s, a), described_by(s, b)
    if not owners_a or not owners_b or owners_a & owners_b:
        return SAME_OWNER
    for i in owners_a:
        for j in owners_b:
            if related(head_lemma(s, i), head_lemma(s, j), "NOUN"):
                return SAME_OWNER
    return None


def independent(a: str, b: str) -> bool:
    """Whether a thing can well be both, as "red" and "large": then nothing is contradicted."""
    in_a, in_b = families(a, "ADJ") & UNIVERSAL, families(b, "ADJ") & UNIVERSAL
    return bool(in_a) and bool(in_b) and not in_a & in_b


def head_lemma(s: Structure, mention: int) -> str:
    """Lemma of the head noun of a mention, in lower case."""
    return s.lemmas[s.mentions[mention].head]


def described_by(s: Structure, index: int) -> frozenset[int]:
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


def phrases(s: Structure, x: int, z: int) -> str | None:
    """Exchange of the whole noun phrases x < z."""
    mine, theirs = _content(s, x), _content(s, z)
    if mine == theirs:
        return RELATED
    if related(mine[-1], theirs[-1], "NOUN") and not (
        mine[-1] == theirs[-1] and _contradict(mine[:-1], theirs[:-1])
    ):
        return RELATED
    return arguments(s, x, z)


def _content(s: Structure, mention: int) -> tuple[str, ...]:
    m = s.mentions[mention]
    words = [
        t.lemma.lower()
        for t in s.caption.tokens[m.first : m.stop]
        if t.pos not in ("DET", "PRON", "PUNCT")
    ]
    return tuple(words) or (s.caption.tokens[m.head].text.lower(),)


def _contradict(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether some modifier of one phrase excludes one of the other: red ball, blue ball."""
    return any(b in exclusive(a, "ADJ") or a in exclusive(b, "ADJ") for a in mine for b in theirs)


def verbs(s: Structure, a: Span, b: Span) -> str | None:
    """Exchange of two verbs (runs of verb tokens), a before b.

    Legal when both have an object of their own, or when they have different subjects.
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
        same = related(head_lemma(s, object_a), head_lemma(s, object_b), "NOUN")
        return SAME_ROLE if same else None
    if (object_a >= 0) != (object_b >= 0):
        return SAME_ROLE
    subject_a, subject_b = subject_of(s, a), subject_of(s, b)
    if subject_a < 0 or subject_b < 0 or subject_a == subject_b:
        return SAME_OWNER
    if related(head_lemma(s, subject_a), head_lemma(s, subject_b), "NOUN"):
        return SAME_OWNER
    starts_own = s.mentions[subject_b].link in (MentionLink.COORDINATED, MentionLink.SYMMETRIC)
    if starts_own or second in exclusive(first, "VERB"):
        return None
    return SAME_OWNER


def _object(s: Structure, verb: Span) -> int:
    """The mention right after the verb, or -1."""
    return s.owner[verb[1]] if verb[1] < len(s.owner) else -1


def subject_of(s: Structure, verb: Span) -> int:
    """The mention before the verb, a token span, or -1 when there is none.

    Only auxiliaries, adverbs or "that" may stand in between.
    """
    tokens, index = s.caption.tokens, verb[0] - 1
    while index >= 0 and s.owner[index] < 0:
        token = tokens[index]
        if token.pos not in ("AUX", "ADV") and token.text.lower() not in ("that", "which", "who"):
            return -1
        index -= 1
    return s.owner[index] if index >= 0 else -1


def same_parts(s: Structure, a: Span, b: Span) -> bool:
    """Whether the exchange only reorders parts joined by "and" or a symmetric relation.

    "A dog on a couch and a cat on a couch" says the same with its animals exchanged.
    """
    old = items(s)
    new = [*old[: a[0]], *old[slice(*b)], *old[a[1] : b[0]], *old[slice(*a)], *old[b[1] :]]
    return old == new or (None in old and parts_of(s) == parts(new))


@of_last
def parts_of(s: Structure) -> list[tuple[str, ...]]:
    """The parts of the caption itself."""
    return parts(items(s))


_AS_ITEMS: dict[str, str | None] = {
    **dict.fromkeys(("and", "or", "but", ",", ";", ".")),
    **dict.fromkeys(ARTICLES, "a"),
}


@of_last
def items(s: Structure) -> list[str | None]:
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


# --- Which relation contradicts which: the only safe replacements of a preposition. ---
#
# Another preposition often keeps a caption true: what is on a table is also near it, what is above
# a box may be left of it as well. So each preposition lists the ones that cannot hold together with
# it (docs/decisions.md, rule 5). Vague prepositions (near, by, at, with)
# never replace one of contact, containment or direction.

# "originals: replacements", phrases separated by commas.
_RULES = """
on, upon, atop, on top of, on the top of: under, beneath, underneath, below
over, above: under, below, beneath, underneath
higher than: lower than
lower than: higher than
under, below, beneath, underneath: above, over, on top of
in, inside, inside of, within: outside, outside of, behind
outside, outside of: inside, within
into: out of
out of: into
onto: off of
off, off of: onto
behind, in back of, partly hidden by, to the rear of: in front of
in front of, ahead of: behind
left of: right of
right of: left of
to the left of: to the right of
to the right of: to the left of
on the left of: on the right of
on the right of: on the left of
on the left side of: on the right side of
on the right side of: on the left side of
to the left: to the right
to the right: to the left
on the left: on the right
on the right: on the left
on the front of: on the back of
on the back of: on the front of
at the front of: at the back of
at the back of: at the front of
at the top of: at the bottom of
at the bottom of: at the top of
near, next to, beside, close to, adjacent to, alongside: far from, away from
far from, away from: next to, close to, near
against: far from, away from
around: inside
with, along with, together with: without
full of: without
toward, towards: away from
between, in between, among, amongst: far from, away from
in the middle of, in the center of, in the centre of: outside, at the edge of
at the edge of, on the edge of: in the middle of
surrounded by: far from
"""


def _parse(rules: str) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for line in rules.strip().splitlines():
        originals, replacements = line.split(":")
        for original in originals.split(","):
            table[original.strip()] = tuple(r.strip() for r in replacements.split(","))
    return table


CONTRADICTIONS: Mapping[str, tuple[str, ...]] = _parse(_RULES)


@lru_cache(maxsize=4096)
def contradicting(preposition: str) -> tuple[tuple[str, int], ...]:
    """(replacement, weight) pairs that contradict the preposition; weight is its usual frequency.

    Empty when the preposition states nothing that another one could contradict ("of", "at").
    """
    same = preposition_synonyms(preposition)
    return tuple(
        (word, max(PREPOSITIONS.get(word, 1), 1))
        for word in CONTRADICTIONS.get(preposition, ())
        if word not in same
    )


#: Token sequences of all prepositions that can be contradicted, longest first.
KNOWN_PHRASES: tuple[tuple[str, ...], ...] = tuple(
    sorted((tuple(p.split()) for p in CONTRADICTIONS), key=lambda words: (-len(words), words))
)
