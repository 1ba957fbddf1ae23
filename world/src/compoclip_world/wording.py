"""Putting logical forms into words: articles, adjective order, synonyms, phrase variants."""

from __future__ import annotations

import random
from dataclasses import dataclass

from compoclip_world.lexicon import RARE
from compoclip_world.logic import (
    Attribute,
    Background,
    Claim,
    Exists,
    Form,
    Lacking,
    Modifier,
    NounPhrase,
    Position,
    Quantifier,
    Relation,
    Statement,
)
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    NUMERALS,
    POSITION_PHRASES,
    RELATION_PHRASES,
    SCREEN_PHRASES,
    SYNONYMS,
    pluralise,
    usual,
    with_article,
)


@dataclass(frozen=True, slots=True)
class Wording:
    """How a form is put into words.

    synonyms: chance of another word for a kind, colour, size or pattern. variants: chance of
    another phrase for a relation or position than the first one listed. colour_first: "red striped"
    rather than "striped red". rare: chance that a kind gets a name of `lexicon.RARE`. Every choice
    takes two numbers from `rng`, whatever is chosen, so that forms of one shape get the same
    wording from equal generators.
    """

    rng: random.Random
    synonyms: float = 0.0
    variants: float = 0.5
    colour_first: bool = False
    rare: float = 0.0

    def _other(self, word: str, others: tuple[str, ...], chance: float) -> str:
        """The word or, by chance, one of the others."""
        draw, which = self.rng.random(), self.rng.random()
        return others[int(which * len(others))] if others and draw < chance else word

    def word(self, canonical: str) -> str:
        """The canonical word or, by chance, a synonym."""
        text = self._other(usual(canonical), SYNONYMS.get(canonical, ()), self.synonyms)
        return self._other(text, RARE.get(canonical, ()), self.rare) if self.rare else text

    def variant(self, phrases: tuple[str, ...]) -> str:
        """The first phrase or, by chance, another one."""
        return self._other(phrases[0], phrases, self.variants)

    def noun_phrase(self, phrase: NounPhrase) -> str:
        """A noun phrase with its determiner, adjectives and trailing modifiers."""
        noun = self.word(phrase.word)
        plural = phrase.number > 1 and phrase.quantifier in (Quantifier.SOME, Quantifier.EXACTLY)
        adjectives = [m for m in phrase.modifiers if isinstance(m, Attribute)]
        order = {"size": 0, "pattern": 2, "colour": 1 if self.colour_first else 3}
        adjectives.sort(key=lambda a: order[a.family])
        words = [*(self.word(a.value) for a in adjectives), pluralise(noun) if plural else noun]
        head = " ".join(words)
        match phrase.quantifier:
            case Quantifier.THE:
                head = "the " + head
            case Quantifier.NONE:
                head = "no " + head
            case Quantifier.EXACTLY:
                head = f"{NUMERALS[phrase.number]} {head}"
            case Quantifier.SOME if not plural:
                head = with_article(head)
        rest = [self.modifier(m) for m in phrase.modifiers if not isinstance(m, Attribute)]
        return " ".join([head, *rest])

    def modifier(self, modifier: Modifier) -> str:
        """A modifier as it follows a noun or "is"."""
        text = ""
        match modifier:
            case Attribute():
                text = self.word(modifier.value)
            case Relation(name, phrase) if name is not None:
                text = f"{self.variant(RELATION_PHRASES[name])} {self.noun_phrase(phrase)}"
            case Position(name) if name is not None:
                text = self.variant(POSITION_PHRASES[name])
            case Background():
                return self.variant(SCREEN_PHRASES).format(with_article(self.backdrop(modifier)))
            case Lacking(phrase):
                bare = self._bare(phrase)
                return self.variant(("but no " + bare, "without " + with_article(bare)))
        return f"not {text}" if modifier.negated else text

    def _bare(self, phrase: NounPhrase) -> str:
        return self.noun_phrase(phrase).split(" ", 1)[1]

    def backdrop(self, background: Background) -> str:
        """ "speckled grey background": texture, colour, noun."""
        texture, colour = background.texture, background.colour
        words = [
            self._other(word, others, self.synonyms)
            for word, others in (
                (texture, BACKDROP_TEXTURES.get(texture, ())),
                (colour, BACKDROP_COLOURS[colour][0] if colour else ()),
            )
            if word
        ]
        return " ".join([*words, "background"])

    def statement(self, statement: Statement, opening: bool = True) -> str:
        """One statement as a clause; only an opening clause may start with "there is"."""
        match statement:
            case Exists(phrase):
                text = self.noun_phrase(phrase)
                if phrase.quantifier is Quantifier.NONE:
                    return f"there is {text}" if self.rng.random() < 0.8 else text
                if opening and self.rng.random() < 0.15:
                    plural = phrase.number > 1
                    return f"there {'are' if plural else 'is'} {text}"
                return text
            case Claim(subject, modifiers):
                verb = "are" if subject.number > 1 else "is"
                said = " and ".join(self.modifier(m) for m in modifiers)
                return f"{self.noun_phrase(subject)} {verb} {said}"
        return "the background is " + self.backdrop(statement).removesuffix(" background")

    def caption(self, form: Form) -> str:
        """The whole caption, lower case and without a full stop."""
        parts = [self.statement(s, opening=not i) for i, s in enumerate(form)]
        if len(parts) > 2:
            return ", ".join(parts[:-1]) + " and " + parts[-1]
        return " and ".join(parts)
