"""Which texts of a batch are true of which images, beside the pairs it was made of.

A batch may hold the same photo twice, or photos with the same caption. A contrast that treats
such a pair as wrong teaches the opposite of what the data say.
"""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Layout, Role


def true_pairs(layout: Layout) -> Tensor:
    """(B, T) bool: the text equals a CAPTION or POSITIVE of the image, or of the same photo.

    Texts are equal by `text_id`, photos by `image_id`; where the layout has only one of the two,
    the other is taken to be all different. A NEGATIVE that equals a caption of the image is true.

    Raises: ValueError when the layout has neither.
    """
    text_id, image_id = layout.text_id, layout.image_id
    if text_id is None and image_id is None:
        raise ValueError("masking duplicates needs text_id or image_id in the layout")
    device = layout.owner.device
    text, texts = _groups(text_id, layout.owner.numel(), device)
    photo, photos = _groups(image_id, layout.images, device)
    positive = layout.role != int(Role.NEGATIVE)
    true = torch.zeros((photos, texts), dtype=torch.bool, device=device)
    true[photo[layout.owner[positive]], text[positive]] = True
    return true[photo][:, text]


def _groups(identity: Tensor | None, count: int, device: torch.device) -> tuple[Tensor, int]:
    """Each element's group, numbered from 0, and the number of groups."""
    if identity is None:
        return torch.arange(count, device=device), count
    unique, group = torch.unique(identity, return_inverse=True)
    return group, unique.numel()
