#!/usr/bin/env python3
"""Build the word-sense file of compoclip from a WordNet 3.0 database folder.

    apt-get install wordnet-base
    python scripts/build_lexicon.py /usr/share/wordnet src/compoclip/captions/data

Writes `lexicon.xz` and the licence text that the database carries. What is left out is printed:
instances (named people, places, works), capitalised words that were never counted (mostly Latin
taxa), words with digits or more than two blanks, and pointers that no query follows. Synsets that
lose all their words stay (empty) when a kept synset lies below them, so levels stay true.
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from compoclip.captions.lexicon import FORMAT, MAGIC
from compoclip.files import write_text

FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
SENSE_LETTER = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
#: Lexicographer files whose capitalised single words are everyday things ("Frisbee", "Coke").
EVERYDAY = {6, 13, 18}
USABLE = re.compile(r"[a-z][a-z'./-]*( [a-z'./-]+){0,2}")
SOURCE = "Princeton WordNet 3.0"
#: Of text: what a byte is depends on the one before it, not on its place in a word.
FILTER = {
    "id": lzma.FILTER_LZMA2,
    "preset": 9 | lzma.PRESET_EXTREME,
    "lc": 4,
    "lp": 0,
    "pb": 0,
}


@dataclass
class RawSynset:
    """One line of a data file."""

    kind: str
    lexfile: int
    lemmas: list[str]
    pointers: list[tuple[str, tuple[str, int], int, int]]
    kept: dict[int, int] = field(default_factory=dict)  # word number -> new word number


def read_counts(folder: Path) -> dict[tuple[str, str, int], int]:
    """(letter, lemma, sense number) -> how often the sense was tagged in WordNet's texts."""
    counts: dict[tuple[str, str, int], int] = {}
    for line in (folder / "cntlist.rev").read_text().splitlines():
        key, sense, count = line.split(" ")
        lemma, _, rest = key.partition("%")
        counts[SENSE_LETTER[rest[0]], lemma, int(sense)] = int(count)
    return counts


def read_data(folder: Path) -> dict[tuple[str, int], RawSynset]:
    """All synsets by (letter, byte offset)."""
    synsets: dict[tuple[str, int], RawSynset] = {}
    for letter, name in FILES.items():
        for line in (folder / f"data.{name}").read_text().splitlines():
            if line.startswith("  "):
                continue
            parts = line.split(" | ")[0].split()
            size = int(parts[3], 16)
            words = [re.sub(r"\([a-z]+\)$", "", w) for w in parts[4 : 4 + 2 * size : 2]]
            at = 4 + 2 * size
            pointers = []
            for i in range(int(parts[at])):
                symbol, offset, target, ends = parts[at + 1 + 4 * i : at + 5 + 4 * i]
                key = (("a" if target == "s" else target), int(offset))
                pointers.append((symbol, key, int(ends[:2], 16) - 1, int(ends[2:], 16) - 1))
            lemmas = [w.replace("_", " ") for w in words]
            synsets[letter, int(parts[0])] = RawSynset(parts[2], int(parts[1]), lemmas, pointers)
    return synsets


def read_index(folder: Path) -> dict[tuple[str, str], list[int]]:
    """(letter, lemma with underscores) -> synset offsets in sense order."""
    index: dict[tuple[str, str], list[int]] = {}
    for letter, name in FILES.items():
        for line in (folder / f"index.{name}").read_text().splitlines():
            if line.startswith("  "):
                continue
            parts = line.split()
            index[letter, parts[0]] = [int(o) for o in parts[-int(parts[2]) :]]
    return index


def select(
    synsets: dict[tuple[str, int], RawSynset],
    index: dict[tuple[str, str], list[int]],
    counts: dict[tuple[str, str, int], int],
) -> tuple[dict[tuple[str, int], int], Counter[str]]:
    """Choose words and synsets; fills `kept`. Returns the new synset numbers and what was left."""
    left: Counter[str] = Counter()
    used: Counter[tuple[str, int, str]] = Counter()
    for (letter, lemma), offsets in index.items():
        for sense, offset in enumerate(offsets, 1):
            text = lemma.replace("_", " ")
            used[letter, offset, text] = counts.get((letter, lemma, sense), 0)
    for (letter, offset), synset in synsets.items():
        if any(symbol == "@i" for symbol, *_ in synset.pointers):
            left["synsets: instances"] += 1
            continue
        for number, lemma in enumerate(synset.lemmas):
            low = lemma.lower()
            everyday = synset.lexfile in EVERYDAY and " " not in lemma
            if not USABLE.fullmatch(low):
                left["words: digits or long phrases"] += 1
            elif lemma != low and not everyday and used[letter, offset, low] == 0:
                left["words: capitalised and never counted"] += 1
            else:
                synset.kept[number] = len(synset.kept)
    needed = {key for key, synset in synsets.items() if synset.kept}
    queue = list(needed)
    while queue:
        for symbol, target, _, _ in synsets[queue.pop()].pointers:
            if symbol == "@" and target not in needed:
                needed.add(target)
                queue.append(target)
    left["synsets: no word left"] = len(synsets) - len(needed) - left["synsets: instances"]
    ordered = [key for key in synsets if key in needed]
    return {key: number for number, key in enumerate(ordered)}, left


def gloss_counts(folder: Path) -> Counter[str]:
    """How often each phrase of one to three words occurs in all definitions and examples."""
    counts: Counter[str] = Counter()
    for name in FILES.values():
        for line in (folder / f"data.{name}").read_text().splitlines():
            if line.startswith("  "):
                continue
            for part in re.split(r"[^a-z' -]+", line.partition(" | ")[2].lower()):
                words = part.split()
                for size in (1, 2, 3):
                    for at in range(len(words) - size + 1):
                        counts[" ".join(words[at : at + size])] += 1
    return counts


def pointers_of(
    key: tuple[str, int],
    synsets: dict[tuple[str, int], RawSynset],
    numbers: dict[tuple[str, int], int],
) -> str:
    """The pointers of one synset, see compoclip.captions.lexicon."""
    synset = synsets[key]
    out: list[str] = []
    for symbol, target, word, target_word in synset.pointers:
        if target not in numbers:
            continue
        if symbol in "@=" or (symbol == "&" and synset.kind == "s"):
            out.append(f"{symbol}{numbers[target]}")
        elif symbol in "!+\\":
            other = synsets[target]
            if symbol == "+" and {key[0], target[0]} != {"a", "n"}:
                continue
            if word in synset.kept and target_word in other.kept:
                ends = f"{synset.kept[word]}.{numbers[target]}.{other.kept[target_word]}"
                out.append(symbol + ends)
    return " ".join(dict.fromkeys(out))


def order_of(senses: Sequence[tuple[int, int]]) -> str:
    """The senses of an entry, (synset, count): places among its synsets, and counts above 0."""
    places = {number: at for at, number in enumerate(sorted(number for number, _ in senses))}
    if all(at == places[n] and not count for at, (n, count) in enumerate(senses)):
        return ""
    return " ".join(f"{places[n]}:{count}" if count else f"{places[n]}" for n, count in senses)


def build(folder: Path) -> tuple[str, Counter[str]]:
    """The text of the word-sense file, and counts of what is in it and what was left out."""
    synsets, index, counts = read_data(folder), read_index(folder), read_counts(folder)
    numbers, report = select(synsets, index, counts)
    words = {key: [synsets[key].lemmas[n] for n in synsets[key].kept] for key in numbers}
    senses: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for (letter, lemma), offsets in index.items():
        text = lemma.replace("_", " ")
        for sense, offset in enumerate(offsets, 1):
            if text in (word.lower() for word in words.get((letter, offset), ())):
                number = numbers[letter, offset]
                if (letter, text) not in senses:
                    report[f"kept entries: {FILES[letter]}"] += 1
                count = counts.get((letter, lemma, sense), 0)
                senses.setdefault((letter, text), []).append((number, count))
    entries = list(dict.fromkeys((key[0], word.lower()) for key in numbers for word in words[key]))
    glosses = gloss_counts(folder)
    report["kept synsets"] = len(numbers)
    runs = groupby(numbers, key=lambda key: (synsets[key].kind, synsets[key].lexfile))
    lines = [
        f"{MAGIC}\t{FORMAT}\t{len(numbers)}\t{len(entries)}\t{SOURCE}",
        *("|".join(words[key]) for key in numbers),
        *(pointers_of(key, synsets, numbers) for key in numbers),
        *(order_of(senses[entry]) for entry in entries),
        *(str(sum(glosses[text + end] for end in ("", "s", "es"))) for _, text in entries),
        *(f"{kind} {lexfile} {len(list(run))}" for (kind, lexfile), run in runs),
    ]
    return "\n".join(lines) + "\n", report


def licence(folder: Path) -> str:
    """The licence text that heads every WordNet data file."""
    text = (folder / "data.noun").read_text().splitlines()
    return "\n".join(re.sub(r"^ +\d+ ?", "", x).rstrip() for x in text if x.startswith("  ")) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wordnet", type=Path, help="folder with data.noun, index.noun, cntlist.rev")
    parser.add_argument("out", type=Path, help="folder for lexicon.xz and LICENSE.wordnet")
    options = parser.parse_args()
    text, report = build(options.wordnet)
    packed = lzma.compress(text.encode(), filters=[FILTER])
    (options.out / "lexicon.xz").write_bytes(packed)
    write_text(options.out / "LICENSE.wordnet", licence(options.wordnet))
    for name, count in sorted(report.items()):
        print(f"{count:8d}  {name}")
    print(f"{len(packed):8d}  bytes")


if __name__ == "__main__":
    main()
