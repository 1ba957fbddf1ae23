"""Relations and order: ARO, What'sUp, SPEC, VSR and Flickr30k-Positions."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmark_files import refuses, vg_row
from build.photos import noise, write_photo
from build.tables import write_json, write_jsonl, write_rows, write_text
from compoclip.archives import Members
from compoclip.benchmarks.aro import LEFT_OUT
from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Case,
    Form,
    ImageRef,
    TiePolicy,
    image_key,
)
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.shuffles import KINDS, shuffled, split_words, trigrams
from compoclip.benchmarks.targets import parse_targets
from compoclip.captions.types import Token
from compoclip.data.decode import decode
from compoclip.errors import UsageError
from compoclip.evaluation.encode import image_content_key
from compoclip.evaluation.encoder import ImageReader
from compoclip.evaluation.forms.cases import groups_by_part
from compoclip.models.preprocess import Preprocess
from compoclip.report.looks import Album
from evaluation_helpers import features_from, results_of, rule_value, score_items

# --- ARO: cropped Visual Genome cases, order cases that never change, and its averages. ---


TEXT = "A small dog chases two big cats, near the old red barn."
TAGS = ["DT", "JJ", "NN", "VBZ", "CD", "JJ", "NNS", ",", "IN", "DT", "JJ", "JJ", "NN", "."]


def tokens() -> list[Token]:
    words = split_words(TEXT)
    return [Token(word, word, "X", tag, 0, 0) for word, tag in zip(words, TAGS, strict=True)]


def test_word_splitter_separates_punctuation() -> None:
    words = ["The", "dog", "'s", "well-lit", "room", ",", "2.5", "m", "(", "wide", ")", "!"]
    assert split_words("The dog's well-lit room, 2.5 m (wide)!") == words
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


def write_order(root: Path) -> Path:
    captions = [TEXT, "Two men ride brown horses on the wet beach."]
    rows = [{"image": "val2014/1.jpg", "caption": captions}]
    write_json(root / "coco" / "coco_karpathy_test.json", rows)
    flickr = [{"image": "flickr30k-images/9.jpg", "caption": captions[:1]}]
    write_json(root / "flickr30k" / "flickr30k_test.json", flickr)
    return root


def test_a_box_that_begins_outside_its_photo(tmp_path: Path) -> None:
    """The official crop fills what lies beyond the photo with black, on any side of it."""
    write_vg(tmp_path, [vg_row(bbox_x=-2, bbox_y=-1, bbox_w=4, bbox_h=3)])
    path = write_photo(tmp_path / "aro" / "images" / "5.jpg", colour="white")
    (case,) = load_benchmark("aro:vg_relation", tmp_path).content
    assert case.images[0].box == (-2, -1, 2, 2)
    cropped = np.asarray(decode(path, box=case.images[0].box))[:, :, 0]
    assert cropped.tolist() == [[0] * 4, [0, 0, 255, 255], [0, 0, 255, 255]]


def test_averages_of_the_official_rules(tmp_path: Path) -> None:
    pairs = [vg_row(attributes=["a", "b"])] * 25 + [vg_row(attributes=["b", "a"])] * 24
    relations = [vg_row(), vg_row(relation_name="near")]
    write_vg(write_vg(tmp_path, relations), pairs, "attribution")
    rules = load_benchmark("aro:vg_*", tmp_path).aggregates
    relation = Aggregate(("vg_relation",), macro_by="relation")
    attribution = Aggregate(("vg_attribution",), macro_by="attributes", min_group=25)
    assert (rules["vg_relation"], rules["vg_attribution"]) == (relation, attribution)
    assert rules["vg_relation_paper"] == replace(relation, exclude=LEFT_OUT)
    assert len(LEFT_OUT) == 157
    assert {"near", "driving", "on the back of", "around"} <= {*LEFT_OUT}
    assert not {"eating", "on", "riding"} & {*LEFT_OUT}
    write_vg(tmp_path, [vg_row(relation_name="near")])
    only = load_benchmark("aro:vg_relation", tmp_path).aggregates
    assert only["vg_relation_paper"] == relation


def test_all_four_parts_make_the_published_average(tmp_path: Path) -> None:
    refuses("select the parts you have", "", "aro", write_vg(tmp_path))
    write_order(write_vg(tmp_path, None, "attribution"))
    rules = load_benchmark("aro", tmp_path).aggregates
    clip = {"vg_relation": 59.90, "vg_attribution": 63.20}
    clip |= {"flickr30k_order": 59.56, "coco_order": 47.56}
    labels = {"relation": "eating", "attributes": "a_b"}
    table = {part: [(score, labels)] for part, score in clip.items()}
    for name, mean in {"vl_compo": 57.55, "paper": 57.55, "order": 53.56}.items():
        assert rule_value(rules[name], table) == pytest.approx(mean, abs=0.01)
    mosaiclip = (59.90 + 63.20 + 53.56) / 3
    assert rule_value(rules["mosaiclip"], table) == pytest.approx(mosaiclip)


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
    assert {*val.content.counts()} == {"vg_relation", "vg_attribution"} == {*val.skills}
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
        ("aro:vg_*,split=dev", "split must be one of val, test, not 'dev'"),
        ("aro:vg_*,split=val,held_out=x", "held_out must be a number"),
        ("aro:vg_*,split=val,held_out=1", "aro: held_out=1 must lie between 0 and 1"),
        ("aro:*_order,split=val", "split=val has Visual Genome's sub-tasks alone"),
    ],
)
def test_malformed_parts_of_aro(tmp_path: Path, target: str, message: str) -> None:
    write_vg(write_vg(tmp_path), None, "attribution")
    with pytest.raises(UsageError, match=message):
        parse_targets([target], tmp_path)[0].load()


# --- What'sUp, SPEC and VSR. ---


A = ("left_of", "right_of", "on", "under")
B = ("left_of", "right_of", "in-front_of", "behind")


def controlled(folder: str, things: str, positions: tuple[str, ...]) -> list[dict[str, Any]]:
    one, two = things.split()
    rows = []
    for position in positions:
        options = [position, *(other for other in positions if other != position)]
        texts = [f"A {one} {option} a {two}" for option in options]
        path = f"data/{folder}/{one}_{position}_{two}.jpeg"
        rows.append({"image_path": path, "caption_options": texts})
    return rows


def write_controlled(root: Path, rows: list[dict[str, Any]]) -> Benchmark:
    """Both controlled files, the first with these rows."""
    clevr = controlled("controlled_clevr", "cap bowl", B)
    write_json(root / "whatsup" / "controlled_images_dataset.json", rows)
    write_json(root / "whatsup" / "controlled_clevr_dataset.json", clevr)
    return load_benchmark("whatsup:controlled_*", root)


def test_whatsup_pairs_and_sets_need_all_positions_once(tmp_path: Path) -> None:
    rows = controlled("controlled_images", "mug plate", A)
    rows += controlled("controlled_images", "can sofa", A)[:3]
    found = write_controlled(tmp_path, [*rows, rows[0]])
    assert groups_by_part(found) == {
        "controlled_a/pair": 2,  # on and under of mug, left and right of can
        "controlled_b/pair": 2,
        "controlled_b/set": 1,
    }
    assert "set" in found.aggregates


def test_whatsup_pairs_and_sets_are_measured(tmp_path: Path) -> None:
    rows = controlled("controlled_images", "mug plate", A)
    rows += controlled("controlled_images", "beer-bottle armchair", A)
    found = write_controlled(tmp_path, rows)
    for case in found.content:
        write_photo(case.images[0].path)
    result = results_of(found, tmp_path / "out")
    accuracy, pair, whole = (result.scores["controlled_a"][m] for m in ("accuracy", "pair", "set"))
    assert (accuracy.n, pair.n, whole.n) == (8, 4, 2)
    assert (pair.chance, whole.chance) == (1 / 16, 1 / 256)
    assert whole.value <= pair.value <= accuracy.value
    assert (result.aggregates["pair"].n, result.aggregates["set"].n) == (6, 3)
    assert result.aggregates["set"].expected == 3


def vsr_row(label: Any = 1, **changes: Any) -> dict[str, Any]:
    row = {
        "image": "000000451431.jpg",
        "image_link": "http://images.cocodataset.org/train2017/000000451431.jpg",
        "caption": "The person is inside the refrigerator.",
        "label": label,
        "relation": "inside",
    }
    return {**row, **changes}


def write_vsr(root: Path, *rows: dict[str, Any]) -> Path:
    """Two statements in the dev file of the split without shared objects, and rows in its test."""
    write_jsonl(root / "vsr" / "zeroshot_dev.jsonl", [vsr_row(), vsr_row(0)])
    return write_jsonl(root / "vsr" / "zeroshot_test.jsonl", rows)


def test_vsr_cases(tmp_path: Path) -> None:
    relations = ["on"] * 20 + ["under"] * 30 + ["inside"] * 19
    rows = [
        vsr_row(1 if name == "under" else k % 2, relation=name, caption=f"It is {name} {k}.")
        for k, name in enumerate(relations)
    ]
    path = write_vsr(tmp_path, *rows)
    found = load_benchmark("vsr:zeroshot", tmp_path)
    first = found.content[1]
    assert first.id == "zeroshot/2"
    assert first.images == (ImageRef(tmp_path / "coco/train2017/000000451431.jpg"),)
    assert first.labels == {"label": "true", "relation": "on"}
    # under is never false, inside has too few statements
    rules = set(found.aggregates)
    assert rules == {"micro", "macro", "auc", "balanced_accuracy", "relations", "zeroshot: on"}
    nested = tmp_path / "nested" / "zeroshot"
    nested.mkdir(parents=True)
    for part in ("dev", "test"):
        path.with_name(f"zeroshot_{part}.jsonl").rename(nested / f"{part}.jsonl")
    again = load_benchmark("vsr:zeroshot", tmp_path, annotations=tmp_path / "nested")
    assert again.data_hash == found.data_hash
    moved = load_benchmark("vsr:zeroshot", tmp_path, Path("p"), annotations=tmp_path / "nested")
    assert moved.content[0].images[0].path == Path("p/000000451431.jpg")
    write_vsr(tmp_path, vsr_row(1.0), vsr_row(0))
    truth = load_benchmark("vsr:zeroshot", tmp_path).content[0].truth
    assert (truth, type(truth)) == (1, int)


POSITIONS = [{"image_path": "a_on_b.jpg", "caption_options": list("wxyz")}]
CLEVR, QUESTIONS = "whatsup/controlled_clevr_dataset.json", "whatsup/coco_qa_one_obj.json"
STATEMENTS = "vsr/zeroshot_test.jsonl"
MALFORMED = [
    ("whatsup:controlled_b", CLEVR, POSITIONS, "image name 'a_on_b.jpg' tells no position"),
    (
        "whatsup:coco_one",
        QUESTIONS,
        [[1, "x"]],
        r"row 0: expected \[image id, true text, false text\]",
    ),
    ("vsr:zeroshot", STATEMENTS, [vsr_row(2)], "line 1: 'label' must be 0 or 1, not 2"),
    (
        "vsr:zeroshot",
        STATEMENTS,
        [vsr_row(image_link="http://x/1.jpg")],
        "names neither train2017 nor val2017",
    ),
    ("vsr:zeroshot", STATEMENTS, [vsr_row(1)], ": no true or no false statements; fetch"),
]


@pytest.mark.parametrize(("spec", "file", "rows", "words"), MALFORMED)
def test_malformed_rows_are_refused(
    tmp_path: Path, spec: str, file: str, rows: Any, words: str
) -> None:
    write_vsr(tmp_path)
    path = write_rows(tmp_path / file, rows)
    refuses(words, path.name, spec, tmp_path)


# --- Flickr30k-Positions: mirrored photos and pairs. ---


OWN = "a dog is to the left of a man"
OTHER = "a dog is to the right of a man"


def write_official(root: Path, name: str, *rows: tuple[str, ...]) -> Path:
    head = ("", "captions", "images", "neg_captions", "neg_images")
    lines = ("\t".join(row) + "\n" for row in (head, *rows))
    return write_text(root / "flickr30k_positions" / name, "".join(lines))


def test_flickr30k_positions(tmp_path: Path) -> None:
    row = ("0", OWN, "flickr30k-images/7.jpg", OTHER, "flipped/7.jpg")
    write_official(tmp_path, "test_left_right_.csv", row)
    refuses(r"up_down_.csv: no such file; .*left_right\*", "", "flickr30k_positions", tmp_path)
    up = ("0", "a cup above a hat", "x/8.jpg", "a cup below a hat", "y/8_made.png")
    write_official(tmp_path, "test_up_down_.csv", up)
    found = load_benchmark("flickr30k_positions", tmp_path)
    photo = ImageRef(tmp_path / "flickr30k" / "images" / "7.jpg")
    mirrored = replace(photo, mirror=True)
    assert found.content[:3] == (
        Case("left_right/1/own", Form.CHOOSE_TEXT, (photo,), (OWN, OTHER), "left_right"),
        Case("left_right/1/other", Form.CHOOSE_TEXT, (mirrored,), (OTHER, OWN), "left_right"),
        Case("left_right/1", Form.GROUP, (photo, mirrored), (OWN, OTHER), "left_right_pairs"),
    )
    made = tmp_path / "flickr30k_positions" / "up_down" / "8_made.png"
    assert found.content[4].images == (ImageRef(made),)
    assert (found.headline, found.ties) == ("accuracy", {"": TiePolicy.STRICT})
    for rule in ("accuracy", "micro"):
        assert found.aggregates[rule].subtasks() == {"left_right", "up_down"}
    assert found.aggregates["group"].subtasks() == {"left_right_pairs", "up_down_pairs"}
    part = load_benchmark("flickr30k_positions:left_right_pairs", tmp_path)
    assert [case.form for case in part.content] == [Form.GROUP]


def test_the_official_accuracy_by_hand(tmp_path: Path) -> None:
    """The mean over both pictures of "its own caption beats the other"; and Winoground's scores."""
    write_official(tmp_path, "test_left_right_.csv", ("0", OWN, "7.jpg", OTHER, "7.jpg"))
    found = load_benchmark("flickr30k_positions:left_right*", tmp_path)
    refs = list(dict.fromkeys(found.content.images))

    def got(table: list[list[float]]) -> dict[str, float]:
        scores = {str(k): dict(zip((OWN, OTHER), line)) for k, line in enumerate(table)}
        features = features_from(scores)
        features = replace(features, image_rows={ref: k for k, ref in enumerate(refs)})
        items = score_items(found.content, features, ties=found.ties)
        return {name: float(np.nanmean(each.used)) for name, each in items.outcomes.items()}

    # One caption wins for both pictures, as with an encoder that does not see places.
    assert got([[0.5, 0.4], [0.5, 0.4]]) == {"accuracy": 0.5, "group": 0, "text": 0, "image": 0}
    assert got([[0.5, 0.4], [0.3, 0.6]]) == {"accuracy": 1, "group": 1, "text": 1, "image": 1}
    assert got([[0.5, 0.5], [0.3, 0.6]]) == {"accuracy": 0.5, "group": 0, "text": 0, "image": 1}


# --- Mirrored photos. ---


def test_a_mirrored_photo_is_the_photo_mirrored(tmp_path: Path) -> None:
    pixels = np.asarray(noise(0, (30, 20)))
    for name, values in (("a", pixels), ("b", pixels[:, ::-1])):
        Image.fromarray(values).save(tmp_path / f"{name}.png")
    ref, by_hand = (ImageRef(tmp_path / f"{name}.png") for name in "ab")
    mirrored = replace(ref, mirror=True)
    read = ImageReader(Preprocess(size=(16, 16)))
    assert np.array_equal(read(mirrored), read(by_hand))
    assert not np.array_equal(read(mirrored), read(ref))
    # boxes are those of the photo as it is stored
    box = (1.0, 2.0, 11.0, 12.0)
    cut = read(replace(mirrored, box=box))
    assert np.array_equal(cut, read(replace(by_hand, box=(19.0, 2.0, 29.0, 12.0))))
    members = Members()
    assert image_content_key(ref, members) != image_content_key(mirrored, members)
    key = image_key(replace(mirrored, box=box))
    assert key == f"{tmp_path / 'a.png'}#1,2,11,12#mirrored"
    shown = Album().photo(key)
    assert shown is not None
    assert np.array_equal(np.asarray(shown), pixels[2:12, 1:11][:, ::-1])
    assert Album().photo(f"{tmp_path / 'none.png'}#mirrored") is None
