"""Corrections of the model's tags for what captions say differently from the model's texts.

The model learnt from newspapers and novels. Each rule here answers an error seen on captions of
photos; they run in the order of `correct`, each on the whole caption.
"""

from __future__ import annotations

from collections.abc import Callable

from compoclip.captions.lists import (
    ANIMALS,
    COLOURS,
    COMPOUND_ING,
    PEOPLE,
    PHRASAL,
    RECIPROCALS,
    word_lists,
    word_set,
)

_LISTS = word_lists(__file__, "tagging")  # which says what each list is for
_ALWAYS = _LISTS.keys("always")
_PATTERNS = _LISTS.words("patterns")
_SUBSTANTIVES = _LISTS.words("substantives")
_NOUNS_IN_ING = _LISTS.words("nouns in -ing")
_TRANSITIVE_ING = _LISTS.words("acting on the next noun")
_MOTION = tuple(_LISTS.words("motion"))
_LINKING_PARTICLES = _LISTS.words("linking particles")
_PLACES = _LISTS.words("places")
_PAST_ONLY = _LISTS.words("past only")
_IRREGULAR_PLURALS = tuple(_LISTS.words("irregular plurals"))
_AMBIGUOUS_PLURALS = _LISTS.words("same in the plural")
_SUBSTANCES = _LISTS.words("substances")
_BEARS = _LISTS.words("bears")
_TYING = _LISTS.words("tying participles")
_SPORTS = _LISTS.words("first words of sports")
_SPORTS_IN_ING = _LISTS.words("sports in -ing")
_DONE = _LISTS.words("done by the living")
_LIVING = ANIMALS | PEOPLE | frozenset(f"{name}s" for name in ANIMALS | PEOPLE)
_TOLD = _LISTS.words("told behind nouns")
_ARTICLES = _LISTS.words("articles")
_NOUN = frozenset({"NN", "NNS", "NNP", "NNPS"})
_DETERMINERS = frozenset({"DT", "PRP$", "POS", "CD"})
_NOMINAL = _NOUN | {"JJ", "JJR", "JJS", "CD", "VBN", "VBG", "RB"}
_BE = word_set("is are was were be been being am 's ’s it's he's she's")
_BEFORE_COMPOUND = frozenset({"DT", "PRP$", "POS", "CD", "JJ", "IN", ""})
_NEVER_NOUNS = _BE | {"has", "have", "does", "do"}
_AFTER_OPENING = frozenset({"IN", "CC", ",", "VBG", "VBN", "VBZ", "VBP", "WDT", "POS"})
_ENDING = frozenset({"", ".", ",", "CC", "IN"})
_AFTER_DEED = frozenset({"IN", "RB", "RP", "DT", "JJ", "NNS", "PRP$"})
_FINITE = frozenset({"VBZ", "VBP", "VBD", "MD"})

Rule = Callable[[list[str], list[str]], None]


def correct(lows: list[str], tags: list[str]) -> list[str]:
    """The corrected Penn tags of a caption, given its lower-case words and the model's tags."""
    tags = list(tags)
    for rule in RULES:
        rule(lows, tags)
    return tags


def _fixed_words(lows: list[str], tags: list[str]) -> None:
    """Words with one tag in captions; strange words are nouns."""
    for i, low in enumerate(lows):
        if low in _ALWAYS:
            tags[i] = _ALWAYS[low]
        elif tags[i] == "FW":
            tags[i] = "NNS" if _looks_plural(low) else "NN"
        elif tags[i] == "NNS" and not low.endswith("s") and not low.endswith(_IRREGULAR_PLURALS):
            tags[i] = "NN"
        elif tags[i] in ("VB", "VBP") and low.endswith("ed") and len(low) > 4:
            tags[i] = "VBN"


def _particles(lows: list[str], tags: list[str]) -> None:
    """A particle between a verb of motion and a noun phrase links them: "walking down a street"."""
    for i, tag in enumerate(tags):
        if tag != "RP":
            continue
        if lows[i] == "about" and _at(tags, i + 1) == "TO":
            tags[i] = "RB"
        elif _at(tags, i + 1) in _DETERMINERS | _NOUN | {"JJ", "PRP"}:
            verb = next((lows[j] for j in range(i - 1, -1, -1) if tags[j].startswith("VB")), "")
            if verb.startswith(_MOTION) or lows[i] in _LINKING_PARTICLES:
                tags[i] = "IN"


def _openings(lows: list[str], tags: list[str]) -> None:
    """Captions begin with no order: "duck on the water", "building with windows"."""
    if not tags or lows[0] in _NEVER_NOUNS:
        return
    after = _at(tags, 1)
    if tags[0] in ("VB", "VBP", "VBZ") and after in _AFTER_OPENING:
        tags[0] = "NNS" if tags[0] == "VBZ" else "NN"
    elif tags[0] == "VBG" and lows[0] in _NOUNS_IN_ING and after in _AFTER_OPENING:
        tags[0] = "NN"


def _past_forms(lows: list[str], tags: list[str]) -> None:
    """Captions are told in the present: "pillows piled on a chair" is a participle."""
    for i, tag in enumerate(tags):
        if tag != "VBD" or lows[i] in _PAST_ONLY:
            continue
        before, after = _at(tags, i - 1), _at(tags, i + 1)
        told = before in ("PRP", "WP", "WDT") and _at(lows, i + 1) != "by"
        acts = after in ("DT", "PRP$", "PRP", "TO") and _at(lows, i - 1) not in _BE
        if not told and not acts:
            tags[i] = "VBN"


def _finite_or_noun(lows: list[str], tags: list[str]) -> None:
    """Nouns that the model took for verbs: "two ferrets", "an overpass", "bus stop"."""
    for i, tag in enumerate(tags):
        if tag == "VBZ" and lows[i] not in _NEVER_NOUNS and _announces_noun(lows, tags, i, "s"):
            tags[i] = "NNS"
        elif tag == "NNS" and lows[i] in _TOLD and _at(tags, i - 1) == "NN":
            if _at(tags, i + 1) in ("IN", "TO", "RP", "DT", "RB") and not _FINITE & set(tags):
                tags[i] = "VBZ"
        elif lows[i] in _DONE and tag in ("NN", "VB", "VBP") and _at(lows, i - 1) in _LIVING:
            if _at(tags, i + 1) in _AFTER_DEED and not _FINITE & set(tags[:i]):
                tags[i] = "VBP"  # "a zebra and a giraffe stand in a field"
        elif tag in ("VB", "VBP") and lows[i] not in _NEVER_NOUNS:
            if _announces_noun(lows, tags, i, ""):
                tags[i] = "NN"
            elif tag == "VB" and _at(tags, i - 1) == "NNS":
                tags[i] = "VBP"


def _announces_noun(lows: list[str], tags: list[str], i: int, ending: str) -> bool:
    """Whether the context of word `i`, tagged as a verb form in `ending`, requires a noun."""
    before, word = _at(tags, i - 1), _at(lows, i - 1)
    if before == "PRP$" or word in ("a", "an", "the", "of", "with"):
        return True
    if ending:
        return word in ("some", "teddy", "many") or (before == "CD" and word not in ("one", "1"))
    if word in _ARTICLES:
        return True
    if lows[i] == "bear" and word in _BEARS:
        return True
    if lows[i] in ("stop", "sign", "stand", "board") and before == "NN":
        return True
    if lows[i] == "stop" and _at(lows, i + 1) in ("sign", "signs", "light", "lights"):
        return True
    verb_before = any(t.startswith("VB") for t in tags[:i])
    return before == "CC" and _at(tags, i - 2) in _NOUN and not verb_before


def _ing_forms(lows: list[str], tags: list[str]) -> None:
    """ "man surfing on" is a deed, "living room" a compound, "is sleeping" no adjective."""
    for i, (low, tag) in enumerate(zip(lows, tags)):
        if low == "looking" and _at(tags, i - 1) == "JJ" and _at(tags, i + 1) in _NOUN | {"JJ"}:
            tags[i] = "JJ"  # "a modern looking bathroom"
            continue
        if not low.endswith("ing") or low in _NOUNS_IN_ING or len(low) < 5:
            continue
        sport = _at(lows, i - 1) in _SPORTS and low in _SPORTS_IN_ING
        sport = sport and _at(tags, i - 2) not in _DETERMINERS | {"IN", "JJ"}
        if sport and _at(tags, i + 1) not in _NOUN | {"CC", ""}:
            tags[i - 1 : i + 1] = ["RB", "VBG"]  # "a man snow boarding down a hill"
            continue
        before, after = _at(tags, i - 1), _at(tags, i + 1)
        grazing = _at(lows, i - 1) == "of" and low not in _TRANSITIVE_ING
        if tag == "VBG" and grazing and _at(lows, i + 1) in _LIVING:
            tags[i] = "JJ"  # "a herd of grazing cows"
            continue
        made_of = _at(lows, i - 1) in _SUBSTANCES
        if low in COMPOUND_ING and after in _NOUN and (made_of or before in _BEFORE_COMPOUND):
            tags[i] = "NN"
        elif tag in ("JJ", "NN", "IN", "NNP") and _is_deed(lows, tags, i):
            tags[i] = "VBG"


def _is_deed(lows: list[str], tags: list[str], i: int) -> bool:
    before, after = _at(tags, i - 1), _at(tags, i + 1)
    if (_at(lows, i - 2), _at(lows, i - 1)) in RECIPROCALS:
        return True
    if after in ("DT", "PRP$", "PRP", "RP") and before not in ("DT", "JJ", "PRP$"):
        return True
    if lows[i] in _TRANSITIVE_ING and before in _NOUN:
        return True
    if after in _NOUN or after in ("JJ", "VBZ", "VBP"):
        return False
    if _at(lows, i - 1) in _BE or (before == "RB" and _at(lows, i - 2) in _BE):
        return True
    if after == "CC":
        return False
    return before in _NOUN or (before == "CC" and "VBG" in tags[:i])


def _adjectives(lows: list[str], tags: list[str]) -> None:
    """Colours and patterns before nouns; "a remote", "the wild" without one are nouns."""
    for i, (low, tag) in enumerate(zip(lows, tags)):
        after = _at(tags, i + 1)
        predicate = _at(lows, i - 1) in _BE
        qualifies = after in _NOUN or after in ("JJ", "VBN") or predicate
        if low in _PATTERNS and tag != "JJ":
            if qualifies or after == "CC":
                tags[i] = "JJ"
        elif low in COLOURS and tag not in ("JJ", "NNS"):
            if qualifies or (after in ("CC", ",") and _at(lows, i + 2) in COLOURS):
                tags[i] = "JJ"
        elif low in _TYING and tag == "JJ" and _at(tags, i - 1) in _NOUN and after in _NOUN:
            tags[i] = "VBN"
        elif tag == "JJ" and _stands_alone(lows, tags, i):
            tags[i] = "NN"
        elif (
            tag == "RB"
            and (
                low in ("few", "other", "same", "several", "many")
                or ("-" in low and low.endswith("ed"))
                or (
                    after in _NOUN and low.endswith("y") and not low.endswith(("ly", "way", "very"))
                )
            )
        ) or (low == "round" and tag in ("IN", "RP") and after in _NOUN | {"JJ"} and i == 0):
            tags[i] = "JJ"


def _stands_alone(lows: list[str], tags: list[str], i: int) -> bool:
    """Whether the adjective `i` is used as a noun: after an article, and no noun follows."""
    before, after = _at(tags, i - 1), _at(tags, i + 1)
    if lows[i] == "orange" and before == "DT" and after == "CC":
        return _at(lows, i + 2) not in COLOURS and _at(tags, i + 2) not in _NOUN
    if _at(lows, i + 1) == "looking" and _at(tags, i + 2) in _NOUN | {"JJ"}:
        return False
    if after not in ("IN", ".", "", "VBZ", "VBG", "WDT", "MD"):
        return False
    if lows[i] in _SUBSTANTIVES:
        return before in ("DT", "PRP$", "JJ", "NN", "NNP", "CD", "IN")
    return _at(lows, i - 1) in ("a", "an") and lows[i] not in ("little", "few")


def _small_words(lows: list[str], tags: list[str]) -> None:
    """ "that", "her", "'s", plural "sheep", "close up"."""
    for i, low in enumerate(lows):
        after = _at(tags, i + 1)
        if low == "that" and tags[i] in ("WP", "IN", "WDT", "DT"):
            verb = after in _FINITE or (after == "RB" and _at(tags, i + 2) in _FINITE)
            if verb and _at(tags, i - 1) in _NOUN:
                tags[i] = "WDT"
            elif tags[i] == "WP":
                tags[i] = "IN" if after in ("PRP", "DT", "PRP$") else "WDT"
        elif tags[i] == "RB" and low in _PLACES and after in _DETERMINERS | {"PRP"}:
            tags[i] = "IN"
        elif low in ("'", "’") and _at(tags, i - 1) == "NNS" and after in _NOUN | {"JJ"}:
            quoted = any(word in ("'", "‘", "’") for word in lows[:i])
            tags[i] = tags[i] if quoted else "POS"
        elif low == "her" and tags[i] == "PRP$" and after not in _NOMINAL:
            tags[i] = "PRP"
        elif low in ("'s", "’s"):
            verb = after in ("VBG", "DT") or _at(lows, i + 1) == "not"
            tags[i] = "VBZ" if verb and i > 0 else "POS"
        elif low in _AMBIGUOUS_PLURALS and tags[i] in ("NN", "NNS"):
            tags[i] = "NN" if _singular(lows, tags, i) else "NNS"
        elif low == "close" and _at(lows, i + 1) in ("up", "ups"):
            tags[i] = "JJ"
            if _names_picture(lows, tags, i):
                tags[i + 1] = "NN" if lows[i + 1] == "up" else "NNS"
        elif low == "can" and _at(tags, i - 1) in _NOUN and after in _ENDING:
            tags[i] = "NN"  # "trash can"
        elif low == "outside" and tags[i] == "IN" and _at(lows, i + 1) != "of":
            tags[i] = "RB" if after in _ENDING | {"VBG"} else "IN"  # "standing outside"
        elif low == "past" and tags[i] != "IN" and _at(tags, i - 1).startswith("VB"):
            tags[i] = "IN"
        elif low in ("it's", "it’s") and after in _NOUN and _at(tags, i - 1) in ("IN", "VBG"):
            tags[i] = "PRP$"


def _names_picture(lows: list[str], tags: list[str], i: int) -> bool:
    """Whether the "close up" at `i` is a picture: "a close up of", "close up view"."""
    after = _at(lows, i + 2)
    announced = i == 0 or _at(tags, i - 1) in _DETERMINERS | {"JJ"}
    return after in ("of", "view", "views", "shot", "photo", "photograph", "picture", "image") or (
        announced and after in ("", ".", "on", "with", "showing", "and")
    )


def _phrases(lows: list[str], tags: list[str]) -> None:
    """Every word of a phrasal preposition ("in front of") is a preposition."""
    for i, low in enumerate(lows):
        if low == "side" and lows[i : i + 3] == ["side", "by", "side"]:
            tags[i : i + 3] = ["RB"] * 3
        for phrase in PHRASAL.get(low, ()):
            if tuple(lows[i : i + len(phrase)]) == phrase and i + len(phrase) < len(lows):
                tags[i : i + len(phrase)] = ["IN"] * len(phrase)
                break


RULES: tuple[Rule, ...] = (
    _fixed_words,
    _phrases,
    _particles,
    _finite_or_noun,
    _openings,
    _past_forms,
    _ing_forms,
    _adjectives,
    _small_words,
)


def _at(items: list[str], index: int) -> str:
    return items[index] if 0 <= index < len(items) else ""


def _looks_plural(low: str) -> bool:
    return low.endswith("s") and not low.endswith(("ss", "us", "is")) and len(low) > 3


def _singular(lows: list[str], tags: list[str], index: int) -> bool:
    for j in range(index - 1, max(-1, index - 4), -1):
        if lows[j] in ("a", "an", "another", "one", "this", "each", "every", "single"):
            return True
        if tags[j] not in ("JJ", "NN", "VBN", "VBG", "CC", "JJR"):
            break
    after = _at(tags, index + 1)
    return after == "VBZ" or after in _NOUN
