"""Hooks of CountBench and TallyQA: which of several numbers is the number of things in a photo.

See `hooks.py` for what a hook is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from compoclip.benchmarks import files
from compoclip.benchmarks.hooks import Rows
from compoclip.benchmarks.hooks_photos import url_key
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.table import Row
from compoclip.captions.lexicon import lexicon
from compoclip.captions.lists import NUMBERS
from compoclip.captions.tagger import lemma_of
from compoclip.rewrites.count import COUNTS
from compoclip.rewrites.edit import article_for
from compoclip.rewrites.relations import PREPOSITIONS

# --- CountBench. ---


def countbench(rows: Rows, data: Loading) -> Iterator[Row]:
    """Put every other number from two to ten into a caption; name photos by their addresses."""
    for row in rows:
        value, caption = row.float("number"), row.text("text")
        row.require(value in COUNTS, f"'number' {value:g} is no whole number from 2 to 10")
        number = int(value)
        spelt = _occurrences(COUNTS[number]).search(caption) is not None
        forms = COUNTS if spelt else {count: str(count) for count in COUNTS}
        place = _occurrences(forms[number])
        if place.search(caption) is None:
            data.left_out["captions that do not name their number"] += 1
            continue
        negatives = [_renumbered(caption, place, forms[n]) for n in forms if n != number]
        photo = row.values.get("image")
        if "image" not in row.pictures and not isinstance(photo, str):
            photo = url_key(row.text("image_url"))  # its address may be dead, its picture empty
        row.values = {"text": caption, "negatives": negatives, "image": photo}
        row.labels = {"number": str(number)}
        yield row


def _occurrences(form: str) -> re.Pattern[str]:
    """Return the pattern of a number as a word of its own, with an article before it."""
    return re.compile(rf"\b(?:(an?)(\s+))?({form})\b", re.IGNORECASE)


def _renumbered(caption: str, place: re.Pattern[str], form: str) -> str:
    """Return the caption with its number as `form`, cased alike; "a" and "an" follow it."""

    def renumber(match: re.Match[str]) -> str:
        article, blank, old = match.groups("")
        new = form.upper() if old.isupper() and len(old) > 1 else form
        new = new.capitalize() if old.istitle() else new
        if not article:
            return new
        fitting = article_for(form)
        return f"{fitting.capitalize() if article[0].isupper() else fitting}{blank}{new}"

    return place.sub(renumber, caption)


# --- TallyQA. ---

_MOST = 15
_QUESTION = re.compile(r"how many\s+(\w.*?)[\s?.]*", re.IGNORECASE | re.DOTALL)
_THERE = re.compile(r"(.+?)\s+(are|is|were|was)\s+there\b\s*(.*)", re.IGNORECASE | re.DOTALL)
_HAVE = re.compile(r"(.+?)\s+(do|does|did)\s+(.+?)\s+have\b\s*(.*)", re.IGNORECASE | re.DOTALL)
_VERBS = {"do": "have", "does": "has", "did": "had", "is": "are", "was": "were"}
_OF_ONE = {"are": "is", "were": "was", "have": "has"}
_ENDS = (
    PREPOSITIONS.keys() | _OF_ONE.keys() | {"can", "do", "of", "that", "who", "you"}
)  # of a noun phrase


def tallyqa(rows: Rows, data: Loading) -> Iterator[Row]:
    """Turn a question into sixteen statements, with the numbers from zero to fifteen."""
    for row in rows:
        simple, _ = row.value("issimple")
        row.require(isinstance(simple, bool), f"'issimple' must be true or false; {files.OFFICIAL}")
        answer = row.float("answer")
        row.require(
            answer in range(_MOST + 1),
            f"'answer' {answer:g} is no whole number from 0 to {_MOST}; {files.OFFICIAL}",
        )
        texts = statements(row.text("question"))
        if not texts:
            data.left_out["questions that do not ask how many"] += 1
            continue
        row.part = "simple" if simple else "complex"
        row.values = {**row.values, "statements": texts}
        row.truth = int(answer)
        row.labels = {"answer": str(row.truth)}
        yield row


def statements(question: str) -> list[str]:
    """Return a "how many" question as statements with "no", "one" to "fifteen"; [] for any other.

    "How many dogs are there?" becomes "there are two dogs", "How many legs does the dog have?" "the
    dog has two legs", and "How many dogs are running?" "two dogs are running". "One" takes the
    singular of the first plural noun.

    Args:
        question: The question of a data set of questions and answers.
    """
    asked_for = _QUESTION.fullmatch(question.strip())
    if asked_for is None:
        return []
    before, behind = "", asked_for[1]
    if match := _THERE.fullmatch(behind):
        things, verb, rest = match.groups()
        before = f"there {_VERBS.get(verb.lower(), verb.lower())} "
        behind = f"{things} {rest}"
    elif match := _HAVE.fullmatch(behind):
        things, verb, owner, rest = match.groups()
        before = f"{owner} {_VERBS[verb.lower()]} "
        behind = f"{things} {rest}"
    behind = behind.strip()
    words = ["no", *(word for word, value in NUMBERS.items() if 1 < value <= _MOST)]
    texts = [f"{before}{word} {behind}" for word in words]
    return [texts[0], _of_one(before, behind), *texts[1:]]


def _of_one(before: str, behind: str) -> str:
    """Return the statement about a single thing: "there is one dog"."""
    words = behind.split(" ")
    noun = next((i for i, word in enumerate(words) if _singular(word) != word), len(words))
    end = next((i for i, word in enumerate(words) if word.lower() in _ENDS), len(words))
    if noun < end:
        words[noun] = _singular(words[noun])
        verb = next((i for i in range(noun, len(words)) if words[i] in _OF_ONE), noun)
        words[verb] = _OF_ONE.get(words[verb], words[verb])
    there, _, be = before.strip().partition(" ")
    before = f"{there} {_OF_ONE[be]} " if there == "there" else before
    return f"{before}one {' '.join(words)}"


def _singular(word: str) -> str:
    """Return the singular of a plural noun of the lexicon, any other word as it is."""
    low = word.lower()
    lemma = "person" if low == "people" else lemma_of(low, "NOUN", "NNS")
    return lemma if lemma != low and lexicon().contains(lemma, "NOUN") else word
