"""What would make a run pointless is said before its first step, for every recipe."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from itertools import permutations, product
from pathlib import Path

import pytest
from PIL import Image

from compoclip.cli.main import main
from compoclip.data.sources import Sample
from compoclip.data.sources.table import RowBuilder
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import read_config
from compoclip.training.checks import true_pair_share
from compoclip.training.log import LOG
from method_data import PLAIN, arguments
from train_helpers import FEW as FEW_MERGES
from train_helpers import write_config

NAMES = ("dog", "cat", "horse", "cow", "bird", "sheep")
TEXTS = [f"a brown {name} sits on the red sofa" for name in (*NAMES, *NAMES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, and a tiny checkpoint `base`."""
    path = tmp_path_factory.mktemp("photos")
    config = read_config(write_config(path / "config.json", merges=FEW_MERGES))
    save_model(create_model(config, seed=1), path / "base", provenance={})
    for number in range(12):
        Image.new("RGB", (32, 32), (number * 20, 90, 40)).save(path / f"{number}.png")
    return path


def trained(
    folder: Path,
    tmp_path: Path,
    *options: str,
    captions: list[str] = TEXTS,
    method: str = "negclip",
) -> int:
    data = tmp_path / "data.jsonl"
    rows = [{"image": f"{i}.png", "caption": text, "n": f"{i}"} for i, text in enumerate(captions)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ["--out", str(tmp_path / "run"), "--epochs=1", "--device=cpu", "--workers=0"]
    run += [f"--model={folder / 'base'}", f"--data={data}", f"--images={folder}"]
    return main(["train", method, *run, *options])


FEW = "--batch-size=4"
REFUSED: dict[str, tuple[list[str], list[str], int, list[str]]] = {
    "column of numbers": (
        [FEW, "--caption-column=n"],
        TEXTS,
        1,
        ["captions are numbers or file names, such as '0'", "--caption-column"],
    ),
    "column of images": (
        [FEW, "--caption-column=image"],
        TEXTS,
        1,
        ["captions are numbers or file names, such as '0.png'"],
    ),
    "no folder": (
        [FEW, "--images", "nowhere"],
        TEXTS,
        2,
        ["nowhere: no such folder", "--images"],
    ),
    "no images": (
        [FEW, "--images", "."],
        TEXTS,
        1,
        ["images do not exist, such as", "--images"],
    ),
    "large batch": (
        ["--batch-size=256"],
        TEXTS,
        1,
        ["12 samples are fewer", "one batch of 256"],
    ),
    "no negatives": (
        [FEW],
        [f"一匹の犬が公園で{i}" for i in range(12)],
        1,
        ["finds negatives for only 0 of 12 captions", "allow_no_negatives=true"],
    ),
}
NOTED: dict[str, tuple[list[str], list[str], int, list[str]]] = {
    "short warm-up, captions twice": (
        [FEW],
        TEXTS,
        0,
        ["warm-up: 0 of 3 steps, not 50 (--warmup N sets it)", "share a photo or a caption"],
    ),
    "long warm-up": ([FEW, "--warmup=3"], TEXTS, 0, ["the warm-up (3 steps) is not shorter"]),
    "other languages": (
        [FEW, "--set=allow_no_negatives=true"],
        [f"犬{i}" for i in range(12)],
        0,
        ["data: "],
    ),
    "three captions": (
        [FEW],
        [TEXTS[number % 3] for number in range(12)],
        0,
        ["27.3% of the pairs of two samples share a photo or a caption"],
    ),
}


@pytest.mark.parametrize("case", [*REFUSED, *NOTED])
def test_what_a_user_should_know_of_the_data_is_a_line(
    case: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, captions, code, words = {**REFUSED, **NOTED}[case]
    assert trained(folder, tmp_path, *options, captions=captions) == code
    printed = capsys.readouterr().err
    printed = printed if case in NOTED else printed.splitlines()[-1]
    assert not [word for word in words if word not in printed], printed


TOGETHER = [
    ("negclip --freeze trunk", "--freeze trunk: must be image, text, image-trunk"),
    ("negclip --freeze image:0", "--freeze image:0: must be"),
    ("negclip --freeze text:9", "--freeze text:9: the text tower has 2 blocks"),
    ("negclip --freeze image text", "leaves negclip no tower to train"),
    ("dac --freeze text:1", "--freeze text:1 cannot be combined with adapters"),
    ("negclip --set=ema=1", "--set ema=1: must be at least 0 and below 1"),
    ("negclip --set=layer_decay=0", "--set layer_decay=0: must be above 0"),
    ("negclip --set=lr_image=-1", "--set lr_image must not be negative, found -1"),
    ("negclip --set=lr_text=1e-3 --lr=0", "--set lr_text cannot be combined with --lr 0"),
    ("negclip --precision=fp16", "--precision fp16 is for GPUs without bf16"),
    ("negclip --set=contrast=sigmoid", "have no bias; take a SigLIP model"),
    ("negclip --lora-rank=2", "--lora-rank goes with --lora"),
    ("negclip --set=merge=false", "--no-merge goes with --lora"),
    ("negclip --lora --lora-rank=0", "LoRA rank must be at least 1, found 0"),
    ("negclip --lora --from-scratch --model=CONFIG", "leave --lora or --from-scratch out"),
    ("negclip --cache-frozen --no-crop", "negclip trains the image tower"),
    ("negclip --cache-frozen --lora --set=lora_towers=text", "add --no-crop"),
    ("negclip --no-crop --crops=2", "leave --no-crop out"),
    ("clic --cache-frozen --freeze image --no-crop --no-alternate", "composites alone"),
    ("negclip --set=matryoshka=[8,0]", "matryoshka=0: must be 1 to 15"),
    ("negclip --set=matryoshka=[8,16]", "matryoshka=16: must be 1 to 15"),
    ("negclip --terms +all-images", "add --freeze image --cache-frozen --no-crop"),
    (
        "negclip --terms +all-images --cache-frozen --no-crop --freeze image-trunk",
        "add --freeze image --cache-frozen --no-crop",
    ),
    ("read-clip --reconstruction=0.1", "--decoder FOLDER of a T5"),
    ("negclip --fsdp", "start with torchrun"),
    ("gnm-clip --data=PLAIN", "brings no variations; it needs a column group"),
    ("dac --data=PLAIN --bags=", "--bags captions"),
    ("negclip-original --data=PLAIN", "brings no negatives; add a column neg_caption"),
    ("triplet-clip --data=PLAIN", "--negatives negclip"),
]


@pytest.mark.parametrize(("words", "message"), TOGETHER, ids=[words for words, _ in TOGETHER])
def test_options_that_no_training_can_use_are_refused(
    words: str, message: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, file in (("CONFIG", "config.json"), ("PLAIN", PLAIN)):
        words = words.replace(name, str(world / file))
    method, *options = words.split()
    assert main(arguments(world, method, tmp_path / "run", *options)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()


# --- Runs that teach nothing, and pairs of a batch that are left out. ---


def test_a_batch_of_one_is_said_before_the_run_and_at_its_end(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(folder, tmp_path, "--batch-size=1", method="clip-ft") == 0
    error = capsys.readouterr().err
    assert "a batch of one image has no other image to be told apart from" in error
    assert "the loss ended at 0.00, and a model that tells nothing apart has 0.00" in error


def test_a_run_that_ends_at_chance_says_so_and_no_other(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (FEW, "--lr=10", "--warmup=0", "--epochs=3")
    assert trained(folder, tmp_path, *options, method="clip-ft") == 0
    error = capsys.readouterr().err
    match = re.search(r"the loss ended at ([\d.]+), and a model .* has ([\d.]+): the run", error)
    assert match, error
    assert float(match[2]) == pytest.approx(math.log(4), abs=0.005)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"| the same of equal scores | {math.log(4):.6f} |" in card
    log = (tmp_path / "run" / LOG).read_text().splitlines()
    assert json.loads(log[-1])["chance"] == pytest.approx(math.log(4))
    shutil.rmtree(tmp_path / "run")
    options = (FEW, "--lr=1e-3", "--warmup=0", "--epochs=25")
    assert trained(folder, tmp_path, *options, method="clip-ft") == 0
    assert "tells nothing apart" not in capsys.readouterr().err  # it learns


def test_the_share_of_true_pairs_is_that_of_plain_loops() -> None:
    rng = random.Random(3)
    samples = [
        Sample(
            id=str(number),
            image=Path(f"{rng.randrange(9)}.png"),
            captions=tuple(rng.sample("abcdefg", rng.randint(1, 3))),
        )
        for number in range(30)
    ]
    expected = pairs = 0.0
    for one, other in permutations(samples, 2):
        pairs += 1
        texts = list(product(one.captions, other.captions))
        equal = sum(a == b for a, b in texts) / len(texts)
        expected += 1.0 if one.image == other.image else equal
    builder = RowBuilder("data", Path())
    for sample in samples:
        builder.add(sample.id, str(sample.image), sample.captions, {"group": sample.id})
    assert true_pair_share(builder.build("data")) == pytest.approx(expected / pairs)
