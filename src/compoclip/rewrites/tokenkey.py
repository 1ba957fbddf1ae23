"""When two texts are the same to CLIP, and how long a text is to it, without importing torch.

CLIP's tokenizer repairs mojibake, resolves HTML entities, collapses whitespace, lower-cases, splits
by one regular expression that ignores whitespace, and encodes each piece by itself, marking its
end. So two texts get the same token ids exactly when their pieces are the same.
"""

from __future__ import annotations

import gzip
import html
import importlib.util
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import ftfy
import regex

CONTEXT_LENGTH = 77
SPECIAL_TOKENS = 2
#: Bytes of the longest entry of CLIP's vocabulary (eight times the same emoji).
LONGEST_TOKEN = 32
# Entries of CLIP's merge file in use: the vocabulary without 256 bytes, 256 word ends, 2 specials.
_MERGES = 49152 - 256 - 2
_PIECE = regex.compile(
    r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    regex.IGNORECASE,
)


def clean(text: str) -> str:
    """The text after CLIP's cleaning: fixed, unescaped, whitespace collapsed, lower case."""
    if not (text.isascii() and text.isprintable() and "&" not in text):
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()


@lru_cache(maxsize=256)
def token_key(text: str) -> tuple[str, ...]:
    """The pieces CLIP's tokenizer encodes: equal keys if and only if equal token ids.

    Case and blanks before punctuation do not show: "A mat ." and "a mat." have the same key. The
    77-token limit is not applied.
    """
    return tuple(_PIECE.findall(clean(text)))


def same_to_clip(a: str, b: str) -> bool:
    """Whether both texts are encoded to the same token ids."""
    # The pieces hold every sign that is not blank, so those of unlike texts cannot be alike.
    return _signs(a) == _signs(b) and token_key(a) == token_key(b)


@lru_cache(maxsize=256)
def _signs(text: str) -> str:
    return clean(text).replace(" ", "")


def fits_context(text: str, context: int = CONTEXT_LENGTH) -> bool:
    """Whether the text with its start and end token fits into `context` tokens uncut."""
    room = context - SPECIAL_TOKENS
    # A token stands for one byte at least, so short texts need neither pieces nor byte pairs.
    if len(text) <= room and text.isascii() and text.isprintable() and "&" not in text:
        return True
    pieces = token_key(text)
    if len(pieces) > room:
        return False
    size = sum(len(p.encode("utf-8", "surrogatepass")) for p in pieces)
    if size <= room or size > room * LONGEST_TOKEN:
        return size <= room
    return sum(map(_pair_count, pieces)) <= room


@lru_cache(maxsize=1)
def _merge_ranks() -> dict[tuple[str, str], int]:
    """CLIP's byte-pair merges by rank, from the file that open_clip ships."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("open_clip_torch is not installed")
    path = Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[1 : _MERGES + 1]
    pairs = (line.split() for line in lines)
    return {(first, second): rank for rank, (first, second) in enumerate(pairs)}


@lru_cache(maxsize=1)
def _byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in the merge file."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + n) for n, byte in enumerate(others)})
    return letters


@lru_cache(maxsize=65536)
def _pair_count(piece: str) -> int:
    """How many tokens byte-pair encoding makes of one piece."""
    if piece in ("<start_of_text>", "<end_of_text>"):
        return 1
    ranks, letters = _merge_ranks(), _byte_letters()
    parts = [letters[byte] for byte in piece.encode("utf-8", "surrogatepass")]
    parts[-1] += "</w>"
    never = len(ranks)
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda pair: ranks.get(pair, never))
        if best not in ranks:
            break
        merged: list[str] = []
        position = 0
        while position < len(parts):
            if tuple(parts[position : position + 2]) == best:
                merged.append(best[0] + best[1])
                position += 2
            else:
                merged.append(parts[position])
                position += 1
        parts = merged
    return len(parts)
