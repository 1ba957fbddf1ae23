"""The lexicon and the word lists: facts, formats, malformed files, what rooms export."""

from __future__ import annotations

import importlib
import lzma
import re
from pathlib import Path
from types import ModuleType

import build_lexicon
import pytest

from build.tables import write_text
from compoclip import captions, language, rewrites
from compoclip.captions.lexicon import Lexicon, lexicon
from compoclip.captions.lists import WordLists, word_lists
from compoclip.errors import CompoclipError
from compoclip.rewrites.relations import PREPOSITIONS, RELATIONS, is_symmetric, preposition_synonyms

DATA = Path(__file__).resolve().parents[1] / "src" / "compoclip" / "captions" / "data"


@pytest.fixture(scope="module")
def words() -> Lexicon:
    return lexicon()


RELATED = """red crimson ADJ, azure blue ADJ, huge enormous ADJ, small tiny ADJ, grey gray ADJ,
dog animal NOUN, animal dog NOUN, man person PROPN, sofa couch NOUN, bike bicycle NOUN,
Dog dog NOUN, stroll walk VERB, quickly rapidly ADV, nosuchword nosuchword NOUN"""
APART = """red blue ADJ, black white ADJ, big small ADJ, striped spotted ADJ, dog cat NOUN,
man woman NOUN, couch chair NOUN, sit stand VERB, left right ADJ, dog nosuchword NOUN"""
SIBLINGS = """
dog NOUN cat fox, cat NOUN dog bear, man NOUN woman child, chair NOUN table bench couch,
car NOUN truck, bus NOUN train, red ADJ blue green yellow black white, black ADJ white red,
wooden ADJ metal plastic, striped ADJ dotted checked, tiny ADJ large huge, sit VERB stand lie,
walk VERB fly, quickly ADV slowly"""
OPPOSITES = """big ADJ little, large ADJ small, huge ADJ small, left ADJ right, wet ADJ dry,
open ADJ closed, man NOUN woman, sit VERB stand, quickly ADV slowly"""


def cases(text: str) -> list[list[str]]:
    return [case.split() for case in text.split(",")]


@pytest.mark.parametrize(
    ("a", "b", "pos", "related"),
    [(*case, True) for case in cases(RELATED)] + [(*case, False) for case in cases(APART)],
)
def test_related(words: Lexicon, a: str, b: str, pos: str, related: bool) -> None:
    assert words.related(a, b, pos) == related
    assert words.related(b, a, pos) == related


@pytest.mark.parametrize("case", cases(SIBLINGS), ids=" ".join)
def test_cohyponyms(words: Lexicon, case: list[str]) -> None:
    lemma, pos, *some = case
    found = words.cohyponyms(lemma, pos)
    assert set(some) <= set(found)
    assert list(found) == sorted(set(found))
    assert not any(words.related(lemma, other, pos) for other in found)
    assert words.cohyponyms(lemma, pos) == found


def test_dominant_senses_lead(words: Lexicon) -> None:
    """Animals for "cat", furniture for "table": neither gossips nor columns of figures."""
    assert {"woman", "person", "gossip"}.isdisjoint(words.cohyponyms("cat", "NOUN"))
    assert "head" not in words.cohyponyms("dog", "NOUN")
    assert words.dominant("table", "NOUN") != ()
    assert "desk" in words.cohyponyms("chair", "NOUN")


@pytest.mark.parametrize(("lemma", "pos", "opposite"), cases(OPPOSITES))
def test_antonyms(words: Lexicon, lemma: str, pos: str, opposite: str) -> None:
    assert opposite in words.antonyms(lemma, pos)
    assert words.antonyms("red", "ADJ") == ()  # colours have no opposite class


def test_known_and_count(words: Lexicon) -> None:
    assert words.count("dog", "NOUN") == 42
    assert words.count("blue", "ADJ") > words.count("mauve", "ADJ")
    known = ("giraffe", "zebra", "skateboard", "frisbee", "pizza", "laptop", "umbrella")
    assert all(words.contains(word, "NOUN") for word in known)
    assert words.contains("fire hydrant", "NOUN")
    assert words.contains("entity", "NOUN")  # the first entry
    assert words.contains("fire_hydrant", "NOUN")
    assert not words.contains("dog", "ADJ")
    assert not words.contains("red", "X")
    assert words.familiar("giraffe", "NOUN")
    assert not words.familiar("bassarisk", "NOUN")


def test_unknown_words_have_empty_answers(words: Lexicon) -> None:
    for pos in ("NOUN", "VERB", "ADJ", "ADV", "ADP", ""):
        for lemma in ("nosuchword", "", "a\tb", "😀"):
            assert not words.contains(lemma, pos)
            assert words.count(lemma, pos) == 0
            assert words.antonyms(lemma, pos) == words.cohyponyms(lemma, pos) == ()


def test_every_synset_and_pointer_is_sound() -> None:
    table = lexicon()
    assert len(table) > 90_000
    for number in range(0, len(table), 97):
        synset = table.synset(number)
        for target in (*synset.hypernyms, *synset.heads, *synset.attributes):
            assert 0 <= target < len(table)
        for up in (*synset.hypernyms, *synset.heads):
            assert number in table.below(up)
        for pointer in synset.words:
            assert pointer.word < len(synset.lemmas)
            assert pointer.target_word < len(table.synset(pointer.synset).lemmas)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lexicon.xz"
    path.write_bytes(lzma.compress(text.encode()))
    return path


GOOD = "compoclip-lexicon\t2\t2\t1\tsource\ndog\nDog\n\n\n1 0:42\n3\nn 5 2\n"


def test_malformed_files_are_one_line_errors(tmp_path: Path) -> None:
    good = Lexicon(_file(tmp_path, GOOD))
    assert good.count("dog", "NOUN") == 42
    assert good.dominant("dog", "NOUN") == (0,)
    broken = [
        GOOD.replace("lexicon\t2", "lexicon\t9"),
        GOOD.replace("\t2\t1\tsource", "\tx\t1\tsource"),
        GOOD[:-1],
        GOOD.replace("n 5 2", "n 5 1"),
        GOOD.replace("n 5 2", "n five 2"),
        GOOD.replace("n 5 2", "x 5 2"),
        GOOD.replace("n 5 2", "n 5"),
        GOOD.replace("Dog", "cat"),
        "",
    ]
    files = [lzma.compress(text.encode()) for text in broken]
    files += [b"no xz", (DATA / "lexicon.xz").read_bytes()[:5000]]
    path = tmp_path / "broken.xz"
    for data in files:
        path.write_bytes(data)
        with pytest.raises(CompoclipError, match=r"broken\.xz: not a usable") as caught:
            Lexicon(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(CompoclipError, match=r"absent\.xz: not a usable .* file \(No such file"):
        Lexicon(tmp_path / "absent.xz")


def test_building_from_a_tiny_database(tmp_path: Path) -> None:
    """An animal, its cat and dog, a named dog (left out), and a rare Latin name (left out)."""
    head = "  1 Licence text.  \n"
    lines = [
        "{a} 05 n 01 animal 0 002 ~ {d} n 0000 ~ {c} n 0000 | a living thing",
        "{d} 05 n 02 dog 0 Canis 0 002 @ {a} n 0000 ~i {r} n 0000 | barks; a dog barks",
        "{c} 05 n 01 cat 0 001 @ {a} n 0000 | meows",
        "{r} 05 n 01 Rex 0 001 @i {d} n 0000 | a dog of that name",
    ]
    at = {"a": "00000010", "d": "00000020", "c": "00000030", "r": "00000040"}
    index = {"animal": "a", "dog": "d", "canis": "d", "cat": "c", "rex": "r"}
    for name in ("verb", "adj", "adv"):
        (tmp_path / f"data.{name}").write_text(head)
        (tmp_path / f"index.{name}").write_text(head)
    (tmp_path / "data.noun").write_text(head + "\n".join(x.format(**at) for x in lines) + "\n")
    entries = [f"{lemma} n 1 0 1 0 {at[key]}  " for lemma, key in index.items()]
    (tmp_path / "index.noun").write_text(head + "\n".join(entries) + "\n")
    (tmp_path / "cntlist.rev").write_text("dog%1:05:00:: 1 7\n")
    text, report = build_lexicon.build(tmp_path)
    words = Lexicon(_file(tmp_path, text))
    assert words.cohyponyms("dog", "NOUN") == ("cat",)
    assert words.count("dog", "NOUN") == 7
    assert not words.contains("rex", "NOUN")
    assert not words.contains("canis", "NOUN")
    assert report["synsets: instances"] == 1
    assert report["words: capitalised and never counted"] == 1
    assert build_lexicon.licence(tmp_path) == "Licence text.\n"
    assert "Princeton University" in (DATA / "LICENSE.wordnet").read_text()
    assert (DATA / "lexicon.xz").stat().st_size < 4_000_000


# --- Word lists: their format, the shipped files, and what the rooms of captions export. ---


FILE = """# before any list
loose words

# Phrases are separated by commas.
[phrases]
in front of, on
under

[kinds]
cat: lion tiger
dog wolf: hound

[more]
{phrases} beside
"""
FOLDERS = [Path(str(room.__file__)).parent for room in (captions, rewrites)]
FILES = [path for folder in FOLDERS for path in sorted((folder / "data").glob("*.txt"))]


def test_the_format(tmp_path: Path) -> None:
    lists = WordLists(write_text(tmp_path / "lists.txt", FILE))
    assert lists.rows() == ("loose words",)
    assert lists["phrases"] == {"in front of", "on", "under"}
    assert lists["more"] == lists["phrases"] | {"beside"}
    assert lists.groups("phrases") == (("in front of", "on"), ("under",))
    kinds = {"cat": ("lion", "tiger"), "dog": ("hound",), "wolf": ("hound",)}
    assert lists.table("kinds") == kinds
    assert lists.keys_of("kinds") == {"lion": "cat", "tiger": "cat", "hound": "wolf"}
    with pytest.raises(KeyError):
        lists["none"]


def test_code_names_lists_that_exist() -> None:
    names = {name for path in FILES for name in WordLists(path).names()}
    used = re.compile(r'(?:WORDS|RULES|_LISTS|RELATIONS|_FAMILIES)\["([^"]+)"\]')
    for folder in FOLDERS:
        for path in folder.glob("*.py"):
            assert names >= set(used.findall(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_list_says_what_it_is_for(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    names = [line for line in lines if line.startswith("[")]
    assert len(names) == len(set(names))
    if path.stem not in ("families", "lexicon", "exceptions"):  # which say it at the top
        for number, line in enumerate(lines):
            assert not line.startswith("[") or lines[number - 1].startswith("# "), line


def test_a_file_is_read_once() -> None:
    module = str(FOLDERS[1] / "replace.py")
    assert word_lists(module, "rules") is word_lists(module, "rules")


@pytest.mark.parametrize("room", [captions, rewrites, language], ids=lambda room: room.__name__)
def test_rooms_export_what_their_stub_lists(room: ModuleType) -> None:
    assert room.__all__
    for name in room.__all__:
        assert not isinstance(getattr(room, name), ModuleType), name
        assert importlib.import_module(room.__name__) is room


# --- Prepositions: weights, near-synonyms, symmetric relations. ---


def test_the_table() -> None:
    assert 70 <= len(PREPOSITIONS) <= 85
    assert all(weight >= 1 for weight in PREPOSITIONS.values())
    assert all(word == " ".join(word.lower().split()) for word in PREPOSITIONS)
    assert {"in front of", "on top of", "next to", "to the left of", "under"} <= set(PREPOSITIONS)


def test_synonyms_are_mutual_and_known() -> None:
    for word in PREPOSITIONS:
        others = preposition_synonyms(word)
        assert word not in others
        assert others <= set(PREPOSITIONS)
        assert all(word in preposition_synonyms(other) for other in others)
        assert len(set(PREPOSITIONS) - others) > 20, f"{word} could hardly be replaced"


ALIKE = """under / beneath, below / underneath, next to / beside, near / by, over / above,
on / on top of, On  Top of / atop, in / inside, behind / in back of"""
CONTRARY = """under / over, under / on, in front of / behind, inside / outside,
to the left of / to the right of, above / below, with / without"""


def test_near_synonyms_and_opposites() -> None:
    for pairs, alike in ((ALIKE, True), (CONTRARY, False)):
        for pair in pairs.split(","):
            a, b = pair.strip().split(" / ")
            assert (b in preposition_synonyms(a)) is alike, pair


SYMMETRIC = """standing next to, sitting beside, parked near, is next to, sits right beside,
are standing close to, hugging, hugs, is hugging, Kisses, touch, met, talks to, talked with,
playing with, parked by"""
DIRECTED = """
on, under, in front of, left of, eating, looking at, pulled by, topped with, covered with,
surrounded by, sitting on, is behind, riding, made with, is,"""


def test_symmetric_relations() -> None:
    for relation in (*sorted(RELATIONS["symmetric"]), *map(str.strip, SYMMETRIC.split(","))):
        assert is_symmetric(relation.split()), relation
        assert is_symmetric([relation]), relation
    for relation in DIRECTED.split(","):
        assert not is_symmetric(relation.split()), relation
    assert not is_symmetric([])
