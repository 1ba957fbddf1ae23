"""`compoclip caption DATA --task TASK`: texts by a language model, or captions of photos."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from compoclip import config, console
from compoclip.cli.caption_input import caption_items, note_left_out
from compoclip.cli.options import OnDevice, Outcome
from compoclip.config import AtOnce, DataName, InputFolder, Names, OutputFile, Shown
from compoclip.errors import RunInterruptedError, UsageError
from compoclip.files import require_writable
from compoclip.interrupts import signal_of
from compoclip.language.engine import PHOTOS, ChatServer, Engine, InProcessModel, load_task
from compoclip.typed import Count, Natural, NonNegative, Within

if TYPE_CHECKING:
    from compoclip.language.engine import PromptTask
    from compoclip.language.rows import Outputs


@dataclass(frozen=True)
class CaptionOptions(OnDevice):
    """Let a language model write texts for captions: hard positives, hard negatives, dense
    captions, paraphrases. Each is checked; train takes the file. Or caption photos.

    Tasks:
        positives-swap     for train hard-positives --positives OUT
        positives-replace  as positives-swap
        positives-verb     as positives-swap
        positives-spatial  as positives-swap
        negatives          for train tsvlc-llm --negatives OUT
        negatives-swap     as negatives
        dense              for train dac --bags OUT
        paraphrase         for train clic --paraphrases OUT
        photos             captions of photos without texts, for train --data OUT

    Other methods take negatives with --texts +written-negative --set texts.written=OUT.

    OUT gets one row per caption (dense: per sample), in the order of the data, with task, hash of
    the prompt, engine, model, temperature and seed. OUT.rejected.jsonl gets the rejected texts with
    reasons, OUT.answers.jsonl all raw answers. After an interruption the same command resumes from
    it, and asks again about captions without an answer.

    Examples:
        compoclip caption coco.json --split train --task positives-replace --out positives.jsonl
            --server http://localhost:8000/v1 --model meta-llama/Llama-3.1-8B-Instruct
        compoclip caption captions.txt --task dense --out bags.jsonl --model ./small-model
        compoclip caption data.csv --task negatives --out negatives.parquet
            --server https://api.openai.com/v1 --model gpt-4o-mini --key-env OPENAI_API_KEY
        compoclip caption photos/ --task photos --out captions.jsonl
            --model coca_ViT-L-14:mscoco_finetuned_laion2b_s13b_b90k

    Args:
        data: Data as for train --data; or captions only: .txt (one per line), .csv, .tsv, .jsonl,
            .jsonl.gz, .parquet.
            For photos: a folder of photos, or a table that names them.
        task: Kind of text to write.
        model: Name of the model on the server; without --server a folder or hub id of a model that
            transformers loads in this process. For photos: a CoCa, named as for evaluate, or
            hf:ID, an image captioner of transformers such as BLIP.
        out: .jsonl or .parquet file to write.
        server: URL of a server with OpenAI's chat interface (vLLM, llama.cpp, Ollama, OpenAI);
            needs the package openai.
        key_env: Environment variable with the API key; by default no key is sent.
        column: Column with the captions, for tables.
        images: Folder that the paths of photos are relative to, for tables.
        split: Split to use, for data with several splits; all uses everything. The default is
            train.
        temperature: Sampling temperature [default: the task's; 0, the likeliest tokens, for
            photos].
        max_tokens: Largest number of tokens per answer [default: the task's; 30 for photos].
        seed: Seed of the sampling. Seed, caption and try fix an answer.
        tries: Largest number of prompts per caption. If an answer is unusable, the caption is asked
            about again.
        concurrency: Requests in flight to a server; the result does not depend on it.
        timeout: Seconds without a response before a request is given up.
        retries: Retries after transient errors (429, 5xx, a broken connection).
        batch_size: Photos captioned at once; a caption depends on it by rounding only.
    """

    data: Annotated[DataName, Shown("DATA", positional=True)]
    task: str
    model: Annotated[str, Names("language model")]
    out: OutputFile
    server: str | None = None
    key_env: str | None = None
    column: str | None = None
    images: InputFolder | None = None
    split: str | None = None
    temperature: NonNegative | None = None
    max_tokens: Count | None = None
    seed: int = 0
    tries: Count = 2
    concurrency: AtOnce = 8
    timeout: Annotated[float, Within(0.1)] = 120.0
    retries: Natural = 6
    batch_size: Count = 16


_OF_TEXTS = ("server", "key_env", "column", "tries", "concurrency", "timeout", "retries")
_OF_PHOTOS = ("images", "batch_size")
"""Options that only one of the two kinds of task has a use for."""


def caption_main(options: CaptionOptions) -> Outcome:
    """Ask, write, sum up; exit code 1 when captions or photos are left without an answer."""
    photos = options.task == PHOTOS
    if photos:
        config.refuse(options, _OF_TEXTS, unused_with=f"--task {PHOTOS}")
    else:
        config.refuse(options, _OF_PHOTOS, needs=f"--task {PHOTOS}")
    config.require_with(options, "server", "key_env", "concurrency", "timeout", "retries")
    task = None if photos else load_task(options.task)
    from compoclip.language.rows import Outputs

    out = Outputs(options.out)
    out.require_free()
    require_writable(options.out.parent)
    return _write_texts(options, task, out) if task else _caption_photos(options, out)


def _write_texts(options: CaptionOptions, task: PromptTask, out: Outputs) -> Outcome:
    """Ask about captions, write the texts and what became of the others."""
    from compoclip.captions.tagger import DEFAULT_TAGGER, tagger_version
    from compoclip.language.ask import Asking, collect
    from compoclip.language.judge import RULES_VERSION
    from compoclip.language.rows import write_outputs

    items = list(caption_items(options.data, options.column, options.split))
    captions = list(dict.fromkeys(caption for _, several in items for caption in several))
    if not any(task.asks(caption) for caption in captions):
        raise UsageError(f"{options.data}: holds no caption to ask about")
    asking = Asking(
        task.temperature if options.temperature is None else options.temperature,
        options.max_tokens or task.max_tokens,
        options.seed,
        options.tries,
    )
    provenance = {
        "task": task.name,
        "prompt": task.hash,
        "model": options.model,
        "temperature": asking.temperature,
        "seed": asking.seed,
        "rules": f"{RULES_VERSION} ({tagger_version(DEFAULT_TAGGER)})",
    }
    digest = hashlib.blake2b(digest_size=16)
    for id, several in items:
        digest.update(repr((id, tuple(several))).encode("utf-8", "surrogatepass"))
    made_from = {
        "captions": digest.hexdigest(),
        "prompt": f"{task.name} {task.hash}",
        "model": options.model,
        **asdict(asking),
    }
    if options.server is not None:
        engine: Engine = ChatServer(
            options.server,
            options.model,
            key_variable=options.key_env,
            concurrency=options.concurrency,
            timeout=options.timeout,
            retries=options.retries,
        )
    else:
        from compoclip.ranks import device_named  # which imports torch

        engine = InProcessModel(options.model, str(device_named(options.device)))
    console.note(
        f"{task.name}: {console.counted(len(captions), 'distinct caption')}, {engine.name}"
    )
    track = partial(console.track, description="captions answered", unit="captions")
    start = time.monotonic()
    with _resumable(out):
        collected = collect(task, captions, engine, asking, out.answers, made_from, track)
    seconds = time.monotonic() - start
    numbers = {caption: number for number, caption in enumerate(captions)}
    tally = write_outputs(task, items, numbers, collected, provenance, out)
    answered = len(collected.records) - collected.before
    summary: dict[str, Any] = {
        **asdict(tally),
        "rejected": dict(sorted(tally.rejected.items())),
        "answered_before": collected.before,
        "answered_now": answered,
        "seconds": round(seconds, 1),
        "captions_a_minute": round(60 * answered / seconds, 1) if seconds > 0 else 0.0,
        "out": str(out.rows),
        **provenance,
    }
    reasons = ", ".join(console.reasons_listed(summary["rejected"]))
    before = f", {collected.before:,} were there" if collected.before else ""
    lines = [
        f"{task.name}: {console.counted(tally.texts, 'text')} for {tally.with_text:,} of "
        f"{console.counted(tally.captions, 'caption')} -> {out.rows}"
    ]
    if reasons:
        lines.append(f"  rejected: {reasons} -> {out.rejected}")
    if tally.not_asked:
        lines.append(
            f"  not asked about: {tally.not_asked:,} (empty, or without what the task changes)"
        )
    if tally.refused:
        lines.append(f"  refused by the server: {tally.refused:,}, see {out.rejected.name}")
    if collected.unanswered:
        last = next(reversed(collected.unanswered.values()))
        number = f"{len(collected.unanswered):,}"
        lines.append(f"  no answer: {number} (last: {last}); the same command asks them again")
    lines += [
        f"  {console.counted(answered, 'caption')} answered in {seconds:.0f} s "
        f"({summary['captions_a_minute']:.0f} a minute){before}",
        f"  tokens: {tally.tokens_in:,} in, {tally.tokens_out:,} out",
    ]
    return summary, "\n".join(lines), int(bool(collected.unanswered))


@contextmanager
def _resumable(out: Outputs) -> Iterator[None]:
    """Say on an interruption where the answers are."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise RunInterruptedError(
            f"interrupted; the answers are kept in {out.answers}.part, the same command resumes",
            signal_of(error),
        ) from None


def _caption_photos(options: CaptionOptions, out: Outputs) -> Outcome:
    """Caption photos, write a table for `train`."""
    from compoclip.data.captioner import MAX_TOKENS, PhotoAsking, caption_photos, open_captioner
    from compoclip.data.sources.open import Request
    from compoclip.ranks import device_named

    request = Request(options.data, images=options.images, split=options.split, needs="photos")
    source = request.open()
    note_left_out(source.left_out)
    asking = PhotoAsking(
        options.temperature or 0.0,
        options.max_tokens or MAX_TOKENS,
        options.seed,
        options.batch_size,
    )
    provenance = {
        "task": PHOTOS,
        "model": options.model,
        "temperature": asking.temperature,
        "seed": asking.seed,
    }
    captioner = open_captioner(options.model, str(device_named(options.device)))
    console.note(f"{PHOTOS}: {console.counted(len(source), 'photo')}, {captioner.name}")
    track = partial(console.track, description="photos captioned", unit="batches")
    start = time.monotonic()
    with _resumable(out):
        tally = caption_photos(source, captioner, asking, provenance, out, track)
    seconds = time.monotonic() - start
    summary: dict[str, Any] = {
        **asdict(tally),
        "left_out": dict(sorted(tally.left_out.items())),
        "seconds": round(seconds, 1),
        "out": str(out.rows),
        **provenance,
    }
    before = f", {tally.before:,} were there" if tally.before else ""
    lines = [
        f"{PHOTOS}: {console.counted(tally.captions, 'caption')} for "
        f"{console.counted(tally.photos, 'photo')} in {seconds:.0f} s"
        f"{before} -> {out.rows}"
    ]
    if tally.left_out:
        reasons = ", ".join(console.reasons_listed(summary["left_out"]))
        lines.append(f"  without a caption: {reasons} -> {out.rejected}")
    if tally.cut:
        cut = console.counted(tally.cut, "caption")
        lines.append(f"  {cut} cut at the limit of {asking.max_tokens} tokens")
    return summary, "\n".join(lines), int(bool(tally.left_out))
