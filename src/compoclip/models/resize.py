"""Models with another number of text positions, or for another image size."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from open_clip.model import resize_pos_embed
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor

from compoclip.errors import UsageError
from compoclip.models.architecture import build_model
from compoclip.models.checkpoint import LoadedModel, assemble
from compoclip.models.config import POSITIONS

KEPT = 20
"""First text positions that stay as they are."""
_TRUNK = "visual.trunk.pos_embed"


def resized(
    loaded: LoadedModel, context_length: int | None = None, image_size: int | None = None
) -> LoadedModel:
    """Interpolate the position embeddings of a model.

    Args:
        loaded: The model.
        context_length: Tokens per text. None: as it is.
        image_size: Height and width of images in pixels. None: as it is.

    Returns:
        A new model on the CPU.

    Raises:
        UsageError: The text tower has no table of positions.
        CompoclipError: The image tower does not fit images of that size.
    """
    sizes = {"context_length": context_length, "image_size": image_size}
    config = deepcopy(dict(loaded.config.model_cfg))
    state = {name: value.cpu() for name, value in loaded.encoder.model.state_dict().items()}
    if context_length is not None:
        name = next((key for key in POSITIONS if key in state), None)
        if name is None:
            raise UsageError(f"{loaded.name}: its text tower has no table of positions to stretch")
        config["text_cfg"]["context_length"] = context_length
        state[name] = stretched(state[name], context_length)
    if image_size is not None:
        config["vision_cfg"]["image_size"] = image_size
        network = build_model(config, None)
        resize_pos_embed(state, network)
        if _TRUNK in state:
            trunk: Any = network.get_submodule("visual.trunk")
            state[_TRUNK] = resample_abs_pos_embed(
                state[_TRUNK],
                new_size=list(trunk.patch_embed.grid_size),
                num_prefix_tokens=trunk.num_prefix_tokens,
            )
    assembled = assemble(replace(loaded.config, model_cfg=config), loaded.name, state=state)
    return replace(assembled, provenance={**loaded.provenance, "resized": sizes})


def stretched(table: Tensor, length: int) -> Tensor:
    r"""Stretch a table of text positions, as Long-CLIP does.

    The first `KEPT` rows stay. Row j of the others is read at k + (j - k) (L - k) / (N - k) with k
    = `KEPT`, linearly between two rows and on in a straight line after the last. A shorter table
    has the first rows.

    Reference: Zhang et al., Long-CLIP: Unlocking the Long-Text Capability of CLIP, ECCV 2024.
    """
    old = len(table)
    if length <= old:
        return table[:length].clone()
    fixed = min(KEPT, old - 2)
    place = fixed + torch.arange(length - fixed) * ((old - fixed) / (length - fixed))
    low = place.long().clamp(max=old - 2)
    share = (place - low).to(table.dtype)[:, None]
    return torch.cat([table[:fixed], table[low] * (1 - share) + table[low + 1] * share])
