"""Captions that state an absent object, and their opposite: the object affirmed.

"A cat on a couch" -> "A cat on a couch, but no lamp", which is true of the picture, and "A cat on a
couch and a lamp", which is not. The object is one that is often seen with what the caption names
(`data/scenes.txt`), and that no caption of the image names, nor anything that may be the same or
has it as a part. What nobody wrote down may still be in the picture: captions leave things out, so
some of these texts are wrong, the fewer the more captions an image has.

Idea: captions for learning negation as in Park et al., Know "No" Better: A Data-Driven Approach for
Enhancing Negation Awareness in CLIP (ICCV 2025), and Alhamoud et al., Vision-Language Models Do Not
Understand Negation (CVPR 2025), who have them written by language models.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from compoclip.captions.lists import word_lists
from compoclip.captions.tagger import PLURAL_ONLY
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Edit, Refused, Rewritten
from compoclip.rewrites.edit import EMPTY, article_for, check
from compoclip.rewrites.exclusion import EVERYWHERE, is_part, same_thing
from compoclip.rewrites.reading import Reading, read
from compoclip.rewrites.replace import NO_CANDIDATE

_ABSENT = {
    "absent:but-no": ", but no {object}",
    "absent:but-there-is": ", but there {be} no {object}",
    "absent:behind": ". There {be} no {object}.",
}
_AFFIRMED = {"affirmed:and": " and {a}{object}", "affirmed:behind": ". There {be} {a}{object}."}
_ENDS = " .,;:!?"
_DRAWS = 8  # objects to try: a text that is refused is so for its length, or a word that it doubles


@dataclass(frozen=True)
class AbsentObject:
    """Says behind the caption that an object, which one could expect there, is absent."""

    name: str = "absent-object"
    version: str = "1"
    keeps_meaning: bool = True

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn text, or `Refused`: "no-candidate", "empty-caption" or a failed check."""
        return self.among((caption,), rng)

    def among(self, captions: Sequence[Caption], rng: random.Random) -> Rewritten | Refused:
        """The same of the first of several captions of an image; none of them names the object."""
        return _with_object(captions, rng, self.name, self.keeps_meaning, _ABSENT)


@dataclass(frozen=True)
class AffirmedObject:
    """Says behind the caption that such an object is there, which is false."""

    name: str = "affirmed-object"
    version: str = "1"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn text, or `Refused`: "no-candidate", "empty-caption" or a failed check."""
        return _with_object((caption,), rng, self.name, self.keeps_meaning, _AFFIRMED)


ABSENT_OBJECT = AbsentObject()


def _with_object(
    captions: Sequence[Caption],
    rng: random.Random,
    name: str,
    keeps_meaning: bool,
    forms: dict[str, str],
) -> Rewritten | Refused:
    caption = captions[0]
    if not caption.tokens:
        return Refused(EMPTY)
    rule = rng.choice(list(forms))
    reason = NO_CANDIDATE
    kept = len(caption.text.rstrip(_ENDS))
    missing = _missing([read(each) for each in captions], rng)
    for thing in islice(missing, _DRAWS):
        plural = thing in PLURAL_ONLY
        added = forms[rule].format(
            object=thing,
            be="are" if plural else "is",
            a="" if plural else f"{article_for(thing)} ",
        )
        text = caption.text[:kept] + added
        edits = (Edit(kept, len(caption.text), kept, len(text)),)
        failed = check(caption, text, edits)
        if failed is None:
            return Rewritten(text, name, keeps_meaning, rule, edits)
        reason = failed
    return Refused(reason)


def _missing(readings: Sequence[Reading], rng: random.Random) -> Iterator[str]:
    """Things of the scenes that the captions speak of, and that none of them names, as drawn."""
    named = {
        noun
        for reading in readings
        for place, mention in enumerate(reading.mentions)
        for noun in (reading.head_lemma(place), _compound(reading, mention.first, mention.head))
        if noun
    }
    words = {token.lemma.lower() for reading in readings for token in reading.caption.tokens}
    words |= {token.text.lower() for reading in readings for token in reading.caption.tokens}
    scenes = _scenes()
    fitting = [name for name, things in scenes.items() if named & {name, *things}]
    things = list(dict.fromkeys(thing for name in fitting or scenes for thing in scenes[name]))
    for thing in rng.sample(things, len(things)):
        if words.isdisjoint(thing.split()) and not any(
            same_thing(thing, noun) or is_part(noun, thing) for noun in named
        ):
            yield thing


def _compound(reading: Reading, first: int, head: int) -> str:
    """The noun of a mention with the nouns before it ("fire hydrant")."""
    tokens = reading.caption.tokens
    if head > first and tokens[head - 1].pos in ("NOUN", "PROPN"):
        return f"{tokens[head - 1].lemma.lower()} {tokens[head].lemma.lower()}"
    return ""


@lru_cache(maxsize=1)
def _scenes() -> dict[str, tuple[str, ...]]:
    """The things of every scene that can be missed, by its name."""
    rows = (row.partition(": ") for row in word_lists(__file__, "scenes").rows())
    split = {name: tuple(map(str.strip, things.split(","))) for name, _, things in rows}
    return {name: tuple(t for t in things if t not in EVERYWHERE) for name, things in split.items()}
