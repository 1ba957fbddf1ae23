"""Benchmarks of what rewrites make of the captions of photos, see `captioned`.

**rewrites:FILE** asks of every caption whether it scores above what the rewrites make of it, by the
table `made` of its entry in `benchmarks.yaml`: shuffled by the rules of ARO, with a word replaced,
with two things or attributes exchanged, or with a negation; `count`, which has to be named,
exchanges a number. `paraphrase` puts a caption otherwise
and makes it false: both true texts have to beat the false one. No caption of the photo may name a
word that a false text puts in. A sub-task has at most `most` items (1,000); first captions of all
photos come before second ones, in an order that `seed` (42) decides. A model that was trained on
these rewrites knows their manner: compare it with others, not with published scores.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from compoclip.benchmarks.captioned import CaptionedPhoto, hashed, open_photos
from compoclip.benchmarks.case import Aggregate, Case, Form
from compoclip.benchmarks.entries import entries
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.shuffles import WORDS, shuffled, tagger_stated
from compoclip.captions.chunks import pre_caption
from compoclip.console import note_once
from compoclip.data.options import DataOptions
from compoclip.rewrites.base import Refused, Rewritten, get_rewrite, rng_for
from compoclip.typed import Count

ENTRY = "rewrites"
_VERSION = "rewrites 1"
_DRAWS = 6  # texts of a caption that are looked at, for one of the rule


def read(
    data: Loading,
    *,
    reading: DataOptions,
    annotations: Path | None = None,
    seed: int = 42,
    most: Count = 1000,
) -> Iterator[Case]:
    """Yield items of captions. most: of each sub-task. seed: of all that is sampled."""
    photos = open_photos(data, annotations or data.root / ENTRY / "captions.csv", reading)
    order = random.Random(seed).sample(photos, len(photos))
    longest = max(len(photo.captions) for photo in order)
    places = [(p, k) for k in range(longest) for p in order if k < len(p.captions)]
    cases: list[Case] = []
    for part in data.parts:
        count = 0
        for photo, k in places:
            if count == most:
                data.left_out[f"captions beyond the first {most} items of {part}"] += 1
                continue
            key = f"{part}/{photo.name}#{k}"
            case = _item(photo, k, part, key, rng_for(seed, photo.name, k, part))
            if case is None:
                data.left_out[f"captions without an item of {part}"] += 1
                continue
            count += 1
            cases.append(case)
    # The items depend on the parser and its words, too.
    data.files["items"] = hashed(photos, *([case.id, *case.texts] for case in cases))
    data.stated += [_VERSION, f"seed {seed}", f"most {most}", tagger_stated("hanta")]
    used = {name for case in cases for name in case.labels.values()}
    errors = {name: rates for name, rates in entries()[ENTRY]["errors"].items() if name in used}
    rates = ", ".join(f"{name} {false:g} and {odd:g}" for name, (false, odd) in errors.items())
    note_once(
        f"rewritten captions, % with a wrong label and % in broken English: {rates or 'none'}; "
        "compare models by their scores, and do not read these as levels"
    )
    yield from cases


def _item(photo: CaptionedPhoto, k: int, part: str, key: str, rng: random.Random) -> Case | None:
    caption, recipe = photo.parsed[k], entries()[ENTRY]["made"][part]
    images, text = (photo.image,), caption.text
    if not recipe["negatives"]:
        texts = tuple(
            pre_caption(variant, WORDS) for variant in (text, *shuffled(text, caption.tokens, key))
        )
        moved = texts[0] not in texts[1:]
        return Case(key, Form.CHOOSE_TEXT, images, texts, part) if moved else None
    labels, true = {}, [text]
    if recipe["positives"]:
        names = rng.sample(recipe["positives"], len(recipe["positives"]))
        edits = ((name, get_rewrite(name)(caption, rng)) for name in names)
        positives = ((name, edit.text) for name, edit in edits if isinstance(edit, Rewritten))
        name, positive = next(positives, ("", ""))
        if not positive:
            return None
        labels["positive"] = name
        true.append(positive)
    names = [name for name in recipe["negatives"] for _ in range(_DRAWS)]
    for name in rng.sample(names, len(names)) if len(recipe["negatives"]) > 1 else names:
        false = get_rewrite(name)(caption, rng)
        if isinstance(false, Refused) or false.rule not in recipe.get("rules", [false.rule]):
            continue
        if part != "negation" and photo.names_new_word(false.text, text):
            continue
        labels["negative"] = name
        form = Form.TRIPLE if recipe["positives"] else Form.CHOOSE_TEXT
        return Case(key, form, images, (*true, false.text), part, labels=labels)
    return None


def rules(data: Loading) -> dict[str, Aggregate]:
    """Return means over the sub-tasks that have items; `made` leaves out those that need no image,
    order, negation and count: a text-only model solves them."""
    there = [
        part for part in data.parts if any(case.subtask == part for case in data.content.cases)
    ]
    groups = {name: [p for p in there if p.startswith(name)] for name in ("replace", "swap")}
    groups["made"] = [part for part in there if part not in ("order", "negation", "count")]
    return {name: Aggregate(tuple(parts), "micro") for name, parts in groups.items() if parts}
