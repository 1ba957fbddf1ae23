"""A made-up study for the tests of the report: drawn photos, five benchmarks, four models.

The results are real ones of `evaluation.run` on encoders whose abilities are set by hand: the
scores of a model follow from how far it pulls a foil away from the photo.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Case,
    Classification,
    Form,
    ImageRef,
    Retrieval,
    TiePolicy,
)
from compoclip.evaluation.encoder import TextKey
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.config import ModelIdentity
from evaluation_helpers import FakeEncoder

COLOURS = ("red", "blue", "green", "yellow", "pink", "brown", "black", "purple")
SHAPES = ("circle", "square", "triangle", "bar", "diamond")
SKILLS = ("object", "attribute", "binding", "spatial", "counting", "negation")
EVIL = 'a "red" circle <script>alert(1)</script> left of a blue square'
MODELS: Mapping[str, Mapping[str, float]] = {
    "base": {"object": 0.5, "attribute": 0.4, "binding": 0.1, "counting": 0.15, "invariance": 0.2},
    "negclip": {
        "object": 0.5, "attribute": 0.6, "binding": 0.5, "counting": 0.2, "negation": 0.3,
        "invariance": 0.5, "reword": 0.45,
    },
    "fsc-clip": {
        "object": 0.55, "attribute": 0.6, "binding": 0.5, "counting": 0.25, "negation": 0.3,
        "invariance": 0.6, "reword": 0.08,
    },
    "clip-ft": {"object": 0.3, "attribute": 0.3, "binding": 0.1, "counting": 0.1,
                "invariance": 0.2},
}  # fmt: skip
NOISE = {"base": 2.6, "negclip": 2.9, "fsc-clip": 2.7, "clip-ft": 2.2}


@dataclass(frozen=True)
class Photo:
    """Two drawn shapes, the first on the left."""

    ref: ImageRef
    left: tuple[str, str]
    right: tuple[str, str]

    @property
    def caption(self) -> str:
        return f"a {' '.join(self.left)} left of a {' '.join(self.right)}"


def draw(folder: Path, n: int) -> list[Photo]:
    """n photos with captions that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    things = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    pairs = [(a, b) for a in things for b in things if a[0] != b[0] and a[1] != b[1]]
    chosen = np.random.default_rng(5).permutation(len(pairs))[:n]
    photos = []
    for number, index in enumerate(chosen.tolist()):
        left, right = pairs[index]
        picture = Image.new("RGB", (224, 160), "white")  # no one sees which shape it is
        for place, (colour, shape) in ((24, left), (128, right)):
            side = 40 + 6 * SHAPES.index(shape)
            picture.paste(Image.new("RGB", (side, side), colour), (place, 44))
        path = folder / f"{number:04d}.png"
        picture.save(path)
        photos.append(Photo(ImageRef(path), left, right))
    return photos


def foil(photo: Photo, skill: str) -> str:
    """A false caption that probes the skill."""
    (c1, s1), (c2, s2) = photo.left, photo.right
    other_shape = next(s for s in SHAPES if s not in (s1, s2))
    other_colour = next(c for c in COLOURS if c not in (c1, c2))
    return {
        "object": f"a {c1} {other_shape} left of a {c2} {s2}",
        "attribute": f"a {other_colour} {s1} left of a {c2} {s2}",
        "binding": f"a {c2} {s1} left of a {c1} {s2}",
        "spatial": f"a {c1} {s1} right of a {c2} {s2}",
        "counting": f"two {c1} {s1}s left of a {c2} {s2}",
        "negation": f"a {c1} {s1} but no {c2} {s2}",
    }[skill]


class AbleEncoder(FakeEncoder):
    """Photos are random unit vectors. A caption is its photo's vector plus noise; a foil is pulled
    away by the model's ability in the skill; a rewording by its weakness "reword"."""

    def __init__(self, name: str, photos: Sequence[Photo], base: str) -> None:
        super().__init__(name)
        self.identity = ModelIdentity(
            "ViT-test", "quick_gelu", "bpe:1", 77, (224, 224), (0.5,) * 3, (0.5,) * 3, "bicubic",
            "shortest", base, "", f"{zlib.crc32(name.encode()):08x}" * 4,
        )  # fmt: skip
        self.name, self.able, self.noise = name, MODELS[name], NOISE[name]
        self.photos = {photo.ref.path.name: self._unit(photo.ref.path.name) for photo in photos}
        for photo in photos:
            own = self._unit(photo.left[1])
            self.photos[photo.ref.path.name] = self.photos[photo.ref.path.name] + 0.6 * own
        self.texts: dict[str, np.ndarray] = {}
        for photo in photos:
            self._text(photo.caption, self.photos[photo.ref.path.name], 0.0)
        for photo in photos:
            vector = self.photos[photo.ref.path.name]
            self._text(reworded(photo), vector, self.able.get("reword", 0.05))
            for skill in SKILLS:
                self._text(foil(photo, skill), vector, self.able.get(skill, 0.0))
            self._text(hard_foil(photo), vector, self.able.get("invariance", 0.0))
        first = self.photos[photos[0].ref.path.name]
        self._text(EVIL, first, 0.0 if name == "base" else 1.5)
        for shape in SHAPES:
            self._text(f"a picture of a {shape}", self._unit(shape), 0.0)

    def _unit(self, word: str) -> np.ndarray:
        vector = np.random.default_rng(zlib.crc32(word.encode())).normal(size=48)
        return vector / np.linalg.norm(vector)

    def _text(self, text: str, vector: np.ndarray, pull: float) -> None:
        noise = 0.7 * self._unit(text) + 0.6 * self._unit(f"{self.name}/{text}")
        self.texts.setdefault(text, (1.0 - pull) * vector + self.noise * noise)

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        return [TextKey(t.encode(), len(t.split()), len(t.split()) > 9) for t in texts]

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return _scaled([self.texts[text] for text in texts])

    def encode_images(self, images: Sequence[ImageRef]) -> np.ndarray:
        return _scaled([self.photos[ref.path.name] for ref in images])


def _scaled(rows: Sequence[np.ndarray]) -> np.ndarray:
    stacked = np.stack(rows)
    return (stacked / np.linalg.norm(stacked, axis=1, keepdims=True)).astype(np.float32)


def reworded(photo: Photo) -> str:
    """The caption in other words."""
    return f"a {' '.join(photo.right)} to the right of a {' '.join(photo.left)}"


def hard_foil(photo: Photo) -> str:
    """A false caption of the hard-positive set."""
    return f"a {photo.left[0]} {photo.right[1]} next to a {photo.right[0]} {photo.left[1]}"


def benchmarks(photos: Sequence[Photo]) -> list[Benchmark]:
    """Foils with skills, a partial set without, hard positives, retrieval, zero-shot."""
    images = tuple(photo.ref for photo in photos)
    foils = [
        Case(f"{skill}/{k}", Form.CHOOSE_TEXT, (p.ref,), (p.caption, foil(p, skill)), skill)
        for skill in SKILLS
        for k, p in enumerate(photos)
    ]
    foils[0] = Case(
        "object/0", Form.CHOOSE_TEXT, (photos[0].ref,), (photos[0].caption, EVIL), "object"
    )
    swaps = tuple(
        Case(f"{k}", Form.CHOOSE_TEXT, (p.ref,), (p.caption, foil(p, "binding")), "swap_att")
        for k, p in enumerate(photos)
    )
    triples = tuple(
        Case(f"{name}/{k}", Form.TRIPLE, (p.ref,), (p.caption, reworded(p), hard_foil(p)), name)
        for name, step in (("attribute", 2), ("relation", 1))
        for k, p in enumerate(photos[::step])
    )
    captions = tuple(p.caption for p in photos)
    return [
        Benchmark(
            "foils@world", tuple(foils), "f0" * 8, skills={skill: skill for skill in SKILLS},
            aggregates={"macro": Aggregate(SKILLS)}, headline="macro",
        ),
        Benchmark(
            "sugarcrepe", swaps, "5c" * 8, skills={"swap_att": "binding"},
            expected={"swap_att": len(photos) + 6}, headline="micro",
        ),
        Benchmark(
            "hard_positives", triples, "4b" * 8,
            skills={"attribute": "invariance", "relation": "invariance"},
            aggregates={
                "replace": Aggregate(("attribute", "relation")),
                "replace_brittleness": Aggregate(("attribute", "relation"), metric="brittleness"),
            },
            headline="replace",
        ),
        Benchmark(
            "retrieval_flickr8k",
            Retrieval(images, captions, tuple((k, k) for k in range(len(photos)))),
            "7e" * 8, ties={"": TiePolicy.FIRST}, skills={"i2t": "retrieval", "t2i": "retrieval"},
            aggregates={"r1": Aggregate(("i2t", "t2i"), metric="r1")}, headline="r1",
        ),
        Benchmark(
            "zero_shot_shapes",
            Classification(
                images, tuple(SHAPES.index(p.left[1]) for p in photos), SHAPES,
                tuple((f"a picture of a {shape}",) for shape in SHAPES),
            ),
            "2a" * 8, skills={"zero_shot": "recognition"}, headline="accuracy",
        ),
    ]  # fmt: skip


def make_study(
    folder: Path, photos: int = 24, models: Sequence[str] = tuple(MODELS), resamples: int = 100
) -> Path:
    """Measure the models; returns the results folder."""
    drawn = draw(folder / "photos", photos)
    base = AbleEncoder("base", drawn, "").identity.weights
    for name in models:
        encoder = AbleEncoder(name, drawn, "" if name == "base" else base)
        options = Options(resamples=resamples, allow_partial=True)
        evaluate(name, encoder, benchmarks(drawn), folder / "results", options)
    return folder / "results"


def make_run(folder: Path, name: str, terms: Sequence[str] = ("clip",), steps: int = 60) -> Path:
    """A run folder as train leaves it: the log and the checkpoint's record."""
    run = folder / name
    (run / "model").mkdir(parents=True)
    rng = np.random.default_rng(len(name))
    lines = []
    for step in range(10, 10 * steps + 1, 10):
        values = {f"loss/{t}": 3.0 / (1 + step / 90) + rng.normal(0, 0.08) for t in terms}
        lines.append(
            {"step": step, "epoch": step / 200, "lr": 1e-5 * min(1.0, step / 50),
             "loss": sum(values.values()), **values, "grad_norm": 1.0,
             "logit_scale": 50 + step / 90, "images": step * 64, "texts": step * 128, "skipped": 0,
             "seconds": step * 0.4 + rng.uniform(0, 0.5)}
        )  # fmt: skip
    (run / "train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    record = {
        "identity": ModelIdentity("", "", "", 1, (1, 1), (), (), "", "", "", "", "").to_json(),
        "provenance": {
            "method": name, "settings": {"batch_size": 64, "lr": 1e-5}, "seed": 0,
            "data": "captions.json, 3840 samples", "precision": "fp32", "torch": "2.15",
            "run": {"steps": 10 * steps, "images": 640 * steps, "skipped": 0, "seconds": 240.0,
                    "left_out": {"no caption": 2}},
        },
    }  # fmt: skip
    (run / "model" / "compoclip.json").write_text(json.dumps(record))
    return run
