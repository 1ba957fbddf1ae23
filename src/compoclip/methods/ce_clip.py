"""CE-CLIP: intra-modal contrast and a ranking with adaptive margins."""

from __future__ import annotations

from functools import partial

from compoclip.losses import RankingLoss, intra_modal_loss
from compoclip.losses.intra_cross import Imc
from compoclip.methods.base import NEGATIVES, NEGCLIP, CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.registry import recipe

PLAN = CaptionPlan(rewrites=("ce-swap", "ce-adj", "ce-noun", "ce-verb"))
STAND_INS = {
    "ce-noun": "`ce-adj`, `ce-noun` and `ce-verb` take words from a lexicon; the paper used a "
    "masked language model"
}


@recipe
def ce_clip(
    *,
    ranking_weight: float = 0.2,
    intra_weight: float = 0.3,
    largest_margin: float = 10.0,
    imc: Imc = "paper",
) -> Method:
    r"""Four negatives per caption, in a ranking loss with adaptive margins and a text contrast.

    With captions t and negatives n of kind k,

    .. math::
        L = L_{clip+neg} + 0.2\, \mathrm{mean}_{i,n}\, \mathrm{relu}(\theta_k + s\, u_i \cdot n
            - s\, u_i \cdot t_i) + 0.3\, \mathrm{mean}_i \mathrm{CE}([s\, u_i \cdot t_i;\
            s\, t_i \cdot n], 0),

    where the margins follow the gap of the previous step. Negatives: nouns swapped; an adjective, a
    noun, a verb replaced (published: by a masked language model). Zhang et al., Contrasting
    Intra-Modal and Ranking Cross-Modal Hard Negatives to Enhance Visio-Linguistic Compositional
    Understanding (CVPR 2024); batch of 4 x 378 on COCO.

    Args:
        ranking_weight: Weight of the ranking loss; 0 leaves it out.
        intra_weight: Weight of the intra-modal contrast; 0 leaves it out.
        largest_margin: Upper limit of the margins, in units of logits.
        imc: Intra-modal contrast of the paper, or of the last released code (head), whose target is
            a negative; for comparison only.
    """
    ranking = RankingLoss(PLAN.kinds, largest=largest_margin)
    terms = (
        NEGCLIP,
        LossTerm("ranking", ranking, weight=ranking_weight, reads=NEGATIVES),
        LossTerm(
            "intra_modal", partial(intra_modal_loss, imc=imc), weight=intra_weight, reads=NEGATIVES
        ),
    )
    return Method(
        paper="Zhang et al., CVPR 2024",
        plan=PLAN,
        losses=terms,
        optim=Optim(epochs=10, batch_size=1512),
        stand_ins=STAND_INS,
    )
