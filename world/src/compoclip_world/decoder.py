"""A small decoder with random weights, for trials of READ-CLIP without a T5.

compoclip train read-clip --decoder world/src/compoclip_world/decoder.py ...
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor, nn

from compoclip.methods.read_clip.decoders import END, LONGEST, padded, shifted, summed


class GruDecoder(nn.Module):
    """A frozen decoder of one GRU layer over words, whose first state is the text's vector.

    A word's id is a hash below `vocabulary`. `width` E is that of the vector, of embeddings and of
    the state.
    """

    def __init__(self, vocabulary: int = 1024, width: int = 64, seed: int = 0) -> None:
        super().__init__()
        self.width = width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(vocabulary, width)
            self.gru = nn.GRU(width, width, batch_first=True)
            self.output = nn.Linear(width, vocabulary)
        self.requires_grad_(False)

    def tokens(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """See `Decoder.tokens`; the ids are hashes of lower-case words, then the end token."""
        kinds = self.embedding.num_embeddings - 2
        rows = []
        for text in texts:
            words = text.lower().split()[: LONGEST - 1]
            hashes = (blake2b(word.encode(), digest_size=8).digest() for word in words)
            rows.append([*(2 + int.from_bytes(code, "little") % kinds for code in hashes), END])
        return padded(rows)

    def nll(self, h: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """See `Decoder.nll`."""
        states, _ = self.gru(self.embedding(shifted(ids)), h.transpose(0, 1).contiguous())
        return summed(self.output(states), ids, mask)
