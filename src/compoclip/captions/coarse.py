"""Coarse universal parts of speech from Penn tags, the words and their neighbours."""

from __future__ import annotations

from compoclip.captions.tagsets import PENN_TO_UPOS
from compoclip.captions.words import word_set

_BE = word_set("is are was were be been being am isn't aren't wasn't weren't 's ’s")
_HAVE = word_set("has have had having hasn't haven't hadn't")
_DO = word_set("do does did don't doesn't didn't")
_INDEFINITE = word_set(
    "someone something somebody anyone anything anybody everyone everything everybody nobody "
    "nothing none"
)
_SUBORDINATORS = word_set("while because if although though whether unless whereas that so lest")
_NOMINAL = frozenset({"NN", "NNS", "NNP", "NNPS", "JJ", "JJR", "JJS", "CD", "VBN", "VBG", "RB"})


def coarse_tags(lows: list[str], tags: list[str]) -> list[str]:
    """The universal part of speech of each token.

    Forms of be are AUX always, of have and do before a participle or an infinitive. Particles
    ("up" in "pick up") are ADP like prepositions; the fine tag RP tells them apart. "this", "both"
    and other determiners without a noun are PRON, and so are "someone" and the relative "that".
    """
    return [_one(lows, tags, i) for i in range(len(tags))]


def _one(lows: list[str], tags: list[str], i: int) -> str:
    low, tag = lows[i], tags[i]
    if tag.startswith("VB"):
        plain = low.replace("’", "'")
        if plain in _BE:
            return "AUX"
        follower = next((t for t in tags[i + 1 : i + 4] if t not in ("RB", "PRP")), "")
        if plain in _HAVE and follower == "VBN":
            return "AUX"
        if plain in _DO and (follower == "VB" or plain.endswith("n't")):
            return "AUX"
        return "VERB"
    after = tags[i + 1] if i + 1 < len(tags) else ""
    if tag in ("DT", "WDT") and low not in ("a", "an", "the", "no", "every"):
        return "DET" if after in _NOMINAL or after == "DT" else "PRON"
    if tag == "NN" and low in _INDEFINITE:
        return "PRON"
    if tag == "IN" and low in _SUBORDINATORS:
        return "SCONJ"
    if tag == "IN" and low == "as" and any(t in ("VBZ", "VBP") for t in tags[i + 2 : i + 6]):
        return "SCONJ"
    if tag == "RB" and low in ("not", "n't"):
        return "PART"
    return PENN_TO_UPOS.get(tag, "X")
