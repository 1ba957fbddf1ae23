"""Word order, hard positives and half-truths of own captions: by hand, malformed, the same."""

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
from compoclip.benchmarks.entries import entries, rule_of
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.solvability import rules_of_thumb
from compoclip.captions.chunks import pre_caption
from compoclip.captions.parser import parse
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.run import Options, evaluate
from compoclip.rewrites.base import Rewritten, get_rewrite
from evaluation_helpers import FakeEncoder, features_from, score_items

FILE = Path(__file__).parents[1] / "lab" / "own_captions.py"
ORDER, HARD, HALF = (f"{FILE}:{name}_own" for name in ("order", "hard_positives", "half_truth"))
AMONG = f"{FILE}:among_own"
OWN = (ORDER, HARD, HALF)
CAPTIONS = [
    {
        "image": "1.jpg",
        "caption": ["A small dog sits near a red chair.", "A little dog lies by a chair."],
    },
    {"image": "2.jpg", "caption": ["Two young women ride a brown horse behind a white barn."]},
    {"image": "3.jpg", "caption": ["A large man holds a black umbrella near a yellow bus."]},
    {"image": "4.jpg", "caption": ["hello"]},
]
HALF_CAPTIONS = [
    {"image": "1.jpg", "caption": ["A black dog sits under a wooden chair.", "A dog on a floor."]},
    {"image": "2.jpg", "caption": ["Two women ride brown horses near a red barn."]},
    {"image": "3.jpg", "caption": ["A boy holds a large umbrella in the rain."]},
    {"image": "4.jpg", "caption": ["hello"]},
]


def write_own(root: Path, spec: str, rows: Any = None) -> Path:
    rows = rows if rows is not None else HALF_CAPTIONS if spec == HALF else CAPTIONS
    return write_json(root / meta(spec).id / "captions.json", rows)


def test_every_caption_is_an_order_item_by_the_rules_of_aro(tmp_path: Path) -> None:
    write_own(tmp_path, ORDER)
    found = load_benchmark(ORDER, tmp_path)
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
    assert meta(ORDER).chance == {"": 1 / 5}


def test_an_order_tie_is_right_and_a_better_shuffle_is_not(tmp_path: Path) -> None:
    write_own(tmp_path, ORDER, [{"image": "1.jpg", "caption": ["a dog runs", "a cat"]}])
    found = load_benchmark(ORDER, tmp_path)
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


def test_a_caption_stands_among_those_of_49_other_photos(tmp_path: Path) -> None:
    rows = [{"image": f"{k}.jpg", "caption": [f"caption {k}", f"other {k}"]} for k in range(55)]
    path = write_own(tmp_path, AMONG, rows)
    found = load_benchmark(AMONG, tmp_path, most=7)
    assert len(found.content) == 7
    for case in found.content:
        own = f"caption {case.images[0].path.stem}"
        assert (case.form, case.texts[0], len(set(case.texts))) == (Form.CHOOSE_TEXT, own, 50)
        assert set(case.texts) <= {f"caption {k}" for k in range(55)}
    assert load_benchmark(AMONG, tmp_path, most=7).content == found.content
    write_json(path, rows[:49])
    with pytest.raises(UsageError, match="among_own needs 50 photos, not 49"):
        load_benchmark(AMONG, tmp_path)


def test_hard_positives_say_the_same_and_negatives_do_not(tmp_path: Path) -> None:
    write_own(tmp_path, HARD)
    found = load_benchmark(HARD, tmp_path)
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
    write_own(tmp_path, HARD, CAPTIONS[:3])
    found = load_benchmark(f"{HARD}:replace_object", tmp_path)
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
    write_own(tmp_path, HARD)
    found = load_benchmark(HARD, tmp_path)
    there = tuple(p for p in meta(HARD).parts if p in found.content.counts())
    replaced = tuple(p for p in there if p.startswith("replace"))
    assert found.aggregates["replace"] == Aggregate(replaced)
    assert found.aggregates["replace_brittleness"] == Aggregate(replaced, metric="brittleness")
    assert found.headline == "replace"
    written = entries()["hard_positives"]["rules"]
    official = {name: rule_of(rule, {}) for name, rule in written.items()}
    assert official["swap_original"] == Aggregate(("swap",), metric="original")
    assert official["replace"] == Aggregate(("attribute", "relation"))
    assert len(official) == 6


def test_half_truths_are_made_of_captions(tmp_path: Path) -> None:
    write_own(tmp_path, HALF)
    found = load_benchmark(HALF, tmp_path)
    assert found.content.counts() == {"entity": 3, "relation": 3}
    assert found.left_out == {
        "photos without an item of kind entity": 1,
        "photos without an item of kind relation": 1,
    }
    for case in found.content:
        assert case.form is Form.HALF_TRUTH
        short, full, half = case.texts
        assert len({short, full, half}) == 3
        assert full.startswith(short)
        if case.subtask == "entity":
            assert half.startswith(f"{short} and ")
        # what the half-truth puts in, no caption of its photo names
        (captions,) = (
            each["caption"] for each in HALF_CAPTIONS if each["image"] == case.images[0].path.name
        )
        told = set(" ".join(captions).lower().replace(".", "").split())
        new = set(half.split()) - set(full.split())
        assert not new & told
        assert new or case.labels["foil"] == "swap"
    assert found.content[0].images[0].path.parent == tmp_path / "half_truth_own" / "images"
    assert {"ht", "cor", "full"} <= set(found.aggregates)
    assert found.headline == "ht"
    assert all(rule.value == 1.0 and rule.longer > 1 for rule in rules_of_thumb(found))
    assert not audit(found).faulty


def test_the_half_truths_follow_from_the_seed_alone(tmp_path: Path) -> None:
    write_own(tmp_path, HALF)
    first, again = (load_benchmark(HALF, tmp_path) for _ in range(2))
    assert first == again
    other = load_benchmark(HALF, tmp_path, seed=1)
    assert other.data_hash != first.data_hash
    one = load_benchmark(f"{HALF}:relation", tmp_path, most=1)
    assert one.content.counts() == {"relation": 1}
    assert one.left_out["photos beyond the first 1 with an item of kind relation"] >= 2


@pytest.mark.parametrize("name", OWN)
def test_the_same_items_on_every_call_and_from_every_format(name: str, tmp_path: Path) -> None:
    rows = json.loads(write_own(tmp_path, name).read_text())
    images = tmp_path / "photos"
    known, again = (load_benchmark(name, tmp_path, images) for _ in range(2))
    assert known == again
    lines = tmp_path / "own.jsonl"
    split = [{**row, "caption": text} for row in rows for text in row["caption"]]
    lines.write_text("".join(f"{json.dumps(each)}\n" for each in split))
    tokens, names = tmp_path / "tokens.txt", tmp_path / "names.txt"
    tokens.write_text(
        "".join(
            f"{row['image']}#{k}\t{text}\n" for row in rows for k, text in enumerate(row["caption"])
        )
    )
    names.write_text("".join(f"{row['image']}\n" for row in rows))
    karpathy = [
        {
            "filename": row["image"],
            "split": "test",
            "sentences": [{"raw": c} for c in row["caption"]],
        }
        for row in rows
    ]
    path = write_json(tmp_path / "karpathy.json", {"images": karpathy})
    for options in (
        {"annotations": lines},
        {"annotations": path},
        {"annotations": tokens, "split_file": names},
    ):
        assert load_benchmark(name, tmp_path, images, **options).content == known.content


def test_the_seed_and_the_number_decide_what_is_drawn(tmp_path: Path) -> None:
    write_own(tmp_path, HARD)
    first = load_benchmark(HARD, tmp_path)
    assert load_benchmark(HARD, tmp_path, seed=1).data_hash != first.data_hash
    one = load_benchmark(f"{HARD}:replace_*", tmp_path, most=1)
    assert set(one.content.counts().values()) == {1}
    assert one.left_out["photos beyond the first 1 with an item of replace_object"] >= 1
    for name in (HARD, HALF):
        with pytest.raises(UsageError, match="most must be at least 1, not 0"):
            load_benchmark(name, tmp_path, most=0)


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


@pytest.mark.parametrize(("name", "part"), [(HARD, "replace_object"), (HALF, "entity, relation")])
def test_captions_that_give_no_item_are_an_error(name: str, part: str, tmp_path: Path) -> None:
    path = write_own(tmp_path, name, [{"image": "1.jpg", "caption": ["hello"]}])
    with pytest.raises(CompoclipError, match=f"no photo gives an item of {part}") as caught:
        load_benchmark(name, tmp_path)
    expect_one_line(caught.value, str(path))


def test_real_photos(shared_data: Path, tmp_path: Path) -> None:
    """Items of a part of Flickr8k's test, all of whose photos are there, scored."""
    folder = shared_data / "photos" / "flickr8k"
    names = (folder / "Flickr_8k.testImages.txt").read_text().split()[:30]
    split = tmp_path / "names.txt"
    split.write_text("\n".join(names))
    options = {"annotations": folder / "Flickr8k.token.txt", "split_file": split}
    order, hard, half = (load_benchmark(n, tmp_path, folder / "images", **options) for n in OWN)
    counts = Counter(case.subtask for case in hard.content)
    assert len(order.content) == 150
    assert min(counts[part] for part in counts if part != "swap_attribute") >= 20
    assert min(half.content.counts().values()) >= 25
    assert present(order)[1] == present(hard)[1] == present(half)[1] == ()
    assert len({case.id for case in half.content}) == len(half.content)
    assert not audit(half, decoding=True).faulty
    found = [order, hard, half]
    results = evaluate("m", FakeEncoder(), found, tmp_path / "out", Options(resamples=20))
    assert [each.partial for each in results] == [False] * 3
    assert results[2].aggregates["ht"].n == sum(half.content.counts().values())
    assert np.isfinite(results[1].aggregates["replace_brittleness"].value)


@pytest.mark.parametrize("name", ["order_own", "hard_positives_own", "half_truth_own"])
def test_an_old_name_says_where_the_benchmark_is(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"{name} is no longer part .* lab/own_captions.py:{name}"
    ):
        load_benchmark(name, tmp_path)
    with pytest.raises(UsageError, match=r"say lab/own_boxes\.py"):
        load_benchmark("positions_own", tmp_path)
