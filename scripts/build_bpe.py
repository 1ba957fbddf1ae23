"""Learn a small byte-pair vocabulary from captions, for a base model trained from scratch.

    python scripts/build_bpe.py captions.txt more/ --merges 1000 --out bpe.txt.gz

The vocabulary has 512 byte symbols, the merges and two marks: set text_cfg.vocab_size to the size
that is printed and text_cfg.tokenizer_kwargs.bpe_path to the file.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from open_clip.tokenizer import SimpleTokenizer

from compoclip.cli.caption_input import read_captions
from compoclip.errors import CompoclipError
from compoclip.models.bpe import count_words, train_bpe, write_merges


@dataclass(frozen=True)
class Options:
    """Learn byte-pair merges in the format of CLIP's tokenizer."""

    captions: tyro.conf.Positional[tuple[Path, ...]]
    """caption files or folders (.txt, .json, .jsonl)"""
    merges: int = 1000
    """how many merges to learn"""
    out: Path = Path("bpe.txt.gz")
    """the merges file to write"""


def main() -> int:
    """Read, learn, write; prints the vocabulary size and the mean length of a caption."""
    options = tyro.cli(Options)
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
    try:
        sys.exit(main())
    except CompoclipError as error:
        sys.exit(f"build_bpe: {error}")
