"""Slipform: negatives of concrete words, each with a margin that grows with how concrete it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from compoclip.config import FileName
from compoclip.data.caption_plan import Texts
from compoclip.data.drawing import NOT_CHOSEN, Drawing, Drawn
from compoclip.errors import UsageError
from compoclip.losses.concrete import cement_loss
from compoclip.losses.contract import Role
from compoclip.methods.base import NEGATIVES, CaptionPlan, LossTerm, Method
from compoclip.methods.registry import recipe
from compoclip.rewrites.base import Refused
from compoclip.rewrites.concrete import KINDS, concrete_rewrite, read_ratings


@dataclass(frozen=True)
class ConcretePlan(Texts):
    """A negative per caption with one word replaced, which is a concrete one more often.

    Args:
        ratings: File of concreteness ratings; "" guesses by the kind of word.
    """

    ratings: str = ""

    name: ClassVar[str] = "concrete"
    label: ClassVar[str] = "replaced concrete words"
    roles: ClassVar[tuple[Role, ...]] = NEGATIVES
    from_file: ClassVar = ("ratings", read_ratings)
    kinds = KINDS

    def draw_texts(self, drawing: Drawing, loaded: Any) -> None:
        """Add the negative, if there is one."""
        if not drawing.negatives:
            drawing.refuse(self.name, NOT_CHOSEN)
            return
        caption, rng = drawing.parse(drawing.caption), drawing.rng(self.name)
        result = concrete_rewrite(self.name, loaded)(caption, rng)
        if isinstance(result, Refused):
            drawing.refuse(self.name, result.reason)
        else:
            drawing.add(Drawn.of(result), result.rule, self.name)


@recipe
def slipform(*, ratings: FileName = "", margin: float = 0.05) -> Method:
    r"""Negatives of concrete words, with a margin that grows with concreteness (Slipform).

    A word that one can see or touch is replaced more often than an abstract one, in proportion to
    its concreteness c, and the image's own negatives n get a margin of m c:

    .. math::
        L = \tfrac12 \big[ \mathrm{CE}([s\, u_i \cdot t,\ s (u_i \cdot n + m\, c\,
            [n \text{ is of } i])],\ i) + \mathrm{CE}(s\, t_i \cdot u,\ i) \big].

    Published negatives are written by a language model; here one word is replaced by rule. c is in
    quarters. Im et al., Concrete Jungle: Towards Concreteness Paved Contrastive Negative Mining for
    Compositional Understanding (arXiv 2604.13313, 2026). The equation and m are ours, since neither
    equation nor code was at hand; all else is as in `negclip`.

    Args:
        ratings: CSV or tab-separated file with the columns Word and Conc.M (concreteness from 1 to
            5), such as Brysbaert et al. (2014). Without one c is a guess by the kind of word: 1 for
            things, 0.75 for properties, 0.5 for relations.
        margin: Margin m in units of cosines; 0 is `negclip` on these negatives.
    """
    if not 0 <= margin <= 2:
        raise UsageError(f"--margin {margin:g}: must lie between 0 and 2, as cosines do")
    loss = partial(cement_loss, margin=margin, kinds=KINDS)
    return Method(
        paper="Im et al., arXiv 2604.13313",
        plan=CaptionPlan(texts=(ConcretePlan(ratings),)),
        losses=(LossTerm("cement", loss, reads=NEGATIVES),),
    )
