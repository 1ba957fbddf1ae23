"""Part-of-speech taggers behind one protocol."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from typing import Protocol

from compoclip.captions.types import Token
from compoclip.errors import UsageError

DEFAULT_TAGGER = "hanta"
#: What `get_tagger("spacy")` loads.
DEFAULT_SPACY_MODEL = "en_core_web_sm"


class Tagger(Protocol):
    """Cuts a text into tokens with lemma, universal and Penn tag, and exact character spans.

    `name` names the tagger with its version and is part of the key of stored parses. `tag` never
    raises on odd text, leaves blanks out and keeps `text[t.start:t.end] == t.text`.
    """

    @property
    def name(self) -> str: ...

    def tag(self, text: str) -> tuple[Token, ...]: ...


@lru_cache(maxsize=8)
def get_tagger(name: str = DEFAULT_TAGGER) -> Tagger:
    """The tagger of that name, loaded once per process.

    "hanta" is the offline default; "spacy" or "spacy:MODEL" needs the extra and a spaCy model.
    Raises UsageError for another name, CompoclipError when a package or model is missing.
    """
    kind, _, model = name.partition(":")
    if kind == "hanta" and not model:
        from compoclip.captions.hanta import HantaTagger

        return HantaTagger()
    if kind == "spacy":
        from compoclip.captions.spacy_tagger import SpacyTagger

        return SpacyTagger(model or DEFAULT_SPACY_MODEL)
    raise UsageError(f'unknown tagger "{name}"; use hanta, spacy or spacy:MODEL')


@lru_cache(maxsize=8)
def tagger_version(name: str = DEFAULT_TAGGER) -> str:
    """`get_tagger(name).name`, for the default tagger without loading its model."""
    return f"hanta-{version('HanTa')}" if name == "hanta" else get_tagger(name).name
