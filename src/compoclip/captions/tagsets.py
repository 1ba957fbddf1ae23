"""From the BNC's C5 tags, which HanTa gives, to Penn Treebank tags and universal ones."""

from __future__ import annotations

from collections.abc import Mapping

from compoclip.captions.words import word_set

#: C5 tag -> Penn tag. Tags that depend on the word (DT0, NN0, VBB, PUN ...) are in `penn_tag`.
C5_TO_PENN: Mapping[str, str] = {
    "AJ0": "JJ", "AJC": "JJR", "AJS": "JJS", "AT0": "DT", "AV0": "RB", "AVP": "RP", "AVQ": "WRB",
    "CJC": "CC", "CJS": "IN", "CJT": "IN", "CRD": "CD", "DPS": "PRP$", "DT0": "DT", "DTQ": "WDT",
    "EX0": "EX", "IN": "IN", "ITJ": "UH", "NN": "NN", "NN0": "NN", "NN1": "NN", "NN2": "NNS",
    "NP0": "NNP", "ORD": "JJ", "PNI": "NN", "PNP": "PRP", "PNQ": "WP", "PNX": "PRP", "POS": "POS",
    "PRF": "IN", "PRP": "IN", "TO0": "TO", "UNC": "FW", "VBB": "VBP", "VBD": "VBD", "VBG": "VBG",
    "VBI": "VB", "VBN": "VBN", "VBZ": "VBZ", "VDB": "VBP", "VDD": "VBD", "VDG": "VBG",
    "VDI": "VB", "VDN": "VBN", "VDZ": "VBZ", "VHB": "VBP", "VHD": "VBD", "VHG": "VBG",
    "VHI": "VB", "VHN": "VBN", "VHZ": "VBZ", "VM0": "MD", "VVB": "VBP", "VVD": "VBD",
    "VVG": "VBG", "VVI": "VB", "VVN": "VBN", "VVZ": "VBZ", "XX0": "RB", "ZZ0": "NN",
}  # fmt: skip

PENN_TO_UPOS: Mapping[str, str] = {
    "JJ": "ADJ", "JJR": "ADJ", "JJS": "ADJ", "DT": "DET", "PDT": "DET", "WDT": "DET", "RB": "ADV",
    "RBR": "ADV", "RBS": "ADV", "WRB": "ADV", "RP": "ADP", "CC": "CCONJ", "IN": "ADP", "CD": "NUM",
    "PRP$": "PRON", "PRP": "PRON", "WP": "PRON", "WP$": "PRON", "EX": "PRON", "UH": "INTJ",
    "NN": "NOUN", "NNS": "NOUN", "NNP": "PROPN", "NNPS": "PROPN", "POS": "PART", "TO": "PART",
    "FW": "X", "VB": "VERB", "VBP": "VERB", "VBZ": "VERB", "VBD": "VERB", "VBG": "VERB",
    "VBN": "VERB", "MD": "AUX", ".": "PUNCT", ",": "PUNCT", ":": "PUNCT", "``": "PUNCT",
    "''": "PUNCT", "-LRB-": "PUNCT", "-RRB-": "PUNCT", "HYPH": "PUNCT", "NFP": "PUNCT",
    "SYM": "SYM", "$": "SYM",
}  # fmt: skip

_SIGNS: Mapping[str, str] = {
    ".": ".", "!": ".", "?": ".", ",": ",", ";": ":", ":": ":", "-": ":", "–": ":", "—": ":",
    "…": ":", "(": "-LRB-", "[": "-LRB-", "{": "-LRB-", ")": "-RRB-", "]": "-RRB-", "}": "-RRB-",
    "“": "``", "‘": "``", "`": "``", "”": "''", "’": "''", '"': "''", "'": "''", "$": "$",
    "£": "$", "€": "$", "&": "CC",
}  # fmt: skip
_ADJECTIVE_QUANTIFIERS = word_set("many much few several more most fewer less little own")
_INDEFINITE = word_set("another any both each either every neither no some")
#: Words of no number in C5 that Penn counts as plural.
_COLLECTIVE_PLURALS = word_set("people police folk cattle poultry clergy cops")


def sign_tag(text: str) -> str:
    """Penn tag of a token that has no letter or digit: punctuation, else SYM."""
    if len(text) > 1 and text[0] == ".":
        return ":"
    return _SIGNS.get(text[0], "NFP" if text[0] in "*_~=|/\\" else "SYM")


def penn_tag(c5: str, word: str) -> str:
    """Penn tag of a lower-case word with a C5 tag."""
    if c5 == "DT0" and word in _ADJECTIVE_QUANTIFIERS:
        return {"more": "JJR", "fewer": "JJR", "less": "JJR", "most": "JJS"}.get(word, "JJ")
    if c5 == "NN0" and word in _COLLECTIVE_PLURALS:
        return "NNS"
    if c5 == "VBB" and word == "be":
        return "VB"
    if c5 == "DTQ" and word == "whose":
        return "WP$"
    if c5 == "PNI" and word in _INDEFINITE:
        return "DT"
    if c5.startswith("PU"):
        return sign_tag(word)
    return C5_TO_PENN.get(c5, "FW")
