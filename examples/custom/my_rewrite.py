"""my-rewrite: a custom caption rewrite.

compoclip rewrite "a red star above a blue mug" --rewrites ./my_rewrite.py
compoclip train negclip --texts +./my_rewrite.py --data DATA --out RUN
"""

import random
from dataclasses import dataclass

from compoclip.captions import Caption
from compoclip.rewrites import Edit, Refused, Rewritten

OPPOSITES = {"above": "below", "left": "right", "inside": "outside", "with": "without"}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}


@dataclass(frozen=True)
class MyRewrite:
    """Replaces one preposition by its opposite."""

    name: str = "my-rewrite"
    version: str = "1"  # raise it whenever the texts change
    keeps_meaning: bool = False  # a hard negative; True makes hard positives

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """Return one text, or the reason why there is none. Randomness comes from rng alone."""
        # A token has text, lemma, pos, tag and its span in caption.text; there are
        # caption.chunks and caption.graph, too.
        places = [token for token in caption.tokens if token.text.lower() in OPPOSITES]
        if not places:
            return Refused("no-opposite")
        token = rng.choice(places)
        word = OPPOSITES[token.text.lower()]
        text = caption.text[: token.start] + word + caption.text[token.end :]
        edit = Edit(token.start, token.end, token.start, token.start + len(word))
        return Rewritten(text, self.name, self.keeps_meaning, "opposite", (edit,))
