"""Which words of a caption it does not simply assert, so that editing them proves nothing.

"There is no red star" stays true when the star turns blue; "a cat or a dog" may stay true when the
dog turns into a cow.
"""

from __future__ import annotations

from compoclip.captions.types import Token
from compoclip.captions.words import word_set

_BOUNDARIES = frozenset((".", "!", "?", ";", "but", "\n"))
# These open a scope that runs to the end of the clause ...
_NO = word_set("no without neither nor none nobody nothing lacking missing minus except")
# ... and these colour the whole clause.
_NOT = word_set(
    "not n't n’t cannot never or either maybe perhaps possibly probably might may could would "
    "should if only unless hardly barely almost supposedly fake pretend"
)


_TRIGGERS = _NO | _NOT


def unasserted(tokens: tuple[Token, ...], lows: tuple[str, ...] | None = None) -> frozenset[int]:
    """Indices of tokens under a negation, an alternative or a doubt.

    "no", "without" and the like reach from themselves to the end of the clause; "not", "or",
    "might", "only" reach over the whole clause. Clauses end at . ! ? ; and "but". lows: the texts
    of the tokens in lower case, if they are known.
    """
    if lows is None:
        lows = tuple([token.text.lower() for token in tokens])
    if _TRIGGERS.isdisjoint(lows) and not any(word.endswith(("n't", "n’t")) for word in lows):
        return frozenset()
    found: set[int] = set()
    start = 0
    for index in range(len(lows) + 1):
        if index < len(lows) and lows[index] not in _BOUNDARIES:
            continue
        found.update(_clause(lows, start, index))
        start = index + 1
    return frozenset(found)


def _clause(lows: tuple[str, ...], start: int, stop: int) -> range:
    reach = stop
    for index in range(start, stop):
        word = lows[index]
        if word in _NOT or word.endswith(("n't", "n’t")):
            return range(start, stop)
        if word in _NO:
            reach = min(reach, index)
    return range(reach, stop)
