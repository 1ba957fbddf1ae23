"""Hard positives by one synonym of the published table (METHODS 6 and 17.7)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.edit import Change, cased_like
from compoclip.rewrites.structure import structure_of
from compoclip.rewrites.synonyms import places
from compoclip.rewrites.validity import EMPTY, edited

NO_SYNONYM = "no-synonym"


@dataclass(frozen=True)
class Synonym:
    """Replaces one word or phrase by its synonym, in the same form; place and entry uniform.

    strict: leave out the entries that are not quite the same (above -> on top of, wearing -> in,
    by -> near; [D-hp-4]). The rule of a result says whether its entry is such a loose one.
    """

    name: str = "synonym"
    version: str = "2"
    keeps_meaning: bool = True
    strict: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused`: "no-synonym", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        found = [p for p in places(structure_of(caption)) if not (self.strict and p.entry.loose)]
        reason = NO_SYNONYM
        for place in rng.sample(found, len(found)):
            text = cased_like(place.text, caption, place.first)
            rule = f"synonym:{place.entry.kind}{'-loose' if place.entry.loose else ''}"
            change = Change(place.first, place.stop, text)
            result = edited(caption, [change], rewrite=self.name, keeps_meaning=True, rule=rule)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
        return Refused(reason)


SYNONYM_STRICT = Synonym(name="synonym-strict", strict=True)
