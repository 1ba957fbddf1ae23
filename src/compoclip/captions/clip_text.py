"""When two texts are the same to CLIP, and how long a text is to it, without importing torch.

CLIP's tokenizer repairs mojibake, resolves HTML entities, collapses whitespace, lower-cases, splits
by one regular expression that ignores whitespace, and encodes each piece by itself, marking its
end. So two texts get the same token ids exactly when their pieces are the same.
"""

from __future__ import annotations

import gzip
import html
import importlib.util
import itertools
from functools import lru_cache
from pathlib import Path

import regex

CONTEXT_LENGTH = 77
SPECIAL_TOKENS = 2
#: Bytes of the longest entry of CLIP's vocabulary (eight times the same emoji).
_LONGEST_TOKEN = 32
# Entries of CLIP's merge file in use: the vocabulary without 256 bytes, 256 word ends, 2 specials.
_MERGES = 49152 - 256 - 2
_PIECE = regex.compile(
    r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    regex.IGNORECASE,
)


def _clean(text: str) -> str:
    """The text after CLIP's cleaning: fixed, unescaped, whitespace collapsed, lower case."""
    if not (text.isascii() and text.isprintable() and "&" not in text):
        import ftfy  # slow, and few texts need it

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()


@lru_cache(maxsize=256)
def token_key(text: str) -> tuple[str, ...]:
    """Return the pieces of a text for CLIP's tokenizer, without importing torch.

    Keys are equal if and only if the token ids are; the 77-token limit is not applied. Case and
    blanks before punctuation are ignored: "A mat ." and "a mat." have the same key.

    Args:
        text: Any text.
    """
    return tuple(_PIECE.findall(_clean(text)))


def same_to_clip(a: str, b: str) -> bool:
    """Return whether two texts have the same token ids.

    Args:
        a: A text.
        b: Another text.
    """
    # The pieces hold every sign that is not blank, so those of unlike texts cannot be alike.
    return _signs(a) == _signs(b) and token_key(a) == token_key(b)


@lru_cache(maxsize=256)
def _signs(text: str) -> str:
    return _clean(text).replace(" ", "")


def fits_context(text: str) -> bool:
    """Return whether a text with start and end token fits into CLIP's context.

    Args:
        text: Any text.
    """
    room = CONTEXT_LENGTH - SPECIAL_TOKENS
    # A token stands for one byte at least, so short texts need neither pieces nor byte pairs.
    if len(text) <= room and text.isascii() and text.isprintable() and "&" not in text:
        return True
    pieces = token_key(text)
    if len(pieces) > room:
        return False
    size = sum(len(p.encode("utf-8", "surrogatepass")) for p in pieces)
    if size <= room or size > room * _LONGEST_TOKEN:
        return size <= room
    return sum(map(_pair_count, pieces)) <= room


@lru_cache(maxsize=1)
def _byte_pairs() -> tuple[dict[tuple[str, str], int], list[str]]:
    """CLIP's merges by rank, from open_clip's file, and the letter that stands for each byte."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("open_clip_torch is not installed")
    path = Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[1 : _MERGES + 1]
    ranks = {(a, b): rank for rank, (a, b) in enumerate(line.split() for line in lines)}
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return ranks, [chr(byte if byte in plain else next(others)) for byte in range(256)]


@lru_cache(maxsize=65536)
def _pair_count(piece: str) -> int:
    """How many tokens byte-pair encoding makes of one piece."""
    if piece in ("<start_of_text>", "<end_of_text>"):
        return 1
    ranks, letters = _byte_pairs()
    parts = [letters[byte] for byte in piece.encode("utf-8", "surrogatepass")]
    parts[-1] += "</w>"
    while len(parts) > 1:
        best = min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        merged = [parts[0]]
        for part in parts[1:]:
            if (merged[-1], part) == best:
                merged[-1] += part
            else:
                merged.append(part)
        parts = merged
    return len(parts)
