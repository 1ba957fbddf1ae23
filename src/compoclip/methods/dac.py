"""DAC: dense and aligned captions."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from compoclip.config import Names, RecordNames
from compoclip.data.caption_plan import OneOf
from compoclip.data.text_names import WRITTEN_NEGATIVE
from compoclip.data.texts import BAG, BAG_NEGATIVE, BagPlan
from compoclip.errors import UsageError
from compoclip.losses import bag_loss, bag_negative_loss, global_hn_loss, negclip_loss
from compoclip.losses.rows import OnlyKinds
from compoclip.methods import tsvlc
from compoclip.methods.base import NEGATIVES, POSITIVES, CaptionPlan, Lora, LossTerm, Method, Optim
from compoclip.methods.registry import recipe


@recipe
def dac(
    *,
    bags: Annotated[str, Names("records or captions")] = "",
    bag_size: int = 10,
    bag_draw: Literal["replacement", "distinct"] = "replacement",
    neg_type: Literal["rand_both", "rule_based"] = "rand_both",
    negatives: RecordNames = "",
    actions: tsvlc.Actions = "spatial",
    negative_weight: float = 1.0,
    bag_weight: float = 1.0,
    bag_negative_weight: float = 1.0,
) -> Method:
    r"""Low-rank adapters; a bag of sentences per image, of which only some need to fit.

    To the losses of `tsvlc` come, with the bag b_i of image i and its negatives,

    .. math::
        L_{MIL} = \mathrm{mean}_i [\mathrm{LSE}(\text{all bags by image } i, \text{bag } i \text{ by
            all images}) - \mathrm{LSE}_m\, s\, u_i \cdot b_{im}], \quad
        L_{MILneg} = \mathrm{mean}_i [\mathrm{LSE}_m(s\, u_i \cdot b_{im}, s\, u_i \cdot b^-_{im})
            - \mathrm{LSE}_m\, s\, u_i \cdot b_{im}].

    Bags come from a file, or are the other captions of an image; an image without one has its
    caption for a bag. Negatives of captions and of bags are by rule or, half of the time, a
    replacement of any word: by a masked language model in the published runs, here read from a
    file, or else made by the rewrite `replace` from a lexicon. Captions should be those of a
    captioning model. Doveh et al., Dense and
    Aligned Captions (DAC) Promote Compositional Reasoning in VL Models (NeurIPS 2023).

    Args:
        bags: File of JSON lines {"id", "sentences"} and optionally "negatives", one per sentence or
            null; rewrites make missing ones. "id" is a sample's image. Or "captions": the other
            captions of the image.
        bag_size: Sentences per image and epoch, sampled from its bag.
        bag_draw: replacement samples with replacement from the bag and the caption, as the released
            code does; distinct samples each sentence of the bag at most once.
        neg_type: rand_both makes half of the negatives by rule and half by replacing any word (or
            by the one that applies); rule_based makes all by rule.
        negatives: File of written negatives of captions and sentences of bags: JSON lines
            {"caption", "negative"}, with a text, several, or "None".
        actions: spatial exchanges verbs and prepositions of place, verbs verbs alone, by words that
            exclude the old one. released has the 47 words of the released code's list of actions
            (in, on, with, holding, wearing), and puts any other word of a list for one of it.
        negative_weight: Weight of the loss on a caption's negative; 0 leaves the loss out.
        bag_weight: Weight of the contrast of images with bags; 0 leaves the loss out.
        bag_negative_weight: Weight of bags against their negatives; 0 leaves the loss out.
    """
    if negatives and neg_type == "rule_based":
        raise UsageError("--negatives goes with --neg-type rand_both")
    by_rule = tsvlc.BY_RULE[actions]
    either = (by_rule, WRITTEN_NEGATIVE if negatives else tsvlc.FILLED)
    both_types = neg_type == "rand_both"
    plan = CaptionPlan(
        rewrites=(OneOf("hard-negative", either) if both_types else by_rule,),
        texts=(BagPlan(bags, bag_size, either if both_types else (by_rule,), bag_draw),),
        written=negatives,
    )
    # The negatives of bags are for their own loss alone.
    contrast, negative = (OnlyKinds(f, plan.rewrite_names) for f in (negclip_loss, global_hn_loss))
    bag = partial(bag_loss, bag=BAG)
    against = partial(bag_negative_loss, bag=BAG, bag_negative=BAG_NEGATIVE)
    both = (*POSITIVES, *NEGATIVES)
    terms = (
        LossTerm("negclip", contrast, reads=NEGATIVES),
        LossTerm("negative", negative, weight=negative_weight, reads=NEGATIVES),
        LossTerm("bag", bag, weight=bag_weight, reads=POSITIVES),
        LossTerm("bag_negative", against, weight=bag_negative_weight, reads=both),
    )
    return Method(
        paper="Doveh et al., NeurIPS 2023",
        plan=plan,
        losses=terms,
        optim=Optim(batch_size=32, warmup=10_000, warmup_share=0.1),
        lora=Lora(),
        stand_ins=tsvlc.STAND_INS,
    )
