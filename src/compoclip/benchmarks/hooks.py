"""Hooks of benchmarks: small functions that entries of `benchmarks.yaml` name.

A function of rows yields those that become items, changed where it has to; a function of a finished
`Loading` returns the rules that depend on its items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Literal

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef
from compoclip.benchmarks.entries import each_value, entries, files_of
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.table import Row
from compoclip.errors import UsageError, closest, require, typed_repr
from compoclip.typed import Count

Rows = Iterable[Row]
Rules = dict[str, Aggregate]


def colorswap(
    rows: Rows, data: Loading, *, split: Literal["test", "train"] = "test"
) -> Iterator[Row]:
    """Name another split than the test in the results."""
    data.expected = {"colorswap": 300 if split == "test" else 700}
    if split != "test":
        data.name += f"_{split}"
    yield from rows


# --- Rows that hold several items: RCLIP-Bench, BLA. ---


def rclip_bench(rows: Rows, data: Loading) -> Iterator[Row]:
    """Yield an item for every set of a photo."""
    for row in rows:
        for number, entry in enumerate(files.items(*row.value("sets"))):
            location = f"{row.location}: set {number}"
            yield replace(
                row,
                values=files.record(entry, location),
                location=location,
                key=f"{row.key}/{number}",
            )


def bla(rows: Rows, data: Loading) -> Iterator[Row]:
    """Yield an item for each group of two true and two false sentences."""
    for row in rows:
        image = files.identifier(row.values, "image_id", row.location, set())
        for entry in files.items(*row.value("caption_group")):
            group = files.record(entry, f"{row.location}: group")
            key = files.identifier(group, "group_index", row.location, set())
            yield replace(row, values={**group, "image": image}, key=f"{row.key}/{key}")


# --- VALSE. ---


def valse(rows: Rows, data: Loading) -> Iterator[Row]:
    """Take the rows that two annotators found right; photos lie with their data set."""
    for row in rows:
        if row.float("mturk.caption") < 2:
            data.left_out["rows that fewer than two annotators found right"] += 1
            continue
        source, name = row.text("dataset"), row.text("image_file")
        by_name = next((v for k, v in row.table["by_name"].items() if name.startswith(k)), "")
        row.folder = row.table["by_data_set"].get(source.replace("_", ""), by_name)
        row.require(
            row.folder or data.images,
            f"photo {name!r:.80} of data set {source!r:.80} is of no known source; "
            f"{files.OFFICIAL}",
        )
        yield row


# --- VSR. ---

_LEAST = 20
"""Statements of a relation in a split that make it a rule of its own."""


def vsr(rows: Rows, data: Loading) -> Iterator[Row]:
    """Check labels, and find the folder that the address of a photo names."""
    kinds: dict[Path, set[int]] = {}
    for row in rows:
        label = files.field(row.values, "label", row.location)
        good = not isinstance(label, bool) and label in (0, 1)
        row.require(good, f"'label' must be 0 or 1, not {typed_repr(label)}")
        row.truth = int(label)
        row.labels = {"label": "true" if label else "false"}
        kinds.setdefault(row.path, set()).add(row.truth)
        if data.images is None:
            folder = PurePosixPath(row.text("image_link")).parent.name
            row.require(
                folder in ("train2017", "val2017"),
                "'image_link' names neither train2017 nor val2017; give the photos' folder",
            )
            row.folder = f"{{images}}/{folder}"
        yield row
    for path, truths in kinds.items():
        files.require_both(truths, str(path), files.OFFICIAL)


def vsr_rules(data: Loading) -> Rules:
    """Return balanced accuracy, and areas by relation where both kinds of statement are there."""
    parts = data.parts
    balanced = [Aggregate((part,), macro_by="label", metric="accuracy") for part in parts]
    rules = {"balanced_accuracy": Aggregate(tuple(balanced))}
    truths: dict[tuple[str, str], list[int]] = {}
    for case in data.content.cases:
        truths.setdefault((case.subtask, case.labels["relation"]), []).append(case.truth)
    both = {
        part: [name for (s, name), values in truths.items() if s == part and len({*values}) == 2]
        for part in parts
    }
    if all(both.values()):
        means = [Aggregate((part,), macro_by="relation") for part in parts]
        rules["relations"] = Aggregate(tuple(means))
    for part in parts:
        for name, rule in each_value(data, (part,), "relation").items():
            if name in both[part] and len(truths[part, name]) >= _LEAST:
                rules[f"{part}: {name}"] = rule
    return rules


# --- What'sUp. ---

_WORDS = ("left", "right", "above", "below", "front", "behind", "top", "bottom")


def whatsup(rows: Rows, data: Loading) -> Iterator[Row]:
    """Label items with their relation; controlled photos with their pair and set of positions."""
    for part, group in groupby(rows, lambda row: row.part):
        if kinds := entries()["whatsup"]["positions"].get(part):
            yield from _controlled(list(group), kinds)
            continue
        for row in group:
            words = row.text("true text").lower().rstrip(".").split()
            relation = next((word for word in _WORDS if word in words), "")
            row.labels = {"relation": relation} if relation else {}
            yield row


def _controlled(rows: list[Row], kinds: Mapping[str, str]) -> Iterator[Row]:
    """The labels "pair" and "set" are for groups that hold each of their positions once."""
    places = []
    for row in rows:
        name = PurePosixPath(row.text("image_path")).name
        words = PurePosixPath(name).stem.split("_")
        row.require(
            len(words) >= 3 and words[1] in kinds,
            f"image name {name!r:.80} tells no position; known: {', '.join(kinds)}",
        )
        places.append((f"{words[0]} {words[-1]}", words[1]))
    counts = Counter(places)
    for row, (things, position) in zip(rows, places):
        whole = {word: counts[things, word] == 1 for word in kinds}
        row.labels = {"relation": position}
        if all(whole[word] for word, kind in kinds.items() if kind == kinds[position]):
            row.labels["pair"] = f"{things} {kinds[position]}"
        if all(whole.values()):
            row.labels["set"] = things
        yield row


def whatsup_groups(data: Loading) -> Rules:
    """Return the shares of pairs and sets, where the files hold any."""
    labels = {label for case in data.content.cases for label in case.labels}
    parts = tuple(entries()["whatsup"]["positions"])
    return {label: Aggregate(parts, metric=label) for label in ("pair", "set") if label in labels}


# --- VL-CheckList. ---


def vl_checklist(rows: Rows, data: Loading, *, limit: Count | None = 1000) -> Iterator[Row]:
    """Take the first rows of each file. limit: first items to take of each file, None for all."""
    data.stated.append(f"limit {limit}")
    for row in rows:
        if limit is not None and row.number > limit:
            data.left_out[f"items beyond the first {limit} of their file"] += 1
            continue
        source = row.names["source"]
        row.folder = f"{{{'vg' if source == 'vaw' else source}}}"
        yield row


def vl_checklist_rules(data: Loading) -> Rules:
    """Return the mean over sources of the mean over files, of sub-tasks and their groups."""
    entry = entries()["vl_checklist"]
    rules: Rules = {}
    for part in entry["parts"]:
        source_of = {file.names["file"]: file.names["source"] for file in files_of(entry, part)}
        sources = []
        for source in dict.fromkeys(source_of.values()):
            others = tuple(file for file, other in source_of.items() if other != source)
            sources.append(Aggregate((part,), macro_by="file", exclude=others))
        rules[part] = Aggregate(tuple(sources))
    groups = {
        name: Aggregate(tuple(rule for part, rule in rules.items() if part.startswith(f"{name}_")))
        for name in ("object", "attribute", "relation")
    }
    return {"vl_compo": Aggregate(tuple(groups.values())), **groups, **rules}


# --- CREPE. ---


def crepe_prod(rows: Rows, data: Loading) -> Iterator[Row]:
    """Expect the smallest published total of each type that is no less than what was read."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.part] += 1
        yield row
    data.expected = {part: published_total(part, counts[part]) for part in data.parts}


def published_total(part: str, here: int) -> int:
    """Return the smallest published total of a type that is no less than a number of rows."""
    totals = entries()["crepe_prod"]["published"][part]
    return next((total for total in totals if total >= here), here)


def crepe_curves(data: Loading) -> Rules:
    """Return the curves over the complexities that are there."""
    curves = {part: each_value(data, (part,), "complexity") for part in data.parts}
    rules: Rules = {}
    for level in sorted({level for curve in curves.values() for level in curve}, key=int):
        here = {part: curve[level] for part, curve in curves.items() if level in curve}
        rules |= {f"{part}_complexity_{level}": rule for part, rule in here.items()}
        if "atom" in here and "swap" in here:
            rules[f"complexity_{level}"] = Aggregate((here["atom"], here["swap"]))
    return rules


def crepe_syst(
    rows: Rows, data: Loading, *, pretrained: str | None = None, annotations: Path | None = None
) -> Iterator[Row]:
    """Split rows by the kinds of their negatives.

    pretrained: what the models to be measured were pre-trained on, e.g. cc12m."""
    sets = ("cc12m", "yfcc", "laion")
    folder = annotations or data.root / "crepe" / "syst_hard_negatives"
    choices = {*sets, *(path.stem.rpartition("_in_")[2] for path in folder.glob("*_in_*.csv"))}
    if pretrained is None:
        raise UsageError(
            "crepe_syst: is about compounds seen in pre-training: say what the model was "
            "pre-trained on, as crepe_syst,pretrained=SET with SET one of "
            f"{', '.join(sets)}"
        )
    if pretrained not in choices:
        hint = closest(pretrained, sorted(choices))
        raise UsageError(f"crepe_syst: no pre-training set {pretrained!r}; {hint}")
    data.name += f"_{pretrained}"
    data.stated.append(f"pretrained {pretrained}")
    by_part: dict[str, list[Row]] = {name: [] for name in data.parts}
    for row in rows:
        for part in by_part:
            kind, _, split = part.partition("_")
            if split != row.part.partition("_")[2]:
                continue
            column = f"valid_hard_negs_{kind}"
            if not row.texts(f"{column}*"):
                data.left_out[f"rows without {kind} negatives"] += 1
                continue
            values = {**row.values, "negatives": row.values[column]}
            by_part[part].append(replace(row, part=part, values=values))
    for listed in by_part.values():
        yield from listed


# --- Hard Positives. ---

_HARD_FILES = {
    "attribute": "vl_checklist_attributes.json",
    "relation": "vl_checklist_relations.json",
    "swap": "visual_genome_attribution.json",
}


def hard_positives(
    reading: Loading,
    *,
    data: Path | None = None,
    swapped: Path | None = None,
    aro_images: Path | None = None,
) -> Iterator[Case]:
    """Yield the items of both folders, `data` and `swapped`, joined by position."""
    first = data or reading.root / "hard_positives" / "data"
    second = swapped or reading.root / "hard_positives" / "swapped_data"
    for part in reading.parts:
        path, other = (folder / _HARD_FILES[part] for folder in (first, second))
        photos = reading.photos("vg")
        remedy = "select the parts you have, e.g. hard_positives:attribute,relation"
        if part == "swap":
            photos = aro_images or reading.root / "aro" / "images"
            remedy = f"copy ARO's {path.name} there, or {remedy}"
        rows = list(reading.rows(f"data/{part}", path, remedy))
        twins = list(reading.rows(f"swapped_data/{part}", other, remedy))
        problem = f"not about the photos and false captions of {path}; fetch both files again"
        require(len(rows) == len(twins), other, problem)
        for (index, location, row), (_, there, twin) in zip(rows, twins):
            for key in ("image_id", "false_caption"):
                mine, theirs = files.field(row, key, location), files.field(twin, key, there)
                require(str(mine) == str(theirs), there, problem)
            name = files.text(row, "image_path", location).removeprefix("data/")
            box = files.box(row, location) if part == "swap" else None
            image = ImageRef(files.image_path(photos, name, location), box)
            true, false = files.texts(row, ("true_caption", "false_caption"), location)
            texts = (true, files.text(twin, "true_caption", there), false)
            yield Case(f"{part}/{index}", Form.TRIPLE, (image,), texts, part)
