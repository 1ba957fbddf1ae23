"""Lemmas: lemminflect's dictionary and rules, with the words it gets wrong in captions.

Of 26,200 nouns, verbs and adjectives of COCO captions, HanTa's lemmas and lemminflect's differ for
225; lemminflect's are nearly always the right ones (skis -> ski, giraffes -> giraffe).
"""

from __future__ import annotations

from functools import lru_cache

from compoclip.captions.words import word_set

#: Words used only in the plural: the singular is another thing ("glass") or no word at all.
PLURAL_ONLY = word_set(
    "glasses sunglasses eyeglasses goggles pants trousers jeans shorts tights leggings pajamas "
    "pyjamas overalls scissors pliers tongs binoculars headphones clothes goods outskirts "
    "furnishings surroundings bleachers moorings"
)
_NOUNS = {
    "people": "people", "graffiti": "graffiti", "veggies": "veggie", "media": "media",
    "data": "data", "stairs": "stair", "cookies": "cookie", "smoothies": "smoothie",
    "selfies": "selfie", "men": "man", "women": "woman", "skis": "ski", "toys": "toy",
    "brownies": "brownie", "hoodies": "hoodie", "zombies": "zombie", "ave": "ave",
}  # fmt: skip
_OTHER = {
    "an": "a", "n't": "not", "n’t": "not", "me": "I", "him": "he", "them": "they", "us": "we",
    "i": "I", "these": "this", "those": "that", "best": "good", "better": "good", "worst": "bad",
    "worse": "bad", "'s": "'s", "’s": "'s",
}  # fmt: skip
_AUXILIARIES = {
    "is": "be", "are": "be", "was": "be", "were": "be", "am": "be", "been": "be", "being": "be",
    "be": "be", "'s": "be", "’s": "be", "'re": "be", "has": "have", "have": "have", "had": "have",
    "having": "have", "does": "do", "do": "do", "did": "do", "can": "can", "could": "could",
    "will": "will", "would": "would", "wo": "will", "ca": "can", "sha": "shall",
}  # fmt: skip


@lru_cache(maxsize=1 << 16)
def lemma_of(low: str, pos: str, tag: str) -> str:
    """The lemma of a lower-case word with its coarse part of speech and Penn tag."""
    if pos == "AUX":
        stem = low.replace("’", "'").removesuffix("n't")
        return _AUXILIARIES.get(stem, stem)
    if pos == "PRON" and tag == "PRP" and "'" in low.replace("’", "'"):
        return low.replace("’", "'").partition("'")[0]
    if pos == "NOUN":
        if low in PLURAL_ONLY:
            return low
        if tag == "NNS":
            return _NOUNS.get(low) or _inflected(low, "NOUN")
        return low
    if pos == "VERB":
        return low if tag in ("VB", "VBP") else _inflected(low, "VERB")
    if pos in ("ADJ", "ADV") and tag in ("JJR", "JJS", "RBR", "RBS"):
        return _OTHER.get(low) or _inflected(low, pos)
    return _OTHER.get(low, low) if pos in ("DET", "PRON", "PART") else low


def _inflected(low: str, pos: str) -> str:
    import lemminflect

    prefix, hyphen, last = low.rpartition("-")
    found = lemminflect.getLemma(last or low, upos=pos)
    return prefix + hyphen + found[0] if found and found[0] else low
