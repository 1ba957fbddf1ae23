"""The four hard negatives of CE-CLIP (Zhang et al., CVPR 2024).

One swaps two nouns; three replace an adjective, a noun or a verb by a word from a masked language
model or, without one, from the lexicon.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, Protocol

from compoclip.captions.lexicon import lexicon
from compoclip.captions.tagger import lemma_of
from compoclip.errors import CompoclipError, optional
from compoclip.rewrites.driver import CandidateEdit, SampledRewrite
from compoclip.rewrites.edit import MAX_DRAWS, inflect
from compoclip.rewrites.exclusion import related
from compoclip.rewrites.negclip import negclip_swap
from compoclip.rewrites.reading import Reading
from compoclip.rewrites.relations import PREPOSITIONS, preposition_synonyms
from compoclip.rewrites.replace import NO_CANDIDATE, Element, elements, replaced, replacement

# --- What fits a gap in a caption, by a masked language model. ---


class MaskFiller(Protocol):
    """Interface of a proposer of words for a gap. Deterministic: equal gaps get equal words."""

    @property
    def name(self) -> str: ...

    def fill(self, before: str, after: str) -> tuple[str, ...]:
        """Return whole words for the gap between the two texts, the likeliest first."""
        ...


class TransformersFiller:
    """A masked language model of the transformers package, loaded on first use, on the CPU.

    Words of several word pieces are never proposed.

    Args:
        model: Name on the Hugging Face hub or a local folder.
        count: Number of proposed words.
    """

    def __init__(self, model: str = "distilroberta-base", count: int = 20) -> None:
        self.model = model
        self.count = count

    @property
    def name(self) -> str:
        """Return the model's name, for provenance records."""
        return f"transformers:{self.model}"

    def fill(self, before: str, after: str) -> tuple[str, ...]:
        """Return words for the gap, likeliest first; raise CompoclipError without the model."""
        pipeline = _pipeline(self.model)
        found = pipeline(f"{before}{pipeline.tokenizer.mask_token}{after}", top_k=self.count)
        words = (str(row["token_str"]) for row in found)
        return tuple(w.strip() for w in words if w.strip() and not w.startswith("##"))


@lru_cache(maxsize=2)
def _pipeline(model: str) -> Any:
    transformers = optional("transformers", "hf", "a masked language model")
    try:
        return transformers.pipeline("fill-mask", model=model, device="cpu")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CompoclipError(
            f"{model}: no masked language model ({reason}); name another or a folder that holds one"
        ) from None


# --- The four hard negatives of CE-CLIP (Zhang et al., CVPR 2024). ---


def _masked(
    s: Reading, rng: random.Random, parts: tuple[str, ...], filler: MaskFiller
) -> Iterator[CandidateEdit]:
    """Replaces one word by a likely other one (CE-CLIP, Zhang et al., CVPR 2024)."""
    gaps = [e for e in elements(s) if e.pos in parts and e.stop - e.first == 1]
    for gap in rng.sample(gaps, min(len(gaps), MAX_DRAWS)):
        token = s.caption.tokens[gap.first]
        for word in filler.fill(s.caption.text[: token.start], s.caption.text[token.end :]):
            lemma = _fitting(s, gap, word)
            if lemma is not None:
                yield replaced(s, gap, lemma, f"masked:{gap.pos}")


def masked_replacement(
    name: str, parts: tuple[str, ...], filler: MaskFiller | None = None
) -> SampledRewrite:
    """Return the rewrite that replaces one word by a likely other one (CE-CLIP).

    The word is sampled uniformly among the caption's asserted words outside of phrases. The first
    proposal of the same part of speech and form that is neither related to the word nor in the
    caption replaces it.

    Args:
        name: Its name.
        parts: Parts of speech that may be replaced: NOUN, ADJ, VERB, ADP.
        filler: Proposes words for the gap; by default the lexicon does, as in `replace`.
    """
    if filler is None:
        return replacement(name, parts)
    propose = partial(_masked, parts=parts, filler=filler)
    return SampledRewrite(name, "5", False, NO_CANDIDATE, propose)


def _fitting(s: Reading, gap: Element, word: str) -> str | None:
    """The lemma of a proposed word, or None when it is no other word of the gap's kind and form."""
    low = word.strip().lower()
    token = s.caption.tokens[gap.first]
    old = token.lemma.lower()
    if gap.pos == "ADP":
        fits = low in PREPOSITIONS and low not in preposition_synonyms(token.text.lower())
        return low if fits and low != token.text.lower() else None
    lemma = lemma_of(low, gap.pos, gap.tag)
    known = low.isalpha() and lexicon().known(lemma, gap.pos)
    if not known or inflect(lemma, gap.tag) != low or related(old, lemma, gap.pos):
        return None
    return lemma


CE_SWAP = negclip_swap("ce-swap", groups=("noun", "plural-noun"))
CE_ADJ, CE_NOUN, CE_VERB = (
    masked_replacement(f"ce-{part.lower()}", (part,)) for part in ("ADJ", "NOUN", "VERB")
)
