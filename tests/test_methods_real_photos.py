"""Recipes of every part train on captioned photos, named on the command line like any data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from compoclip.cli.main import main
from compoclip.models.checkpoint import create_model, load_model, save_model
from compoclip.models.config import read_config
from compoclip.training.log import read_log
from method_data import differing, run_of
from train_helpers import FEW, write_config

pytestmark = pytest.mark.slow

STEPS, BATCH = 5, 8


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One store of parses for all recipes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def photos(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for a tiny model and 80 photos of Flickr8k: as many as all steps take."""
    folder = shared_data / "photos" / "flickr8k"
    listed = (folder / "Flickr_8k.trainImages.txt").read_text().split()
    names = set(listed[: STEPS * BATCH])
    lines = (folder / "Flickr8k.token.txt").read_text().splitlines(keepends=True)
    tokens = tmp_path_factory.mktemp("photos") / "some.token.txt"
    tokens.write_text("".join(line for line in lines if line.partition("#")[0] in names))
    base = tmp_path_factory.mktemp("base")
    config = read_config(write_config(base / "config.json", merges=FEW))
    save_model(create_model(config, seed=1), base / "model", provenance={})
    return (f"--model={base / 'model'}", f"--data={tokens}", f"--images={folder / 'images'}")


def arguments(name: str, photos: tuple[str, ...], out: Path) -> list[str]:
    options = [
        "--epochs=1",
        f"--batch-size={BATCH}",
        "--warmup=2",
        "--lr=1e-4",
        "--set=log_every=1",
    ]
    return ["train", name, *photos, f"--out={out}", *options]


@pytest.mark.parametrize("name", [n for n in differing() if run_of(n)["photos"] is not None])
def test_trains(name: str, photos: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*arguments(name, photos, run), *run_of(name)["photos"]]) == 0
    records = read_log(run / "train.jsonl")
    losses = [record["loss"] for record in records]
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))
    provenance = load_model(run / "model").provenance
    assert provenance["method"] == run_of(name)["photos_name"]
    assert provenance["run"]["skipped"] == 0
    assert provenance["run"]["images"] >= STEPS * BATCH
    made = provenance["run"]["rewrites"]
    rare = run_of(name)["rare"]
    assert all(each["made"] > 0 for rewrite, each in made.items() if rewrite not in rare)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gnm-clip", "brings no variations; it needs a column group"),
        ("dac", "--bags captions"),
        ("negclip-original", "brings no negatives; add a column neg_caption"),
        ("triplet-clip", "--negatives negclip"),
    ],
)
def test_says_what_the_data_lacks(
    name: str,
    message: str,
    photos: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments(name, photos, tmp_path / "run")) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
