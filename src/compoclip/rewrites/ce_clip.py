"""The four hard negatives of CE-CLIP (Zhang et al., CVPR 2024).

One swaps two nouns; three replace an adjective, a noun or a verb by a word of the lexicon, where
the paper asks a masked language model.
"""

from __future__ import annotations

from compoclip.rewrites.negclip import negclip_swap
from compoclip.rewrites.replace import replacement

CE_SWAP = negclip_swap("ce-swap", groups=("noun", "plural-noun"))
CE_ADJ, CE_NOUN, CE_VERB = (
    replacement(f"ce-{part.lower()}", (part,)) for part in ("ADJ", "NOUN", "VERB")
)
