"""The default tagger: HanTa's English model, decoded here with caches, then set right for captions.

HanTa (Wartena 2019) is a pure-Python HMM tagger whose model lies in its wheel. That model is a
gzipped pickle which the library itself loads; it is opened by its full path inside the installed
package, because HanTa would prefer a file of that name in the current directory.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compoclip.captions.coarse import coarse_tags
from compoclip.captions.lemmas import lemma_of
from compoclip.captions.tagrules import correct
from compoclip.captions.tagsets import penn_tag, sign_tag
from compoclip.captions.types import Token
from compoclip.captions.words import word_spans
from compoclip.errors import CompoclipError

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
    """Tags captions with HanTa's English model. Not to be shared between threads."""

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
        """The tokens of `text`, blanks left out; `text[t.start:t.end] == t.text` for each."""
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
            if not any(map(str.isalnum, word)):
                tags[i] = sign_tag(word)
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
