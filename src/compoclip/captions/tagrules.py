"""Corrections of the tags of a model that was trained on newspapers and novels, for captions.

Each row of `data/retagging.txt` fixes an error seen on captions of photos. Passes run in the order
of the file, each on the whole caption.

A row is `RESULT | CONDITION; CONDITION | EXAMPLE`: the result of the first row whose conditions all
hold counts. A condition is `[PLACE] [!]COLUMN VALUES`:

- place: `-1` the word before, `+1` the word behind, `+1..+5` any of these words, `..-1` any word
  before, `..` any word of the caption; without one the word itself
- column: w (the word), l (its lemma), p (its part of speech), t (its Penn tag), or another that
  the table's reader explains
- values: words, `{name}` for the words of a list, `/regular expression/`, `^` for no word at all
- `!`: none of the values

`@name` is a condition in code. The example is a caption for which the row holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from compoclip.captions.lists import PHRASAL, WORDS, word_lists, word_set

Columns = Sequence[Sequence[str]]
Condition = Callable[[Columns, int], bool]
_CONDITION = re.compile(
    r"(?:(?P<first>[+-]\d+)?(?P<range>\.\.)?(?P<last>[+-]\d+)? +)?"
    r"(?P<no>!?)(?P<column>[wlptm]) (?P<values>.+)"
)
_VALUE = re.compile(r"\{[^}]+\}|\S+")
_MOST = 1 << 16  # words that are remembered


class TagRow(NamedTuple):
    """One row; `local` are its conditions on the word itself."""

    result: str
    local: tuple[Condition, ...]
    around: tuple[Condition, ...]
    example: str


class Patterns(dict[tuple[str, ...], tuple[TagRow, ...]]):
    """A table of rows: maps the columns of a word to the rows whose conditions on it hold.

    Args:
        columns: The letters of the columns that `first` is given.
        rows: The cells of each row of the file.
        code: Conditions in code, by name.
    """

    def __init__(
        self, columns: str, rows: Iterable[Sequence[str]], code: Mapping[str, Condition]
    ) -> None:
        super().__init__()
        self.rows = []
        for result, conditions, example in rows:
            local: list[Condition] = []
            around: list[Condition] = []
            for condition in filter(None, map(str.strip, conditions.split(";"))):
                if condition.startswith("@"):
                    around.append(code[condition[1:]])
                    continue
                parts = _CONDITION.fullmatch(condition)
                assert parts is not None, f"not a condition: {condition}"
                far = parts["first"] or parts["range"]
                (around if far else local).append(_condition(parts, columns.index(parts["column"])))
            self.rows.append(TagRow(result, tuple(local), tuple(around), example))

    def __missing__(self, word: tuple[str, ...]) -> tuple[TagRow, ...]:
        if len(self) >= _MOST:
            self.clear()
        alone = [(value,) for value in word]
        self[word] = tuple(row for row in self.rows if all(holds(alone, 0) for holds in row.local))
        return self[word]

    def every(self, columns: Columns, at: int) -> list[str]:
        """Return the results of all rows that hold at a word."""
        rows = self[tuple([column[at] for column in columns])]
        return [row.result for row in rows if all(holds(columns, at) for holds in row.around)]

    def first(self, columns: Columns, at: int) -> str:
        """Return the result of the first row that holds at a word, "" for none."""
        for row in self[tuple([column[at] for column in columns])]:
            for holds in row.around:  # no generator: this runs for every word
                if not holds(columns, at):
                    break
            else:
                return row.result
        return ""


def _condition(parts: re.Match[str], column: int) -> Condition:
    words: set[str] = set()
    expressions = ["(?!)"]
    for value in _VALUE.findall(parts["values"]):
        if value.startswith("{"):
            words |= SETS.get(value[1:-1]) or _LISTS[value[1:-1]]
        elif value.startswith("/"):
            expressions.append(value[1:-1])
        else:
            words.add("" if value == "^" else value)
    matches = re.compile("|".join(expressions)).fullmatch if expressions[1:] else None
    offset, last = int(parts["first"] or 0), int(parts["last"] or 0)
    start, stop, expected = parts["first"], parts["last"], not parts["no"]

    def any_holds(columns: Columns, at: int) -> bool:
        first = max(at + offset, 0) if start else 0
        near = columns[column][first : at + last + 1 if stop else None]
        return (not words.isdisjoint(near) or bool(matches and any(map(matches, near)))) is expected

    def holds(columns: Columns, at: int) -> bool:
        row, place = columns[column], at + offset
        word = row[place] if 0 <= place < len(row) else ""
        return (word in words or bool(matches and matches(word))) is expected

    return any_holds if parts["range"] else holds


_LISTS = word_lists(__file__, "tagging")  # which says what each list is for
_TABLE = word_lists(__file__, "retagging")
_MOTION = tuple(_LISTS["motion"])
_BE = word_set("is are was were be been being am 's ’s it's he's she's")
_NOUN = frozenset({"NN", "NNS", "NNP", "NNPS"})
SETS = {
    "be": _BE,
    "colours": WORDS["colours"],
    "compounds in -ing": WORDS["compounds in -ing"],
    "living": WORDS["alive"] | {f"{name}s" for name in WORDS["alive"]},
    "never nouns": _BE | {"has", "have", "does", "do"},
    "noun": _NOUN,
    "determiners": frozenset({"DT", "PRP$", "POS", "CD"}),
    "nominal": _NOUN | {"JJ", "JJR", "JJS", "CD", "VBN", "VBG", "RB"},
    "finite": frozenset({"VBZ", "VBP", "VBD", "MD"}),
    "after openings": frozenset({"IN", "CC", ",", "VBG", "VBN", "VBZ", "VBP", "WDT", "POS"}),
    "ending": frozenset({"", ".", ",", "CC", "IN"}),
}


def _behind_motion(columns: Columns, at: int) -> bool:
    """Return whether the verb before states motion or posture."""
    lows, tags = columns
    verb = next((i for i in range(at - 1, -1, -1) if tags[i].startswith("VB")), None)
    return verb is not None and lows[verb].startswith(_MOTION)


def _singular(columns: Columns, at: int) -> bool:
    """Return whether a noun with equal singular and plural is singular here."""
    lows, tags = columns
    for i in range(at - 1, max(-1, at - 4), -1):
        if lows[i] in ("a", "an", "one", "another", "this", "each", "every", "single"):
            return True
        if tags[i] not in ("JJ", "NN", "VBN", "VBG", "CC", "JJR"):
            break
    return at + 1 < len(tags) and (tags[at + 1] == "VBZ" or tags[at + 1] in _NOUN)


_CODE = {"behind motion": _behind_motion, "singular": _singular}
PASSES = {name: Patterns("wt", _TABLE.cells(name), _CODE) for name in _TABLE.names() if name}


@lru_cache(maxsize=_MOST)
def _due(low: str, tag: str) -> frozenset[str]:
    """Names of the passes with rows for a word."""
    return frozenset(name for name, table in PASSES.items() if table[low, tag])


def correct(lows: list[str], tags: list[str]) -> list[str]:
    """Return the corrected Penn tags of a caption, by its lower-case words and the model's tags."""
    tags = list(tags)
    due = list(map(_due, lows, tags))
    for name, table in PASSES.items():
        for at, passes in enumerate(due):
            if name not in passes:
                continue
            for back, tag in enumerate(reversed(table.first((lows, tags), at).split())):
                if tag != "=":
                    tags[at - back], due[at - back] = tag, _due(lows[at - back], tag)
        if name == "fixed words":
            for i, low in enumerate(lows):
                if lows[i : i + 3] == ["side", "by", "side"]:
                    tags[i : i + 3] = ["RB"] * 3
                size = PHRASAL.size_at(lows[:-1], i) if low in PHRASAL.sizes else 0
                for place in range(i, i + size):  # every word of "in front of" is a preposition
                    tags[place] = "IN"
            due = list(map(_due, lows, tags))
    return tags
