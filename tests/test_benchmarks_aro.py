"""ARO: cropped Visual Genome cases, order cases that never change, and its averages."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmark_files import refuses, vg_row
from build.tables import write_json
from compoclip.benchmarks.aro import LEFT_OUT
from compoclip.benchmarks.case import Aggregate
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.shuffles import KINDS, shuffled, split_words, trigrams
from compoclip.benchmarks.targets import parse_targets
from compoclip.captions.types import Token
from compoclip.data.decode import decode
from compoclip.errors import UsageError

pytestmark = pytest.mark.usefixtures("warm_workers")

TEXT = "A small dog chases two big cats, near the old red barn."
TAGS = ["DT", "JJ", "NN", "VBZ", "CD", "JJ", "NNS", ",", "IN", "DT", "JJ", "JJ", "NN", "."]


def tokens(text: str = TEXT, tags: list[str] = TAGS) -> list[Token]:
    words = split_words(text)
    return [Token(word, word, "X", tag, 0, 0) for word, tag in zip(words, tags, strict=True)]


def test_word_splitter_separates_punctuation() -> None:
    assert split_words("The dog's well-lit room, 2.5 m (wide)!") == [
        "The", "dog", "'s", "well-lit", "room", ",", "2.5", "m", "(", "wide", ")", "!",
    ]  # fmt: skip
    assert trigrams(list("abcdefg")) == [list("abc"), list("def"), list("g")]


def test_each_shuffle_moves_only_its_words() -> None:
    words = split_words(TEXT)
    for n in range(50):
        nouns, others, within, runs = (s.split(" ") for s in shuffled(TEXT, tokens(), f"key {n}"))
        for k, tag in enumerate(TAGS):
            content = tag.startswith(("NN", "JJ"))
            assert (nouns if not content else others)[k] == words[k]
        for prefix in ("NN", "JJ"):
            places = [k for k, tag in enumerate(TAGS) if tag.startswith(prefix)]
            assert Counter(nouns[k] for k in places) == Counter(words[k] for k in places)
        assert Counter(others) == Counter(words)
        for start in range(0, len(words), 3):
            assert Counter(within[start : start + 3]) == Counter(words[start : start + 3])
        assert Counter(map(tuple, trigrams(words))) == Counter(_runs(runs, trigrams(words)))


def _runs(words: list[str], known: list[list[str]]) -> list[tuple[str, ...]]:
    """Cut `words` into the known runs, each starting with a word that only it starts with."""
    by_first = {run[0]: tuple(run) for run in known}
    found = []
    while words:
        run = by_first[words[0]]
        assert tuple(words[: len(run)]) == run
        found.append(run)
        words = words[len(run) :]
    return found


def test_shuffles_depend_on_key_and_kind_alone() -> None:
    assert shuffled(TEXT, tokens(), "a") == shuffled(TEXT, tokens(), "a")
    many = {shuffled(TEXT, tokens(), f"{n}") for n in range(20)}
    assert len(many) == 20
    assert len(set(KINDS)) == 4
    # written down once: a change here changes every order score and needs a new protocol version
    assert shuffled(TEXT, tokens(), "golden") == GOLDEN


GOLDEN = (
    "A small barn chases two red cats , near the big old dog .",
    "chases small dog the two big cats A , near old red barn .",
    "small dog A two big chases near , cats red old the . barn",
    "chases two big the old red cats , near barn . A small dog",
)


def test_all_orders_of_three_words_are_equally_likely() -> None:
    seen = Counter(shuffled("a b c", [], f"{n}")[2] for n in range(6000))
    assert len(seen) == 6
    assert all(abs(count - 1000) < 150 for count in seen.values())


def write_vg(root: Path, rows: list[Any] | None = None, name: str = "relation") -> Path:
    write_json(root / "aro" / f"visual_genome_{name}.json", [vg_row()] if rows is None else rows)
    return root


def test_a_box_that_begins_outside_its_photo(tmp_path: Path) -> None:
    """The official crop fills what lies beyond the photo with black, on any side of it."""
    write_vg(tmp_path, [vg_row(bbox_x=-2, bbox_y=-1, bbox_w=4, bbox_h=3)], "relation")
    path = tmp_path / "aro" / "images" / "5.jpg"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8), "white").save(path, "png")
    (case,) = load_benchmark("aro:vg_relation", tmp_path).content
    assert case.images[0].box == (-2, -1, 2, 2)
    cropped = np.asarray(decode(path, box=case.images[0].box))[:, :, 0]
    assert cropped.tolist() == [[0] * 4, [0, 0, 255, 255], [0, 0, 255, 255]]


def test_averages_of_the_official_rules(tmp_path: Path) -> None:
    pairs = [vg_row(attributes=["a", "b"])] * 25 + [vg_row(attributes=["b", "a"])] * 24
    relations = [vg_row(), vg_row(relation_name="near")]
    write_vg(write_vg(tmp_path, relations), pairs, "attribution")
    rules = load_benchmark("aro:vg_*", tmp_path).aggregates
    assert rules["vg_attribution"] == Aggregate(
        ("vg_attribution",), macro_by="attributes", min_group=25
    )
    assert rules["vg_relation"] == Aggregate(("vg_relation",), macro_by="relation")
    assert rules["vg_relation_paper"].exclude == LEFT_OUT
    assert len(LEFT_OUT) == 157
    assert {"near", "driving", "on the back of", "around"} <= {*LEFT_OUT}
    assert not {"eating", "on", "riding"} & {*LEFT_OUT}
    write_vg(tmp_path, [vg_row(relation_name="near")])
    assert load_benchmark("aro:vg_relation", tmp_path).aggregates["vg_relation_paper"] == Aggregate(
        ("vg_relation",), macro_by="relation"
    )


def test_all_four_parts_make_the_published_average(tmp_path: Path) -> None:
    write_order(write_vg(write_vg(tmp_path), None, "attribution"))
    found = load_benchmark("aro", tmp_path, workers=1)
    assert found.headline == "vl_compo"
    clip = {"vg_relation": 59.90, "vg_attribution": 63.20}
    clip |= {"flickr30k_order": 59.56, "coco_order": 47.56}

    def mean(rule: Aggregate | str) -> float:
        if isinstance(rule, str):
            return clip[rule]
        if rule.macro_by:
            return clip[rule.parts[0]] if isinstance(rule.parts[0], str) else 0.0
        return sum(map(mean, rule.parts)) / len(rule.parts)

    assert mean(found.aggregates["vl_compo"]) == pytest.approx(57.55, abs=0.01)
    assert mean(found.aggregates["paper"]) == pytest.approx(57.55, abs=0.01)
    assert mean(found.aggregates["order"]) == pytest.approx(53.56)
    assert mean(found.aggregates["mosaiclip"]) == pytest.approx((59.90 + 63.20 + 53.56) / 3)


def test_absent_parts_say_how_to_go_on(tmp_path: Path) -> None:
    refuses("select the parts you have", "", "aro", write_vg(tmp_path))


def write_order(root: Path) -> Path:
    captions = [TEXT, "Two men ride brown horses on the wet beach."]
    rows = [{"image": "val2014/1.jpg", "caption": captions}]
    write_json(root / "coco" / "coco_karpathy_test.json", rows)
    flickr = [{"image": "flickr30k-images/9.jpg", "caption": captions[:1]}]
    write_json(root / "flickr30k" / "flickr30k_test.json", flickr)
    return root


# --- The part of Visual Genome's rows that models are chosen on. ---


def vg_rows(number: int) -> list[Any]:
    """Rows of which every second pair shares photo and caption."""
    names = [k - 1 if k % 4 == 1 else k for k in range(number)]
    return [
        vg_row(image_path=f"{name}.jpg", false_caption=f"f {k}") for k, name in enumerate(names)
    ]


def sides(root: Path, share: float) -> dict[str, list[tuple[str, str]]]:
    """The photo and the negative of every row of VG-Relation, by side."""
    return {
        side: [
            (case.images[0].path.name, case.texts[1])
            for case in load_benchmark("aro:vg_relation", root, split=side, held_out=share).content
        ]
        for side in ("val", "test")
    }


def test_a_tenth_of_visual_genome_chooses_models(tmp_path: Path) -> None:
    rows = vg_rows(200)
    write_order(write_vg(write_vg(tmp_path, rows), rows[:100], "attribution"))
    whole = load_benchmark("aro", tmp_path)
    val, test = (load_benchmark("aro", tmp_path, split=side) for side in ("val", "test"))
    assert (val.name, test.name) == ("aro_val", "aro")
    assert len({whole.data_hash, val.data_hash, test.data_hash}) == 3
    counts = {side.name: side.content.counts() for side in (whole, val, test)}
    assert set(counts["aro_val"]) == {"vg_relation", "vg_attribution"} == {*val.skills}
    assert "vl_compo" not in val.aggregates
    assert "vl_compo" in test.aggregates
    # Of the official counts, those on the other side are missing.
    for part, number in {"vg_relation": 200, "vg_attribution": 100}.items():
        here = val.content.counts()[part]
        assert number / 10 <= here <= number / 10 + 1
        assert test.content.counts()[part] == number - here
        assert val.expected[part] == whole.expected[part] - (number - here)
        assert test.expected[part] == whole.expected[part] - here


def test_the_validation_part_by_plain_sorting(tmp_path: Path) -> None:
    rows = vg_rows(60)
    write_vg(tmp_path, rows)
    found = sides(tmp_path, 0.3)
    assert not {photo for photo, _ in found["val"]} & {photo for photo, _ in found["test"]}
    assert len(found["val"]) + len(found["test"]) == 60

    def number(row: Any) -> bytes:
        text = f"{row['image_path']}\0{row['true_caption']}"
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    last = sorted(map(number, rows))[17]
    chosen = [row["false_caption"] for row in rows if number(row) <= last]
    assert [text for _, text in found["val"]] == chosen
    smaller = sides(tmp_path, 0.1)["val"]
    assert {*smaller} < {*found["val"]}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("aro:vg_*,split=dev", "split must be val or test, not 'dev'"),
        ("aro:vg_*,split=val,held_out=x", "held_out must be a number"),
        ("aro:vg_*,split=val,held_out=1", "aro: held_out=1 must lie between 0 and 1"),
        ("aro:*_order,split=val", "split=val has Visual Genome's sub-tasks alone"),
    ],
)
def test_malformed_parts_of_aro(tmp_path: Path, target: str, message: str) -> None:
    write_vg(write_vg(tmp_path), None, "attribution")
    with pytest.raises(UsageError, match=message):
        parse_targets([target], tmp_path)[0].load()
