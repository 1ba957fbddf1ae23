"""Commands written in the documentation, and small stand-ins for the files they name."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from PIL import Image

from bench.__main__ import main as bench
from build.tables import read_jsonl, write_lines
from compoclip.cli.main import main
from compoclip.models.checkpoint import load_model
from method_data import arguments, write_world
from train_helpers import FEW

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")),
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "examples").rglob("*.md")),
)


PROGRAMS = {"compoclip ": main, "python -m bench ": bench}


@dataclass(frozen=True)
class Command:
    """A `compoclip ...` or `python -m bench ...` line of a page, continuation lines joined."""

    page: str
    text: str

    @property
    def program(self) -> str:
        """How the line begins, of the two programs."""
        return next(name for name in PROGRAMS if self.text.startswith(name))

    @property
    def words(self) -> list[str]:
        """What the shell makes of it, without the program."""
        return shlex.split(self.text.removeprefix(self.program), comments=True)

    def run(self, words: list[str]) -> int:
        """The exit code of its program, given these words."""
        return PROGRAMS[self.program](words)


def commands_of(page: str, text: str) -> Iterator[Command]:
    """Commands in fenced and in indented blocks."""
    rest = iter(text.splitlines())
    fenced = False
    for line in rest:
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if not fenced and not line.startswith("    "):
            continue
        command = line.strip()
        while command.endswith("\\"):
            command = f"{command[:-1].rstrip()} {next(rest).strip()}"
        if command.startswith(tuple(PROGRAMS)):
            yield Command(page, command)


def write_configs(folder: Path) -> None:
    """The configuration files that pages show: blocks of YAML that begin with "# NAME.yaml"."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, body in re.findall(r"^```yaml\n# (\S+\.yaml)\n(.*?)^```", text, re.S | re.M):
            (folder / name).write_text(body, encoding="utf-8")


def documented() -> list[Command]:
    """Every command in a block of any page, each text once a page."""
    found = [c for p in PAGES for c in commands_of(p, (ROOT / p).read_text(encoding="utf-8"))]
    return list(dict.fromkeys(found))


BASE = "ViT-B-32-quickgelu:openai"
SMALL = {  # verb -> options that make its work small; the last of two counts
    "train": ["--batch-size=4", "--epochs=0.2", "--warmup=1", "--lr=1e-3", "--device=cpu"],
    "sweep": ["--batch-size=4", "--epochs=0.2", "--warmup=1", "--device=cpu"],
    "evaluate": ["--device=cpu"],
    "compare": ["--resamples=20"],
    "report": ["--resamples=20"],
    "towers": ["--resamples=20", "--device=cpu"],
    "maps": ["--device=cpu"],
    "nearest": ["--device=cpu", "--number=2"],
    "world pointing": ["--resamples=20", "--scenes=3", "--device=cpu"],
    "tree-score": ["--resamples=20", "--sample=5", "--device=cpu"],
    "data pack": ["--workers=1"],
    "index": ["--device=cpu"],
    "search": ["--device=cpu"],
    "world train": ["--count=8"],
    "world suite": ["--items-per-task=3"],
    "world show": ["--count=1"],
}


_NAMES_A_MODEL = {"--model", "--init-from", "--config", "--help"}


def small(command: Command) -> list[str]:
    """The command's arguments with less to do, and a tiny model for every base."""
    words = [
        word
        if before == "--config"  # the name of a world
        else re.sub(rf"\b({re.escape(BASE)}|bundled)(?![\w/])", "base", word)
        for before, word in pairwise(["", *command.words])
    ]
    words = [re.sub(r"^matryoshka=.*", "matryoshka=8", word) for word in words]
    if "--device" in words:
        place = words.index("--device")
        del words[place : place + 2]
    more = SMALL.get(" ".join(words[:2]), SMALL.get(words[0], []))
    if words[0] in ("train", "sweep") and not _NAMES_A_MODEL.intersection(words):
        more = [*more, "--model=base"]
    if "--grid" in words:  # one value of each is enough to run
        words = [re.sub(r"^(\w+=[^,]+),.*", r"\1", word) for word in words]
    if words[:2] == ["sweep", "--config"]:
        more = [*more, "--draws=1"]
    if "--sweep" in words:
        more = [*more, "--steps=1", "--resamples=20", "--device=cpu"]
    if "--against" in words:
        more = []
    if "--suite" in words:
        more = [*more, "--suite-items=3"]
    return [*words, *more]


def outputs(words: list[str]) -> set[str]:
    """What a command writes."""
    named = {b for a, b in pairwise(words) if a in ("-o", "--out", "--suite")}
    return named | ({words[2]} if words[0] == "convert" else set())


def write_ready(folder: Path) -> Path:
    """A folder with everything that the documented commands read, in miniature."""
    world = write_world(folder, merges=FEW)
    write_configs(folder)
    run = Path("runs", "made")
    assert main(arguments(world, "negclip", folder / run, "--epochs=0.2")) == 0
    assert main(arguments(world, "negclip", folder / "runs/lora", "--epochs=0.2", "--lora")) == 0
    assert main(["new", "method", "my-idea", "--out", str(folder)]) == 0
    assert main(["new", "model", "my-model", "--out", str(folder)]) == 0
    for name in ("fsc", "first", "ft", "compo", "mine", "mix", "neg", "plain"):
        shutil.copytree(folder / run, folder / "runs" / name)
    for name in ("fsc-clip", "negclip", "clip-ft"):
        shutil.copytree(folder / run, folder / "demo-out" / "runs" / name)
    (folder / "neg_clip").mkdir()
    shutil.copy(world / "near.tsv", folder / "neg_clip" / "train_neg_clip.tsv")
    rows = read_jsonl(world / "plain.jsonl")
    table = ["path,title", *(f'{row["image"]},"{row["caption"][0]}"' for row in rows)]
    for name in ("coco.csv", "pairs.csv"):
        write_lines(folder / name, table)
    write_lines(folder / "captions.txt", (row["caption"][0] for row in rows[:5]))
    given = [
        {"caption": text, "positive": f"{text} here"} for row in rows for text in row["caption"]
    ]
    write_lines(folder / "positives.jsonl", map(json.dumps, given))
    columns = ("title", "filepath", "relation_list", "attribute_list")
    concepts = [(row["caption"][0], row["image"], "['on']", "['red']") for row in rows]
    write_lines(folder / "macco.tsv", map("\t".join, (columns, *concepts)))
    for name in ("coco", "photos"):
        (folder / name).mkdir()
        for image in world.glob("*.png"):
            shutil.copy(image, folder / name)
    shutil.copytree(folder / run / "model", folder / "tuned" / "model")
    table = ["image,caption"]  # a hash puts some of as many photos into each split
    for k in range(40):
        Image.new("RGB", (32, 32), (6 * k, 9, 9)).save(folder / "photos" / f"own-{k}.png")
        table += [f"own-{k}.png,a black dog near two red chairs"] * 2
    write_lines(folder / "captions.csv", table)
    made = ["--model", str(folder / "base"), f"--out={folder / 'photos.index'}"]
    assert main(["index", str(folder / "photos"), *made]) == 0
    karpathy = [
        {"filename": row["image"], "split": "train", "sentences": [{"raw": row["caption"][0]}]}
        for row in rows
    ]
    (folder / "dataset_coco.json").write_text(json.dumps({"images": karpathy}))
    held_out = [{"image": "val2014/COCO_val2014_000000391895.jpg"}]
    (folder / "coco_karpathy_test.json").write_text(json.dumps(held_out))
    packed = ["--images", str(folder / "coco"), "--split=train", f"--out={folder / 'coco-pack'}"]
    assert main(["data", "pack", str(folder / "dataset_coco.json"), *packed]) == 0
    tuned = load_model(folder / run / "model").encoder.model.state_dict()
    torch.save({"state_dict": {f"module.{k}": v for k, v in tuned.items()}}, folder / "negclip.pth")
    benchmarks = ["sugarcrepe", "aro", "zero_shot", "retrieval"]
    suite = ["world", "suite", f"--out={folder / 'data'}", "--items-per-task=3", "--size=32"]
    assert main([*suite, "--benchmarks", *benchmarks]) == 0
    shutil.copytree(folder / "data", folder / "demo-out" / "suite")
    suite[2] = f"--out={folder / 'world/suite'}"
    assert main([*suite, "--benchmarks", "sugarcrepe"]) == 0
    assert main(["world", "train", f"--out={folder / 'world/train'}", "--count=24"]) == 0
    decoder = Path("world/src/compoclip_world/decoder.py")
    (folder / decoder).parent.mkdir(parents=True)
    shutil.copy(ROOT / decoder, folder / decoder)
    foil = {"image": "0.png", "caption": "a star", "negative_caption": "a mug", "subtask": "kind"}
    (folder / "data" / "foils").mkdir()
    write_lines(folder / "data" / "foils" / "mine.jsonl", [json.dumps({"id": "17", **foil})])
    shutil.copy(world / "0.png", folder / "data")
    names = ("base", "fsc", "first", "ft", "compo", "mine", "plain")
    models = [f"{name}={folder / 'base'}" for name in names]
    on = ["--on", f"sugarcrepe,root={folder / 'data'}", f"--out={folder / 'results'}"]
    assert main(["evaluate", *models, *on]) == 0
    return folder


def link_inputs(words: list[str], ready: Path, here: Path) -> None:
    """Links in `here` to what the command reads of `ready`."""
    written = outputs(words)
    verbs = 2 if words[0] in ("world", "data") else 1
    configs = [ready / word for word in words if word.endswith(".yaml") and (ready / word).exists()]
    named = [word for file in configs for word in re.findall(r"[\w./+-]+", file.read_text())]
    for word in [*words[verbs:], *named]:
        for part in re.split(r"[=,@:]", word):
            path = part.rstrip("/")
            if not path or path in written or path.startswith(("/", "-")) or ".." in path:
                continue
            if (ready / path).exists() and not (here / path).exists():
                (here / path).parent.mkdir(parents=True, exist_ok=True)
                (here / path).symlink_to(ready / path)
