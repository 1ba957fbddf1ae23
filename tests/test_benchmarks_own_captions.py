"""Word order and hard positives made of one's own captions: by hand, malformed, always the same."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_files import expect_one_line, write_json
from compoclip.benchmarks.aro import shuffled
from compoclip.benchmarks.audit import audit
from compoclip.benchmarks.case import Aggregate, Form, TiePolicy, present
from compoclip.benchmarks.entries import rule_of
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.table import readers
from compoclip.captions.chunks import pre_caption
from compoclip.captions.parser import parse
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.run import Options, evaluate
from compoclip.rewrites.base import Rewritten, get_rewrite
from evaluation_helpers import FakeEncoder, features_from, score_items

OWN = ("order_own", "hard_positives_own")
CAPTIONS = [
    {
        "image": "1.jpg",
        "caption": ["A small dog sits near a red chair.", "A little dog lies by a chair."],
    },
    {"image": "2.jpg", "caption": ["Two young women ride a brown horse behind a white barn."]},
    {"image": "3.jpg", "caption": ["A large man holds a black umbrella near a yellow bus."]},
    {"image": "4.jpg", "caption": ["hello"]},
]


def write_own(root: Path, name: str, rows: Any = CAPTIONS) -> Path:
    return write_json(root / name / "captions.json", rows)


def test_every_caption_is_an_order_item_by_the_rules_of_aro(tmp_path: Path) -> None:
    write_own(tmp_path, "order_own")
    found = load_benchmark("order_own", tmp_path)
    texts = [(row["image"], k, c) for row in CAPTIONS for k, c in enumerate(row["caption"])]
    assert len(found.content) == len(texts) == 5
    for case, (image, k, caption) in zip(found.content, texts):
        assert case.id == f"order/{image}#{k}"
        assert (case.form, case.truth, case.subtask) == (Form.CHOOSE_TEXT, 0, "order")
        assert case.images[0].path == tmp_path / "order_own" / "images" / image
        candidates = (caption, *shuffled(caption, parse(caption).tokens, case.id))
        assert case.texts == tuple(pre_caption(text, 30) for text in candidates)
    assert found.content[0].texts[0] == "a small dog sits near a red chair"
    assert found.content[-1].texts == ("hello",) * 5  # kept, as ARO keeps them
    assert found.ties == {"": TiePolicy.FIRST}
    assert (found.skills, found.headline) == ({"order": "order"}, "micro")
    assert meta("order_own").chance == {"": 1 / 5}


def test_an_order_tie_is_right_and_a_better_shuffle_is_not(tmp_path: Path) -> None:
    write_own(tmp_path, "order_own", [{"image": "1.jpg", "caption": ["a dog runs", "a cat"]}])
    found = load_benchmark("order_own", tmp_path)
    path = found.content[0].images[0]
    first, second = found.content
    scores = {text: 0.1 for case in found.content for text in case.texts}
    better = next(text for text in second.texts if text != second.texts[0])
    scores |= {better: 0.9}
    features = features_from({path: scores})
    items = score_items(found.content, features, ties=dict(found.ties))
    outcomes = items.outcomes["accuracy"]
    assert outcomes.used.tolist() == [1.0, 0.0]  # all equal: right, as published; beaten: wrong
    assert outcomes.strict.tolist() == [0.0, 0.0]
    assert outcomes.chance.tolist() == [pytest.approx(1 / 5)] * 2
    assert len(first.texts) == 5


def test_hard_positives_say_the_same_and_negatives_do_not(tmp_path: Path) -> None:
    write_own(tmp_path, "hard_positives_own")
    found = load_benchmark("hard_positives_own", tmp_path)
    captions = {row["image"]: row["caption"] for row in CAPTIONS}
    assert {"replace_object", "replace_attribute", "replace_relation"} <= set(
        found.content.counts()
    )
    assert max(found.content.counts().values()) <= 3  # one a photo, and "hello" gives none
    assert found.left_out["photos without an item of replace_object"] >= 1
    for case in found.content:
        caption, positive, negative = case.texts
        told = captions[case.images[0].path.name]
        assert case.form is Form.TRIPLE
        assert case.id == f"{case.subtask}/{case.images[0].path.name}"
        assert caption in told
        assert len({caption, positive, negative}) == 3
        # Each text is one that its rewrite makes of the caption.
        assert case.labels["positive"].startswith(("synonym:", "and:"))
        rule = "atom" if case.subtask.startswith("replace") else "swap"
        assert case.labels["negative"] == f"{rule}:{case.subtask.partition('_')[2]}"
        assert positive in made_by("synonym", caption)
        if rule == "swap":
            assert negative in made_by("crepe-swap", caption)
        else:
            assert len(Counter(caption.split()) - Counter(negative.split())) <= 3
        # What the negative puts in, no caption of the photo names.
        new = set(negative.lower().split()) - set(caption.lower().split())
        assert not new & set(" ".join(told).lower().replace(".", "").split())
        assert new or case.subtask.startswith("swap")
    assert not audit(found).faulty


def made_by(name: str, caption: str) -> set[str]:
    """Everything that a rewrite says of a caption in many draws."""
    drawn = (get_rewrite(name)(parse(caption), random.Random(k)) for k in range(60))
    return {each.text for each in drawn if isinstance(each, Rewritten)}


def test_augmented_and_brittleness_by_hand(tmp_path: Path) -> None:
    write_own(tmp_path, "hard_positives_own", CAPTIONS[:3])
    found = load_benchmark("hard_positives_own:replace_object", tmp_path)
    assert len(found.content) == 3
    both, brittle, none = (case.texts for case in found.content)
    paths = [case.images[0] for case in found.content]
    scores = {
        paths[0]: dict(zip(both, (0.9, 0.8, 0.1))),
        paths[1]: dict(zip(brittle, (0.9, 0.1, 0.5))),  # beaten by the caption, not by the other
        paths[2]: dict(zip(none, (0.1, 0.2, 0.5))),
    }
    items = score_items(found.content, features_from(scores), ties=dict(found.ties))
    values = {name: each.used.tolist() for name, each in items.outcomes.items()}
    assert values["original"] == [1, 1, 0]
    assert values["augmented"] == [1, 0, 0]
    assert values["brittleness"] == [0, 1, 0]
    assert values["both_below"] == [0, 0, 1]


def test_means_over_the_sub_tasks_that_have_items(tmp_path: Path) -> None:
    write_own(tmp_path, "hard_positives_own")
    found = load_benchmark("hard_positives_own", tmp_path)
    there = tuple(p for p in meta("hard_positives_own").parts if p in found.content.counts())
    replaced = tuple(p for p in there if p.startswith("replace"))
    assert found.aggregates["replace"] == Aggregate(replaced)
    assert found.aggregates["replace_brittleness"] == Aggregate(replaced, metric="brittleness")
    assert found.headline == "replace"
    written = readers()["hard_positives"].entry["rules"]
    official = {name: rule_of(rule, {}) for name, rule in written.items()}
    assert official["swap_original"] == Aggregate(("swap",), metric="original")
    assert official["replace"] == Aggregate(("attribute", "relation"))
    assert len(official) == 6


@pytest.mark.parametrize("name", OWN)
def test_the_same_items_on_every_call_and_from_every_format(name: str, tmp_path: Path) -> None:
    write_own(tmp_path, name)
    images = tmp_path / "photos"
    known, again = (load_benchmark(name, tmp_path, images) for _ in range(2))
    assert known == again
    lines = tmp_path / "own.jsonl"
    split = [{**row, "caption": text} for row in CAPTIONS for text in row["caption"]]
    lines.write_text("".join(f"{json.dumps(each)}\n" for each in split))
    tokens, names = tmp_path / "tokens.txt", tmp_path / "names.txt"
    tokens.write_text(
        "".join(
            f"{row['image']}#{k}\t{text}\n"
            for row in CAPTIONS
            for k, text in enumerate(row["caption"])
        )
    )
    names.write_text("".join(f"{row['image']}\n" for row in CAPTIONS))
    for options in ({"annotations": lines}, {"annotations": tokens, "split_file": names}):
        assert load_benchmark(name, tmp_path, images, **options).content == known.content


def test_the_seed_and_the_number_decide_what_is_drawn(tmp_path: Path) -> None:
    write_own(tmp_path, "hard_positives_own")
    first = load_benchmark("hard_positives_own", tmp_path)
    assert load_benchmark("hard_positives_own", tmp_path, seed=1).data_hash != first.data_hash
    one = load_benchmark("hard_positives_own:replace_*", tmp_path, most=1)
    assert set(one.content.counts().values()) == {1}
    assert one.left_out["photos beyond the first 1 with an item of replace_object"] >= 1
    with pytest.raises(UsageError, match="most must be at least 1, not 0"):
        load_benchmark("hard_positives_own", tmp_path, most=0)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": 1}, "no key 'images'"),
        ([], "no photos"),
        ([{"image": "1.jpg", "caption": []}], "photo '1.jpg' has no caption"),
        ([{"image": "1.jpg", "caption": [3]}], "caption 0 must be text"),
        ([{"image": "../1.jpg", "caption": ["A small dog near a red chair."]}], "leads outside"),
    ],
)
def test_malformed_captions(name: str, tmp_path: Path, rows: Any, message: str) -> None:
    path = write_own(tmp_path, name, rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark(name, tmp_path)
    expect_one_line(caught.value, str(path))
    with pytest.raises(UsageError, match=r"expected captions in \.json or \.jsonl"):
        load_benchmark(name, tmp_path, annotations=tmp_path / "x.csv")


def test_captions_that_give_no_item_are_an_error(tmp_path: Path) -> None:
    path = write_own(tmp_path, "hard_positives_own", [{"image": "1.jpg", "caption": ["hello"]}])
    with pytest.raises(CompoclipError, match="no photo gives an item of replace_object") as caught:
        load_benchmark("hard_positives_own", tmp_path)
    expect_one_line(caught.value, str(path))


def test_real_photos(shared_data: Path, tmp_path: Path) -> None:
    """Items of a part of Flickr8k's test, all of whose photos are there, scored."""
    folder = shared_data / "photos" / "flickr8k"
    names = (folder / "Flickr_8k.testImages.txt").read_text().split()[:30]
    split = tmp_path / "names.txt"
    split.write_text("\n".join(names))
    options = {"annotations": folder / "Flickr8k.token.txt", "split_file": split}
    order, hard = (load_benchmark(name, tmp_path, folder / "images", **options) for name in OWN)
    counts = Counter(case.subtask for case in hard.content)
    assert len(order.content) == 150
    assert min(counts[part] for part in counts if part != "swap_attribute") >= 20
    assert present(order)[1] == present(hard)[1] == ()
    results = evaluate("m", FakeEncoder(), [order, hard], tmp_path / "out", Options(resamples=20))
    assert [each.partial for each in results] == [False, False]
    assert np.isfinite(results[1].aggregates["replace_brittleness"].value)
