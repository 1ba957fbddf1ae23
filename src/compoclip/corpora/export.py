"""Hard negatives of image-text data in the layouts that other trainers read, with a data card."""

from __future__ import annotations

import csv
import json
import os
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment

from compoclip import rewrites
from compoclip.archives import add_member
from compoclip.captions.clip_text import token_key
from compoclip.config import Trainer
from compoclip.corpora.job import CorpusRow, Counts, RewriteJob, add_counts
from compoclip.data.columns import NEG_CAPTION
from compoclip.data.decode import opened, stored_bytes
from compoclip.data.sources import Source
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import new_folder, read_json, write_text
from compoclip.recordfile import json_bytes
from compoclip.rewrites.base import get_rewrite
from compoclip.rewrites.records import Settings, coverage
from compoclip.version import __version__
from compoclip.workers import in_batches

DRAWS = 3
"""Epochs that are sampled, one after the other, until a caption has a text per rewrite."""
TRUE_ELSEWHERE = "negative that is another caption of the photo"
NO_NEGATIVE = "caption without a negative"
FEW_NEGATIVES = "caption with fewer negatives than rewrites"
_BATCH = 100  # photos per task of a worker
_SHARD = 5000  # rows per file of a webdataset


# --- Negatives: of every caption up to one per rewrite. ---


class ExportRow(NamedTuple):
    """A caption of a photo with its negatives, all different to CLIP's tokenizer."""

    image: Path | bytes
    caption: str
    negatives: Sequence[str]


def hard_negatives(
    photos: Sequence[tuple[str, Sequence[str]]], settings: Settings
) -> tuple[list[list[str]], Counts]:
    """Sample the negatives of every caption, in order, and count them.

    photos: the id and the captions of each. Texts that equal another caption of the photo are left
    out. Missing texts are sampled in further epochs, up to `DRAWS` in all; the tallies of rewrites
    are those of the first epoch.
    """
    rows = [
        CorpusRow(f"{id}#{number}" if number else id, (caption,))
        for id, captions in photos
        for number, caption in enumerate(captions)
    ]
    true: list[set[tuple[str, ...]]] = []
    for _, captions in photos:
        keys = set(map(token_key, captions))
        true += [keys for _ in captions]
    texts_by_row: list[dict[tuple[str, ...], str]] = [{} for _ in rows]
    counts: Counts = {"left_out": Counter()}
    for draw in range(DRAWS):
        lacking = [k for k, texts in enumerate(texts_by_row) if len(texts) < len(settings.rewrites)]
        job = RewriteJob(replace(settings, epoch=settings.epoch + draw))
        values = job.make([rows[k] for k in lacking], {} if draw else counts)
        for k, value in zip(lacking, values):
            for text in value[NEG_CAPTION]:
                key = token_key(text)
                if key in true[k]:
                    counts["left_out"][TRUE_ELSEWHERE] += 1
                elif len(texts_by_row[k]) < len(settings.rewrites):
                    texts_by_row[k].setdefault(key, text)
    return [list(texts.values()) for texts in texts_by_row], counts


# --- Layouts: each a context that yields what writes one row. ---

Write = Callable[[ExportRow], object]


@contextmanager
def _parquet(folder: Path, per_caption: int, seed: int) -> Iterator[Write]:
    """Columns anchor (the image), positive, negative_1, ...; features as `datasets` declares."""
    texts = ["positive", *(f"negative_{k + 1}" for k in range(per_caption))]
    features: dict[str, Any] = {"anchor": {"_type": "Image"}}
    features |= {name: {"dtype": "string", "_type": "Value"} for name in texts}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("anchor", image), *((name, pa.string()) for name in texts)],
        {"huggingface": json.dumps({"info": {"features": features}})},
    )
    with pq.ParquetWriter(folder / "train.parquet", schema) as out:
        rows: list[dict[str, Any]] = []

        def write(row: ExportRow) -> None:
            inside = isinstance(row.image, bytes)
            anchor = {"bytes": row.image} if inside else {"path": _path(row)}
            rows.append({"anchor": anchor, **dict(zip(texts, (row.caption, *row.negatives)))})
            if len(rows) == 1000:
                out.write_table(pa.Table.from_pylist(rows, schema))
                rows.clear()

        yield write
        out.write_table(pa.Table.from_pylist(rows, schema))


@contextmanager
def _messages(folder: Path, per_caption: int, seed: int) -> Iterator[Write]:
    """JSON lines: messages with the image, positive_messages and negative_messages with texts."""

    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    with (folder / "train.jsonl").open("wb") as out:

        def write(row: ExportRow) -> None:
            record = {
                "messages": said("<image>"),
                "images": [_path(row)],
                "positive_messages": [said(row.caption)],
                "negative_messages": [said(text) for text in row.negatives],
            }
            out.write(json_bytes(record) + b"\n")

        yield write


@contextmanager
def _table(folder: Path, per_caption: int, seed: int) -> Iterator[Write]:
    """Write NegCLIP's table; neg_image names up to three rows of other photos, sampled."""
    rows: list[tuple[str, str, str]] = []

    def write(row: ExportRow) -> None:
        rows.append((row.caption, _path(row), str(list(row.negatives))))

    yield write
    rng = random.Random(seed)
    with (folder / "train.tsv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, delimiter="\t", lineterminator="\n")
        out.writerow(("", "title", "filepath", "neg_caption", "neg_image"))
        for number, row in enumerate(rows):
            near = rng.sample(range(len(rows)), min(len(rows), 16))
            others = [k for k in near if rows[k][1] != row[1]][:3]
            out.writerow((number, *row, others or [number]))


@contextmanager
def _webdataset(folder: Path, per_caption: int, seed: int) -> Iterator[Write]:
    """Shards of samples with image, .txt and a .json with the negatives."""
    number = 0
    shard: tarfile.TarFile
    with ExitStack() as shards:

        def write(row: ExportRow) -> None:
            nonlocal number, shard
            if number % _SHARD == 0:
                shards.close()
                path = folder / f"{number // _SHARD:05d}.tar"
                shard = shards.enter_context(tarfile.open(path, "w"))
            data = stored_bytes(row.image)
            members = {
                _ending(data, row.image): data,
                "txt": row.caption.encode(),
                "json": json_bytes({NEG_CAPTION: list(row.negatives)}),
            }
            for ending, content in members.items():
                add_member(shard, f"{number:09d}.{ending}", content)
            number += 1

        yield write


_ENDINGS = ("jpg", "png", "webp")  # by which open_clip finds an image


def _ending(data: bytes, image: Path | bytes) -> str:
    """Return the ending of an image by its content. Raises CompoclipError for one of no use."""
    name = str(image) if isinstance(image, Path) else "an image of the data"
    with opened(data, name) as file:
        require(file.ending in _ENDINGS, name, "is neither JPEG, PNG nor WebP; convert it")
        return file.ending


def _path(row: ExportRow) -> str:
    """Return the absolute path of the image."""
    if isinstance(row.image, bytes):
        raise UsageError(
            "this layout names images by path, but those of the data lie in shards or tables; "
            "choose --to sentence-transformers or --to open-clip, which hold images"
        )
    require(row.image.is_file(), row.image, "no such file; check --images")
    return os.path.abspath(row.image)


class TrainerLayout(NamedTuple):
    """A layout: what writes it, whether every row needs as many negatives, and how it is read."""

    write: Callable[[Path, int, int], AbstractContextManager[Write]]
    fixed: bool
    files: str
    how: str


LAYOUTS: Mapping[Trainer, TrainerLayout] = {
    "sentence-transformers": TrainerLayout(
        _parquet,
        True,
        "train.parquet",
        "from datasets import load_dataset\n"
        "from sentence_transformers.losses import MultipleNegativesRankingLoss\n\n"
        'rows = load_dataset("parquet", data_files="train.parquet", split="train")\n'
        "# SentenceTransformerTrainer(model, train_dataset=rows,\n"
        "#     loss=MultipleNegativesRankingLoss(model))",
    ),
    "ms-swift": TrainerLayout(
        _messages,
        False,
        "train.jsonl",
        "# swift sft --task_type embedding --loss_type infonce --dataset train.jsonl ...\n"
        "from swift.dataset import load_dataset\n\n"
        'rows, _ = load_dataset("train.jsonl")',
    ),
    "negclip": TrainerLayout(
        _table,
        False,
        "train.tsv",
        "# --train-data train.tsv --csv-img-key filepath --csv-caption-key title\n"
        "import ast, pandas\n\n"
        "lists = dict.fromkeys(('neg_caption', 'neg_image'), ast.literal_eval)\n"
        "rows = pandas.read_csv('train.tsv', sep='\\t', converters=lists)",
    ),
    "open-clip": TrainerLayout(
        _webdataset,
        False,
        "*.tar",
        "# python -m open_clip_train.main --dataset-type webdataset --train-data 00000.tar ...\n"
        "import webdataset\n\n"
        'rows = webdataset.WebDataset("00000.tar", shardshuffle=False).decode("pilrgb")',
    ),
}


# --- A whole export. ---

_ERRORS = Path(rewrites.__file__).with_name("data") / "errors.json"


def export(
    source: Source,
    out: Path,
    trainer: Trainer,
    settings: Settings,
    *,
    licence: str = "",
    workers: int = 1,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> dict[str, Any]:
    """Write the captions of a source with hard negatives as another trainer reads them.

    A caption without a negative is left out, and where rows need as many texts as there are
    rewrites (sentence-transformers) one that has fewer. Images in files of their own are named by
    their absolute path, except in a webdataset, which holds all of them.

    out: new folder; README.md in it is the data card. settings: rewrites that make negatives, and
    what fixes the sampling. licence: of the captions, as the user states it. workers: processes;
    the result does not depend on it. track: wraps the stream of finished photos, to show progress.
    Returns the counts: photos, captions, rows, negatives, left_out by reason, rewrites. Raises
    UsageError for a rewrite that keeps the meaning and a layout that cannot name the images,
    CompoclipError when an image or the folder does not serve, or nothing is left.
    """
    for name in settings.rewrites:
        if get_rewrite(name).keeps_meaning:
            raise UsageError(f"{name} keeps the meaning; name rewrites that make negatives")
    layout, per_caption = LAYOUTS[trainer], len(settings.rewrites)
    totals: Counts = {"photos": 0, "captions": 0, "rows": 0, "negatives": 0, "left_out": {}}
    add_counts(totals["left_out"], source.left_out)
    make = partial(hard_negatives, settings=settings)
    photos = zip(source.column("id"), source.column("captions"))
    with new_folder(out) as folder:
        with (
            layout.write(folder, per_caption, settings.seed) as write,
            closing(in_batches(make, photos, _BATCH, workers)) as batches,
        ):
            negatives = _counted(batches, totals)
            for index in track(range(len(source))):
                sample = source[index]
                for caption in sample.captions:
                    texts = next(negatives)
                    totals["captions"] += 1
                    if len(texts) < (per_caption if layout.fixed else 1):
                        reason = FEW_NEGATIVES if texts else NO_NEGATIVE
                        add_counts(totals["left_out"], {reason: 1})
                        continue
                    write(ExportRow(sample.image, caption, texts))
                    add_counts(totals, {"rows": 1, "negatives": len(texts)})
                totals["photos"] += 1
        if not totals["rows"]:
            reasons = ", ".join(f"{reason}: {n}" for reason, n in totals["left_out"].items())
            raise CompoclipError(f"{source.describe()}: no caption got its negatives ({reasons})")
        write_text(folder / "README.md", _card(source, trainer, settings, licence, totals))
    return totals


def _counted(
    batches: Iterable[tuple[list[list[str]], Counts]], totals: Counts
) -> Iterator[list[str]]:
    """Yield the negatives of every caption, and add their counts."""
    for negatives, counts in batches:
        add_counts(totals, counts)
        yield from negatives


def _card(
    source: Source, trainer: Trainer, settings: Settings, licence: str, totals: Counts
) -> str:
    """Return the data card: how to load, counts, error rates of the rewrites, provenance."""
    errors = read_json(_ERRORS, absent="install compoclip again")
    rows = []
    for name in settings.rewrites:
        rewrite, share = get_rewrite(name), coverage(totals["rewrites"][name])
        wrong_rate, broken = errors["rates"].get(rewrite.name, ["not measured", "not measured"])
        rows.append((rewrite.name, rewrite.version, f"{share:.1%}", wrong_rate, broken))
    template = Path(__file__).with_name("data_card.md").read_text(encoding="utf-8")
    text = (
        Environment(autoescape=False, trim_blocks=True)
        .from_string(template)
        .render(
            trainer=trainer,
            layout=LAYOUTS[trainer],
            source=" ".join(source.describe().split()),
            licence=" ".join(licence.split()) or "not stated; the captions' own licence holds",
            totals=totals,
            rewrites=rows,
            measured=errors["measured"],
            draws=DRAWS,
            version=__version__,
            provenance=json.dumps(settings.provenance(), indent=1, sort_keys=True),
        )
    )
    return f"{text}\n"
