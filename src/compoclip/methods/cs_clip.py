"""CS-CLIP: units of captions, each with a foil of its own."""

from __future__ import annotations

from functools import partial
from typing import Literal

from compoclip.config import FileNames
from compoclip.data.caption_plan import FirstOf
from compoclip.data.text_names import GIVEN
from compoclip.data.texts import UnitPlan
from compoclip.losses import negclip_loss, unit_loss
from compoclip.losses.rows import OnlyKinds
from compoclip.losses.units import Slots
from compoclip.methods.base import NEGATIVES, POSITIVES, CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.registry import recipe

OPTIM = Optim()
FOIL_CAPTION = "foil-caption"


@recipe
def cs_clip(
    *,
    unit_weight: float = 0.5,
    unit_slots: int = 2,
    pair_share: float = 0.5,
    units: FileNames = "",
    negatives: Literal["made", "given"] = "made",
    slots: Slots = "filled",
) -> Method:
    r"""Contrast with units of captions, entities and relations, each against one foil.

    A unit is "black cat", "black cat and red mat" or "cat on mat"; its foil has one thing,
    attribute or relation changed. With one foil caption per image in `negclip_loss`, v_ik the unit
    of image i in slot k, w_ik its foil, and V_k the images that have one,

    .. math::
        L = L_{negclip} + \tfrac{w}{2 N} \sum_k \big[ \mathrm{mean}_{i \in V_k} \mathrm{CE}([s\, u_i
            \cdot v_{jk},\ s\, u_i \cdot w_{ik}],\ i) + \mathrm{mean}_{i \in V_k} \mathrm{CE}_j(s\,
            v_{ik} \cdot u_j,\ i) \big].

    A slot takes a relation if the caption has one, else an entity, half of the time with another
    one. Units come from scene graphs, or from CS-CLIP's file, written by a language model. The foil
    caption is a swap, or else has one word replaced. A slot without a unit stays empty (released
    code: a copy of another unit of the batch), and foils edit words, not the first matching string
    ("man" in "woman"). CS-CLIP, arXiv 2602.23906 (2026).

    Args:
        unit_weight: Weight of the loss on units; 0 leaves it out.
        unit_slots: Units per caption and epoch.
        pair_share: Share of entities that come with another one.
        units: JSON file with CS-CLIP's training data, whose units and foils replace scene graphs'.
            It can be --data too.
        negatives: made makes rule-based foil captions; given takes the data's (swap negatives of
            CS-CLIP's file), and makes missing ones.
        slots: Average over the slots with a unit (filled), or over all slots (all).
    """
    plan = UnitPlan(unit_slots, pair_share=pair_share, file=units)
    of = (*((GIVEN,) if negatives == "given" else ()), "negclip", "replace")
    texts = CaptionPlan(rewrites=(FirstOf(FOIL_CAPTION, of),), texts=(plan,) if unit_weight else ())
    unit = partial(unit_loss, units=plan.units, foils=plan.foils, slots=slots)
    # The foils of units are for their own loss alone.
    terms = (
        LossTerm("negclip", OnlyKinds(negclip_loss, texts.rewrite_names), reads=NEGATIVES),
        LossTerm("unit", unit, weight=unit_weight, reads=(*POSITIVES, *NEGATIVES)),
    )
    return Method(
        paper="CS-CLIP, arXiv 2602.23906", plan=texts, losses=terms, optim=OPTIM, crop=False
    )
