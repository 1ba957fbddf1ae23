"""Rehearse `compoclip reproduce` without a network: made files of the real layouts, ten kills.

    python scripts/rehearse.py OUT [--annotations DIR] [--on sugarcrepe] [--kills 10] [--most 60]
    python scripts/rehearse.py OUT --table fsc-clip 7 [--arms ROW ...]

A server on the loopback address has random weights of ViT-B/32 where the hub has OpenAI's, made
photos in archives of COCO's layout, captions in BLIP's, and the official SugarCrepe files of DIR.
The command runs in a process that is killed at random moments (SIGKILL) and started again, until
it ends with a bundle, which `compoclip verify` checks. Prints the minutes and the estimate.

With --table it is a table of a paper, with two steps of every row in batches of 8. Training data
that have to be got by hand are made; then the first row that was trained is bundled and checked.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from compoclip.benchmarks.fetch import rebased
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import meta
from compoclip.benchmarks.sources import RemoteFile, shared
from compoclip.cli.main import main as compoclip
from compoclip.evaluation.published.read import paper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import hub_server
import web_server

HUB_COPY = "timm/vit_base_patch32_clip_224.openai"
PROTOCOL = """\
_data:
  made:
    captions: coco/coco_karpathy_train.json
    photos: [coco/val2014]
    images: coco
    number: {number}
rehearsal:
  recipe: {recipe}
  model: "{model}"
  data: made
  table: fsc-clip-table1
  base: ["", CLIP, ""]
  row: [COCO, FSC-CLIP, ""]
  benchmarks: [sugarcrepe]
  small: [sugarcrepe]
  settings: {{batch_size: {batch}, epochs: {epochs}, save_every: 2}}
"""
BATCH = 8
CAPTIONS = ("a red dog next to a blue boat", "two men ride a small brown horse", "a cat on a chair")


class Rehearsal:
    """Files of the real layouts, what the package must expect of them, and two servers.

    annotations: folder of official SugarCrepe files; None makes two items per sub-task. weights:
    files of the hub's repository. number: photos to train on. run: values of `PROTOCOL`.
    """

    def __init__(
        self,
        folder: Path,
        annotations: Path | None,
        weights: Mapping[str, bytes],
        repository: str,
        number: int,
        **run: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files: dict[str, bytes] = {}
        self.expected: dict[str, tuple[int, str]] = {}
        self.repository, self.weights = repository, weights
        self.protocol = folder / "protocol.yaml"
        self.protocol.write_text(PROTOCOL.format(number=number, **run))
        self.official = annotations is not None
        about = meta("sugarcrepe")
        names: set[str] = set()
        for source in about.remote:
            if source.archive:
                continue
            path = Path(source.target)
            if annotations is not None:
                data = (annotations / path.name).read_bytes()
            else:
                rows = [
                    {"filename": f"{k}.jpg", "caption": text, "negative_caption": f"{text} not"}
                    for k, text in enumerate(CAPTIONS[:2])
                ]
                data = json.dumps(dict(enumerate(rows))).encode()
            names |= {row["filename"] for row in json.loads(data).values()}
            self.add(source, data)
        self.add(shared()["coco/val2017"], archive({f"val2017/{each}" for each in names}))
        trained = [f"val2014/COCO_val2014_{k:012d}.jpg" for k in range(number)]
        rows = [
            {"caption": CAPTIONS[(k + j) % 3], "image": name, "image_id": f"coco_{k}"}
            for k, name in enumerate(trained)
            for j in range(2)
        ]
        self.add(shared()["coco/coco_karpathy_train.json"], json.dumps(rows).encode())
        self.add(shared()["coco/val2014"], archive(trained))
        others = [f"train2014/COCO_train2014_{k:012d}.jpg" for k in range(4)]
        self.add(shared()["coco/train2014"], archive(others))
        by_hand = folder / "by-hand"
        with zipfile.ZipFile(io.BytesIO(archive(trained))) as photos:
            photos.extractall(by_hand)
        long = [{**row, "caption": f"{row['caption']}. There is {CAPTIONS[2]}."} for row in rows]
        (by_hand / "captions.json").write_text(json.dumps(long))

    def add(self, source: RemoteFile, data: bytes) -> None:
        """Serve a file where the official one lies; expect its size and MD5 where it is made."""
        self.files[rebased(source.url, "")] = data
        if not (self.official and source.target.startswith("sugarcrepe")):
            digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
            self.expected[source.target] = (len(data), digest)

    @contextmanager
    def served(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the mirror's address, and the environment for the hub."""
        with (
            web_server.served(web_server.Site(files=self.files)) as site,
            hub_server.running() as hub,
        ):
            hub.repositories[self.repository] = dict(self.weights)
            yield site.url, hub.environment(self.protocol.parent / "hub")

    def arguments(self, out: Path, url: str) -> list[str]:
        """Return the command line."""
        places = ["--out", str(out), "--data", str(self.protocol.parent / "data")]
        more = ["--url-base", url, "--device", "cpu", "--yes"]
        return ["reproduce", str(self.protocol), *places, *more]

    def table_arguments(self, out: Path, url: str, table: Sequence[str]) -> list[str]:
        """Return the command line of a paper's table, given as its name and number."""
        name, number = table
        by_hand = self.protocol.parent / "by-hand"
        given = ["--captions", str(by_hand / "captions.json"), "--images", str(by_hand)]
        _, _, *more = self.arguments(out, url)
        return ["reproduce", name, "--table", number, *more, *given, "--max-steps", "2"]


def archive(names: Sequence[str] | set[str]) -> bytes:
    """Return a zip of made photos, no two of them equal."""
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name in sorted(names):
            coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
            photo = io.BytesIO()
            coarse.resize((480, 360), Image.Resampling.BICUBIC).save(photo, "JPEG")
            made.writestr(name, photo.getvalue())
    return buffer.getvalue()


@contextmanager
def expecting(expected: Mapping[str, tuple[int, str]], official: bool) -> Iterator[None]:
    """Let the package expect other sizes and checksums of some files inside the block."""

    def made(source: RemoteFile) -> RemoteFile:
        size, md5 = expected.get(source.target, (source.size, source.md5))
        return replace(source, size=size, md5=md5)

    known: Any = shared()
    before = dict(known)
    facts = [meta(name).__dict__ for name in benchmark_names()]
    kept = [dict(each) for each in facts]
    try:
        known.update({target: made(source) for target, source in before.items()})
        for each in facts:
            each["remote"] = tuple(map(made, each["remote"]))
        if not official:
            meta("sugarcrepe").__dict__["hashes"] = {}
            meta("sugarcrepe").__dict__["expected"] = dict.fromkeys(meta("sugarcrepe").expected, 2)
        yield
    finally:
        known.update(before)
        for each, old in zip(facts, kept):
            each.update(old)


def take_small_batches(name: str) -> None:
    """Let the rows of a paper's tables be trained in batches of `BATCH`."""
    for table in paper(name).tables:
        for row in table.rows:
            if row.arm and row.arm.recipe:
                cast(dict[str, Any], row.arm.settings)["batch_size"] = BATCH


def vit_b_32() -> bytes:
    """Return random weights of ViT-B/32 as a safetensors file."""
    from safetensors.torch import save

    from compoclip.models.checkpoint import load_model

    loaded = load_model("random:ViT-B-32-quickgelu")
    return save(dict(loaded.encoder.model.state_dict()))


def killed(command: list[str], environment: Mapping[str, str], wait: float, started: Path) -> bool:
    """Run a command; kill it `wait` seconds after `started` is there. Return whether it was."""
    with subprocess.Popen(command, env={**os.environ, **environment}) as process:
        while process.poll() is None and not started.exists():
            time.sleep(0.1)
        with suppress(subprocess.TimeoutExpired):
            if process.wait(wait):
                raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
            return False
        process.kill()
        return True


def main() -> int:
    """Serve, run and kill, verify, say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--annotations", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--most", type=float, default=60.0)
    parser.add_argument("--on", default="sugarcrepe")
    parser.add_argument("--table", nargs=2, metavar=("PAPER", "NUMBER"))
    parser.add_argument("--arms", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    facts = options.out / "expected.json"
    if options.child:
        known = json.loads(facts.read_text())
        if options.table:
            take_small_batches(options.table[0])
        with expecting(known["expected"], known["official"]):
            return compoclip(options.child)
    begin = time.monotonic()
    weights = {"open_clip_model.safetensors": vit_b_32()}
    run = {"recipe": "fsc-clip", "model": "ViT-B-32-quickgelu:openai", "batch": BATCH, "epochs": 1}
    rehearsal = Rehearsal(options.out, options.annotations, weights, HUB_COPY, 4 * BATCH, **run)
    record = {"expected": rehearsal.expected, "official": rehearsal.official}
    facts.write_text(json.dumps(record))
    rng, times = random.Random(options.seed), 0
    place = options.out / "out"
    with rehearsal.served() as (url, environment):
        words = [*rehearsal.arguments(place, url), "--on", options.on]
        started = place / "plan.json"
        if options.table:
            words = [*rehearsal.table_arguments(place, url, options.table), "--on", options.on]
            words += ["--arms", *options.arms] if options.arms else []
            started = place / "plans"
        table = ["--table", *options.table] if options.table else []
        command = [sys.executable, __file__, str(options.out), *table, "--child", *words]
        while killed(
            command,
            environment,
            rng.uniform(1, options.most) if times < options.kills else 1e9,
            started,
        ):
            times += 1
            print(f"killed {times} times, {(time.monotonic() - begin) / 60:.1f} min", flush=True)
    page, bundle = place / "page.md", place / "rehearsal.zip"
    if options.table:
        page = next(place.glob("*.md"))
        run_folder = next(iter(sorted((place / "runs").iterdir())))
        results = ["--results", str(place / "results"), "--out", str(bundle)]
        compoclip(["bundle", str(run_folder), *results])
    print(page.read_text())
    print(f"{times} kills, {(time.monotonic() - begin) / 60:.1f} minutes in all")
    return compoclip(["verify", str(bundle)])


if __name__ == "__main__":
    sys.exit(main())
