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
from functools import lru_cache, partial
from itertools import islice

from compoclip.captions.lists import word_lists
from compoclip.captions.tagger import PLURAL_ONLY
from compoclip.captions.types import NOUNS, Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.driver import NO_CANDIDATE, CandidateEdit, SampledRewrite
from compoclip.rewrites.edit import article_for, with_end
from compoclip.rewrites.exclusion import EVERYWHERE, is_part, same_thing
from compoclip.rewrites.reading import Reading, read

_ABSENT = {
    "absent:but-no": ", but no {object}",
    "absent:but-there-is": ", but there {be} no {object}",
    "absent:behind": ". There {be} no {object}.",
}
_AFFIRMED = {"affirmed:and": " and {a}{object}", "affirmed:behind": ". There {be} {a}{object}."}
_ENDS = " .,;:!?"
_DRAWS = 8  # objects to try: a text that is refused is so for its length, or a word that it doubles


def _with_object(
    s: Reading, rng: random.Random, forms: dict[str, str], others: Sequence[Reading] = ()
) -> Iterator[CandidateEdit]:
    """Says behind the caption that an object, which one could expect there, is absent or there."""
    rule, end = rng.choice(list(forms)), len(s.caption.text.rstrip(_ENDS))
    for thing in islice(_missing([s, *others], rng), _DRAWS):
        plural = thing in PLURAL_ONLY
        be, article = ("are", "") if plural else ("is", f"{article_for(thing)} ")
        said = forms[rule].format(object=thing, be=be, a=article)
        yield CandidateEdit(rule, whole=with_end(s.caption, end, said))


ABSENT_OBJECT, AFFIRMED_OBJECT = (
    SampledRewrite(name, "1", positive, NO_CANDIDATE, partial(_with_object, forms=forms))
    for name, positive, forms in (
        ("absent-object", True, _ABSENT),
        ("affirmed-object", False, _AFFIRMED),
    )
)


def say_absent(captions: Sequence[Caption], rng: random.Random) -> Rewritten | Refused:
    """Sample `ABSENT_OBJECT` of the first of the captions of an image; none names the object."""
    first, *others = map(read, captions)
    return ABSENT_OBJECT.sample(captions[0], _with_object(first, rng, _ABSENT, others))


def _missing(readings: Sequence[Reading], rng: random.Random) -> Iterator[str]:
    """Things of the scenes that the captions speak of, and that none of them names, as drawn."""
    named = set()
    for reading in readings:
        tokens = reading.caption.tokens
        for place, (first, _, head, *_) in enumerate(reading.mentions):
            named.add(reading.head_lemma(place))
            if head > first and tokens[head - 1].pos in NOUNS:  # "fire hydrant"
                named.add(f"{reading.lemmas[head - 1]} {reading.lemmas[head]}")
    words = {word for reading in readings for word in reading.words}
    scenes = _scenes()
    fitting = [name for name, things in scenes.items() if named & {name, *things}]
    things = list(dict.fromkeys(thing for name in fitting or scenes for thing in scenes[name]))
    for thing in rng.sample(things, len(things)):
        if words.isdisjoint(thing.split()) and not any(
            same_thing(thing, noun) or is_part(noun, thing) for noun in named
        ):
            yield thing


@lru_cache(maxsize=1)
def _scenes() -> dict[str, tuple[str, ...]]:
    """The things of every scene that can be missed, by its name."""
    scenes = word_lists(__file__, "scenes").table("").items()
    return {name: tuple(t for t in things if t not in EVERYWHERE) for name, things in scenes}
