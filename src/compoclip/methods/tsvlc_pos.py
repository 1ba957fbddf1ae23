"""TSVLC with hard positives beside its negatives."""

from __future__ import annotations

from dataclasses import replace

from compoclip.methods import tsvlc
from compoclip.methods.base import Method, Optim

OPTIM = tsvlc.OPTIM


def recipe(
    *,
    negative_weight: float = 1.0,
    positive_weight: float = 1.0,
    actions: tsvlc.Actions = "spatial",
    optim: Optim = OPTIM,
) -> Method:
    r"""TSVLC, and a synonym or exchanged conjuncts of each caption that are as true.

    To the losses of `tsvlc` comes, with hard positives v+ and captions t,

    .. math::
        w_+ \tfrac12 \big[ \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot v^+,\ i)
            + \mathrm{mean}_i \mathrm{CE}(s\, t_i \cdot v^+,\ i) \big].

    All else as `tsvlc`: Doveh et al. (CVPR 2023).

    Args:
        negative_weight: Weight of the loss on an image's own negatives; 0 leaves the loss out.
        positive_weight: Weight of the loss on hard positives; 0 is `tsvlc`.
        actions: spatial exchanges verbs and prepositions of place, verbs verbs alone, by words that
            exclude the old one. released has the 47 words of the released code's list of actions
            (in, on, with, holding, wearing), and puts any other word of a list for one of it.
        optim: Optimiser and schedule.
    """
    method = tsvlc.recipe(
        negative_weight=negative_weight,
        positive_weight=positive_weight,
        actions=actions,
        optim=optim,
    )
    return replace(method, name="tsvlc-pos")
