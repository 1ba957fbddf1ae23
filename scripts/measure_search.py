"""Measure the options of `compoclip search`: negation, re-ranking, and the threshold.

    python scripts/measure_search.py OUT                                  2,000 drawn scenes
    python scripts/measure_search.py OUT MODEL --photos FOLDER captions.csv

A gallery has photos, captions by photo, and phrases of which it is known whether they are true of a
photo: of drawn scenes by their truth, of photos by their captions (true where two name the thing,
false where none does, else unknown). Photos and captions must be new to the model.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compoclip.console import end_with, track
from compoclip.data.sources.open import Request
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.printed import Table
from compoclip.search import MODES, PhotoIndex, calibrate, index_photos, rerank, search
from compoclip.search.rerank import Rerank
from compoclip_world.captions import captions_for
from compoclip_world.dataset import bundled_world, png_bytes
from compoclip_world.sampling import scene_for

TOP, QUERIES, RESAMPLES = 10, 200, 2000
NOUNS = "man woman boy girl child dog ball bike water snow grass beach hat shirt tree street car"


@dataclass(frozen=True)
class Gallery:
    """Photos with captions, and (P, N) whether each of P phrases is true: 1, 0, or -1, unknown."""

    folder: Path
    captions: Mapping[str, Sequence[str]]
    phrases: Sequence[str]
    truth: NDArray[np.int8]


def drawn(out: Path, count: int) -> Gallery:
    """Draw scenes of the test split."""
    world, folder = bundled_world(), out / "scenes"
    folder.mkdir(parents=True, exist_ok=True)
    scenes = {f"{k:05}.png": scene_for(world, 7, "test", k) for k in range(count)}
    for name, scene in track(scenes.items(), "drawing", count, "scenes"):
        if not (folder / name).exists():
            (folder / name).write_bytes(png_bytes(scene, world.size))
    captions = {
        name: [each.text for each in captions_for(scene, world, 7, k, 2)]
        for k, (name, scene) in enumerate(scenes.items())
    }
    shown = [{each.kind for each in scene.things} for scene in scenes.values()]
    kinds = sorted(set().union(*shown))
    truth = np.array([[kind in each for each in shown] for kind in kinds], dtype=np.int8)
    return Gallery(folder, captions, [f"a {kind}" for kind in kinds], truth)


def photographed(folder: Path, table: Path) -> Gallery:
    """Read photos of a CSV with the columns image and caption."""
    captions: dict[str, list[str]] = {}
    for row in csv.DictReader(table.open(encoding="utf-8")):
        captions.setdefault(row["image"], []).append(row["caption"])
    nouns = NOUNS.split()
    named = [
        [sum(noun in text.lower().replace(".", "").split() for text in each) for noun in nouns]
        for each in captions.values()
    ]
    truth = np.select([np.array(named) >= 2, np.array(named) == 0], [1, 0], -1).T
    return Gallery(folder, captions, [f"a {noun}" for noun in nouns], truth.astype(np.int8))


def interval(values: Sequence[float]) -> str:
    """Return a mean in percent with its 95 % bootstrap interval over queries."""
    found, rng = np.array(values), np.random.default_rng(0)
    means = rng.choice(found, (RESAMPLES, len(found))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{100 * found.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def negation(gallery: Gallery, index: PhotoIndex, encoder: ModelEncoder) -> str:
    """Return what share of the first `TOP` photos have the wanted thing, not the denied one, both.

    Queries name pairs of which at least `TOP` photos have both and `TOP` the wanted one alone.
    """
    truth, names = gallery.truth, {name: row for row, name in enumerate(gallery.captions)}
    pairs = [
        (a, b)
        for a in range(len(truth))
        for b in range(len(truth))
        if a != b and min(((truth[a] == 1) & (truth[b] == has)).sum() for has in (0, 1)) >= TOP
    ]
    pairs = random.Random(0).sample(pairs, min(QUERIES, len(pairs)))
    texts = [f"{gallery.phrases[a]} without {gallery.phrases[b]}" for a, b in pairs]
    rows = []
    for mode in MODES:
        shares = []
        for (a, b), each in zip(pairs, search(index, encoder, texts, TOP, mode)):
            at = [names[index.names[hit.row]] for hit in each.hits]
            wanted, denied = truth[a, at] == 1, truth[b, at]
            shares.append([wanted.mean(), (denied == 0).mean(), (wanted & (denied == 0)).mean()])
        rows.append([mode, *map(interval, np.array(shares).T.tolist())])
    chance = np.mean([((truth[a] == 1) & (truth[b] == 0)).mean() for a, b in pairs])
    head = ["--negation", "wanted", "without the denied", "both"]
    title = f"{len(pairs)} queries; chance of both {100 * chance:.1f}"
    return str(Table(rows, head, title=title))


def order(gallery: Gallery, index: PhotoIndex, loaded: LoadedModel, kinds: Sequence[Rerank]) -> str:
    """Return R@1 of one caption of each of `QUERIES` photos, the 100 best ordered by each score."""
    encoder = ModelEncoder(loaded)
    names = random.Random(1).sample(sorted(gallery.captions), min(QUERIES, len(gallery.captions)))
    found = search(index, encoder, [gallery.captions[name][0] for name in names], 100)
    rows = [["cosine", interval([each.hits[0].photo == n for n, each in zip(names, found)])]]
    for kind in kinds:
        hits = [
            rerank(index, loaded, each, kind).hits[0].photo == name
            for name, each in track(list(zip(names, found)), kind, len(names), "queries")
        ]
        rows.append([kind, interval(hits)])
    return str(Table(rows, ["rerank", "R@1"], title=f"{len(names)} of {len(index.names)} photos"))


def threshold(gallery: Gallery, index: PhotoIndex, encoder: ModelEncoder, out: Path) -> str:
    """Calibrate on every second photo, and return the shares below the threshold on the others."""
    rows, halves = [], [list(gallery.captions)[start::2] for start in (0, 1)]
    for photos in halves:
        path = out / "pairs.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            pairs = csv.writer(file)
            pairs.writerow(["image", "caption"])
            pairs.writerows([name, each] for name in photos for each in gallery.captions[name])
        made = calibrate(index, encoder, Request(str(path), images=gallery.folder))
        limit = made.about["calibration"]["threshold"]
        other = next(half for half in halves if half is not photos)
        texts = [text for name in other for text in gallery.captions[name]]
        own = [name for name in other for _ in gallery.captions[name]]
        found = search(made, encoder, texts, 2)
        missed = [each.hits[0].score < limit for each in found]
        absent = [
            next(hit.score for hit in each.hits if hit.photo != name) < limit
            for name, each in zip(own, found)
        ]
        stated = [f"{100 * made.about['calibration'][key]:.1f}" for key in ("missed", "noticed")]
        rows.append([*stated, interval(missed), interval(absent)])
    head = ["rejected with photo", "without", "other captions: with", "without"]
    return str(Table(rows, head, left=0))


def main() -> int:
    """Make the gallery and its index, print three tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("model", nargs="?", default="bundled")
    parser.add_argument("--photos", type=Path, nargs=2, metavar=("FOLDER", "CSV"))
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--rerank", nargs="*", default=["local", "maxsim", "subgraphs"])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    made = photographed(*given.photos) if given.photos else drawn(given.out, given.scenes)
    loaded = load_model(given.model)
    encoder = ModelEncoder(loaded)
    pairs = given.out / "gallery.csv"
    with pairs.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerows([["image", "caption"], *([name, "-"] for name in made.captions)])
    request = Request(str(pairs), images=made.folder)
    index = index_photos(request, encoder, given.out / "gallery.index", given.model)
    print(negation(made, index, encoder), end="\n\n")
    print(threshold(made, index, encoder, given.out), end="\n\n")
    print(order(made, index, loaded, given.rerank))
    return 0


if __name__ == "__main__":
    end_with(main, "measure_search")
