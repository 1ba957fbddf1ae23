"""The lab of photos: the data in equal terms, what rates are chosen by, a lab from start to table,
and whether two labs agree."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmark_files import expect_one_line
from build.results import few_resamples
from build.tables import read_jsonl
from compoclip.benchmarks.retrieval import read_flickr8k
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError
from compoclip.methods.registry import method_names
from compoclip.models.checkpoint import LoadedModel, create_model, load_model, save_model
from compoclip.models.config import ModelConfig
from lab.columns import agreement, chance_of, spearman
from lab.ground import DATA, World
from lab.job import Job, _trained, method_of, trained_method
from lab.page import means_on
from lab.photos import OWN, Photos, other_side, write_photos
from lab.run import run_lab
from lab.settings import BASE, Arm, Effect, LabSettings, read_settings
from lab.twins import twin_captions
from lab_helpers import run_small
from models_thin import config
from train_helpers import FEW, few_merges

RECIPE = Path(__file__).parents[1] / "recipes" / "lab-photos.json"
NOUNS = ("dog", "man", "woman", "boy", "horse", "girl")
COLOURS = ("black", "white", "red", "brown", "blue")
THINGS = ("bench", "ball", "car", "tree", "fence", "hat", "bus")


def caption(k: int, j: int) -> str:
    noun, thing = NOUNS[(k + j) % 6], THINGS[(2 * k + j) % 7]
    if j == 1:  # of two things alone, since attributes would be what changes places
        return f"A small {noun} runs behind a {NOUNS[(k + j + 1) % 6]} near a {thing} ."
    first, second = COLOURS[(k + 2 * j) % 5], COLOURS[(k + 2 * j + 1 + k % 3) % 5]
    side = " on the left" if j == 2 and k % 4 == 3 else ""
    return f"A small {noun} in a {first} shirt sits near a {second} {thing}{side} ."


def write_cut(data: Path, cut: str, first: int, train: int, test: int) -> None:
    """A cut of Flickr8k of made photos: of one 224 pixels as JPEG, of the other 160 as WebP."""
    folder = data / "photos" / cut
    (folder / "images").mkdir(parents=True)
    side, suffix, form = (160, "webp", "WEBP") if "more" in cut else (224, "jpg", "JPEG")
    names, tokens = [], []
    for k in range(first, first + train + test):
        pixels = np.random.default_rng(k).integers(0, 255, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
        names.append(f"{k}_a.{suffix}")
        image.save(folder / "images" / names[-1], form)
        tokens += [f"{names[-1]}#{j}\t{caption(k, j)}\n" for j in range(3)]
    (folder / "Flickr8k.token.txt").write_text("".join(tokens))
    (folder / "Flickr_8k.trainImages.txt").write_text("\n".join(names[:train]))
    (folder / "Flickr_8k.testImages.txt").write_text("\n".join(names[train:]))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("photo-data")
    write_cut(data, "flickr8k", 0, 14, 5)
    write_cut(data, "flickr8k_more", 40, 10, 5)
    return data


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    cfg = config(text={**few_merges(folder, FEW), "context_length": 40})
    save_model(create_model(ModelConfig(cfg, folder=folder)), folder / "model")
    return folder / "model"


# --- The photos. ---


SPLITS = {"train": "photos", "dev": "dev", "test": "test"}
"""Split -> its table."""


@pytest.fixture(scope="module")
def written(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "data"
    write_photos(folder, photos, dev=6)
    return folder


def names_of(folder: Path) -> dict[str, list[str]]:
    """The photos of each split."""
    return {s: (folder / f"Flickr_8k.{s}Images.txt").read_text().split() for s in SPLITS}


def test_both_cuts_are_shown_in_equal_terms(photos: Path, written: Path, tmp_path: Path) -> None:
    splits = names_of(written)
    assert {split: len(names) for split, names in splits.items()} == {
        "train": 18,
        "dev": 6,
        "test": 10,
    }
    everything = [name for names in splits.values() for name in names]
    assert len(set(everything)) == 34
    for name in everything:
        with Image.open(written / "images" / name) as image:
            assert (image.format, image.size, image.mode) == ("WEBP", (160, 160), "RGB")
    copied = (photos / "photos/flickr8k_more/images/40_a.webp").read_bytes()
    assert (written / "images" / "40_a.webp").read_bytes() == copied  # not pressed twice
    for split, names in splits.items():
        read, _ = read_flickr8k(
            written / "Flickr8k.token.txt", written / f"Flickr_8k.{split}Images.txt"
        )
        assert [photo.image for photo in read] == names
        for photo in read:
            k = int(photo.image.partition("_")[0])
            assert photo.captions == tuple(caption(k, j) for j in range(3))
        rows = read_jsonl(written / f"{SPLITS[split]}.jsonl")
        assert [row["image"] for row in rows] == [f"images/{name}" for name in names]
    assert len(open_source(str(written / "photos.jsonl"))) == 18
    write_photos(tmp_path / "more", photos, dev=8)
    more = set(names_of(tmp_path / "more")["dev"])
    assert set(splits["dev"]) < more < {*splits["dev"], *splits["train"]}


def test_every_draw_splits_all_photos_anew(photos: Path, written: Path, tmp_path: Path) -> None:
    for draw in (1, 2):
        write_photos(tmp_path / str(draw), photos, dev=6, draw=draw)
    draws = [names_of(folder) for folder in (written, tmp_path / "1", tmp_path / "2")]
    assert len({tuple(map(len, splits.values())) for splits in draws}) == 1
    assert len({frozenset(chain(*splits.values())) for splits in draws}) == 1
    assert len({frozenset(splits["test"]) for splits in draws}) == 3
    with pytest.raises(CompoclipError, match="made of other data"):
        write_photos(tmp_path / "1", photos, dev=6)


@pytest.mark.parametrize(
    ("caption", "other"),
    [
        ("A dog on the left of a cat to his right .", "A dog on the right of a cat to his left ."),
        ("Girl with Left arm up , looking left", "Girl with Right arm up , looking right"),
        ("Tree at lower right , sky at top left", "Tree at lower left , sky at top right"),
        ("A dog running right behind a cat on the left", None),
        ("Little water left by the sprinklers", None),
        ("A sign that says LEFT", None),
        ("A dog on the LEFT", None),
        ("An animal rights sign", None),
        ("A leftover", None),
        ("A dog", None),
    ],
)
def test_the_caption_of_a_mirror_image(caption: str, other: str | None) -> None:
    assert other_side(caption) == other
    assert other is None or other_side(other) == caption


def test_captions_that_tell_a_side_come_with_their_mirror_image(written: Path) -> None:
    plain, sides = (read_jsonl(written / f"{name}.jsonl") for name in ("photos", "sides"))
    mirrored = [
        {**row, "caption": [text], "neg_caption": text.replace("left", "right"), "mirror": True}
        for row in plain
        for text in row["caption"][2:]
        if "left" in text
    ]
    assert mirrored
    assert sides == plain + [row for row in mirrored for _ in range(5)]
    source = open_source(str(written / "sides.jsonl"))
    assert source[len(plain)].negative_image is not None
    assert source[0].negative_image is None


def test_twins_exchange_two_photos_and_their_captions(written: Path) -> None:
    rows = read_jsonl(written / "twins.jsonl")
    twins = [row for row in rows if "neg_image" in row]
    assert (len(rows), len(twins)) == (18 + 9, 9)
    for row in twins:
        places = (written / row["image"], written / row["neg_image"])
        with Image.open(places[0]) as first, Image.open(places[1]) as second:
            assert first.size == second.size == (160, 160)
            left, right = np.asarray(first, float), np.asarray(second, float)
        # WebP changes a pixel by a little.
        assert np.abs(left[:, :80] - right[:, 80:]).mean() < 12
        assert row["caption"] != row["neg_caption"]
        words = [sorted(row[key][0].replace(",", "").split()) for key in ("caption", "neg_caption")]
        assert words[0] == words[1]
    assert {Path(row["image"]).parent for row in twins} == {Path("twins/train/images")}
    for split, count in (("test", 5), ("dev", 3)):
        items = read_jsonl(written / "twins" / split / "examples.jsonl")
        assert len(items) == count
        for item in items:
            assert {Path(item[f"image_{k}"]).suffix for k in range(2)} == {".webp"}


@pytest.mark.parametrize(
    ("wording", "text"),
    [
        (0, "a dog runs on the left and two men sit on the right"),
        (1, "on the left a dog runs, on the right two men sit"),
        (5, "a dog runs, and to the right of it two men sit"),
    ],
)
def test_captions_of_twins(wording: int, text: str) -> None:
    first, second = twin_captions("A dog runs .", "Two men sit.", wording)
    assert first == text
    assert second == twin_captions("two men sit", "a dog runs", wording)[0]


def test_photos_that_make_no_data_set(photos: Path, written: Path, tmp_path: Path) -> None:
    before = (written / "data.json").stat().st_mtime_ns
    write_photos(written, photos, 6)
    assert (written / "data.json").stat().st_mtime_ns == before
    broken = shutil.copytree(photos, tmp_path / "broken")
    (broken / "photos/flickr8k_more/images/41_a.webp").write_bytes(b"RIFF")
    nothing = "name the folder that holds photos/flickr8k"
    for folder, data, dev, message, place in (
        (written, photos, 7, "made of other data; delete it", "data"),
        (tmp_path / "x", photos, 0, "dev: 0 of 24 train photos cannot be held", ""),
        (tmp_path / "x", photos, 24, "dev: 24 of 24 train photos cannot be held", ""),
        (tmp_path / "x", tmp_path / "nowhere", 6, nothing, "nowhere"),
        (tmp_path / "x", broken, 6, "no photo that can be read", "41_a.webp"),
    ):
        with pytest.raises(CompoclipError, match=message) as caught:
            write_photos(folder, data, dev)
        expect_one_line(caught.value, place)
    assert not (tmp_path / "x").exists()


# --- The settings. ---


def test_every_recipe_of_captions_has_an_arm() -> None:
    settings = read_settings(RECIPE)
    assert isinstance(settings.ground, Photos)
    assert settings.ground.dev == 400
    named = {arm.method for arm in settings.arms} | set(settings.left_out or ())
    assert set(method_names()) == named
    controls = {(arm.table, settings.control_of(arm)) for arm in settings.arms}
    assert controls == {("photos", "clip-ft"), ("sides", "clip-ft-sides")}
    for arm in settings.arms:
        method = method_of(arm, Path())
        assert method.trains.text_tower or method.trains.matrix
    quick = read_settings(RECIPE, quick=True)
    assert len(quick.arms) == 5
    assert len(quick.lrs) == len(quick.lora_lrs) == 1


def test_rates_are_chosen_by_what_captions_alone_give() -> None:
    settings = read_settings(RECIPE)
    ground = settings.ground
    assert ground.measured(settings, choosing=True) == OWN
    names = [c.name for c in ground.columns_for(settings, choosing=True)]
    assert not {"SC", "SC++", "TOT-replace", "TOT-swap", "zero-shot"} & set(names)
    assert {"i2t", "t2i", "order", "brittleness"} <= set(names)
    assert len(ground.columns_for(settings, choosing=False)) == len(ground.columns)
    fewer = replace(settings, benchmarks=OWN)
    assert [c.name for c in ground.columns_for(fewer, choosing=False)] == names


def test_a_world_lab_is_recorded_as_ever(tmp_path: Path) -> None:
    """Else earlier runs could not be resumed."""
    settings = LabSettings((Arm("a", "clip-ft"),), ("world-aro",), "a")
    assert isinstance(settings.ground, World)
    record = Job(tmp_path, settings, settings.arms[0], 0, "w", 1e-3).made_from()
    assert set(record["common"]) == {
        *("benchmarks", "model", "world", "tables", "scenes", "items", "choice_items", "steps"),
        *("batch_size", "warmup", "clip_grad"),
    }
    one, moved = (
        Job(tmp_path, replace(settings, photos={"data": folder}), None, 0, "w") for folder in "ab"
    )
    assert one.made_from() == moved.made_from()  # the data are what counts


# --- From start to table. ---


def lab_settings(data: Path, base: Path, **changes: Any) -> LabSettings:
    values: dict[str, Any] = {
        "arms": (
            Arm("clip-ft", "clip-ft", table="photos", about="the control"),
            Arm("negclip", "negclip", table="photos"),
        ),
        "benchmarks": OWN,
        "control": "clip-ft",
        "seeds": (0,),
        "effects": (Effect("a claim", "negclip", BASE, ("order", "SC"), "higher"),),
        "model": str(base),
        "items": 20,
        "choice_items": 10,
        "steps": 2,
        "batch_size": 6,
        "lrs": (1e-4, 1e-3),
        "warmup": 1,
        "photos": {"data": str(data), "dev": 8},
    }
    return LabSettings(**{**values, **changes})


def changed_weights(model: LoadedModel, base: Path) -> list[str]:
    """The names of the weights that training has changed."""
    before = load_model(str(base)).encoder.model.state_dict()
    after = model.encoder.model.state_dict()
    return [name for name in before if (after[name] != before[name]).any()]


@few_resamples()
def test_a_lab_of_photos_runs_to_its_table_and_resumes(
    photos: Path,
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_small(monkeypatch, tmp_path)
    out, settings = tmp_path / "lab", lab_settings(photos, base)
    text = run_lab(settings, out, workers=1)
    notes = capsys.readouterr().err
    assert "16 train, 8 dev, 10 test photos" in notes
    assert "learning rates: running 7 jobs" in notes  # base, two bounds, two rates of two arms
    numbers = json.loads((out / "lab.json").read_text())
    names = ["base", "text only", "untrained", "clip-ft", "negclip"]
    assert [line["name"] for line in numbers["lines"]] == names
    columns = list(numbers["lines"][0]["values"])
    assert columns == [
        *("object", "attribute", "binding", "relation", "role", "order"),
        *("augmented", "brittleness", "i2t", "t2i"),
    ]
    # Plain, the ten test photos are what retrieval is among: multiples of a tenth.
    for line in numbers["lines"]:
        assert all(abs(10 * value % 1) < 1e-6 for value in line["values"]["i2t"])
    verdicts = {effect["columns"][0]: effect["verdict"] for effect in numbers["effects"]}
    assert verdicts == {"order": "not judged: one seed", "SC": "not run"}
    assert "Partial, for want of photos: photo-retrieval (40 of 6,000 items)" in text
    assert "Do the two labs agree" not in text

    # The image tower is the base's, and its features were computed once; those of texts are gone.
    changed = changed_weights(load_model(str(next((out / "runs").glob("negclip-*/model")))), base)
    assert changed
    assert not any(name.startswith("visual.") for name in changed)
    folders = {path.parent.name for path in (out / "features").glob("*/*/*.safetensors")}
    assert folders == {"images"}

    # It resumes, wherever the photos are now, and compares itself with another lab.
    moved = shutil.copytree(photos, tmp_path / "moved")
    other = shutil.copy(out / "lab.tsv", tmp_path / "other.tsv")
    run_lab(lab_settings(moved, base, compare_with=str(other)), out, workers=1)
    assert "measured: running 0 jobs" in capsys.readouterr().err
    assert json.loads((out / "lab.json").read_text())["lines"] == numbers["lines"]
    assert {name: set(of) for name, of in means_on(other).items()} == {
        line["name"]: set(columns) for line in numbers["lines"]
    }
    with pytest.raises(CompoclipError, match="made of other data; delete it"):
        run_lab(replace(settings, photos={**settings.photos, "dev": 5}), out)


def test_the_means_of_a_record(tmp_path: Path) -> None:
    record = tmp_path / "lab.tsv"
    header = "arm\tseeds\torder\tt2i\timages/s\n"
    record.write_text(f"{header}a\t3\t57.9 ± 0.4 b+ c-\t\t9 ± 1\n")
    assert means_on(record) == {"a": {"order": pytest.approx(0.579)}}
    record.write_text(f"{header}a\t3\thigh\t1.0\t9\n")
    with pytest.raises(CompoclipError, match=r"lab\.tsv: no numbers in the table of the lab"):
        means_on(record)
    with pytest.raises(CompoclipError, match=r"absent\.tsv: cannot be read"):
        means_on(tmp_path / "absent.tsv")


@pytest.mark.slow
def test_arms_of_every_sort_train_without_the_image_tower(
    photos: Path, base: Path, tmp_path: Path
) -> None:
    names = ("clip-ft-sides", "fsc-clip-lora", "clic", "dac", "compo")
    arms = tuple(map(read_settings(RECIPE).arm, names))
    settings = lab_settings(photos, base, arms=arms, batch_size=8)
    settings.ground.prepare(settings, tmp_path, choosing=False)
    for arm in arms:
        job = Job(tmp_path, settings, arm, 0, "w", 1e-3 if "lora" in arm.name else 1e-4)
        tuned, _ = _trained(job, trained_method(arm, tmp_path / DATA))
        changed = changed_weights(tuned, base)
        assert not any(name.startswith("visual.") for name in changed), arm


def test_what_a_lab_of_photos_cannot_do_without(photos: Path, base: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"photos": {"dev": 3}}, "needs the folder that holds them: --photos DATA"),
        ({"benchmarks": OWN[1:]}, "rates are chosen by .*: add photo-retrieval to the settings'"),
        ({"benchmarks": (*OWN, "sugarcrepe")}, "leave sugarcrepe out of the settings' benchmarks"),
        ({"benchmarks": (*OWN, "caltech101")}, "caltech101: not there; leave caltech101 out"),
        ({"benchmarks": (*OWN, "other")}, "no benchmark 'other' in"),
    ):
        settings = lab_settings(photos, base, **changes)
        with pytest.raises(CompoclipError, match=message):
            settings.ground.prepare(settings, tmp_path / "lab", choosing=True)


def test_the_suite_of_the_real_photos(shared_data: Path, tmp_path: Path) -> None:
    """Every benchmark of the recipe is there; of a few photos, since all take a minute."""
    from compoclip.programs.run import Measuring

    data = tmp_path / "data"
    (data / "photos").mkdir(parents=True)
    for place in ("annotations", "classification", "photos/sugarcrepe_coco"):
        (data / place).symlink_to(shared_data / place)
    for cut in ("flickr8k", "flickr8k_more"):
        source, place = shared_data / "photos" / cut, data / "photos" / cut
        place.mkdir()
        (place / "images").symlink_to(source / "images")
        (place / "Flickr8k.token.txt").symlink_to(source / "Flickr8k.token.txt")
        for split, count in (("train", 14), ("test", 8)):
            names = (source / f"Flickr_8k.{split}Images.txt").read_text().split()[:count]
            (place / f"Flickr_8k.{split}Images.txt").write_text("\n".join(names))
    settings = read_settings(RECIPE)
    settings = replace(settings, photos={"data": str(data), "dev": 8})
    ground, out = settings.ground, tmp_path / "lab"
    ground.prepare(settings, out, choosing=True)
    suites = {}
    for folder, choosing in (("suite", False), ("choice-suite", True)):
        measuring = Measuring(on=(str(out / folder),), allow_partial=True)
        suites[folder] = measuring.benchmarks(only=ground.measured(settings, choosing))
    assert [each.name for each in suites["suite"]] == list(settings.benchmarks)
    assert [each.name for each in suites["choice-suite"]] == list(OWN)
    counts = {each.name: sum(each.content.counts().values()) for each in suites["suite"]}
    assert counts["photo-retrieval"] == 16 + 80
    assert counts["photo-rewrites"] > 250  # 80 of them of word order
    assert (counts["sugarcrepe"], counts["sugarcrepe_pp_tot"]) == (7511, 4757)
    assert (counts["caltech101"], counts["eurosat"]) == (202, 200)
    with Image.open(next((out / "data/images").iterdir())) as image:
        assert image.size == (160, 160)


# --- Two labs. ---


def test_rank_correlation_by_hand() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Without ties 1 - 6 sum d^2 / (n (n^2 - 1)): d = 1, -1, 0, 0.
    assert spearman([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    # Ranks 0.5, 0.5, 2 and 0, 1, 2: covariance 1.5, variances 1.5 and 2.
    assert spearman([5, 5, 7], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_the_chance_of_a_correlation() -> None:
    # Of the 24 orders of four, two (the order itself and its reverse) correlate perfectly.
    assert chance_of([1, 2, 3, 4], [1, 2, 3, 4]) == pytest.approx(2 / 24, abs=0.01)
    assert chance_of([1, 2, 3, 4], [2, 4, 1, 3]) == pytest.approx(1, abs=1e-3)  # rho 0


def test_labs_agree_over_the_recipes_that_both_have() -> None:
    mine = {f"r{k}": {"order": k / 10, "t2i": 0.5, "own": 0.1 * k} for k in range(5)}
    mine["alone"] = {"order": 9.0, "t2i": 9.0, "own": 9.0}
    other = {f"r{k}": {"order": 0.3 - k / 10, "t2i": k / 10} for k in range(5)}
    other |= {"base": {"order": 9.0, "t2i": 0.1}, "oracle": {"order": 1.0}}
    ((column, recipes, rho, p),) = agreement(mine, other)
    assert (column, recipes, rho) == ("order", 5, pytest.approx(-1))
    assert p < 0.05
    few = {name: mine[name] for name in ("r0", "r1", "r2")}
    assert agreement(few, other) == []
