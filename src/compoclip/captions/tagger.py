"""Part-of-speech taggers with one protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from compoclip.captions.lists import word_lists
from compoclip.captions.tagrules import correct
from compoclip.captions.types import Token, addresses, is_address, word_spans
from compoclip.errors import CompoclipError, UsageError, pip_install

DEFAULT_TAGGER = "hanta"
#: What `get_tagger("spacy")` loads.
DEFAULT_SPACY_MODEL = "en_core_web_sm"
_LISTS = word_lists(__file__, "tagging")


class Tagger(Protocol):
    """Split a text into tokens with lemma, universal and Penn tag, and exact character spans.

    `tag` never raises on odd text, leaves blanks out and keeps `text[t.start:t.end] == t.text`.

    Attributes:
        name: Tagger and version; part of the key of stored parses.
    """

    @property
    def name(self) -> str: ...

    def tag(self, text: str) -> tuple[Token, ...]: ...


@lru_cache(maxsize=8)
def get_tagger(name: str = DEFAULT_TAGGER) -> Tagger:
    """Return the tagger of a name, loaded once per process.

    Args:
        name: "hanta", the offline default; "spacy" or "spacy:MODEL" need the extra and a spaCy
            model.

    Returns:
        The tagger.

    Raises:
        UsageError: For another name.
        CompoclipError: When a package or model is missing.
    """
    kind, _, model = name.partition(":")
    if kind == "hanta" and not model:
        return HantaTagger()
    if kind == "spacy":
        return SpacyTagger(model or DEFAULT_SPACY_MODEL)
    raise UsageError(f'unknown tagger "{name}"; use hanta, spacy or spacy:MODEL')


@lru_cache(maxsize=8)
def tagger_version(name: str = DEFAULT_TAGGER) -> str:
    """Return name and version of a tagger, for the default one without loading its model.

    Args:
        name: As for `get_tagger`.

    Returns:
        `get_tagger(name).name`.
    """
    return f"hanta-{version('HanTa')}" if name == "hanta" else get_tagger(name).name


# --- From the BNC's C5 tags, which HanTa gives, to Penn Treebank tags and universal ones. ---

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
_ADJECTIVE_QUANTIFIERS = _LISTS.words("adjective quantifiers")
_INDEFINITE_DETERMINERS = _LISTS.words("indefinite determiners")
_COLLECTIVE_PLURALS = _LISTS.words("collective plurals")


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
    if c5 == "PNI" and word in _INDEFINITE_DETERMINERS:
        return "DT"
    if c5.startswith("PU"):
        return sign_tag(word)
    return C5_TO_PENN.get(c5, "FW")


# --- Coarse universal parts of speech from Penn tags, the words and their neighbours. ---

_BE = _LISTS.words("forms of be")
_HAVE = _LISTS.words("forms of have")
_DO = _LISTS.words("forms of do")
_INDEFINITE_PRONOUNS = _LISTS.words("indefinite pronouns")
_SUBORDINATORS = _LISTS.words("subordinators")
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
    if tag == "NN" and low in _INDEFINITE_PRONOUNS:
        return "PRON"
    if tag == "IN" and low in _SUBORDINATORS:
        return "SCONJ"
    if tag == "IN" and low == "as" and any(t in ("VBZ", "VBP", "VBD") for t in tags[i + 2 : i + 6]):
        return "SCONJ"
    if tag == "RB" and low in ("not", "n't"):
        return "PART"
    return PENN_TO_UPOS.get(tag, "X")


# --- Lemmas: lemminflect's dictionary and rules, with the words it gets wrong in captions. ---
#
# Of 26,200 nouns, verbs and adjectives of COCO captions, HanTa's lemmas and lemminflect's differ
# for 225; lemminflect's are nearly always the right ones (skis -> ski, giraffes -> giraffe).

PLURAL_ONLY = _LISTS.words("plural only")
_NOUNS = _LISTS.keys("noun lemmas")
_OTHER = _LISTS.keys("other lemmas")
_AUXILIARIES = _LISTS.keys("auxiliary lemmas")


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


# --- The default tagger: HanTa's English model, decoded here with caches, then set right for
# captions. ---
#
# HanTa (Wartena 2019) is a pure-Python HMM tagger whose model lies in its wheel. That model is a
# gzipped pickle which the library itself loads; it is opened by its full path inside the installed
# package, because HanTa would prefer a file of that name in the current directory.

MODEL = "morphmodel_en.pgz"
#: Longer strings are no English words; the model's time grows with their square.
LONGEST_WORD = 40
CACHE_SIZE = 1 << 16
#: How a contraction is shown to the model; the token gets the tag of the first part.
_PARTS = {
    "n't": "not",
    "'s": "is",
    "'re": "are",
    "'ll": "will",
    "'ve": "have",
    "'m": "am",
    "'d": "would",
}


class HantaTagger:
    """Tagger of HanTa's English model. Do not share it between threads."""

    def __init__(self) -> None:
        import HanTa
        from HanTa.HanoverTagger import HanoverTagger

        path = Path(HanTa.__file__).parent / MODEL
        if not path.is_file():
            raise CompoclipError(f"{path}: HanTa's English model is missing; reinstall HanTa")
        model: Any = HanoverTagger(str(path))
        self.name = f"hanta-{version('HanTa')}"
        self._follow: dict[tuple[int, int], dict[int, float]] = model.LP_trans_word
        self._names: dict[int, str] = model.int2tag
        self._start, self._end = (model.tag2int["EMPTY"], 1), model.tag2int["END"]
        self._open = [c for c in next(iter(self._follow.values())) if c != self._end]

        @lru_cache(maxsize=CACHE_SIZE)
        def candidates(word: str, cased: bool) -> tuple[tuple[int, float], ...]:
            found = model._tag_word(word, cutoff=5, casesensitive=cased, conditional=True)
            known = tuple((c, p) for c, p in found if c in self._open)
            return known or tuple((c, 0.0) for c in self._open)

        self._candidates = candidates
        self._known = model.cache

    def tag(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of `text` without blanks; `text[t.start:t.end] == t.text` for each."""
        spans = word_spans(text)
        words = [text[start:end] for start, end in spans]
        lows = [word.lower() for word in words]
        tags = correct(lows, self._penn_tags(words, lows))
        tokens = []
        for (start, end), word, low, tag, pos in zip(
            spans, words, lows, tags, coarse_tags(lows, tags)
        ):
            tokens.append(Token(word, lemma_of(low, pos, tag), pos, tag, start, end))
        return tuple(tokens)

    def _penn_tags(self, words: list[str], lows: list[str]) -> list[str]:
        tags = ["" for _ in words]
        seen: list[tuple[str, bool]] = []  # (word as the model sees it, whether case may speak)
        at: list[int] = []
        capitals = sum(word[:1].isupper() for word in words)
        titled = capitals * 2 > sum(word[:1].isalpha() for word in words)
        first = True
        for i, (word, low) in enumerate(zip(words, lows)):
            if is_address(word) or not any(map(str.isalnum, word)):
                tags[i] = "SYM" if is_address(word) else sign_tag(word)
                if tags[i] == "SYM":
                    continue
            elif word[0].isdigit():
                tags[i] = "CD"
            elif len(word) > LONGEST_WORD:
                tags[i] = "NN"
            parts = _parts(word, low)
            for number, part in enumerate(parts):
                at.append(i if number == 0 else -1)
                shown = {"CD": "2", "NN": "thing"}.get(tags[i], part)
                seen.append((shown[:LONGEST_WORD], not (first or titled)))
            first = tags[i] in (".", "``")
        for i, c5 in zip(at, self._decode(seen)):
            if i >= 0 and not tags[i]:
                name = c5 == "NP0" and (lows[i] in self._known or (words[i] != lows[i] and i > 0))
                tags[i] = "FW" if c5 == "NP0" and not name else penn_tag(c5, lows[i])
        return tags

    def _decode(self, seen: list[tuple[str, bool]]) -> list[str]:
        """The most likely C5 tags: exact second-order Viterbi over the model's probabilities."""
        row: dict[tuple[int, int], float] = {self._start: 0.0}
        back: list[dict[tuple[int, int], tuple[int, int]]] = []
        for word, cased in seen:
            options = self._candidates(word, cased)
            new: dict[tuple[int, int], float] = {}
            origin: dict[tuple[int, int], tuple[int, int]] = {}
            for state, before in row.items():
                follow = self._follow[state]
                last = state[1]
                for tag, emission in options:
                    score = before + follow.get(tag, -math.inf) + emission
                    key = (last, tag)
                    if key not in new or score > new[key]:
                        new[key] = score
                        origin[key] = state
            row = new
            back.append(origin)
        if not back:
            return []
        state = max(row, key=lambda s: row[s] + self._follow[s].get(self._end, -math.inf))
        tags = []
        for origin in reversed(back):
            tags.append(self._names[state[1]])
            state = origin[state]
        return tags[::-1]


def _parts(word: str, low: str) -> tuple[str, ...]:
    """A contraction as the two words the model knows; other words alone."""
    plain = low.replace("’", "'")
    if plain in ("can't", "won't", "shan't"):
        return ({"can't": "can", "won't": "will", "shan't": "shall"}[plain], "not")
    for ending, full in _PARTS.items():
        if plain.endswith(ending) and len(plain) > len(ending):
            return (word[: -len(ending)], full)
    return (plain if "'" in plain else word,)


# --- spaCy as a tagger, for those who have it and a model of it. ---


class SpacyTagger:
    """Tagger that runs a spaCy pipeline.

    spaCy splits contractions and hyphenated words; its tokens are used unchanged, without blanks.

    Args:
        model: Package name or path of the pipeline.

    Raises:
        CompoclipError: When spaCy or the model is not installed.
    """

    def __init__(self, model: str) -> None:
        try:
            import spacy
        except ImportError as error:
            raise CompoclipError(
                f"the spaCy tagger needs spaCy; install it with: {pip_install('spacy')}"
            ) from error
        try:
            self._pipeline: Any = spacy.load(model, exclude=["ner"])
        except OSError as error:
            raise CompoclipError(
                f'spaCy model "{model}" is not installed; get it with: '
                f"python -m spacy download {model}"
            ) from error
        self.name = f"spacy-{spacy.__version__}-{model}-{self._pipeline.meta.get('version', '?')}"

    def tag(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of `text` without blanks; `text[t.start:t.end] == t.text` for each."""
        inside = {place for span in addresses(text) for place in range(*span)}
        tokens = []
        for t in self._pipeline(text):
            pos, tag = ("SYM", "SYM") if t.idx in inside else (t.pos_, t.tag_)
            if not t.is_space:
                tokens.append(Token(t.text, t.lemma_, pos, tag, t.idx, t.idx + len(t.text)))
        return tuple(tokens)
