"""DAC: dense and aligned captions."""

from __future__ import annotations

from functools import partial

from compoclip.data.plans import BagPlan
from compoclip.losses.bags import bag_loss, bag_negative_loss
from compoclip.losses.contrastive import negclip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.select import OnlyRewrites
from compoclip.methods.base import NEGATIVES, POSITIVES, CaptionPlan, Lora, LossTerm, Method, Optim

OPTIM = Optim(batch_size=32, warmup=10_000, warmup_share=0.1)
CAPTION_NEGATIVE, BAG, BAG_NEGATIVE = 0, 1, 2  # places among the kinds of text of the method


def recipe(
    *,
    bags: str = "",
    bag_size: int = 10,
    negative_weight: float = 1.0,
    bag_weight: float = 1.0,
    bag_negative_weight: float = 1.0,
    optim: Optim = OPTIM,
) -> Method:
    r"""Low-rank adapters; a bag of sentences an image, of which only some need to fit.

    To the losses of `tsvlc` come, with the bag b_i of image i and its negatives,

    .. math::
        L_{MIL} = \mathrm{mean}_i [\mathrm{LSE}(\text{all bags by image } i, \text{bag } i \text{ by
            all images}) - \mathrm{LSE}_m\, s\, u_i \cdot b_{im}], \quad
        L_{MILneg} = \mathrm{mean}_i [\mathrm{LSE}_m(s\, u_i \cdot b_{im}, s\, u_i \cdot b^-_{im})
            - \mathrm{LSE}_m\, s\, u_i \cdot b_{im}].

    Bags come from a file, or are the other captions of an image; an image without one has its
    caption for a bag. Captions should be those of a captioning model. Doveh et al., Dense and
    Aligned Captions (DAC) Promote Compositional Reasoning in VL Models (NeurIPS 2023).

    Args:
        bags: File of JSON lines {"id", "sentences"} and optionally "negatives", one a sentence
            (null for none); without negatives they are made by rule. "id" is a sample's image. Or
            "captions": the other captions of the image.
        bag_size: Sentences an image and epoch, drawn from its bag.
        negative_weight: Weight of the loss on a caption's own negative; 0 leaves the loss out.
        bag_weight: Weight of the contrast of images with bags; 0 leaves the loss out.
        bag_negative_weight: Weight of bags against their negatives; 0 leaves the loss out.
        optim: Optimiser and schedule.
    """
    own = (CAPTION_NEGATIVE,)
    bag = partial(bag_loss, bag=BAG)
    against = partial(bag_negative_loss, bag=BAG, bag_negative=BAG_NEGATIVE)
    both = (*POSITIVES, *NEGATIVES)
    terms = (
        LossTerm("negclip", OnlyRewrites(negclip_loss, own), reads=NEGATIVES, by_kind=True),
        LossTerm(
            "negative",
            OnlyRewrites(global_hn_loss, own),
            weight=negative_weight,
            reads=NEGATIVES,
            by_kind=True,
        ),
        LossTerm("bag", bag, weight=bag_weight, reads=POSITIVES, by_kind=True),
        LossTerm("bag_negative", against, weight=bag_negative_weight, reads=both, by_kind=True),
    )
    return Method(
        name="dac",
        paper="Doveh et al., NeurIPS 2023",
        plan=CaptionPlan(rewrites=("tsvlc-rb",), bags=BagPlan(bags, bag_size)),
        losses=tuple(term for term in terms if term.weight > 0),
        optim=optim,
        lora=Lora(),
        settings={
            "bags": bags,
            "bag_size": bag_size,
            "negative_weight": negative_weight,
            "bag_weight": bag_weight,
            "bag_negative_weight": bag_negative_weight,
        },
    )
