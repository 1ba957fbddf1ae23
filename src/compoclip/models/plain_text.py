"""The text tower of a CLIP in numpy, for queries that are not worth the import of torch.

The tower is that of Radford et al. (2021, arXiv:2103.00020): embeddings of tokens and positions,
blocks of causal attention and a perceptron with layer norms before each, a last layer norm, and the
projection of the state at the end-of-text token. `PlainTower.of` says whether a loaded model has
it, and where; `PlainText` reads its tensors from there and no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compoclip.errors import NOT_FINITE, CompoclipError, require
from compoclip.files import file_stamp, reason
from compoclip.models.config import BLOCK, EPSILON, QUICK
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from compoclip.typed import Count

if TYPE_CHECKING:
    from compoclip.models.checkpoint import LoadedModel

Matrix = NDArray[np.float32]

_PREFIXES = ("", "text.")  # of the names of the tower's tensors
_EMBEDDING = "token_embedding.weight"
_PARTS = (_EMBEDDING, "positional_embedding", "transformer.", "ln_final.", "text_projection")
_NUMBERS = {"F32": "<f4", "F16": "<f2"}  # kinds of a safetensors file that numpy has
_FEW_ROWS = 32
_TINY = np.float32(1e-12)  # the least length that features are divided by


@dataclass(frozen=True)
class PlainTower:
    """Where the text tower of a model lies, and what its tensors do not show. JSON-ready.

    Attributes:
        weights: The safetensors file.
        prefix: Beginning of the names of the tensors in it.
        heads: Of attention.
        quick_gelu: Whether the activation is QuickGELU, and not GELU.
        text_cfg: What of the model's configuration decides the tokenizer.
        folder: Folder of file names in it.
        files: File -> its stamp before the model was read from it.
    """

    weights: str
    prefix: str
    heads: Count
    quick_gelu: bool
    text_cfg: Mapping[str, Any]
    folder: str
    files: Mapping[str, str]

    @classmethod
    def of(cls, loaded: LoadedModel) -> PlainTower | None:
        """Return the tower of a model, with the weights as loaded.

        None for another kind of tower or tokenizer, and where the weights are not the tensors of
        one safetensors file under the names of the network.
        """
        numbers = loaded.encoder.text_tower.plain
        weights = [file for file in loaded.files if file.endswith(".safetensors")]
        text_cfg = loaded.config.model_cfg["text_cfg"]
        options = text_cfg.get("tokenizer_kwargs") or {}
        if numbers is None or len(weights) != 1 or not set(options) <= {"bpe_path"}:
            return None
        if loaded.tokenizer.simple is None:
            return None
        tensors = mapped(Path(weights[0]))
        names = [name.removeprefix("text.") for name in loaded.encoder.model.state_dict()]
        names = [name for name in names if name.startswith(_PARTS)]
        fits = (p for p in _PREFIXES if all(f"{p}{name}" in tensors for name in names))
        if (prefix := next(fits, None)) is None:
            return None
        heads, quick_gelu = numbers
        tokens = {"context_length": loaded.tokenizer.context_length, "tokenizer_kwargs": options}
        folder = str(loaded.config.folder.absolute()) if loaded.config.folder else ""
        return cls(weights[0], prefix, heads, quick_gelu, tokens, folder, loaded.files)

    @property
    def unchanged(self) -> bool:
        """Return whether the weights and all other files are as they were before they were read."""
        same = (file_stamp(Path(file)) == stamp for file, stamp in self.files.items())
        return self.weights in self.files and all(same)


class PlainText:
    """Encodes texts as `ModelEncoder` does, up to the rounding of float32, without torch."""

    def __init__(self, tower: PlainTower) -> None:
        self._tower = tower
        folder = Path(tower.folder) if tower.folder else None
        self.tokenizer: Tokenizer = build_tokenizer(tower.text_cfg, folder)

    def encode_texts(self, texts: Sequence[str]) -> Matrix:
        """Return the features of one batch, (N, D) of unit length.

        Raises CompoclipError for weights that cannot be read, and for those of another tower.
        """
        try:
            return self._features(texts)
        except (LookupError, ValueError) as error:
            raise CompoclipError(
                f"{self._tower.weights}: not the text tower that is recorded ({reason(error)}); "
                "run compoclip index again"
            ) from error

    def _features(self, texts: Sequence[str]) -> Matrix:
        ids, _ = self.tokenizer.encode(texts)
        ends = ids.argmax(axis=1)
        ids = ids[:, : ends.max() + 1]  # later positions do not matter to earlier ones
        x = _floats(self._tensors[_EMBEDDING][ids])
        x = x + self._tensors["positional_embedding"][: ids.shape[1]]
        activation = _quick_gelu if self._tower.quick_gelu else _gelu
        for block in self._blocks:
            x = _block(x, block, self._tower.heads, activation)
        x = x[np.arange(len(x)), ends]
        last = _layer_norm(x, self._tensors["ln_final.weight"], self._tensors["ln_final.bias"])
        features: Matrix = last @ self._tensors["text_projection"]
        features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), _TINY)
        require(np.isfinite(features).all(), self._tower.weights, NOT_FINITE)
        return features

    @cached_property
    def _blocks(self) -> list[list[Matrix]]:
        """The parameters of each block, in the order of `BLOCK`."""
        depth = sum(name.endswith(BLOCK[0]) for name in self._tensors)
        names = [f"transformer.resblocks.{k}." for k in range(depth)]
        return [[self._tensors[f"{block}{name}"] for name in BLOCK] for block in names]

    @cached_property
    def _tensors(self) -> dict[str, Matrix]:
        """The tensors of the tower by name; the table of embeddings stays on the disk."""
        prefix = self._tower.prefix
        tensors = {
            name.removeprefix(prefix): values
            for name, values in mapped(Path(self._tower.weights)).items()
            if name.startswith(prefix)
        }
        return {
            name: values if name == _EMBEDDING else _floats(values)
            for name, values in tensors.items()
            if name.startswith(_PARTS)
        }


def mapped(path: Path) -> dict[str, NDArray[Any]]:
    """Map the tensors of a safetensors file; none is read before it is used.

    Tensors of other numbers than float32 and float16 are left out. Raises CompoclipError for a file
    that cannot be read, or is no safetensors file.
    """
    tensors = {}
    try:
        content = np.asarray(np.memmap(path, np.uint8, "r"))
        start = 8 + int(content[:8].view("<u8")[0])
        for name, entry in json.loads(content[8:start].tobytes()).items():
            if entry.get("dtype") in _NUMBERS:
                first, stop = (start + offset for offset in entry["data_offsets"])
                values = content[first:stop].view(_NUMBERS[entry["dtype"]])
                tensors[name] = values.reshape(entry["shape"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CompoclipError(
            f"{path}: damaged or cut short ({reason(error)}); copy or download it again"
        ) from error
    return tensors


def _floats(values: NDArray[Any]) -> Matrix:
    return values.astype(np.float32, copy=False)


def _layer_norm(x: Matrix, weight: Matrix, bias: Matrix) -> Matrix:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    normed: Matrix = centred / np.sqrt(variance + np.float32(EPSILON)) * weight + bias
    return normed


def _quick_gelu(x: Matrix) -> Matrix:
    with np.errstate(over="ignore"):  # far below zero the result is zero
        activated: Matrix = x / (1 + np.exp(np.float32(-QUICK) * x))
    return activated


# Of the error function, Abramowitz and Stegun (1964), equation 7.1.26, to 1.5e-7.
_SCALE = 0.3275911
_POLYNOMIAL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _gelu(x: Matrix) -> Matrix:
    """Return x times the standard normal distribution function."""
    scaled = np.abs(x) * np.float32(1 / np.sqrt(2))
    t = 1 / (1 + np.float32(_SCALE) * scaled)
    tail = np.zeros_like(t)
    for coefficient in _POLYNOMIAL:
        tail = (tail + np.float32(coefficient)) * t
    tail *= np.exp(-scaled * scaled) * np.float32(0.5)
    activated: Matrix = x * np.where(x < 0, tail, 1 - tail)
    return activated


def _block(
    x: Matrix, weights: Sequence[Matrix], heads: int, activation: Callable[[Matrix], Matrix]
) -> Matrix:
    """Return the states (N, L, W) after a block; weights: its parameters as in `BLOCK`."""
    norm, norm_bias, qkv, qkv_bias, out, out_bias = weights[:6]
    norm_2, norm_2_bias, out_2_bias, in_2, in_2_bias, out_2 = weights[6:]
    mixed = _mixed(_linear(_layer_norm(x, norm, norm_bias), qkv, qkv_bias), heads)
    x = x + _linear(mixed, out, out_bias)
    h = activation(_linear(_layer_norm(x, norm_2, norm_2_bias), in_2, in_2_bias))
    return x + _linear(h, out_2, out_2_bias)


def _linear(x: Matrix, weight: Matrix, bias: Matrix) -> Matrix:
    """Return (..., V) of (..., W), with a weight of (V, W)."""
    rows = x.reshape(-1, x.shape[-1])
    # For few rows the threads of a matrix product wait longer for one another than they compute.
    few = len(rows) <= _FEW_ROWS
    products: Matrix = np.vecdot(rows[:, None], weight) if few else rows @ weight.T
    return products.reshape(*x.shape[:-1], -1) + bias


def _mixed(qkv: Matrix, heads: int) -> Matrix:
    """Return causal attention, (N, L, 3 W) -> (N, L, W)."""
    texts, length, _ = qkv.shape
    parts = qkv.reshape(texts, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    queries, keys, values = parts
    scores = queries @ keys.swapaxes(-1, -2) * np.float32(queries.shape[-1] ** -0.5)
    scores[..., ~np.tri(length, dtype=bool)] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ values
    states: Matrix = mixed.transpose(0, 2, 1, 3).reshape(texts, length, -1)
    return states
