"""CLIP's tokens without importing torch: when two texts have the same, how many, and which.

CLIP's tokenizer repairs mojibake, resolves HTML entities, collapses whitespace, lower-cases, splits
by one regular expression that ignores whitespace, and encodes each piece by itself, marking its
end. So two texts get the same token ids exactly when their pieces are the same.
"""

from __future__ import annotations

import gzip
import html
import importlib.util
import itertools
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

CONTEXT_LENGTH = 77
SPECIAL_TOKENS = 2
#: Bytes of the longest entry of CLIP's vocabulary (eight times the same emoji).
_LONGEST_TOKEN = 32
# Entries of CLIP's merge file in use: the vocabulary without 256 bytes, 256 word ends, 2 specials.
_MERGES = 49152 - 256 - 2
_SPECIAL = ("<start_of_text>", "<end_of_text>")
_WORD_END = "</w>"
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that are their letters
_PIECE = r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@cache
def _pieces() -> regex.Pattern[str]:
    import regex  # slow to import, and not needed to know a benchmark

    return regex.compile(_PIECE, regex.IGNORECASE)


def _clean_lower(text: str) -> str:
    """Return the text after CLIP's cleaning: fixed, unescaped, whitespace collapsed, lower case.

    The name is open_clip's, and part of the id of a tokenizer.
    """
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
    return tuple(_pieces().findall(_clean_lower(text)))


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
    return _clean_lower(text).replace(" ", "")


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


@lru_cache(maxsize=65536)
def _pair_count(piece: str) -> int:
    """How many tokens byte-pair encoding makes of one piece."""
    return len(clip_byte_pairs().symbols(piece))


class BytePairs:
    """CLIP's byte-pair encoding without torch: ids and attributes are those of open_clip's
    `SimpleTokenizer`, which Radford et al. (2021, arXiv:2103.00020) published.

    Attributes:
        encoder: Symbol -> id: the letters of all bytes, the same at the end of a word, the merges,
            and the special tokens.
        decoder: Id -> symbol.
        byte_encoder: Byte -> the letter that stands for it.
        byte_decoder: Letter -> byte.
        bpe_ranks: Merge of two symbols -> its rank; the lowest is merged first.
    """

    def __init__(self, merges: bytes) -> None:
        """Read the content of a gzipped merges file, whose first line is no merge."""
        others = [byte for byte in range(256) if byte not in _PRINTABLE]
        self.byte_encoder = {byte: chr(byte) for byte in _PRINTABLE}
        self.byte_encoder |= {byte: chr(256 + place) for place, byte in enumerate(others)}
        self.byte_decoder = {letter: byte for byte, letter in self.byte_encoder.items()}
        text = gzip.decompress(merges).decode("utf-8")
        lines = text.split("\n", _MERGES + 1)[1 : _MERGES + 1]  # CLIP's own file has more
        pairs = [tuple(line.split()) for line in lines]
        self.bpe_ranks = {pair: rank for rank, pair in enumerate(pairs)}
        letters = list(self.byte_encoder.values())
        vocabulary = [*letters, *(f"{letter}{_WORD_END}" for letter in letters)]
        vocabulary += map("".join, pairs)
        vocabulary += _SPECIAL
        self.encoder = {symbol: number for number, symbol in enumerate(vocabulary)}
        self.decoder = {number: symbol for symbol, number in self.encoder.items()}
        self.sot_token_id, self.eot_token_id = (self.encoder[token] for token in _SPECIAL)
        self.pat, self.clean_fn = _pieces(), _clean_lower

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start and end."""
        pieces = self.pat.findall(self.clean_fn(text))
        return [self.encoder[symbol] for piece in pieces for symbol in self.symbols(piece)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, with a blank behind each word."""
        letters = "".join(self.decoder[number] for number in ids)
        text = bytearray(self.byte_decoder[letter] for letter in letters)
        return text.decode("utf-8", errors="replace").replace(_WORD_END, " ")

    def symbols(self, piece: str) -> list[str]:
        """Return the symbols of one piece of a cleaned text."""
        if piece in _SPECIAL:
            return [piece]
        parts = [self.byte_encoder[byte] for byte in piece.encode("utf-8", "surrogatepass")]
        parts[-1] += _WORD_END
        ranks = self.bpe_ranks
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
        return parts


@lru_cache(maxsize=1)
def clip_byte_pairs() -> BytePairs:
    """Return the encoding by CLIP's own merges, which open_clip brings; it is read once."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("open_clip_torch is not installed")
    return BytePairs(Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz").read_bytes())
