"""READ-CLIP: the frozen decoder that writes a caption from one vector, and the head before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, file_digest
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F

from compoclip import plugins
from compoclip.errors import CompoclipError, UsageError, optional
from compoclip.files import parse_json, reason
from compoclip.losses.contract import (
    Features,
    HeadPlan,
    Layout,
    TowerSizes,
    computed,
    full_precision,
)
from compoclip.losses.rows import captions

PAD, END = 0, 1  # ids of T5, and of ours; decoding starts from PAD
LONGEST = 64  # tokens that are asked of a decoder
_CONFIG = "config.json"
_TOKENIZERS = ("tokenizer.json", "spiece.model")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError)


class Decoder(Protocol):
    """A frozen module that gives texts a likelihood from one vector of length `width` each."""

    width: int

    def tokens(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return (B, L) int64 ids on the CPU, and a (B, L) bool mask that is False at padding."""
        ...

    def nll(self, h: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the negative log-likelihood of texts, summed over their tokens.

        h: (B, 1, E). ids, mask: results of `tokens` on the device of h.
        """
        ...


class T5Decoder(nn.Module):
    """The decoder of a T5 with its language-model head; the encoder is left out.

    Args:
        model: A `T5ForConditionalGeneration` of transformers.
        tokenize: Texts -> ids of each, the end of text included.
    """

    def __init__(self, model: Any, tokenize: Callable[[list[str]], list[list[int]]]) -> None:
        super().__init__()
        model.encoder = nn.Identity()
        self.model = model.float().eval().requires_grad_(False)
        self.width = int(model.config.d_model)
        self._tokenize = tokenize

    def tokens(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """See `Decoder.tokens`."""
        rows = self._tokenize(list(texts))
        return padded([ids[: LONGEST - 1] + ids[LONGEST - 1 :][-1:] for ids in rows])

    def nll(self, h: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """See `Decoder.nll`; the vector is the only encoder state."""
        logits: Tensor = self.model(
            encoder_outputs=(h,),
            attention_mask=h.new_ones(h.shape[:2], dtype=torch.int64),
            decoder_input_ids=shifted(ids),
            use_cache=False,
        ).logits
        return summed(logits, ids, mask)


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return (B, L) ids of rows of any length, and a mask that is False at padding."""
    longest = max(map(len, rows), default=0)
    filled = [[*row, *repeat(PAD, longest - len(row))] for row in rows]
    ids = torch.tensor(filled, dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(longest) < lengths[:, None]


def shifted(ids: Tensor) -> Tensor:
    """Return the token before each of these."""
    return F.pad(ids[:, :-1], (1, 0), value=PAD)


def summed(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the cross-entropy of ids, summed over the positions of a mask."""
    losses = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten(), reduction="none")
    return (losses * mask.flatten()).sum()


# --- Finding a decoder: a folder, or a file. ---


def load_decoder(spec: str) -> Decoder:
    """Load the frozen decoder that `--decoder` names, on the CPU.

    spec: a folder that holds a T5 as transformers saves it, with its tokenizer; or a Python file
    that defines a `Decoder`, FILE.py or FILE.py:CLASS. Raises UsageError when none is named,
    CompoclipError when the folder holds no such decoder, or transformers is not installed.
    """
    if not spec:
        raise UsageError(
            "reconstruction needs a decoder: --decoder FOLDER of a T5 (google/t5-v1_1-large in the "
            "published runs), or --reconstruction 0 to train without"
        )
    if plugins.is_file(spec):
        plugins.refresh(spec)
        parts = plugins.parts_of(spec)
        classes = {
            name: value
            for name, value in parts.items()
            if isinstance(value, type) and value.__module__ == parts["__name__"]
        }
        decoder: Decoder = plugins.chosen(
            spec, classes, "decoders", "a class with tokens and nll"
        )()
        return decoder
    folder = Path(spec)
    try:
        config = parse_json((folder / _CONFIG).read_text(encoding="utf-8"))
        kind = config["model_type"]
        if kind != "t5":
            raise CompoclipError(f"--decoder {folder} holds a {kind}, not a T5; name another")
        subject = f"--decoder {folder}, a T5 (--reconstruction 0 trains without),"
        transformers = optional("transformers", "hf", subject)
        # Without these files transformers may make up a tokenizer that knows nothing.
        if not any((folder / name).is_file() for name in _TOKENIZERS):
            raise CompoclipError(
                f"--decoder {folder} has no tokenizer ({' or '.join(_TOKENIZERS)}): add the T5's"
            )
        model = transformers.T5ForConditionalGeneration.from_pretrained(
            folder, local_files_only=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return T5Decoder(model, lambda texts: tokenizer(texts)["input_ids"])
    except _UNREADABLE as error:
        raise CompoclipError(
            f"--decoder {folder} cannot be read ({reason(error)}); name the folder of a T5"
        ) from error


def decoder_record(spec: str) -> dict[str, str]:
    """Return the name and hash of the decoder `spec`, for the record of a checkpoint."""
    if not spec:
        return {"name": "", "hash": ""}
    place, _ = plugins.split(spec) if plugins.is_file(spec) else (Path(spec), "")
    weights = {*place.glob("*.safetensors"), *place.glob("*.bin")}
    files = [place] if place.is_file() else sorted(weights)
    return {"name": place.name, "hash": _hash_of(tuple((f, f.stat().st_mtime_ns) for f in files))}


@lru_cache(8)
def _hash_of(files: tuple[tuple[Path, int], ...]) -> str:
    digest = blake2b(digest_size=8)
    for file, _ in files:
        with open(file, "rb") as content:
            file_digest(content, lambda: digest)
    return digest.hexdigest()


# --- The head. ---


@dataclass(frozen=True)
class Reconstruction(HeadPlan):
    r"""A caption of the image, written by a frozen decoder from the state of another (L_rec).

    .. math::
        L = - \frac{1}{\sum_i |y_i|} \sum_i \sum_k \log p(y_{ik} \mid y_{i<k},\ A z_i)

    with z_i the text state of the first CAPTION of image i, y_i the tokens of its target and A the
    matrix that learns. Gradient reaches A and the text tower, but not its projection. Kwon et al.
    (NeurIPS 2025), token-level reconstruction.

    Args:
        decoder: See `load_decoder`.
        lr_scale: The learning rate of A over that of the model.
        weight_decay: Of A; None is that of the model.
    """

    decoder: str = ""
    lr_scale: float = 1.0
    weight_decay: float | None = None

    def build(self, sizes: TowerSizes, seed: int) -> ReconstructionHead:
        """Make the head; raises UsageError without a decoder."""
        return ReconstructionHead(load_decoder(self.decoder), sizes.text, seed)

    def record(self) -> dict[str, Any]:
        """Return the decoder's name and hash, and how A learns."""
        return {**super().record(), "decoder": decoder_record(self.decoder)}


class ReconstructionHead(nn.Module):
    """See `Reconstruction`.

    decoder: frozen. It moves with the head and is no part of its state: it can be read again.
    width: W of a text state. seed: of A.
    """

    def __init__(self, decoder: Decoder, width: int, seed: int = 0) -> None:
        super().__init__()
        a = torch.empty(decoder.width, width)
        nn.init.kaiming_uniform_(a, math.sqrt(5), generator=torch.Generator().manual_seed(seed))
        self.a = nn.Parameter(a)
        self._decoder: tuple[Any] = (decoder,)

    def _apply(self, fn: Any, recurse: bool = True) -> ReconstructionHead:
        self._decoder[0]._apply(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def loss(self, features: Features, layout: Layout, targets: Sequence[str]) -> Tensor:
        """Return this process's share of the loss; see `compoclip.losses.Head`."""
        (caption,) = layout.indices(captions)
        layout.sizes(captions)
        rows = [image for image, text in enumerate(targets) if text]
        decoder = self._decoder[0]
        ids, mask = decoder.tokens([targets[image] for image in rows] or [""])
        if not rows:
            mask = torch.zeros_like(mask)
        device = features.text.device
        first = [0] if len(caption) else []
        place = torch.tensor(rows or first, device=device, dtype=torch.int64)
        tokens = layout.peers.summed(mask.sum().to(device, torch.float32))
        with full_precision(features) as f:
            (states,) = computed(f, "text_state")
            state = states.index_select(0, caption.index_select(0, place))
            if not len(state):  # a part of the batch without any image
                return states.sum() * 0 + self.a.sum() * 0
            h = (state.to(self.a.dtype) @ self.a.T)[:, None]
            nll: Tensor = decoder.nll(h, ids.to(device), mask.to(device))
            return nll / tokens.clamp_min(1)


Target = Literal["other", "any"]
"""Which caption a decoder is to write: another one if there is one, or any."""
