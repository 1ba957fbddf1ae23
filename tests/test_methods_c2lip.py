"""C2LIP against its authors' public code, read at SamsungLabs/concept_centric_clip, 13c4c773 (MIT).

`released` is their loss in one process, as plain loops. What agrees and what does not:

- The contrast with captions, that with phrases and that with attended patches agree, and so do
  their gradients: sigmoid losses, each divided by its number of texts.
- They label a phrase -1 at every image but its own, also where an equal phrase belongs to that
  image; here such pairs are left out, unless `--set mask_duplicates=false`.
- Their option for norms in the loss, which their command leaves off, keeps the length of patches.
  Here patches have unit length, as they have under their command.
- In several processes they multiply the images of one by the phrases of all, and label them by
  places in the whole batch; here the batch is the whole one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.rewrites.units import NOUN_PHRASE
from losses_oracle import CAPTION, POSITIVE, features_for, gradients, layout_of

KINDS = (NOUN_PHRASE,)
TEXTS = [
    *((i, CAPTION, -1) for i in range(4)),
    *((i, POSITIVE, 0) for i in (0, 0, 0, 1, 2, 2, 3)),
]
ZERO = torch.zeros((), dtype=torch.float64)


def batch(seed: int) -> tuple[Features, Layout]:
    """Four images with one to three phrases each, and a bias; equal texts are told apart."""
    layout = layout_of(TEXTS, KINDS)
    count = len(TEXTS)
    layout = replace(layout, text_id=torch.arange(count), image_id=torch.arange(4))
    f = features_for(layout, seed)
    assert f.patches is not None
    unit = torch.nn.functional.normalize(f.patches.detach(), dim=-1).requires_grad_()
    bias = torch.tensor(-3.0, dtype=torch.float64)
    return replace(f, patches=unit, logit_bias=bias), layout


def sigmoid_loss(logits: list[list[Tensor]], right: list[list[bool]]) -> Tensor:
    total = ZERO
    for row, labels in zip(logits, right):
        for logit, label in zip(row, labels):
            total = total - torch.nn.functional.logsigmoid(logit if label else -logit)
    return total / len(logits[0])


def attended(patches: Tensor, query: Tensor) -> Tensor:
    """Their func_attention with "no_norm" and smooth 1, then unit length."""
    weights = [math.e ** (query @ patch) for patch in patches]
    total = sum(weights, ZERO)
    pooled = torch.zeros_like(query)
    for weight, patch in zip(weights, patches):
        pooled = pooled + weight / total * patch
    return pooled / pooled.norm()


def released(f: Features, layout: Layout) -> dict[str, Tensor]:
    assert f.patches is not None
    assert f.logit_bias is not None
    phrases = [t for t in range(len(TEXTS)) if TEXTS[t][1] is POSITIVE]
    own = [[TEXTS[t][0] == i for t in phrases] for i in range(4)]

    def logit(image: Tensor, text: int) -> Tensor:
        return f.logit_scale * (image @ f.text[text]) + f.logit_bias

    captions = [[logit(f.image[i], j) for j in range(4)] for i in range(4)]
    globally = [[logit(f.image[i], t) for t in phrases] for i in range(4)]
    locally = [[logit(attended(f.patches[i], f.text[t]), t) for t in phrases] for i in range(4)]
    return {
        "clip": sigmoid_loss(captions, [[i == j for j in range(4)] for i in range(4)]),
        "phrase": sigmoid_loss(globally, own),
        "patch_phrase": sigmoid_loss(locally, own),
    }


@pytest.fixture(scope="module")
def method() -> Method:
    return load_recipe("c2lip")()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_losses_are_those_of_the_released_code(method: Method, seed: int) -> None:
    f, layout = batch(seed)
    theirs = released(f, layout)
    assert [term.name for term in method.losses] == list(theirs)
    assert [term.weight for term in method.losses] == [1.0, 1.0, 0.01]
    for term in method.losses:
        value, expected = term.loss(f, layout), theirs[term.name]
        torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
        ours, wanted = gradients(value, f), gradients(expected, f)
        for leaf in ("image", "text", "logit_scale"):
            torch.testing.assert_close(ours[leaf], wanted[leaf], atol=1e-9, rtol=1e-8, msg=leaf)


def test_what_differs_equal_phrases_and_the_length_of_patches(method: Method) -> None:
    f, layout = batch(3)
    _, phrase, patch = (term.loss for term in method.losses)
    same = layout.text_id.clone() if layout.text_id is not None else None
    assert same is not None
    same[7] = same[4]  # "a man" of image 1 is said of image 0, too
    alike = replace(layout, text_id=same)
    alike.host.mask_duplicates = True
    assert phrase(f, alike) < phrase(f, layout)
    assert f.patches is not None
    longer = replace(f, patches=3 * f.patches)
    torch.testing.assert_close(patch(longer, layout), patch(f, layout))
    assert abs(released(longer, layout)["patch_phrase"] - patch(f, layout)) > 1e-4
