"""spaCy as a tagger, for those who have it and a model of it."""

from __future__ import annotations

from typing import Any

from compoclip.captions.types import Token
from compoclip.errors import CompoclipError


class SpacyTagger:
    """Tags with a spaCy pipeline (`model` is its package name or path).

    spaCy cuts contractions and hyphenated words apart; its tokens are kept as they are, blanks left
    out. Raises CompoclipError when spaCy or the model is not installed.
    """

    def __init__(self, model: str) -> None:
        try:
            import spacy
        except ImportError as error:
            raise CompoclipError(
                'the spaCy tagger needs spaCy; install it with: pip install "compoclip[spacy]"'
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
        """The tokens of `text`, blanks left out; `text[t.start:t.end] == t.text` for each."""
        return tuple(
            Token(t.text, t.lemma_, t.pos_, t.tag_, t.idx, t.idx + len(t.text))
            for t in self._pipeline(text)
            if not t.is_space
        )
