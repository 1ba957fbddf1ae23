"""READ-CLIP: a caption's vector must let a decoder write another caption, and paraphrases agree."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from compoclip.config import Names, RecordNames
from compoclip.data.caption_plan import OneOf
from compoclip.data.text_names import OTHER_CAPTION, WRITTEN_POSITIVE
from compoclip.data.texts import TargetPlan
from compoclip.losses import caption_alignment
from compoclip.losses.alignment import Align
from compoclip.methods.base import NEGCLIP, POSITIVES, CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.read_clip.decoders import Reconstruction, Target
from compoclip.methods.registry import recipe, variant

OPTIM = Optim(lr=1e-5, beta2=0.999, eps=1e-8, clip_grad=1.0)
PARAPHRASES = (OTHER_CAPTION, WRITTEN_POSITIVE)
SWAPS = ("negclip", "negclip", "negclip")
STAND_INS = {
    OTHER_CAPTION: "paraphrases are other captions of the image; the paper also used a language "
    "model (--positives FILE adds its texts)"
}


@recipe
def read_clip(
    *,
    decoder: Annotated[str, Names("decoder")] = "",
    reconstruction: float = 0.1,
    alignment: float = 0.5,
    positives: RecordNames = "",
    align: Align = "paraphrase",
    target: Target = "other",
) -> Method:
    r"""Hard negatives, captions reconstructed from text states, and aligned paraphrases.

    With captions t, negatives n, paraphrases t' and text states z (before the projection),

    .. math::
        L = L_{clip+neg} - 0.1\, \mathrm{mean}_{i,k} \log p(y_{ik} \mid y_{i<k},\ A z_i)
            + 0.5\, \mathrm{mean}_i \mathrm{CE}_j(s\, t'_i \cdot t_j,\ i),

    where y_i is another caption of the image, p a frozen T5 whose only input is A z_i, and the
    matrix A learns. Three swapped texts per caption; paraphrases are other captions of the image.
    Kwon et al., Enhancing Compositional Reasoning in CLIP via Reconstruction and Alignment of Text
    Descriptions (NeurIPS 2025). `read-clip-align` does without the decoder.

    Args:
        decoder: Folder of a T5 with its tokenizer (published: google/t5-v1_1-large), read by
            transformers; or a Python file with a decoder.
        reconstruction: Weight of the decoder's loss; 0 leaves out the loss and the decoder.
        alignment: Weight of the alignment of paraphrases with captions; 0 leaves it out.
        positives: File of further written paraphrases: JSON lines {"caption", "positive"}, with a
            text, several, or "None".
        align: paraphrase is a softmax over captions per paraphrase; transpose the reverse.
        target: Caption for the decoder to write: other, another caption of the image if there is
            one, or any of its captions.
    """
    paraphrase = OneOf("paraphrase", PARAPHRASES) if positives else OTHER_CAPTION
    aligned = partial(caption_alignment, positives=PARAPHRASES, align=align)
    terms = (
        NEGCLIP,
        LossTerm("reconstruction", Reconstruction(decoder), weight=reconstruction),
        LossTerm("alignment", aligned, weight=alignment, reads=POSITIVES),
    )
    return Method(
        paper="Kwon et al., NeurIPS 2025",
        plan=CaptionPlan(
            rewrites=(*SWAPS, paraphrase) if alignment > 0 else SWAPS,
            written=positives,
            texts=(TargetPlan(target),) if reconstruction > 0 else (),
        ),
        losses=terms,
        optim=OPTIM,
        crop=False,
        stand_ins=STAND_INS if alignment > 0 else {},
    )


@variant(read_clip, reconstruction=0.0)
def read_clip_align(method: Method) -> Method:
    """READ-CLIP without a decoder: hard negatives, and aligned paraphrases.

    Otherwise like `read-clip`: Kwon et al. (NeurIPS 2025).
    """
    return method
