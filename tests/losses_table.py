"""Every loss by name, in the forms that recipes give it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from compoclip.losses.alignment import caption_alignment
from compoclip.losses.bags import bag_loss, bag_negative_loss
from compoclip.losses.composite import composite_contrast_loss, single_negative_loss, unimodal_loss
from compoclip.losses.contract import Features, Layout
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.hard_positive import hard_positive_loss
from compoclip.losses.intra_cross import RankingLoss, intra_modal_loss
from compoclip.losses.local import local_hn_loss
from compoclip.losses.multi_text import multi_text_loss
from compoclip.losses.phrases import patch_phrase_loss, phrase_loss
from compoclip.losses.teacher import feature_distillation, teacher_text_contrast
from compoclip.losses.triplet import triplet_clip_loss
from compoclip.losses.units import unit_loss
from losses_oracle import KINDS, POSITIVES, masking
from losses_pairs import biased

LossFn = Callable[[Features, Layout], Tensor]

CALIBRATED = {"gamma": 2.0, "beta": 0.02}
LOSSES: dict[str, LossFn] = {
    "clip": clip_loss,
    "negclip": negclip_loss,
    "negclip zero": partial(negclip_loss, missing_hn="zero", kinds=KINDS),
    "global": partial(global_hn_loss, **CALIBRATED),
    "global zero": partial(global_hn_loss, missing_hn="zero", kinds=KINDS, **CALIBRATED),
    "global gamma 0.5": partial(global_hn_loss, gamma=0.5),
    "local": partial(local_hn_loss, **CALIBRATED),
    "local sparse": partial(local_hn_loss, attention="minmax_sparse", **CALIBRATED),
    "local softmax": partial(local_hn_loss, attention="softmax", **CALIBRATED),
    "local grad": partial(local_hn_loss, attention_grad=True, **CALIBRATED),
    "local zero": partial(local_hn_loss, missing_hn="zero", kinds=KINDS, **CALIBRATED),
    "hard positive": hard_positive_loss,
    "hard positive symmetric": partial(hard_positive_loss, symmetric_pos=True),
    "multi-text": multi_text_loss,
    "multi-text masked": masking(multi_text_loss),
    "composite": partial(composite_contrast_loss, positives=POSITIVES),
    "single negative": partial(single_negative_loss, positives=POSITIVES),
    "unimodal": partial(unimodal_loss, positive=POSITIVES[0]),
    "intra-modal": intra_modal_loss,
    "bag": partial(bag_loss, bag=POSITIVES[0]),
    "bag negative": partial(bag_negative_loss, bag=POSITIVES[0], bag_negative=KINDS[1]),
    "negclip duplicates": masking(negclip_loss),
    "triplet": triplet_clip_loss,
    "alignment": caption_alignment,
    "alignment transposed": partial(caption_alignment, align="transpose"),
    "distillation": feature_distillation,
    "teacher contrast": teacher_text_contrast,
    "ranking": lambda features, layout: RankingLoss(KINDS)(features, layout),
    "clip of a bias": biased(clip_loss),
    "negclip of a bias": biased(partial(negclip_loss, missing_hn="zero", kinds=KINDS)),
    "negclip duplicates of a bias": biased(masking(negclip_loss)),
    "multi-text of a bias": biased(masking(multi_text_loss)),
    "hard positive of a bias": biased(partial(hard_positive_loss, symmetric_pos=True)),
    "unit": partial(unit_loss, units=POSITIVES, foils=KINDS),
    "unit masked": masking(partial(unit_loss, units=POSITIVES, foils=KINDS)),
    "phrase": partial(phrase_loss, phrase=POSITIVES[0]),
    "phrase masked of a bias": biased(masking(partial(phrase_loss, phrase=POSITIVES[0]))),
    "patch phrase": partial(patch_phrase_loss, phrase=POSITIVES[0]),
    "patch phrase of a bias": biased(partial(patch_phrase_loss, phrase=POSITIVES[0])),
    "bag of a bias": biased(partial(bag_loss, bag=POSITIVES[0])),
}
