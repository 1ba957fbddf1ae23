"""The straightforward training step, kept as the measure of the one that is used.

Every text has the full length of the context, captions and each kind of rewrite go through the text
tower on their own, an image without a rewrite has its caption encoded again in its place, and the
attention mask is one that is added: what open_clip's `encode_text` and the published code do. The
losses, the image tower and the optimiser are those of `step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compoclip.data.sample import Batch
from compoclip.losses.contract import Features
from compoclip.methods.base import Method
from compoclip.models.dual_encoder import DualEncoder
from compoclip.train.step import StepResult, StepSettings, Tokenizer, result_of, weighted_loss


def plain_step(
    encoder: DualEncoder, tokenize: Tokenizer, method: Method, batch: Batch, settings: StepSettings
) -> StepResult:
    """What `step` computes, computed the long way: the same loss and gradients.

    For a network with open_clip's own causal text tower and local features, and batches with one
    text of each kind at most.
    """
    device = torch.device(settings.device)
    forwards, row = separate_forwards(batch, method.kinds)
    layout = batch.block.layout(method.kinds, device, tokenize(list(batch.block.texts)))
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
        image = encoder.encode_images(batch.normalised(device), patches=True)
        texts = [_full_length(encoder.model, tokenize(each).to(device)) for each in forwards]
    pooled, states, mask = (torch.cat(parts)[row.to(device)] for parts in zip(*texts))
    features = Features(
        image=F.normalize(image.pooled.float(), dim=-1),
        text=F.normalize(pooled.float(), dim=-1),
        logit_scale=encoder.logit_scale.exp(),
        patches=None if image.patches is None else image.patches.float(),
        tokens=states.float(),
        token_mask=mask,
    )
    terms, loss = weighted_loss(method.terms_on(batch.kind), features, layout)
    loss.backward()  # type: ignore[no-untyped-call]
    return result_of(terms, loss)


def separate_forwards(batch: Batch, kinds: Sequence[str]) -> tuple[list[list[str]], Tensor]:
    """The texts of each forward pass, captions first, then one of each kind for every image; and
    for every text of the block its place in them, one pass after the other."""
    block = batch.block
    place = {(block.rewrite[t], block.owner[t]): t for t in range(len(block.texts))}
    names = ("", *kinds)
    forwards = [
        [block.texts[place.get((name, i), place["", i])] for i in range(block.images)]
        for name in names
    ]
    row = [names.index(kind) * block.images + i for kind, i in zip(block.rewrite, block.owner)]
    return forwards, torch.tensor(row)


def _full_length(network: Any, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pooled (n, D) and projected states (n, context, D), and which states are real."""
    x = network.token_embedding(ids) + network.positional_embedding
    x = network.transformer(x, attn_mask=network.attn_mask)
    states = network.ln_final(x) @ network.text_projection
    end = ids.argmax(dim=-1)
    position = torch.arange(ids.shape[1], device=ids.device)
    mask = (position >= 1) & (position <= end[:, None])
    return states[torch.arange(len(ids), device=ids.device), end], states, mask
