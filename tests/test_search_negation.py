"""What search makes of a query: what it denies, the modes of --negation, a note on its language."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.evaluation import ModelEncoder
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from compoclip.search import MODES, index_page, negation_mode, search, split_negation
from compoclip.search.query import language_note, parts_of
from search_photos import indexed

CAPTIONS = Path(__file__).parents[1] / "scripts" / "captions_of_ten_languages.yaml"
QUERY = "a mug without a star or a box"


# --- The wanted and the denied part. ---


@pytest.mark.parametrize(
    ("text", "wanted", "denied"),
    [
        ("a street without cars", "a street", ["cars"]),
        ("a man without a hat or glasses on a bike", "a man on a bike", ["a hat", "glasses"]),
        ("a woman who is not wearing a hat", "a woman", ["wearing a hat"]),
        ("a cat not on a mat, in a house", "a cat, in a house", ["on a mat"]),
        ("a dog that isn't black", "a dog", ["black"]),
        ("a dog that isn’t black", "a dog", ["black"]),
        ("a field without a bunch of flowers", "a field", ["a bunch of flowers"]),
        ("a beach with no people but no dogs", "a beach", ["people", "dogs"]),
        ("There is no cat on the mat", "the mat", ["cat"]),
        ("a table with nothing on it", "a table", ["objects"]),
        ("nothing on the table", "the table", ["objects"]),
        ("a desk with nothing on it next to a lamp", "a desk next to a lamp", ["objects"]),
        ("nobody on the beach", "the beach", ["people"]),
        ("nobody around the table", "the table", ["people"]),
        ("there's nobody in the park", "the park", ["people"]),
        ("a street with no one around", "a street", ["people"]),
        ("a park where nobody is sitting on a bench", "a park", ["people sitting on a bench"]),
        ("a room with neither people nor chairs", "a room", ["people", "chairs"]),
        ("neither a cat nor a dog on the sofa", "the sofa", ["a cat", "a dog"]),
        ("a street free of cars", "a street", ["cars"]),
        ("a room that is free of furniture", "a room", ["furniture"]),
        ("a car-free street", "a street", ["car"]),
        ("people in a snow-free valley", "people in a valley", ["snow"]),
        ("the lake is ice-free", "the lake", ["ice"]),
        ("a man with a dog instead of a cat", "a man with a dog", ["a cat"]),
        ("a bridge no longer in use", "a bridge", ["in use"]),
        ("a room that has no people in it", "a room", ["people"]),
        ("no windows and a red chair", "a red chair", ["windows"]),
        ("a room with no windows and no doors", "a room", ["windows", "doors"]),
        ("a beach with no people and two dogs", "a beach and two dogs", ["people"]),
        ("a no smoking sign on a wall without windows", "a no smoking sign on a wall", ["windows"]),
    ],
)
def test_a_text_is_split_into_what_it_asks_for_and_denies(
    text: str, wanted: str, denied: list[str]
) -> None:
    assert split_negation(text) == (wanted, tuple(denied))


@pytest.mark.parametrize(
    "text",
    [
        "no cars",  # it asks for nothing else
        "nobody is sitting on the bench",
        "not",
        "a red cup left of a plate",
        "a sugar-free soda can",  # a product: no photo shows the sugar
        "a carefree child",
        "free parking",
        "nobody's bike",
        "no. 7 on a jersey",
        "a no 7 jersey",
        "a no-entry sign",
        'a sign that says "no dogs"',
        "nothing but sand",
        "not only a dog",
        "Dr. No poster",
        "yes or no buttons",
        "forget-me-not flowers",
        "a knotted rope",
        "a sleeveless dress",  # words in -less stay: models know them
        "hardly any people on a beach",  # few are not none
    ],
)
def test_what_denies_nothing_stays_as_it_is(text: str) -> None:
    assert split_negation(text) == (text, ())


# --- The modes, against plain loops. ---


def norm(vector: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in vector))


def scores(vector: Sequence[float], features: np.ndarray) -> list[float]:
    return [sum(a * b for a, b in zip(vector, row)) for row in features.tolist()]


def optimized_by_loops(
    whole: list[float], wanted: list[float], denied: list[list[float]], weight: float
) -> list[float]:
    """DEO's hundred steps of Adam, one number at a time."""
    query, first, second = list(whole), [0.0] * len(whole), [0.0] * len(whole)
    for step in range(1, 101):
        slopes = [0.0] * len(query)
        pulls = [(1.0, wanted), (0.2, whole), *((-weight / len(denied), part) for part in denied)]
        for factor, part in pulls:
            length = norm([a - b for a, b in zip(query, part)])
            if length:
                slopes = [
                    slope + factor * (a - b) / length for slope, a, b in zip(slopes, query, part)
                ]
        for place, slope in enumerate(slopes):
            first[place] = 0.9 * first[place] + 0.1 * slope
            second[place] = 0.999 * second[place] + 0.001 * slope * slope
            mean, spread = first[place] / (1 - 0.9**step), second[place] / (1 - 0.999**step)
            query[place] -= 0.001 * mean / (math.sqrt(spread) + 1e-8)
        length = norm(query)
        query = [value / length for value in query]
    return query


def test_every_mode_ranks_as_plain_loops_do(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    index = indexed(photos, encoder, tmp_path / "index")
    texts = [QUERY, "a mug", "a star", "a box"]
    whole, wanted, *denied = encoder.encode_texts(texts).astype(float).tolist()
    expected = {
        "off": whole,
        "split": wanted,
        "subtract:0.5": [a - 0.5 * (b + c) for a, b, c in zip(wanted, *denied)],
        "0.5": [a - 0.5 * (b + c) for a, b, c in zip(wanted, *denied)],
        "subtract": [a - 0.25 * (b + c) for a, b, c in zip(wanted, *denied)],
        "deo": optimized_by_loops(whole, wanted, denied, 2.0),
        "steer:0": whole,
    }
    for mode, vector in expected.items():
        plain, answer = search(index, encoder, ["a star", QUERY], 5, mode)
        values = scores(vector, index.features)
        assert [hit.score for hit in answer.hits] == pytest.approx(
            sorted(values, reverse=True), abs=2e-5
        ), mode
        assert answer.best == pytest.approx(
            max(scores(whole if mode == "off" else wanted, index.features)), abs=1e-5
        )
        assert answer.denied == (() if mode == "off" else ("a star", "a box"))
        assert answer.asked == (QUERY if mode == "off" else "a mug")
        assert plain.hits[0].score == pytest.approx(
            max(scores(denied[0], index.features)), abs=1e-5
        )


def test_steering_moves_along_one_direction(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    """At weight 1 only the direction is left, the same for every query; at 0.5 half of it."""
    index = indexed(photos, encoder, tmp_path / "index")
    other = "a star without a mug"
    ends = [
        {hit.row: hit.score for hit in answer.hits}
        for answer in search(index, encoder, [QUERY, other], 5, "steer:1")
    ]
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)
    (half,) = search(index, encoder, [QUERY], 5, "steer:0.5")
    whole = encoder.encode_texts([QUERY])[0].tolist()
    start = scores(whole, index.features)
    ratios = {round(hit.score / (start[hit.row] + ends[0][hit.row]), 4) for hit in half.hits}
    assert len(ratios) == 1  # (start + direction) / its length


def test_steering_goes_from_what_is_stated_to_what_is_denied() -> None:
    """Of a model with three axes: what states a thing, what denies it, and the query."""

    def encode(texts: Sequence[str]) -> np.ndarray:
        denies = [any(word in text for word in ("without", "but no", "has no")) for text in texts]
        axes = [2 if text == QUERY else int(deny) for text, deny in zip(texts, denies)]
        return np.eye(3, dtype=np.float32)[axes]

    steer = MODES["steer"].vectors
    assert steer is not None
    vectors = steer([parts_of(QUERY)], encode([QUERY]), encode, 0.5)
    length = math.sqrt(0.5**2 + 0.5**2)  # of half the query and half the unit direction
    away = 0.5 / math.sqrt(2)
    assert vectors[0].tolist() == pytest.approx([-away / length, away / length, 0.5 / length])


def test_numbers_name_the_modes_that_they_did(photos: Path) -> None:
    assert negation_mode(0.25) == negation_mode("0.25") == negation_mode("subtract:0.25")
    assert negation_mode(0) == negation_mode("0") == negation_mode("off")
    for name, mode in MODES.items():
        assert negation_mode(name) == (mode, mode.weight or 0.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "known: off, split, subtract, deo, steer"),
        ("dio", "--negation has no mode 'dio'; did you mean deo?"),
        ("Split", "did you mean split?"),
        (":0.5", "known: off"),
        ("split:0.5", "--negation split takes no weight; write split"),
        ("off:1", "takes no weight"),
        ("deo:", "deo: the weight must be a number from 0 to 10, e.g. deo:2"),
        ("deo:much", "must be a number"),
        ("deo:1:2", "must be a number"),
        ("deo:nan", "must be a number from 0 to 10"),
        ("subtract:-0.1", "must be a number from 0 to 10"),
        ("-1", "subtract: the weight must be a number from 0 to 10"),
        ("11", "must be a number from 0 to 10"),
        ("inf", "must be a number from 0 to 10"),
        ("nan", "must be a number from 0 to 10"),
        ("steer:1.5", "must be a number from 0 to 1, e.g. steer:0.13"),
        ("0.5:0.5", "--negation has no mode '0.5'"),
    ],
)
def test_malformed_modes_end_in_one_line(value: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        negation_mode(value)
    assert words in str(error.value)


# --- The note on a language. ---

NOTED = ["Polish", "Turkish", "Russian", "Arabic", "Hindi", "Chinese", "Japanese"]


def test_languages_that_the_tokenizer_spells_are_noted() -> None:
    tokenizer = build_tokenizer({})
    for language, texts in yaml.safe_load(CAPTIONS.read_text(encoding="utf-8")).items():
        share = sum(bool(language_note(tokenizer, text)) for text in texts) / len(texts)
        assert (share > 0.9) == (language in NOTED), (language, share)
    for text in ("a man in a red shirt", "a", "xylophone", "I 2 3 ! ?", "a b c d", "🐶", ""):
        assert language_note(tokenizer, text) == "", text


def test_spelling_tokens_are_counted_as_by_hand() -> None:
    """Merges of CLIP's vocabulary, joined by hand: every character of the word alone."""
    tokenizer = build_tokenizer({})
    assert tokenizer.spelled("a dog") == (0, 2)
    inner = tokenizer.simple
    assert inner is not None
    for text in ("собака бежит", "ein Hund läuft", "一只狗跑过街道", "qzj"):
        spelling = total = 0
        for word in text.lower().split():
            ids = inner.encode(word)
            pieces = [
                bytes(inner.byte_decoder[c] for c in inner.decoder[k].replace("</w>", ""))
                for k in ids
            ]
            total += len(ids)
            for piece in pieces if len(ids) > 1 else ():
                try:
                    spelling += len(piece.decode()) == 1
                except UnicodeDecodeError:  # part of a character
                    starts = [byte for byte in piece if not 0x80 <= byte < 0xC0]
                    spelling += len(starts) <= 1
        assert tokenizer.spelled(text) == (spelling, total), text


def test_bytes_of_other_vocabularies_are_counted() -> None:
    """Byte fallback, as of SigLIP's successors; a vocabulary without bytes says nothing."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<unk>": 0, **{f"<0x{k:02X}>": k + 1 for k in range(256)}}
    for word in ("a", "d", "o", "g", "do", "dog"):
        vocabulary.setdefault(word, len(vocabulary))
    merges = [("d", "o"), ("do", "g")]

    def wrapped(fallback: bool) -> Tokenizer:
        from open_clip.tokenizer import HFTokenizer

        words = vocabulary if fallback else {k: v for k, v in vocabulary.items() if "x" not in k}
        model = tokenizers.models.BPE(words, merges, unk_token="<unk>", byte_fallback=fallback)
        raw = tokenizers.Tokenizer(model)
        raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
        inner = HFTokenizer.__new__(HFTokenizer)
        inner.tokenizer, inner.clean_fn, inner.context_length = fast, str, 16
        return Tokenizer(inner, 16)

    assert wrapped(True).spelled("a dog 狗") == (3, 5)
    assert "3 of 5 tokens" in language_note(wrapped(True), "a dog 狗")
    assert wrapped(True).spelled("a dog") == (0, 2)
    assert wrapped(False).spelled("a dog 狗") is None
    assert language_note(wrapped(False), "狗") == ""


def test_the_note_is_printed_and_on_the_page(
    photos: Path,
    encoder: ModelEncoder,
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "index"
    index = indexed(photos, encoder, path)
    text = "собака бежит по улице"
    ask = ["search", str(path), text, "a mug", "--model", str(world / "base")]
    assert main(ask) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == text
    assert lines[1].startswith("the model may not know the language or a word of this text")
    assert sum("may not know" in line for line in lines) == 1
    assert main([*ask, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [answer["note"] for answer in answers] == [lines[1], ""]
    assert main([*ask, "--negation=split:0.5"]) == 2
    assert "--negation split takes no weight; write split" in capsys.readouterr().err
    page = index_page(index, search(index, encoder, [text]), path)
    assert "The model may not know the language or a word" in page
