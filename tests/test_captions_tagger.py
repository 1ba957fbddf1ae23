"""Tokens, tags, lemmas, chunks and addresses: exact spans on any text, hand-checked captions."""

from __future__ import annotations

import random
import sys
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compoclip.captions.parser as parse_module
from compoclip.captions.lists import word_set
from compoclip.captions.parser import parse, parse_many
from compoclip.captions.tagger import (
    C5_EXCEPTIONS,
    COARSE,
    PENN_TO_UPOS,
    HantaTagger,
    get_tagger,
    lemma_of,
    tagger_version,
)
from compoclip.captions.tagrules import PASSES, Columns, Patterns, TagRow
from compoclip.captions.types import addresses, word_spans
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import Refused, get_rewrite, rewrite_names
from compoclip.rewrites.cross_swap import cross_swap
from real_captions import coco

pytestmark = pytest.mark.usefixtures("warm_workers")


UPOS = word_set("NOUN PROPN VERB AUX ADJ ADV ADP DET PRON NUM PART CCONJ SCONJ INTJ PUNCT SYM X")
# Whole captions as word/PennTag, checked by hand.
CHECKED = [
    "A/DT man/NN wearing/VBG a/DT striped/JJ shirt/NN is/VBZ standing/VBG in/IN front/IN of/IN "
    "the/DT red/JJ bus/NN ./.",
    "a/DT red/JJ cube/NN is/VBZ to/IN the/IN left/IN of/IN a/DT blue/JJ metal/NN sphere/NN",
    "the/DT spotted/JJ square/NN is/VBZ above/IN the/DT striped/JJ green/JJ circle/NN",
    "Two/CD very/RB tall/JJ giraffes/NNS and/CC a/DT zebra/NN next/IN to/IN her/PRP ./.",
    "A/DT snow/NN covered/VBN mountain/NN behind/IN the/DT kids/NNS '/POS school/NN ./.",
    "A/DT black/JJ and/CC white/JJ cat/NN sitting/VBG on/IN top/IN of/IN a/DT toilet/NN seat/NN",
    "A/DT cat/NN that/WDT is/VBZ sleeping/VBG on/IN a/DT couch/NN ./.",
    "Three/CD people/NNS are/VBP sitting/VBG on/IN a/DT bench/NN ./.",
    "A/DT person/NN riding/VBG down/IN a/DT sidewalk/NN on/IN a/DT skateboard/NN ./.",
    "A/DT woman/NN holding/VBG up/RP a/DT pair/NN of/IN scissors/NNS ./.",
    "A/DT living/NN room/NN filled/VBN with/IN furniture/NN and/CC a/DT TV/NN ./.",
    "A/DT man/NN surfing/VBG on/IN a/DT wave/NN",
    "A/DT man/NN holding/VBG a/DT remote/NN ./.",
    "A/DT frisbee/NN ,/, a/DT surfer/NN and/CC two/CD skateboarders/NNS",
    "An/DT orange/NN and/CC a/DT banana/NN on/IN a/DT plate/NN",
    "An/DT orange/JJ and/CC white/JJ cat/NN",
    "Many/JJ umbrellas/NNS are/VBP hanging/VBG from/IN the/DT ceiling/NN in/IN the/DT shop/NN ./.",
    "There/EX are/VBP a/DT few/JJ pillows/NNS piled/VBN on/IN the/DT bed/NN ./.",
    "A/DT herd/NN of/IN sheep/NNS grazing/VBG in/IN a/DT field/NN",
    "A/DT sheep/NN standing/VBG by/IN itself/PRP",
    "A/DT dog/NN chases/VBZ its/PRP$ own/JJ tail/NN ./.",
    "Children/NNS are/VBP playing/VBG tennis/NN on/IN the/DT street/NN ./.",
    "A/DT woman/NN 's/POS hand/NN holding/VBG a/DT cell/NN phone/NN ./.",
    "A/DT STREET/NN WITH/IN CARS/NNS AND/CC CONSTRUCTION/NN WORKERS/NNS WORKING/VBG ./.",
    "A/DT small/JJ wooden/JJ table/NN topped/VBN with/IN plates/NNS of/IN food/NN",
    "The/DT dog/NN doesn't/VBZ like/VB the/DT cat/NN ./.",
    "A/DT man/NN wants/VBZ to/TO throw/VB a/DT ball/NN ./.",
]


@pytest.fixture(scope="module")
def tagger() -> HantaTagger:
    return HantaTagger()


@pytest.mark.parametrize("line", CHECKED)
def test_hand_checked_captions(tagger: HantaTagger, line: str) -> None:
    pairs = [item.rpartition("/")[::2] for item in line.split()]
    text = " ".join(word for word, _ in pairs).replace(" 's", "'s").replace("kids '", "kids'")
    got = [(t.text, t.tag) for t in tagger.tag(text)]
    assert got == [(word, tag) for word, tag in pairs]


def test_coarse_tags_and_lemmas(tagger: HantaTagger) -> None:
    tokens = tagger.tag("Two men with glasses have been sitting near the striped geese's pond")
    assert " ".join(f"{t.lemma}/{t.pos}" for t in tokens) == (
        "two/NUM man/NOUN with/ADP glasses/NOUN have/AUX be/AUX sit/VERB near/ADP the/DET "
        "striped/ADJ goose/NOUN 's/PART pond/NOUN"
    )


LEMMAS = """
skis NOUN NNS ski, giraffes NOUN NNS giraffe, women NOUN NNS woman, jeans NOUN NNS jeans,
fire-trucks NOUN NNS fire-truck, flown VERB VBN fly, riding VERB VBG ride, larger ADJ JJR large,
isn't AUX VBZ be, bus NOUN NN bus"""


@pytest.mark.parametrize(("low", "pos", "tag", "lemma"), [*map(str.split, LEMMAS.split(","))])
def test_lemmas(low: str, pos: str, tag: str, lemma: str) -> None:
    assert lemma_of(low, pos, tag) == lemma


def test_words() -> None:
    text = "It's the man's black-and-white t-shirt, isn’t it?  3.5 U.S. dogs'... \U0001f600\n"
    assert [text[a:b] for a, b in word_spans(text)] == [
        "It's", "the", "man", "'s", "black-and-white", "t-shirt", ",", "isn’t", "it", "?", "3.5",
        "U.S.", "dogs", "'", "...", "\U0001f600",
    ]  # fmt: skip


@given(st.text(max_size=80))
@settings(max_examples=60, deadline=None)
def test_any_text_gives_exact_ordered_spans(text: str) -> None:
    tokens = get_tagger().tag(text)
    assert all(text[t.start : t.end] == t.text and t.text for t in tokens)
    assert all(a.end <= b.start for a, b in pairwise(tokens))
    assert "".join(t.text for t in tokens) == "".join(text.split())
    assert all(t.pos in UPOS and t.tag in PENN_TO_UPOS and t.lemma for t in tokens)


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\ud800", "a" * 5000, "'", "\x00", "é" * 300, "ن" * 9]
)
def test_odd_texts_never_crash(tagger: HantaTagger, text: str) -> None:
    assert "".join(t.text for t in tagger.tag(text)) == "".join(text.split())


def test_the_decoder_agrees_with_the_library(tagger: HantaTagger, shared_data: Path) -> None:
    """Our exact, cached Viterbi gives what HanTa's own (pruned) search gives."""
    import HanTa
    from HanTa.HanoverTagger import HanoverTagger

    library = HanoverTagger(str(Path(HanTa.__file__).parent / "morphmodel_en.pgz"))
    captions = list(chain.from_iterable(coco(shared_data)))[:150]
    same = 0
    for text in captions:
        words = [text[a:b] for a, b in word_spans(text)]
        seen = [(word, i > 0) for i, word in enumerate(words)]
        same += tagger._decode(seen) == library.tag_sent(words, taglevel=0)
    assert same >= 0.99 * len(captions)


def test_real_captions_have_few_strange_tags(tagger: HantaTagger, shared_data: Path) -> None:
    captions = list(chain.from_iterable(coco(shared_data)))[:500]
    tokens = [t for text in captions for t in tagger.tag(text)]
    strange = [t for t in tokens if t.tag in ("FW", "SYM", "NFP", "UH", "VB", "VBD")]
    assert len(strange) < 0.02 * len(tokens)
    assert all(t.text.lower().endswith("ing") for t in tokens if t.tag == "VBG")


def test_names_and_versions(tagger: HantaTagger) -> None:
    assert tagger.name == tagger_version("hanta") == get_tagger().name
    assert tagger.name.startswith("hanta-")
    assert get_tagger("hanta") is get_tagger("hanta")


def test_taggers_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="use hanta, spacy"):
        get_tagger("treetagger")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(CompoclipError, match="pip install spacy"):
        get_tagger("spacy:some_model")

    def load(name: str, exclude: list[str]) -> None:
        raise OSError(f"[E050] Can't find model {name!r}")

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    with pytest.raises(CompoclipError, match="python -m spacy download absent_model"):
        get_tagger("spacy:absent_model")


def test_spacy_tokens_keep_their_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    class Word:
        def __init__(self, text: str, idx: int) -> None:
            self.text, self.idx, self.is_space = text, idx, text.isspace()
            self.lemma_, self.pos_, self.tag_ = text.lower(), "NOUN", "NN"

    class Pipeline(SimpleNamespace):
        def __call__(self, text: str) -> list[Word]:
            return [Word("A", 0), Word("  ", 1), Word("dog", 3)]

    pipeline = Pipeline(meta={"version": "1.0"})
    spacy = SimpleNamespace(__version__="3.8.0", load=lambda name, exclude: pipeline)
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    tagger = get_tagger("spacy:fake")
    assert tagger.name == "spacy-3.8.0-fake-1.0"
    assert [(t.text, t.start, t.end) for t in tagger.tag("A  dog")] == [("A", 0, 1), ("dog", 3, 6)]


EXCEPTIONS = [row for table in (*PASSES.values(), COARSE, C5_EXCEPTIONS) for row in table.rows]


@pytest.mark.parametrize("row", EXCEPTIONS, ids=lambda row: f"{row.result}: {row.example}")
def test_an_exception_holds_in_its_example(row: TagRow, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[TagRow] = []

    def first(self: Patterns, columns: Columns, at: int) -> str:
        for each in self[tuple(column[at] for column in columns)]:
            if all(holds(columns, at) for holds in each.around):
                held.append(each)
                return each.result
        return ""

    monkeypatch.setattr(Patterns, "first", first)
    get_tagger().tag(row.example)
    assert any(each is row for each in held)


# --- Noun chunks checked by hand, and parsing many captions at once. ---


# Chunks stand in brackets; the head of each is its last word.
CHUNKS = """[A man] wearing [a striped shirt] near [the big red bus].
[A black and white cat] on top of [a man's brown leather jacket].
[Two very tall giraffes] and [a zebra] next to [her].
There is [a snow covered mountain] behind [the kids' school].
[a small red cube] is to the left of [a large blue metal sphere]
[Someone] with [an umbrella] that is open
[A group] of [people] walking down [a street] near [a river].
[A dinner table] with [salad], [pizza] and [wine] on [it]
[a young girl], [a boy] and [their two dogs]
Sitting, running and very red
"""


@pytest.mark.parametrize("marked", CHUNKS.split("\n"))
def test_hand_checked_chunks(marked: str) -> None:
    text = marked.replace("[", "").replace("]", "")
    caption = parse(text)
    for chunk in reversed(caption.chunks):
        first, last = caption.tokens[chunk.first], caption.tokens[chunk.stop - 1]
        assert chunk.head == chunk.stop - 1
        text = f"{text[: first.start]}[{text[first.start : last.end]}]{text[last.end :]}"
    assert text == marked


CHUNK_WORDS = word_set("a the two red and , dog man 's her very covered in")


@given(st.lists(st.sampled_from(sorted(CHUNK_WORDS))))
@settings(max_examples=60, deadline=None)
def test_chunks_are_ordered_and_hold_their_head(words: list[str]) -> None:
    caption = parse(" ".join(words))
    at = 0
    for chunk in caption.chunks:
        assert at <= chunk.first <= chunk.head < chunk.stop <= len(caption.tokens)
        assert caption.tokens[chunk.head].pos in ("NOUN", "PROPN", "PRON")
        at = chunk.stop


def test_many_captions_are_the_same_for_any_number_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parse_module, "POOL_FLOOR", 1)
    monkeypatch.setattr(parse_module, "BATCH", 7)
    texts = [f"{n} red dogs near a cat's table\n" for n in range(30)] + ["", "😀"]
    alone = parse_many(texts)
    assert [caption.text for caption in alone] == texts
    assert parse_many(texts, workers=2) == alone == [parse(text) for text in texts]


# --- URLs, e-mail addresses and names of files: one token each, which no rewrite edits. ---


ADDRESSES = [
    ("a dog at www.red.com/dog?q=1&color=blue near a man", ["www.red.com/dog?q=1&color=blue"]),
    ("a red car photo_small_dog.jpg and a blue house", ["photo_small_dog.jpg"]),
    ("john.smith@dog-house.com with a white cat on a table", ["john.smith@dog-house.com"]),
    ("a man with a red bag (http://dogs.com/small_cat.png).", ["http://dogs.com/small_cat.png"]),
    ("see HTTPS://flickr.com/red_car/: a horse, a fence.", ["HTTPS://flickr.com/red_car/"]),
    ("cat.com?q=1 a girl in a pink dress on a bench", ["cat.com?q=1"]),
    ("two dogs at images\\dog.PNG, ./a/red.car.tiff", ["images\\dog.PNG", "./a/red.car.tiff"]),
    ("the U.S. flag at 3.5 or 12:30...a dog.A man's cat and/or x", []),
    ("a cat sits.it is black @home e.g. a@b and file .jpg", []),
]


@pytest.mark.parametrize(("text", "found"), ADDRESSES)
def test_addresses_are_one_token_and_no_node(text: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in addresses(text)] == found
    caption = parse(text)
    assert [t.text for t in caption.tokens if t.text in found] == found
    assert all(t.pos == "SYM" for t in caption.tokens if t.text in found)
    nodes = " ".join(each.name for each in caption.graph.objects)
    assert not any(each.lower() in nodes.lower() for each in found)
    assert word_spans(text) == [(t.start, t.end) for t in caption.tokens]


def test_no_rewrite_edits_them() -> None:
    """What a rewrite gives holds an address as it was, or nothing of it."""
    captions = [(parse(text), found) for text, found in ADDRESSES if found]
    made = 0
    for name in rewrite_names():
        for caption, found in captions:
            for seed in range(6):
                result = get_rewrite(name)(caption, random.Random(seed))
                if not isinstance(result, Refused):
                    made += 1
                    assert_whole(result.text, found)
    for (first, a), (second, b) in pairwise(captions):
        pair = cross_swap(first, second, random.Random(0))
        for result in () if isinstance(pair, Refused) else pair:
            assert_whole(result.text, a + b)
    assert made > 300


def assert_whole(text: str, found: list[str]) -> None:
    for address in found:
        text = text.replace(address, "")
    assert not any(
        sign in text for sign in ("@", "?q", "www", "://", ".jpg", ".PNG", "_", "Http")
    ), text
