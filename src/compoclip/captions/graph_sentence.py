"""Queries on the units of a caption: neighbours, gaps, counting nouns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compoclip.captions import lists
from compoclip.captions.graph_units import Unit, UnitKind, attributes
from compoclip.captions.types import GraphAttribute, Span, Token


@dataclass(frozen=True, slots=True)
class ReadSentence:
    """The tokens and units of a caption; units are known by their number."""

    tokens: Sequence[Token]
    units: Sequence[Unit]

    def next(self, number: int) -> Unit | None:
        """Return the unit behind `number`, None at the end."""
        return self.units[number + 1] if number + 1 < len(self.units) else None

    def before(self, number: int) -> UnitKind | None:
        """Return the kind of the unit before `number`, None at the beginning."""
        return self.units[number - 1].kind if number else None

    def span(self, first: int, stop: int) -> Span:
        """Return the characters of the tokens `first` to `stop`."""
        return Span(self.tokens[first].start, self.tokens[stop - 1].end)

    def noun_next(self, number: int) -> bool:
        """Return whether an object follows, perhaps after a second preposition ("from under")."""
        after = self.next(number)
        kinds = ("noun", "adjective", "preposition", "each other")
        return after is not None and after.kind in kinds

    def pronoun_next(self, number: int) -> bool:
        """Return whether a pronoun, or a phrase with a possessive one ("his hand"), follows."""
        after = self.next(number)
        if after is None or after.kind != "noun":
            return False
        return self.tokens[after.head].pos == "PRON" or self.tokens[after.first].tag == "PRP$"

    def echoed(self, number: int) -> str:
        """Return the word before "it" or "them", "in" of "with cows in it", within the clause."""
        for at in range(number + 2, min(number + 6, len(self.units))):
            unit = self.units[at]
            if unit.kind in ("comma", "stop", "while"):
                break
            if unit.kind == "noun" and self.tokens[unit.head].lemma in ("it", "they"):
                return " ".join(self.units[at - 1].names)
        return ""

    def points_next(self, number: int) -> bool:
        """Return whether a pronoun alone follows: "it"."""
        after = self.next(number)
        return after is not None and after.kind == "noun" and self.tokens[after.head].pos == "PRON"

    def is_participle(self, unit: Unit) -> bool:
        """Return whether it is a participle without "is" or "has": "riding", "being lit"."""
        bare = unit.head == unit.first or self.tokens[unit.first].text.lower() == "being"
        return bare and self.tokens[unit.head].tag in ("VBG", "VBN")

    def only_meant(self, unit: Unit) -> bool:
        """Return whether a verb states a purpose or ability, not a fact: "to catch", "can sit"."""
        first = unit.first - 1 if unit.first else 0
        before = self.tokens[first : unit.head]
        marked = any(t.tag in ("TO", "MD") or t.text.lower() == "to" for t in before)
        return marked or self.tokens[unit.head].tag == "VB"

    def first_deed(self, unit: Unit) -> int | None:
        """Return the verb that serves another, "leaping" of "leaping to hit"; None without one."""
        found = [i for i in range(unit.first, unit.head) if self.tokens[i].pos == "VERB"]
        if not found or not any(t.tag == "TO" for t in self.tokens[found[0] : unit.head]):
            return None
        return None if self.tokens[found[0]].lemma in lists.STRIVING_VERBS else found[0]

    def own_before(self, number: int) -> bool:
        """Return whether a possessed body part precedes `number`: "her feet"."""
        unit = self.units[number - 1] if number else None
        if unit is None or self.tokens[unit.first].tag != "PRP$":
            return False
        return self.tokens[unit.head].lemma in lists.BODY_PARTS

    def lemma_next(self, number: int) -> str:
        """Return the lemma of the noun behind `number`, "" without one."""
        after = self.next(number)
        return self.tokens[after.head].lemma if after is not None and after.kind == "noun" else ""

    def measured(self, number: int) -> list[GraphAttribute] | None:
        """Return the attributes that "two piles of" gives to "books"; None for other nouns."""
        unit, of = self.units[number], self.next(number)
        token = self.tokens[unit.head]
        low = token.text.lower()
        verb, thing = self.next(number), self.next(number + 1)
        if low in lists.PICTURES and verb is not None and verb.kind == "verb":
            shows = verb.names[0] in lists.PICTURING_VERBS and self.tokens[verb.head].tag != "VBN"
            if shows and thing is not None and thing.kind == "noun":
                return []
        said = lists.QUANTITIES.get(low)
        if said is None or of is None or of.names != ("of",):
            return None
        # A black and white photo, or a large group, of dogs: the dogs may be neither.
        found = [] if low in lists.PICTURES else attributes(self.tokens, unit.first, unit.head)
        found = [each for each in found if each.name.rpartition(" ")[2] not in lists.EXTENTS]
        if said:
            span = Span(token.start, self.tokens[of.head].end)
            found.append(GraphAttribute(said, span, "number"))
        return found

    def pictures(self, unit: Unit) -> bool:
        """Return whether a noun phrase names a picture."""
        return self.tokens[unit.head].text.lower() in lists.PICTURES

    def gap_start(self, number: int) -> int | None:
        """Return the token of the subject in "table bowl is sitting on", None without a gap.

        The nouns before it are the object of the preposition or verb without one.
        """
        unit = self.units[number]
        first = unit.stop - 1
        while first > unit.first and self.tokens[first - 1].pos in ("NOUN", "PROPN"):
            first -= 1
        opens = self.before(number) in (None, "comma", "and", "stop")
        verb, tail, end = (self.next(number + ahead) for ahead in range(3))
        if not opens or first == unit.stop - 1 or verb is None or verb.kind not in ("verb", "be"):
            return None
        if tail is None or tail.kind == "stop":
            gap = verb.kind == "verb" and verb.names[0] in lists.TRANSITIVE_VERBS
        else:
            gap = tail.kind == "preposition" and (end is None or end.kind == "stop")
        return unit.stop - 1 if gap else None
