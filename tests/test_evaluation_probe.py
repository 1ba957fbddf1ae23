"""Linear probes: the fit against plain loops and scikit-learn, the search for C, which photos."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_files import refuses, write_csv
from build.photos import write_photos
from compoclip.benchmarks.case import Benchmark, Classification, Probe
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.blind import TextOnlyEncoder
from compoclip.evaluation.closing import closing_sentences
from compoclip.evaluation.encoder import ModelEncoder, encoder_of_probes
from compoclip.evaluation.forms.probe import fit, search
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from evaluation_helpers import TINY, FakeEncoder, features_of, ref, score_items

CLASSES = ("cat", "dog", "cow")


def points(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n points (n, 5) around one centre per class, and their classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    return rng.normal(size=(n, 5)) + 1.5 * rng.normal(size=(classes, 5))[labels], labels


def slope(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, strength: float
) -> list[list[float]]:
    """The gradient of mean CE + |W|^2 / (2 C n), penalty twice for two classes, by plain loops."""
    n, classes = len(labels), len(weights)
    times = 2 if classes == 2 else 1
    gradient = [[times * w / (strength * n) for w in row[:-1]] + [0.0] for row in weights]
    for x, label in zip(features, labels):
        logits = [sum(w * v for w, v in zip(row, (*x, 1.0))) for row in weights]
        total = sum(math.exp(z) for z in logits)
        for k, z in enumerate(logits):
            error = (math.exp(z) / total - (k == label)) / n
            for d, v in enumerate((*x, 1.0)):
                gradient[k][d] += error * v
    return gradient


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("strength", [1e-3, 0.3, 10.0])
def test_the_gradient_of_the_objective_vanishes_at_the_fit(classes: int, strength: float) -> None:
    features, labels = points(60, classes)
    weights = fit(features, labels, classes, strength)
    steepest = max(abs(v) for row in slope(features, labels, weights, strength) for v in row)
    at_zero = max(abs(v) for row in slope(features, labels, 0 * weights, strength) for v in row)
    assert steepest < 1e-3 < at_zero


@pytest.mark.parametrize(
    ("peak", "chosen"), [(0.3, 0.25), (-6, -6.0), (6, 6.0), (-3.6, -3.625), (5.95, 6.0)]
)
def test_the_search_ends_at_eight_steps_a_decade(peak: float, chosen: float) -> None:
    asked: list[float] = []

    def accuracy(strength: float) -> float:
        asked.append(round(math.log10(strength), 6))
        return -abs(asked[-1] - peak)

    assert math.log10(search(accuracy)) == pytest.approx(chosen)
    assert asked[:7] == [-6, -4, -2, 0, 2, 4, 6]
    assert len(asked) == len({*asked}) <= 15
    assert search(lambda strength: 0.5) == pytest.approx(1e-6)


def sets_of(labels: dict[str, list[int]]) -> tuple[Probe, Any]:
    """A probe of photos around their classes' centres, and their features."""
    parts = {}
    rows = []
    for split, row in labels.items():
        refs = tuple(ref(f"{split}{k}.png") for k in range(len(row)))
        parts[split] = Classification(refs, tuple(row), CLASSES, ())
        centres = 3 * np.eye(len(CLASSES), 4)
        rows.append(centres[row] + np.random.default_rng(len(row)).normal(size=(len(row), 4)) / 4)
    content = Probe(parts["test"], parts["train"], parts["validation"])
    images = np.concatenate(rows).astype(np.float32)
    return content, features_of(content, images, np.zeros((0, 4), dtype=np.float32))


def test_items_carry_the_best_constant_answer_as_chance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    content, features = sets_of(
        {"test": [0, 1, 2, 1, 1], "train": [0, 1, 2, 2, 2, 0, 1], "validation": [0, 1, 2, 2]}
    )
    items = score_items(content, features)
    outcome = items.outcomes["accuracy"]
    assert outcome.used.tolist() == [1, 1, 1, 1, 1]
    assert outcome.chance.tolist() == [0, 0, 1, 0, 0]  # "cow", the most frequent in training
    assert items.texts[0][0] == "cat"
    assert items.labels[0] == {"class": "cat"}
    said = capsys.readouterr().err
    assert "chosen on 4 photos; fitted to 11 photos" in said
    assert "measured, too" not in said
    copied = replace(content, train=replace(content.train, images=content.test.images * 2))
    copied = replace(copied, train=replace(copied.train, images=copied.train.images[:7]))
    score_items(copied, features)
    assert "5 photos of them are measured, too" in capsys.readouterr().err


def test_training_photos_of_one_class_are_refused() -> None:
    content, features = sets_of({"test": [0, 1], "train": [1, 1], "validation": [0, 1]})
    with pytest.raises(CompoclipError, match="made: the training photos are of one class"):
        score_items(content, features)
    content = replace(content, validation=content.validation.without(lambda ref: True))
    content = replace(content, train=replace(content.train, labels=(0, 1)))
    with pytest.raises(CompoclipError, match="no validation photo is left"):
        score_items(content, features)


# --- Which photos train, validate and are measured. ---


def probe_of(found: Benchmark) -> Probe:
    assert isinstance(found.content, Probe)
    return found.content


def names(part: Classification) -> set[str]:
    return {f"{ref.path.parent.name}/{ref.path.stem}" for ref in part.images}


def test_folders_of_splits_without_validation_give_a_fifth_of_the_training(tmp_path: Path) -> None:
    places = [f"train/{c}/{k}.png" for c in ("cat", "dog") for k in range(10)]
    more = ("test/dog/x.png", "test/fox/y.png", "train/fox/z.png")
    folder = write_photos(tmp_path / "p", *places, *more)
    found = load_benchmark("probe:mine", tmp_path, folder)
    probe = probe_of(found)
    assert found.name == "probe_mine"
    assert names(probe.test) == {"dog/x", "fox/y"}
    assert (len(probe.train.images), len(probe.validation.images)) == (17, 4)
    assert not names(probe.train) & names(probe.validation)
    for part in (probe.test, probe.train, probe.validation):
        assert [part.classes[k] for k in part.labels] == [r.path.parent.name for r in part.images]
    again = load_benchmark("probe:mine", tmp_path, folder)
    assert (again.content, again.data_hash) == (probe, found.data_hash)
    write_photos(folder, "val/cat/v.png", "val/dog/w.png")
    probe = probe_of(load_benchmark("probe:mine", tmp_path, folder))
    assert names(probe.validation) == {"cat/v", "dog/w"}
    assert len(probe.train.images) == 21


def test_photos_without_splits_are_divided_by_the_hash(tmp_path: Path) -> None:
    rows = [{"image": f"{c}/{k}.png", "label": c} for c in ("cat", "dog") for k in range(40)]
    folder = write_photos(tmp_path / "p", *(row["image"] for row in rows))
    table = write_csv(folder / "labels.csv", *rows)
    (target,) = parse_targets([f"probe:{table}"], tmp_path)
    probe = probe_of(target.load())
    parts = (probe.test, probe.train, probe.validation)
    assert sum(len(part.images) for part in parts) == 80
    assert len({ref.path for ref in probe.images}) == 80
    assert target.load().name == "probe_labels.csv"
    assert len(probe.test.images) < len(probe.train.images) > len(probe.validation.images)


def test_indexes_of_the_toolkit(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "elevater" / "dtd", *(f"i/{k}.png" for k in range(30)))
    (folder / "test.txt").write_text("i/0.png 0\ni/1.png 1\n")
    refuses("no train photos .test is all there is.", "", "probe:dtd", tmp_path)
    lines = [f"i/{k}.png {k % 2}" for k in range(2, 30)]
    (folder / "train.txt").write_text("\n".join(lines[:20]))
    probe = probe_of(load_benchmark("probe:dtd", tmp_path))
    assert [len(p.images) for p in (probe.test, probe.train, probe.validation)] == [2, 16, 4]
    (folder / "val.txt").write_text("\n".join(lines[20:]))
    probe = probe_of(load_benchmark("probe:dtd", tmp_path))
    assert [len(p.images) for p in (probe.test, probe.train, probe.validation)] == [2, 20, 8]
    assert probe.test.classes == ("0", "1")
    (folder / "train.txt").write_text("i/2.png 0,1\n")
    refuses("2.png has several labels, and a probe has one", "", "probe:dtd", tmp_path)


MALFORMED = [
    ("probe:voc-2007", {}, UsageError, "its photos have several labels each"),
    ("probe:mine", {"split": "val"}, UsageError, "leave split= out"),
    ("probe:mine", {"templates": "imagenet-1k"}, UsageError, "leave templates= out"),
    ("probe:few", {}, CompoclipError, "4 training photos; a probe needs 5 at least"),
    ("probe:nothing", {}, CompoclipError, "no such folder; put the photos of 'nothing' there"),
    ("probe:one", {}, CompoclipError, "no train photos .test is all there is."),
    ("probe:mine", {"metric": "auc"}, UsageError, "no option 'metric'"),
]


@pytest.mark.parametrize(("spec", "options", "kind", "said"), MALFORMED)
def test_what_no_probe_can_be_fitted_to(
    tmp_path: Path, spec: str, options: dict[str, Any], kind: type[CompoclipError], said: str
) -> None:
    sets = tmp_path / "elevater"
    write_photos(sets / "mine", "train/cat/1.png", "test/cat/2.png")
    write_photos(sets / "voc-2007", "train/cat/1.png", "test/cat/2.png")
    write_photos(sets / "few", *(f"train/cat/{k}.png" for k in range(4)), "test/cat/9.png")
    write_photos(sets / "one", "test/cat/1.png")
    with pytest.raises(kind, match=said) as raised:
        load_benchmark(spec, tmp_path, **options)
    assert "\n" not in str(raised.value)


# --- Measured as other benchmarks are. ---


def measured(tmp_path: Path) -> Benchmark:
    splits = {"train": 12, "val": 4, "test": 4}
    places = [
        f"{s}/{c}/{s}{k}_{c}.png" for s, n in splits.items() for c in CLASSES for k in range(n)
    ]
    folder = write_photos(tmp_path / "p", *places, "train/cow/more_cow.png")
    return load_benchmark("probe:mine", tmp_path, folder)


def test_a_model_is_measured_and_a_blind_one_reaches_chance(tmp_path: Path) -> None:
    benchmark, options = measured(tmp_path), Options(resamples=100)
    (good,) = evaluate("good", FakeEncoder(quality=3.0), [benchmark], tmp_path / "out", options)
    score = good.headline_score
    assert (good.headline, score.n, score.value) == ("accuracy", 12, 1.0)
    assert score.chance == pytest.approx(1 / 3)
    assert score.low is not None
    assert score.low < 1.0
    assert good.aggregates["mean-per-class"].chance == pytest.approx(1 / 3)
    again = evaluate("good", FakeEncoder(quality=3.0), [benchmark], tmp_path / "out", options)
    assert again == [good]
    blind = TextOnlyEncoder(["a cat"])
    (nothing,) = evaluate("blind", blind, [benchmark], tmp_path / "out", options)
    assert nothing.headline_score.value == nothing.headline_score.chance
    said = closing_sentences([good], "good")[1]
    assert said.startswith("good: accuracy of linear probes 100.0 (95 % interval")
    with pytest.raises(UsageError, match="--dimensions cuts features of images and texts"):
        evaluate("good", blind, [benchmark], tmp_path / "out", Options(dimensions=4, fresh=True))


def test_features_are_those_before_the_projection(tmp_path: Path) -> None:
    loaded = create_model(ModelConfig(TINY), seed=0)
    encoder = ModelEncoder(loaded)
    benchmark = measured(tmp_path)
    unprojected = encoder_of_probes(encoder)
    pixels = [encoder.read_image(image) for image in benchmark.content.images[:3]]
    features = unprojected.start_images(pixels)()
    assert features.shape == (3, TINY["vision_cfg"]["width"])
    projected = features @ loaded.encoder.model.visual.proj.detach().numpy()
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(projected, encoder.encode_images(pixels), atol=1e-6)
    assert unprojected.tower_weights("image") != encoder.tower_weights("image")
    assert unprojected.tower_weights("text") == encoder.tower_weights("text")
    (result,) = evaluate("tiny", encoder, [benchmark], tmp_path / "out", Options(resamples=50))
    assert result.identity == encoder.identity.to_json() | result.identity
    outside = FakeEncoder()
    assert encoder_of_probes(outside) is outside
