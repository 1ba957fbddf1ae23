"""Part-of-speech taggers with one protocol."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from compoclip.captions.lists import word_lists
from compoclip.captions.tagrules import Columns, Condition, Patterns, correct
from compoclip.captions.types import Token, addresses, is_address, word_spans
from compoclip.errors import CompoclipError, UsageError, optional

DEFAULT_TAGGER = "hanta"
#: What `get_tagger("spacy")` loads.
DEFAULT_SPACY_MODEL = "en_core_web_sm"
_LISTS = word_lists(__file__, "tagging")


class Tagger(Protocol):
    """Split a text into tokens with lemma, universal and Penn tag, and exact character spans.

    `tag` never raises on odd text, omits blanks and keeps `text[t.start:t.end] == t.text`.

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
    """Return name and version of a tagger, without loading the default model.

    Args:
        name: As for `get_tagger`.
    """
    return f"hanta-{version('HanTa')}" if name == "hanta" else get_tagger(name).name


# --- From the BNC's C5 tags, which HanTa gives, to Penn Treebank tags and universal ones. ---

C5_TO_PENN = _LISTS.keys_of("c5 tags")
PENN_TO_UPOS = _LISTS.keys_of("penn tags") | dict.fromkeys(
    (".", ",", ":", "``", "''", "-LRB-", "-RRB-", "HYPH", "NFP"), "PUNCT"
)
_SIGNS = {
    sign: tag
    for tag, signs in (
        (".", ".!?"), (",", ","), (":", ";:-–—…"), ("-LRB-", "([{"), ("-RRB-", ")]}"), ("$", "$£€"),
        ("``", "“‘`"), ("''", "”’\"'"), ("CC", "&"), ("NFP", "*_~=|/\\"),
    )
    for sign in signs
}  # fmt: skip
#: Words whose Penn tag does not follow from the C5 tag alone.
C5_EXCEPTIONS = Patterns("wt", _LISTS.cells("c5 tags of words"), {})


def sign_tag(text: str) -> str:
    """Return the Penn tag of a token without letters and digits: punctuation, else SYM."""
    return ":" if len(text) > 1 and text[0] == "." else _SIGNS.get(text[0], "SYM")


def penn_tag(c5: str, word: str) -> str:
    """Return the Penn tag of a lower-case word with a C5 tag."""
    if c5.startswith("PU"):
        return sign_tag(word)
    return C5_EXCEPTIONS.first(((word,), (c5,)), 0) or C5_TO_PENN.get(c5, "FW")


# --- Coarse universal parts of speech from Penn tags, the words and their neighbours. ---


def _before(tag: str) -> Condition:
    def holds(columns: Columns, at: int) -> bool:
        return tag == next((t for t in columns[1][at + 1 : at + 4] if t not in ("RB", "PRP")), "")

    return holds


_CODE = {"before participle": _before("VBN"), "before infinitive": _before("VB")}
COARSE = Patterns("wt", _LISTS.cells("coarse tags"), _CODE)


def coarse_tags(lows: list[str], tags: list[str]) -> list[str]:
    """Return the universal part of speech of each token, by its Penn tag or a row of `COARSE`."""
    columns = [low.replace("’", "'") for low in lows], tags
    return [
        (COARSE[word] and COARSE.first(columns, i)) or PENN_TO_UPOS.get(word[1], "X")
        for i, word in enumerate(zip(*columns))  # few words have rows
    ]


# --- Lemmas: lemminflect's dictionary and rules, with the words it gets wrong in captions. ---
#
# Of 26,200 nouns, verbs and adjectives of COCO captions, HanTa's lemmas and lemminflect's differ
# for 225; lemminflect's are nearly always the right ones (skis -> ski, giraffes -> giraffe).

PLURAL_ONLY = _LISTS["plural only"]
_NOUNS = _LISTS.keys_of("noun lemmas")
_OTHER = _LISTS.keys_of("other lemmas")
_AUXILIARIES = _LISTS.keys_of("auxiliary lemmas")


@lru_cache(maxsize=1 << 16)
def lemma_of(low: str, pos: str, tag: str) -> str:
    """Return the lemma of a lower-case word with its coarse part of speech and Penn tag."""
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
    lemmas = lemminflect.getLemma(last or low, upos=pos)
    return prefix + hyphen + lemmas[0] if lemmas and lemmas[0] else low


# --- A lemma in the form of a tag (Penn Treebank), with lemminflect. ---

# Plurals that the dictionary lists second, or does not list.
_PLURALS = {"fish": "fish", "hoof": "hooves", "box": "boxes", "leaf": "leaves"}
_INFLECTED = frozenset(("NNS", "VBG", "VBD", "VBN", "VBZ", "JJR", "JJS", "RBR", "RBS"))
_COMPARED = {"JJR": "more", "JJS": "most", "RBR": "more", "RBS": "most"}


@lru_cache(maxsize=65536)
def inflect(lemma: str, tag: str) -> str:
    """`lemma` in the form `tag`; the last word of a noun phrase, the first of a phrasal verb."""
    if tag not in _INFLECTED:
        return lemma
    from lemminflect import getInflection  # reads its tables on import

    words = lemma.split(" ")
    place = 0 if tag.startswith("V") else len(words) - 1
    word = words[place]
    if tag == "NNS":
        if word in _PLURALS:
            return " ".join([*words[:-1], _PLURALS[word]])
        # "shorts", "skis", "fries" are plurals already; "bus" and "glass" are not.
        singular = lemma_of(word, "NOUN", "NNS") if word.endswith("s") else word
        plural = singular != word and word in getInflection(singular, "NNS")
        if plural or word in PLURAL_ONLY:
            return lemma
    compared = _COMPARED.get(tag)
    forms = getInflection(word, tag, inflect_oov=compared is None)
    words[place] = str(forms[0]) if forms else f"{compared} {word}" if compared else word
    return " ".join(words)


# --- The default tagger: HanTa's English model with a cached decoder and corrections. ---
#
# HanTa (Wartena 2019) is a pure-Python HMM tagger. Its wheel holds the model, a gzipped pickle that
# is opened by its full path: HanTa would prefer a file of that name in the current directory.

MODEL = "morphmodel_en.pgz"
#: Longer strings are no English words; the model's time grows with their square.
LONGEST_WORD = 40
# Endings of contractions as words for the model; the token gets the tag of the first part.
_ENDINGS = _LISTS.keys_of("contractions")
_CONTRACTED = _LISTS.keys_of("contracted verbs")


class HantaTagger:
    """Tagger of HanTa's English model. Do not share it between threads."""

    def __init__(self) -> None:
        import HanTa
        from HanTa.HanoverTagger import HanoverTagger

        path = Path(HanTa.__file__).parent / MODEL
        if not path.is_file():
            raise CompoclipError(f"{path}: HanTa's English model is missing; reinstall HanTa")
        model: Any = HanoverTagger(str(path))
        self.name = tagger_version()
        self._follow: dict[tuple[int, int], dict[int, float]] = model.LP_trans_word
        self._names: dict[int, str] = model.int2tag
        self._start, self._end = (model.tag2int["EMPTY"], 1), model.tag2int["END"]
        self._open = [c for c in next(iter(self._follow.values())) if c != self._end]

        @lru_cache(maxsize=1 << 16)
        def candidates(word: str, cased: bool) -> tuple[tuple[int, float], ...]:
            analyses = model._tag_word(word, cutoff=5, casesensitive=cased, conditional=True)
            open_tags = tuple((c, p) for c, p in analyses if c in self._open)
            return open_tags or tuple((c, 0.0) for c in self._open)

        self._candidates = candidates
        self._vocabulary = model.cache

    def tag(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of `text` without blanks; `text[t.start:t.end] == t.text` for each."""
        spans = word_spans(text)
        words = [text[start:end] for start, end in spans]
        lows = [word.lower() for word in words]
        tags = correct(lows, self._penn_tags(words, lows))
        columns = zip(spans, words, lows, tags, coarse_tags(lows, tags))
        return tuple(
            Token(word, lemma_of(low, pos, tag), pos, tag, start, end)
            for (start, end), word, low, tag, pos in columns
        )

    def _penn_tags(self, words: list[str], lows: list[str]) -> list[str]:
        tags = ["" for _ in words]
        inputs: list[tuple[str, bool]] = []  # (word for the model, whether its case counts)
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
                stand_in = {"CD": "2", "NN": "thing"}.get(tags[i], part)
                inputs.append((stand_in[:LONGEST_WORD], not (first or titled)))
            first = tags[i] in (".", "``")
        for i, c5 in zip(at, self._decode(inputs)):
            if i >= 0 and not tags[i]:
                name = c5 == "NP0" and (
                    lows[i] in self._vocabulary or (words[i] != lows[i] and i > 0)
                )
                tags[i] = "FW" if c5 == "NP0" and not name else penn_tag(c5, lows[i])
        return tags

    def _decode(self, inputs: list[tuple[str, bool]]) -> list[str]:
        """The most likely C5 tags: exact second-order Viterbi over the model's probabilities."""
        row: dict[tuple[int, int], float] = {self._start: 0.0}
        back: list[dict[tuple[int, int], tuple[int, int]]] = []
        for word, cased in inputs:
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
    """A contraction as two words for the model; other words alone."""
    plain = low.replace("’", "'")
    if plain in _CONTRACTED:
        return _CONTRACTED[plain], "not"
    for ending, full in _ENDINGS.items():
        if plain.endswith(ending) and len(plain) > len(ending):
            return word[: -len(ending)], full
    return (plain if "'" in plain else word,)


# --- spaCy as a tagger, for those who have it and a model of it. ---


class SpacyTagger:
    """Tagger that runs a spaCy pipeline.

    Its tokens are used unchanged, without blanks: it splits contractions and hyphenated words.
    model: package name or path of the pipeline.
    """

    def __init__(self, model: str) -> None:
        spacy = optional("spacy", "spacy", f"--tagger spacy:{model}")
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
        tagged = (
            (t, *(("SYM", "SYM") if t.idx in inside else (t.pos_, t.tag_)))
            for t in self._pipeline(text)
            if not t.is_space
        )
        return tuple(
            Token(t.text, t.lemma_, pos, tag, t.idx, t.idx + len(t.text)) for t, pos, tag in tagged
        )
