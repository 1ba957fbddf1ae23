"""Learn a small byte-pair vocabulary from captions, for a base model trained from scratch.

    python scripts/build_bpe.py captions.txt more/ --merges 1000 --out bpe.txt.gz

The vocabulary has 512 byte symbols, the merges and two marks: set text_cfg.vocab_size to the size
that is printed and text_cfg.tokenizer_kwargs.bpe_path to the file.
"""

from __future__ import annotations

import gzip
import io
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from open_clip.tokenizer import SimpleTokenizer, bytes_to_unicode

from compoclip.cli.caption_input import read_captions
from compoclip.cli.options import parse
from compoclip.config import Shown
from compoclip.console import end_with
from compoclip.files import write_atomically

Pair = tuple[str, str]

_HEADER = '"compoclip bpe merges#version: 0.2'


def count_words(captions: Iterable[str]) -> Counter[str]:
    """How often each word of the captions occurs, cleaned and cut as CLIP's tokenizer does; merges
    never cross such a word."""
    tokenizer = SimpleTokenizer()
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(tokenizer.pat.findall(tokenizer.clean_fn(caption)))
    return counts


def train_bpe(words: Mapping[str, int], merges: int) -> list[Pair]:
    """The first `merges` byte-pair merges of a word list (Sennrich et al. 2016), most useful first.

    words: word -> count. A word starts as its UTF-8 bytes, the last one marked "</w>"; each step
    joins the most frequent adjacent pair (ties: the first in dictionary order). A join that spells
    a symbol which exists already is left out, since a vocabulary holds each symbol once. Stops
    early when every word is one symbol.
    """
    alphabet = bytes_to_unicode()
    spelled = [
        ([alphabet[b] for b in word.encode("utf-8")], count)
        for word, count in sorted(words.items())
        if word and count > 0
    ]
    for symbols, _ in spelled:
        symbols[-1] += "</w>"
    known = {*alphabet.values(), *(f"{symbol}</w>" for symbol in alphabet.values())}
    counts: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for i, (symbols, count) in enumerate(spelled):
        for pair in pairwise(symbols):
            counts[pair] += count
            where[pair].add(i)
    learned: list[Pair] = []
    while len(learned) < merges:
        candidates = (
            (-count, pair)
            for pair, count in counts.items()
            if count > 0 and pair[0] + pair[1] not in known
        )
        best = min(candidates, default=None)
        if best is None:
            break
        pair = best[1]
        learned.append(pair)
        known.add(pair[0] + pair[1])
        for i in where.pop(pair):
            symbols, count = spelled[i]
            for old in pairwise(symbols):
                counts[old] -= count
            _join(symbols, pair)
            for new in pairwise(symbols):
                counts[new] += count
                where[new].add(i)
        del counts[pair]
    return learned


def _join(symbols: list[str], pair: Pair) -> None:
    """Replace every occurrence of the pair, left to right, in place."""
    i = 0
    while i < len(symbols) - 1:
        if (symbols[i], symbols[i + 1]) == pair:
            symbols[i : i + 2] = [pair[0] + pair[1]]
        i += 1


def merges_file(merges: Iterable[Pair]) -> bytes:
    """The gzipped text of a merges file that open_clip's SimpleTokenizer reads: a header line, one
    merge a line, no line break at the end (it would read an empty symbol). Same input, same bytes.
    """
    text = "\n".join([_HEADER, *(f"{left} {right}" for left, right in merges)])
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        file.write(text.encode("utf-8"))
    return out.getvalue()


def write_merges(merges: Iterable[Pair], path: Path) -> None:
    """Write `merges_file` to `path` in one step. Raises CompoclipError when that fails."""
    write_atomically(path, lambda place: place.write_bytes(merges_file(merges)))


@dataclass(frozen=True)
class Options:
    """Learn byte-pair merges in the format of CLIP's tokenizer.

    Args:
        captions: Caption files or folders (.txt, .json, .jsonl).
        merges: Number of merges to learn.
        out: The merges file to write.
    """

    captions: Annotated[tuple[Path, ...], Shown("FILE ...", positional=True)]
    merges: int = 1000
    out: Path = Path("bpe.txt.gz")


def main() -> int:
    """Read, learn, write; prints the vocabulary size and the mean length of a caption."""
    options = parse(Options, "scripts build_bpe", sys.argv[1:])
    captions = [text for path in options.captions for text in read_captions(path)]
    words = count_words(captions)
    write_merges(train_bpe(words, options.merges), options.out)
    tokenizer = SimpleTokenizer(bpe_path=str(options.out))
    tokens = sum(len(tokenizer.encode(text)) + 2 for text in captions)
    print(
        f"{options.out}: vocabulary {tokenizer.vocab_size}, {len(words)} words of "
        f"{len(captions)} captions, {tokens / len(captions):.1f} tokens a caption"
    )
    return 0


if __name__ == "__main__":
    end_with(main, "build_bpe")
