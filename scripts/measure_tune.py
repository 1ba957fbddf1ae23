"""Measure `compoclip tune` by number of photos, on photos that neither the base nor `tune` saw.

    python scripts/measure_tune.py DATA WORK [--sizes 100 300 ...] [--seeds 0 1 2] [--set lr=1e-4]

DATA: as for `make photos` (reports/real-photos.md). The train photos are split by a hash of their
names: the base is trained on some, `tune` gets a sample of the other `FRESH`; all 5,602 are the
largest size, where only fresh photos choose and judge. The 938 official test photos measure every
share of the tuned weights. The same command resumes. `--set` changes all rows of `RULES`, for
trials; their results are apart. Results: WORK/TRIAL/SIZE-SEED/{tune,third}.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from compoclip.analysis import interpolation as mixes
from compoclip.benchmarks.targets import FILES, Target
from compoclip.console import note
from compoclip.evaluation.run import Options
from compoclip.files import write_json
from compoclip.models.checkpoint import load_model
from compoclip.programs import tune
from compoclip.programs.run import Measuring
from lab.photos import TOKENS, _caltech_index, _hash, _list_of, write_photos

FRESH, ALL = 3000, 5602
JUDGED = 300  # of the fresh photos, in each of val and test of the largest size
MODEL = Path(__file__).parents[1] / "recipes/photos/model.json"
CLIP = (
    "clip --from-scratch --epochs 16 --batch-size 256 --lr 1.5e-3 --warmup 20 --weight-decay 0.5 "
    "--freeze image-trunk --cache-frozen --no-crop --resume --device cpu "
    "--set clip_grad=1 ema=0.98 save_every=20"
)
Table = dict[str, list[str]]


def write_table(path: Path, photos: Table, split: dict[str, str] | None = None) -> Path:
    """Write a CSV of photos and captions, with a column of splits where they are given."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", *(["split"] if split else [])])
        for name, texts in photos.items():
            rows.writerows([name, text, *([split[name]] if split else [])] for text in texts)
    return path


def prepare(data: Path, work: Path, judges: int) -> tuple[Table, Path]:
    """Write photos, base and third set; return captions by train photo, the fresh ones first."""
    place, texts = work / "photos", Table()
    write_photos(place, data, 1)
    for line in (place / TOKENS).read_text("utf-8").splitlines():
        name, text = line.split("\t")
        texts.setdefault(name.partition("#")[0], []).append(text)
    named = {
        split: (place / _list_of(split)).read_text().split() for split in ("dev", "train", "test")
    }
    train = {name: texts[name] for name in sorted(named["dev"] + named["train"], key=_hash)}
    third = write_table(
        work / f"third-{judges}.csv", {name: texts[name] for name in named["test"][:judges]}
    )
    seen = {name: train[name] for name in list(train)[FRESH:]}
    if not (work / "base/model").is_dir():
        weights = data / "weights/mobilenetv2_100_imagenet.safetensors"
        table = write_table(work / "base.csv", seen)
        more = ["--data", table, "--images", place / "images", "--out", work / "base"]
        more += ["--model", MODEL, "--set", f"image_weights={weights}"]
        subprocess.run(
            [sys.executable, "-m", "compoclip", "train", *CLIP.split(), *more], check=True
        )
    return train, third


def measure(data: Path, work: Path, out: Path, third: Path) -> None:
    """Measure every share of the tuned weights on the third set, and zero-shot accuracy."""
    names = data / "classification/class_names_templates"
    templates = names / "clip_benchmark_en_zeroshot_classification_templates.json"
    index = _caltech_index(
        data / "classification/caltech101", names / "clip_benchmark_en_classnames.json", work
    )
    zero = f"zero_shot:caltech101,images={data}/classification/caltech101,index={index}"
    pair = mixes.BaseAndTuned(
        load_model(str(work / "base/model")), load_model(str(out / "run/model"))
    )
    on = Measuring(on=(f"{zero},templates={templates}",)).benchmarks()
    for spec, more in zip(FILES.values(), ({}, {"most": 120})):
        options = {"annotations": third, **more}
        on.append(Target(spec, Path("data"), work / "photos/images", options=options).load())
    cache = Options(cache=work / ".features")
    swept = mixes.sweep(
        pair, ("all",), mixes.shares(4), on, out / "third", cache, torch.device("cpu")
    )
    points = {
        point.mix.alpha: {
            "scores": {axis: asdict(each) for axis, each in point.scores.items()},
            "differences": {axis: asdict(each) for axis, each in point.differences.items()},
        }
        for point in swept.lines["all"]
    }
    write_json(out / "third.json", points)


def run(data: Path, work: Path, out: Path, size: int, seed: int, made: tuple[Table, Path]) -> None:
    """Tune on a sample and measure what came out, if that has not been done."""
    train, third = made
    if (out / "third.json").is_file():
        return
    out.mkdir(parents=True, exist_ok=True)
    fresh = list(train)[:FRESH]
    random.Random(seed).shuffle(fresh)
    split = None
    if size >= ALL:
        split = dict.fromkeys(train, "train")
        split |= dict.fromkeys(fresh[:JUDGED], "val")
        split |= dict.fromkeys(fresh[JUDGED : 2 * JUDGED], "test")
    chosen = {name: train[name] for name in (fresh[:size] if split is None else train)}
    table = write_table(out / "captions.csv", chosen, split)
    start = time.process_time()
    if not (out / "tune.json").is_file():
        options = tune.TuneOptions(
            data=str(table),
            out=out,
            images=work / "photos/images",
            model=str(work / "base/model"),
            seed=seed,
        )
        tune.tune(options)
        write_json(out / "seconds.json", time.process_time() - start)
    measure(data, work, out, third)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all sizes and seeds, the smallest sizes first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000, 3000, ALL])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--judges", type=int, default=938, help="photos of the third set")
    parser.add_argument("--trial", default="as-is", help="name of the folder of results")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=JSON")
    given = parser.parse_args(arguments)
    changes = {name: json.loads(text) for name, text in (each.split("=", 1) for each in given.set)}
    tune.RULES = tuple(replace(rule, **changes) for rule in tune.RULES)
    data, work = given.data.resolve(), given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    made = prepare(data, work, given.judges)
    for size in given.sizes:
        for seed in given.seeds:
            note(f"{given.trial}: {size} photos, seed {seed}")
            run(data, work, work / given.trial / f"{size}-{seed}", size, seed, made)


if __name__ == "__main__":
    main()
