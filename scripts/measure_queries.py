"""Measure what `compoclip search` makes of a query: the modes of --negation, and the note on a
language that the tokenizer does not know.

    python scripts/measure_queries.py OUT                        2,000 and 2,000 drawn scenes
    python scripts/measure_queries.py --languages token.txt      English captions, Flickr8k's file

Weights are chosen on scenes of twelve kinds of things, and all modes are measured with them on
other scenes, of the twelve other kinds, with other wordings. The threshold of the note is chosen on
one half of the captions of every language and measured on the other.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from measure_search import RESAMPLES, TOP, interval
from numpy.typing import NDArray

from compoclip.console import end_with, track
from compoclip.data.sources.open import Request
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.checkpoint import load_model
from compoclip.models.tokenizer import build_tokenizer
from compoclip.printed import Table
from compoclip.search import PhotoIndex, index_photos, search
from compoclip_world.dataset import bundled_world, png_bytes
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import COLOURS, KINDS

QUERIES = 60  # of each type
WEIGHTS: Mapping[str, Sequence[float]] = {
    "subtract": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5),
    "deo": (0.5, 1.0, 1.5, 2.0, 3.0, 4.0),
    "steer": (0.05, 0.1, 0.13, 0.25, 0.35, 0.5),
}


@dataclass(frozen=True)
class Half:
    """One half of the study. kinds: of things in its scenes. wordings: of a thing without another
    and of a thing that has not a colour."""

    name: str
    seed: int
    kinds: tuple[str, ...]
    wordings: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Query:
    """A query of a type. right: whether each scene shows what is wanted and not what is denied."""

    kind: str
    text: str
    right: NDArray[np.bool_]


SHUFFLED = random.Random(0).sample(sorted(KINDS), len(KINDS))
CHOICE = Half(
    "choice",
    101,
    tuple(SHUFFLED[::2]),
    {
        "thing": ("a {} without a {}", "a {} but no {}"),
        "colour": ("a {} that is not {}", "a {} that isn't {}"),
    },
)
REPORT = Half(
    "report",
    202,
    tuple(SHUFFLED[1::2]),
    {
        "thing": ("a {} with no {}", "a {} lacking a {}", "a {} free of any {}"),
        "colour": ("a {} which is not {}", "a {} but not a {} one"),
    },
)


def drawn(half: Half, count: int, out: Path) -> list[Scene]:
    """Draw the scenes of a half into a folder."""
    world = replace(bundled_world(), kinds=half.kinds)
    out.mkdir(parents=True, exist_ok=True)
    scenes = [scene_for(world, half.seed, "test", number) for number in range(count)]
    for number, scene in enumerate(track(scenes, "drawing", count, "scenes")):
        (out / f"{number:05}.png").write_bytes(png_bytes(scene, world.size))
    return scenes


def queries_of(half: Half, scenes: Sequence[Scene]) -> list[Query]:
    """Return queries of both types; at least `TOP` scenes have the wanted thing with the denied one
    or the denied colour, and `TOP` without."""
    rng, queries = random.Random(half.seed), []
    shown = [{(thing.kind, thing.colour) for thing in scene.things} for scene in scenes]
    kinds = [{kind for kind, _ in pairs} for pairs in shown]
    groups = {
        "thing": [(kind, other) for kind in half.kinds for other in half.kinds if kind != other],
        "colour": [(kind, colour) for kind in half.kinds for colour in COLOURS],
    }
    for group, pairs in groups.items():
        fitting = []
        for kind, denied in pairs:
            has = np.array([kind in scene for scene in kinds])
            if group == "thing":
                spoilt = np.array([denied in scene for scene in kinds])
            else:
                spoilt = np.array([(kind, denied) in scene for scene in shown])
            if min((has & spoilt).sum(), (has & ~spoilt).sum()) >= TOP:
                wording = rng.choice(half.wordings[group])
                fitting.append(Query(group, wording.format(kind, denied), has & ~spoilt))
        queries += rng.sample(fitting, min(QUERIES, len(fitting)))
    return queries


def judged(
    index: PhotoIndex, encoder: ModelEncoder, queries: Sequence[Query], mode: str
) -> NDArray[np.float64]:
    """Return (Q, 2): the share of right scenes in the first `TOP`, and the average precision."""
    rows = []
    answers = search(index, encoder, [query.text for query in queries], len(index.names), mode)
    for query, answer in zip(queries, answers):
        right = query.right[[int(hit.photo[:5]) for hit in answer.hits]]
        precision = right.cumsum() / np.arange(1, len(right) + 1)
        rows.append([right[:TOP].mean(), precision[right].mean()])
    return np.array(rows)


def difference(values: NDArray[np.float64]) -> str:
    """Return a mean difference in points with its 95 % bootstrap interval over queries."""
    means = np.random.default_rng(0).choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = 100 * np.quantile(means, (0.025, 0.975))
    return f"{100 * values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def negation(out: Path, model: str, count: int) -> str:
    """Choose the weights on one half, and return the tables of both."""
    encoder, indices, asked = ModelEncoder(load_model(model)), {}, {}
    for half in (CHOICE, REPORT):
        scenes = drawn(half, count, out / half.name)
        request = Request(str(out / half.name))
        indices[half.name] = index_photos(request, encoder, out / f"{half.name}.index", model)
        asked[half.name] = queries_of(half, scenes)
    candidates = [f"{name}:{weight}" for name, weights in WEIGHTS.items() for weight in weights]
    scores = {
        mode: judged(indices["choice"], encoder, asked["choice"], mode)
        for mode in ("off", "split", *candidates)
    }
    rows = [
        [mode, *(f"{100 * v:.1f}" for v in values.mean(axis=0))] for mode, values in scores.items()
    ]
    chosen = [
        max(
            (mode for mode in candidates if mode.startswith(name)),
            key=lambda m: scores[m][:, 1].mean(),
        )
        for name in WEIGHTS
    ]
    parts = [
        f"choice, {len(asked['choice'])} queries",
        str(Table(rows, ["mode", f"P@{TOP}", "AP"])),
    ]
    scores = {
        mode: judged(indices["report"], encoder, asked["report"], mode)
        for mode in ("off", "split", "subtract", *chosen)
    }
    for group in ("thing", "colour"):
        places = [row for row, query in enumerate(asked["report"]) if query.kind == group]
        chance = np.mean([asked["report"][row].right.mean() for row in places])
        rows = [
            [
                mode,
                *(interval(values[places, column].tolist()) for column in (0, 1)),
                *(difference((values - scores["split"])[places, column]) for column in (0, 1)),
            ]
            for mode, values in scores.items()
        ]
        head = ["mode", f"P@{TOP}", "AP", f"P@{TOP} beyond split", "AP beyond split"]
        parts += [
            f"{group}: {len(places)} queries, chance {100 * chance:.1f}",
            str(Table(rows, head)),
        ]
    return "\n\n".join(parts)


def languages(captions: Path) -> str:
    """Choose the share of spelling tokens on one half of the captions of each language, and return
    the shares of both halves that have a note, with the shares of English captions and words."""
    tokenizer = build_tokenizer({})

    def shares(texts: Sequence[str]) -> list[float]:
        counts = [tokenizer.spelled(text) or (0, 0) for text in texts]
        return [spelling / tokens if spelling >= 2 else 0.0 for spelling, tokens in counts]

    lines = captions.read_text(encoding="utf-8").splitlines()
    english = random.Random(0).sample([line.split("\t")[1] for line in lines], len(lines))
    halves = [shares(english[start::2]) for start in (0, 1)]
    grid = [number / 20 for number in range(1, 11)]
    limit = min(share for share in grid if np.mean(np.array(halves[0]) >= share) <= 0.001)
    listed = {word.strip(".,!?\"'").lower() for caption in english for word in caption.split()}
    words = shares([word for word in sorted(listed) if word.isalpha()])
    rows = [["English captions", *(f"{100 * np.mean(np.array(h) >= limit):.2f}" for h in halves)]]
    rows += [["English words", "", f"{100 * np.mean(np.array(words) >= limit):.2f}"]]
    path = Path(__file__).with_name("captions_of_ten_languages.yaml")
    for language, texts in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        noted = np.array(shares(texts)) >= limit
        rows.append([language, *(f"{100 * part.mean():.0f}" for part in (noted[:6], noted[6:]))])
    head = ["captions", "chosen on: noted, %", "others: noted, %"]
    title = f"limit {limit}; {len(english):,} captions, {len(words):,} words"
    return str(Table(rows, head, title=title))


def main() -> int:
    """Print the tables of one of the two measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--languages", type=Path)
    given = parser.parse_args()
    if given.out:
        print(negation(given.out, given.model, given.scenes))
    if given.languages:
        print(languages(given.languages))
    return 0


if __name__ == "__main__":
    end_with(main, "measure_queries")
