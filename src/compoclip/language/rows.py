"""From answers to files that `train` reads: texts by caption, or sentences by image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.captions.clip_text import token_key
from compoclip.errors import UsageError, require
from compoclip.files import write_atomically
from compoclip.language.ask import Collected
from compoclip.language.engine import PromptTask
from compoclip.language.judge import Judged, judge_answers
from compoclip.patterns import has_ending
from compoclip.recordfile import Record, json_bytes

Item = tuple[str, Sequence[str]]
"""Id of a sample, and its captions."""

NOT_ASKED, UNANSWERED, REFUSED = "not-asked", "no-answer", "refused-by-the-server"
_BATCH = 4096
TEXT = pa.large_string()
_TYPES = {"temperature": pa.float64(), "seed": pa.int64()}
"""Types of fields of the provenance that are no texts."""


@dataclass
class AnswerTally:
    """Counts of prompts, answers and accepted texts.

    captions: distinct captions. with_text: captions that got a text. texts: accepted texts.
    not_asked: captions to which the prompt does not apply. unanswered: captions without an answer
    this time. refused: prompts that the server refused. tokens_in, tokens_out: tokens of all
    recorded prompts and answers. rejected: texts by reason.
    """

    captions: int = 0
    rows: int = 0
    with_text: int = 0
    texts: int = 0
    answers: int = 0
    not_asked: int = 0
    unanswered: int = 0
    refused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Outputs:
    """Output files: rows for `train`, and next to them the rejected texts and the raw answers."""

    rows: Path

    @property
    def rejected(self) -> Path:
        """Return the file of rejected texts and captions without an answer."""
        return self.rows.with_name(f"{self.rows.stem}.rejected.jsonl")

    @property
    def answers(self) -> Path:
        """Return the file of the answers, see `ask`."""
        return self.rows.with_name(f"{self.rows.stem}.answers.jsonl")

    def require_free(self) -> None:
        """Raise UsageError when the rows exist but their answers do not."""
        if not has_ending(self.rows, ".jsonl", ".parquet"):
            raise UsageError(f"--out {self.rows}: name a .jsonl or .parquet file")
        part = self.answers.with_name(self.answers.name + ".part")
        require(
            not self.rows.exists() or self.answers.exists() or part.exists(),
            self.rows,
            f"exists without {self.answers.name}, from which it is made; choose another --out or "
            "remove the file",
            UsageError,
        )


def write_outputs(
    task: PromptTask,
    items: Iterable[Item],
    numbers: Mapping[str, int],
    collected: Collected,
    provenance: Mapping[str, Any],
    out: Outputs,
) -> AnswerTally:
    """Judge all answers and write rows and rejected texts, in the order of the items.

    There is one row per caption, repeated ones included; for sentences, one row per sample. A
    caption without a usable text gets an empty list.

    Args:
        task: The prompt.
        items: (id, captions) of every sample.
        numbers: Number of every distinct caption.
        collected: All answers.
        provenance: Fields added to every row.
        out: The files.
    """
    verdicts = {  # by the current rules
        number: judge_answers(task, caption, [(a["text"], a["cut_off"]) for a in record["answers"]])
        for caption, number in numbers.items()
        if (record := collected.records.get(number)) is not None
    }
    tally = AnswerTally(captions=len(numbers), unanswered=len(collected.unanswered))
    tally.not_asked = sum(not task.asks(caption) for caption in numbers)
    for number, record in collected.records.items():
        tally.refused += record["refused"] is not None
        tally.answers += len(record["answers"])
        tally.tokens_in += sum(answer["tokens_in"] or 0 for answer in record["answers"])
        tally.tokens_out += sum(answer["tokens_out"] or 0 for answer in record["answers"])
        tally.with_text += bool(verdicts[number].accepted)
        tally.texts += len(verdicts[number].accepted)
        tally.rejected.update(reason for _, reason in verdicts[number].rejected)
    engines = {number: record["engine"] for number, record in collected.records.items()}
    accepted = {number: list(verdict.accepted) for number, verdict in verdicts.items()}

    def rows() -> Iterator[Record]:
        for id, captions in items:
            caption_numbers = [numbers[caption] for caption in captions]
            if task.gives == "sentences":
                engine = next((engines[n] for n in caption_numbers if n in engines), None)
                texts = {token_key(t): t for n in caption_numbers for t in accepted.get(n, ())}
                row = {"id": id, "caption": captions[0], "sentences": list(texts.values())}
                yield {**row, **provenance, "engine": engine}
                continue
            for caption, number in zip(captions, caption_numbers):
                row = {"id": id, "caption": caption, task.gives: accepted.get(number, [])}
                yield {**row, **provenance, "engine": engines.get(number)}

    columns = {"id": TEXT, "caption": TEXT, task.gives: pa.large_list(TEXT)}
    rejected = _rejected(task.name, numbers, collected, verdicts)
    tally.rows = write_rows(out, columns, provenance, rows(), rejected)
    return tally


def write_rows(
    out: Outputs,
    columns: Mapping[str, pa.DataType],
    provenance: Mapping[str, Any],
    rows: Iterator[Record],
    rejected: Iterable[Record],
) -> int:
    """Write rows as JSON lines or Parquet, and the rejections beside them.

    Args:
        out: The files.
        columns: The types of the columns besides those of the provenance and the engine.
        provenance: Fields that every row has.
        rows: The rows.
        rejected: The rejections.

    Returns:
        The number of rows.
    """
    stated = {name: _TYPES.get(name, TEXT) for name in (*provenance, "engine")}
    schema, written = pa.schema({**columns, **stated}), 0

    def write(path: Path) -> None:
        nonlocal written
        if has_ending(out.rows, ".jsonl"):
            written = _write_lines(path, rows)
            return
        with pq.ParquetWriter(path, schema) as writer:
            while chunk := list(islice(rows, _BATCH)):
                writer.write_batch(pa.RecordBatch.from_pylist(chunk, schema))
                written += len(chunk)

    write_atomically(out.rows, write)
    write_atomically(out.rejected, lambda path: _write_lines(path, rejected))
    return written


def _rejected(
    task: str, numbers: Mapping[str, int], collected: Collected, verdicts: Mapping[int, Judged]
) -> Iterator[Record]:
    """The rejected texts and unanswered captions, in caption order."""
    for caption, number in numbers.items():
        about = {"caption": caption, "task": task, "text": None}
        if number not in verdicts:
            cause = collected.unanswered.get(number)
            yield {**about, "reason": NOT_ASKED if cause is None else UNANSWERED, "detail": cause}
            continue
        for text, reason in verdicts[number].rejected:
            yield {**about, "text": text, "reason": reason, "detail": None}
        refused = collected.records[number]["refused"]
        if refused is not None:
            yield {**about, "reason": REFUSED, "detail": refused}


def _write_lines(path: Path, rows: Iterable[Record]) -> int:
    written = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(json_bytes(row) + b"\n")
            written += 1
    return written
