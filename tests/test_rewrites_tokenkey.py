"""Token keys are equal exactly when CLIP's token ids are."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.tokenizer import SimpleTokenizer

from compoclip.captions.clip_text import fits_context, same_to_clip, token_key
from compoclip.captions.parser import parse_many
from compoclip.rewrites.base import Refused, get_rewrite, rewrite_names, rng_for
from real_captions import coco


@pytest.fixture(scope="module")
def tokenizer() -> SimpleTokenizer:
    return SimpleTokenizer()


ODD = [
    "", " ", "mat .", "mat.", "MAT .", "a  cat\n on\ta mat", "a cat on a mat", "it's a dog",
    "it 's a dog", "it ' s a dog", "caf\u00e9", "cafe\u0301", "cafÃ©", "&lt;b&gt; &amp;amp; &amp;",
    "<b> & &", "“quoted” text", '"quoted" text', "1234 red cars", "12 34 red cars",
    "can't won't we'll I'd", "<start_of_text> a dog <end_of_text>", "emoji 😀😀 dog",
    "日本語の 字幕",
    "a.b,c;d!?", "a . b , c", "\x1b[31mred\x1b[0m", "zero\u200bwidth", "ﬁsh and ﬂag", "x\x00y",
    "K\u0130",
]  # fmt: skip


def agree(texts: list[str], tokenizer: SimpleTokenizer) -> None:
    """Equal keys if and only if equal ids, over all pairs of texts."""
    keys_of, ids_of = defaultdict(set), defaultdict(set)
    for text in texts:
        key, ids = token_key(text), tuple(tokenizer.encode(text))
        keys_of[ids].add(key)
        ids_of[key].add(ids)
    assert all(len(keys) == 1 for keys in keys_of.values())
    assert all(len(ids) == 1 for ids in ids_of.values())


def test_odd_texts(tokenizer: SimpleTokenizer) -> None:
    agree(ODD, tokenizer)
    assert same_to_clip("a mat .", "A mat.")
    assert same_to_clip("it's", "it 's")
    assert not same_to_clip("it's", "it ' s")


def test_any_texts(tokenizer: SimpleTokenizer) -> None:
    @given(st.lists(st.text(max_size=12), max_size=8))
    @settings(max_examples=60, deadline=None)
    def check(texts: list[str]) -> None:
        # Lone surrogates cannot be encoded as UTF-8, which the tokenizer does.
        agree([t.encode("utf-8", "replace").decode() for t in texts], tokenizer)

    check()


def test_real_captions_and_their_rewrites(shared_data: Path, tokenizer: SimpleTokenizer) -> None:
    captions = list(chain.from_iterable(coco(shared_data)))[:1000]
    texts = list(captions)
    for number, caption in enumerate(parse_many(captions[:25])):
        for name in rewrite_names():
            result = get_rewrite(name)(caption, rng_for(0, str(number), 0, name))
            if not isinstance(result, Refused):
                texts += [result.text, result.text.replace(".", " .").upper()]
    assert len(texts) > 1700
    agree(texts, tokenizer)


@pytest.mark.parametrize("word", ["dog", "antidisestablishmentarianism", "é", "😀", "x!?", "日本"])
def test_context_length_counts_byte_pairs(word: str, tokenizer: SimpleTokenizer) -> None:
    for repeats in (1, 3, 8, 20, 37, 38, 74, 75, 76, 200):
        text = " ".join([word] * repeats)
        assert fits_context(text) == (len(tokenizer.encode(text)) + 2 <= 77)
    assert fits_context("a " * 75)
    assert not fits_context("a " * 76)
