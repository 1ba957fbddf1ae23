"""Tokenizer: open_clip's ids, cached, counted and identified; small vocabularies from counts."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import open_clip
import pytest
import torch
from build_bpe import count_words, merges_file, train_bpe, write_merges
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.tokenizer import SimpleTokenizer, bytes_to_unicode

from compoclip.errors import CompoclipError
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from test_rewrites_tokenkey import ODD
from tiny_transformers import tokenizer_of

TEXTS = ["A photo of a  cat.", "", 'naïve façade 🐈 &amp; "quotes"', "word " * 100, "!", "a b\nc"]


def test_ids_are_open_clips() -> None:
    ours = build_tokenizer({})
    assert torch.equal(ours(TEXTS), open_clip.tokenize(TEXTS))
    assert torch.equal(ours(TEXTS), ours(TEXTS))  # from the cache
    assert ours([]).shape == (0, 77)
    assert ours.truncated(TEXTS) == 1
    short = build_tokenizer({"context_length": 5})
    assert torch.equal(short(TEXTS), open_clip.tokenize(TEXTS, context_length=5))
    assert short.truncated(["one two three", "one two three four", "one two"]) == 1
    assert short(["one two three four"])[0, -1] == 49407


def test_identity_is_of_vocabulary_and_cleaning() -> None:
    plain = build_tokenizer({})
    assert plain.id == build_tokenizer({"context_length": 20}).id
    assert plain.id.startswith("clip-bpe-49408-")
    assert plain.vocab_size == 49408
    assert plain.id != build_tokenizer({"tokenizer_kwargs": {"clean": "canonicalize"}}).id


def test_a_tokenizer_travels_to_worker_processes() -> None:
    ours = build_tokenizer({"context_length": 12})
    ours(TEXTS)  # the cache travels, too
    copy = pickle.loads(pickle.dumps(ours))  # noqa: S301
    assert copy.id == ours.id
    assert torch.equal(copy(TEXTS), ours(TEXTS))


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


OURS, THEIRS = build_tokenizer({}), SimpleTokenizer()


def assert_open_clips(texts: Sequence[str]) -> None:
    (got, _), expected = OURS.encode(texts), THEIRS(texts)
    different = (torch.from_numpy(got) != expected).any(1).nonzero().flatten().tolist()
    assert not different, texts[different[0]]
    assert torch.equal(OURS(texts[:1000]), expected[:1000])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(max_size=40) | st.text("aAé'’st&;<>_0123.! \t\x1b", max_size=40), max_size=5)
)
def test_any_text_has_open_clips_ids(texts: list[str]) -> None:
    assert_open_clips(["a cat", *texts])


def test_odd_texts_have_open_clips_ids() -> None:
    assert_open_clips(
        [*TEXTS, *ODD, "it's" * 40, "cat" * 60, "!" * 90, "é" * 70, "x" * 64, "x" * 65]
    )


def test_captions_at_hand_have_open_clips_ids(shared_data: Path) -> None:
    files = [json.loads(path.read_text()) for path in sorted(shared_data.rglob("*.json"))]
    texts = list(dict.fromkeys(texts_in(files)))
    assert len(texts) > 10_000
    odd = [text for text in texts if not text.isascii() or "&" in text]
    texts = [*odd, *random.Random(0).sample(texts, min(len(texts), 8_000))]
    # Ids follow from the pieces of a text where nothing has to be repaired: each word once.
    seen: set[str] = set()
    telling = []
    for text in texts:
        words = set(text.lower().split())
        plain = text.isascii() and text.isprintable() and "&" not in text
        if not plain or not words <= seen:
            telling.append(text)
        seen |= words
    assert_open_clips(telling)


def test_token_dropping_tokenizers_run_open_clips_own_code() -> None:
    ours = build_tokenizer({"context_length": 6, "tokenizer_kwargs": {"reduction_mask": "random"}})
    texts = ["one two", "one two three four", "one two three four five"]
    assert ours(texts[:1]).tolist() == open_clip.tokenize(texts[0], context_length=6).tolist()
    assert ours.truncated(texts) == 1
    assert ours.id != build_tokenizer({}).id


def test_hugging_face_tokenizers_need_their_package() -> None:
    installed = find_spec("transformers") is not None
    said = "cannot be loaded" if installed else "needs transformers: pip install"
    with pytest.raises(CompoclipError, match=said):
        build_tokenizer({"hf_tokenizer_name": "no/such-tokenizer"})


class PanicException(BaseException):
    """Panics of the tokenizers package, which damaged files bring, are no `Exception`."""


def panic(*_: object, **__: object) -> None:
    raise PanicException("no entry found for key")


def test_a_panic_of_a_tokenizer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setattr("open_clip.tokenizer.HFTokenizer.__init__", panic)
    with pytest.raises(CompoclipError, match="cannot be loaded: PanicException: no entry found"):
        build_tokenizer({"hf_tokenizer_name": "bert-base-uncased"})


def test_a_panic_while_a_text_is_encoded_is_one_line() -> None:
    class Panicking(SimpleNamespace):
        __call__ = panic

    files = SimpleNamespace(get_vocab=lambda: {"a": 0}, name_or_path="models/odd")
    tokenizer = Tokenizer(Panicking(tokenizer=files, clean_fn=str), 8)
    words = "tokenizer 'models/odd' cannot encode 'two cats': PanicException: no entry found"
    for encode in (tokenizer, tokenizer.encode, tokenizer.truncated):
        with pytest.raises(CompoclipError, match=f"^{words} for key; restore its files, or leave"):
            encode(["two cats"])


def test_ids_of_a_tokenizer_are_those_of_its_vocabulary(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    tokenizer_of(["a red dog"], ends=True).save_pretrained(tmp_path)
    named = {"context_length": 8, "hf_tokenizer_name": "x"}
    assert build_tokenizer(named, tmp_path).encode(["a red dog"])[0][0, 0] == 2
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"]["special_tokens"]["<s>"]["ids"] = [10**9]
    file.write_text(json.dumps(content))
    with pytest.raises(CompoclipError, match=r"gives the id 1000000000, and its vocab.* at \d+;"):
        build_tokenizer(named, tmp_path)


# --- merges --------------------------------------------------------------------------------------


def slow_bpe(words: dict[str, int], merges: int) -> list[tuple[str, str]]:
    """The definition, recounted from scratch for every merge."""
    alphabet = bytes_to_unicode()
    known = {*alphabet.values(), *(s + "</w>" for s in alphabet.values())}
    spelled = {}
    for word, count in words.items():
        symbols = [alphabet[b] for b in word.encode()]
        symbols[-1] += "</w>"
        spelled[word] = (symbols, count)
    learned: list[tuple[str, str]] = []
    while len(learned) < merges:
        counts: Counter[tuple[str, str]] = Counter()
        for symbols, count in spelled.values():
            for pair in pairwise(symbols):
                counts[pair] += count
        allowed = [(-n, pair) for pair, n in counts.items() if pair[0] + pair[1] not in known]
        if not allowed:
            break
        pair = min(allowed)[1]
        learned.append(pair)
        known.add(pair[0] + pair[1])
        for symbols, _ in spelled.values():
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == pair:
                    symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
                i += 1
    return learned


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text("abcé", min_size=1, max_size=7), st.integers(1, 5), max_size=12),
    st.integers(0, 25),
)
def test_merges_equal_the_definition(words: dict[str, int], merges: int) -> None:
    assert train_bpe(words, merges) == slow_bpe(words, merges)


def test_words_are_cut_as_the_tokenizer_cuts_them() -> None:
    counts = count_words(["A dog's 12 toys,  isn't IT?", "a dog"])
    expected = {"a": 2, "dog": 2, "'s": 1, "1": 1, "2": 1, "toys": 1, ",": 1, "isn": 1, "'t": 1}
    assert counts == Counter({**expected, "it": 1, "?": 1})


def test_open_clip_reads_the_file_and_every_text_survives(tmp_path: Path) -> None:
    captions = ["a red cube left of a blue ball", "two red balls", "a cube on a cube"]
    merges = train_bpe(count_words(captions), 40)
    path = tmp_path / "bpe.txt.gz"
    write_merges(merges, path)
    tokenizer = SimpleTokenizer(bpe_path=str(path))
    assert tokenizer.vocab_size == 512 + len(merges) + 2
    assert tokenizer.all_special_ids == [tokenizer.vocab_size - 2, tokenizer.vocab_size - 1]
    for text in [*captions, "unseen zebra", "façade 猫"]:
        assert tokenizer.decode(tokenizer.encode(text)).strip() == text
    seen = tokenizer.encode("a red cube")
    assert len(seen) == 3  # frequent words are one token
    assert len(tokenizer.encode("zebra")) >= 4
    ours = build_tokenizer({"tokenizer_kwargs": {"bpe_path": path.name}}, tmp_path)
    assert ours.vocab_size == tokenizer.vocab_size
    assert torch.equal(ours(captions), tokenizer(captions))
    assert ours(captions).argmax(-1).tolist() == [
        len(tokenizer.encode(text)) + 1 for text in captions
    ]


def test_the_merges_file_is_reproducible() -> None:
    merges = train_bpe({"banana": 3, "bandana": 1}, 5)
    assert merges_file(merges) == merges_file(merges)
    assert gzip.decompress(merges_file(merges)).decode().split("\n")[1:] == [
        f"{a} {b}" for a, b in merges
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "merges file is missing"),
        (b"plain text", "not a gzipped BPE merges file"),
        (gzip.compress(b"header\na b\nc d e\n", mtime=0), "line 3 is not a merge"),
        (gzip.compress(b"header\na b\n", mtime=0), "line 3 is not a merge"),  # an empty last symbol
        (gzip.compress(b"header\n\xff \xfe", mtime=0), "not a gzipped BPE merges file"),
        (gzip.compress(b"header\na b", mtime=0)[:-9], "not a gzipped BPE merges file"),
    ],
)
def test_bad_merges_files_are_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "bpe.gz").write_bytes(content)
    with pytest.raises(CompoclipError, match=message):
        build_tokenizer({"tokenizer_kwargs": {"bpe_path": "bpe.gz"}}, tmp_path)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompoclipError, match="cannot be written"):
        write_merges([("a", "b")], tmp_path / "file" / "bpe.gz")
