"""The caption clean-up of BLIP's and ARO's evaluation code."""

from __future__ import annotations

import re

_MARKS = re.compile(r'[.!"()*#:;~]')
_BLANKS = re.compile(r"\s{2,}")


def pre_caption(text: str, words: int) -> str:
    """Lower-case; each of . ! " ( ) * # : ; ~ becomes a space; runs of two or more blanks become
    one; strip; keep the first `words` space-separated words.
    """
    text = _BLANKS.sub(" ", _MARKS.sub(" ", text.lower())).strip()
    return " ".join(text.split(" ")[:words])
