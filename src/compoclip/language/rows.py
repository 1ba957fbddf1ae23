"""From answers to files that `train` reads: texts by caption, or sentences by image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.errors import UsageError
from compoclip.files import write_atomically
from compoclip.language.ask import Collected, judged
from compoclip.language.engine import PromptTask
from compoclip.language.judge import Judged
from compoclip.recordfile import Record, json_bytes
from compoclip.rewrites.base import token_key

Item = tuple[str, Sequence[str]]
"""The id of a sample and its captions."""

NOT_ASKED, UNANSWERED, REFUSED = "not-asked", "no-answer", "refused-by-the-server"
_BATCH = 4096
_TEXT = pa.large_string()


@dataclass
class AnswerTally:
    """Counts of what was asked, answered and accepted.

    Attributes:
        captions: Distinct ones.
        rows: Rows written.
        with_text: Captions that got a text.
        texts: Accepted texts.
        answers: Answers on record.
        not_asked: Captions that there is nothing to ask about.
        unanswered: Captions without an answer this time.
        refused: Questions that the server refused.
        tokens_in: Tokens of all prompts on record.
        tokens_out: Tokens of all answers on record.
        unmetered: Answers without a count of tokens.
        rejected: Texts by reason.
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
    unmetered: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Outputs:
    """The files of one piece of work.

    Attributes:
        rows: Rows for `train`; the rejected texts and the answers as they came lie beside it.
    """

    rows: Path

    @property
    def rejected(self) -> Path:
        """One JSON line a text that was not taken, or a caption without an answer."""
        return self.rows.with_name(f"{self.rows.stem}.rejected.jsonl")

    @property
    def answers(self) -> Path:
        """See `ask`."""
        return self.rows.with_name(f"{self.rows.stem}.answers.jsonl")

    def require_free(self) -> None:
        """Raise UsageError when the rows are there and the answers they came from are not."""
        if self.rows.suffix not in (".jsonl", ".parquet"):
            raise UsageError(f"--out {self.rows}: name a .jsonl or .parquet file")
        part = self.answers.with_name(self.answers.name + ".part")
        if self.rows.exists() and not (self.answers.exists() or part.exists()):
            raise UsageError(
                f"{self.rows}: exists, and {self.answers.name} that it would be made from does "
                "not; choose another --out or remove the file"
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

    One row a caption, repeated captions included; of sentences, one a sample. A caption without a
    usable text has an empty list.

    Args:
        task: What was asked.
        items: (id, captions) of every sample.
        numbers: Of every distinct caption.
        collected: All answers.
        provenance: What all rows carry.
        out: The files.

    Returns:
        What became of the captions.
    """
    verdicts = {
        number: judged(task, caption, collected.records[number])
        for caption, number in numbers.items()
        if number in collected.records
    }
    tally = _tally(task, numbers, collected, verdicts)
    engines = {number: record["engine"] for number, record in collected.records.items()}

    def rows() -> Iterator[Record]:
        for id, captions in items:
            known = [(caption, numbers[caption]) for caption in captions]
            if task.gives == "sentences":
                engine = next((engines[n] for _, n in known if n in engines), None)
                sentences = _distinct(t for _, n in known for t in _accepted(verdicts, n))
                made = {"id": id, "caption": captions[0], "sentences": sentences}
                yield {**made, **provenance, "engine": engine}
                continue
            for caption, number in known:
                texts = list(_accepted(verdicts, number))
                made = {"id": id, "caption": caption, task.gives: texts}
                yield {**made, **provenance, "engine": engines.get(number)}

    def write(path: Path) -> None:
        writer = _write_parquet if out.rows.suffix == ".parquet" else _write_lines
        tally.rows = writer(path, rows(), task)

    write_atomically(out.rows, write)
    rejected = _rejected(task, numbers, collected, verdicts)
    write_atomically(out.rejected, lambda path: _write_lines(path, rejected, task))
    return tally


def _accepted(verdicts: Mapping[int, Judged], number: int) -> tuple[str, ...]:
    return verdicts[number].accepted if number in verdicts else ()


def _distinct(texts: Iterable[str]) -> list[str]:
    return list({token_key(text): text for text in texts}.values())


def _tally(
    task: PromptTask,
    numbers: Mapping[str, int],
    collected: Collected,
    verdicts: Mapping[int, Judged],
) -> AnswerTally:
    tally = AnswerTally(captions=len(numbers), unanswered=len(collected.unanswered))
    tally.not_asked = sum(not task.asks(caption) for caption in numbers)
    for number, record in collected.records.items():
        tally.refused += record["refused"] is not None
        for answer in record["answers"]:
            tally.answers += 1
            metered = answer["tokens_in"] is not None and answer["tokens_out"] is not None
            tally.unmetered += not metered
            tally.tokens_in += answer["tokens_in"] or 0
            tally.tokens_out += answer["tokens_out"] or 0
        verdict = verdicts[number]
        tally.with_text += bool(verdict.accepted)
        tally.texts += len(verdict.accepted)
        tally.rejected.update(reason for _, reason in verdict.rejected)
    return tally


def _rejected(
    task: PromptTask,
    numbers: Mapping[str, int],
    collected: Collected,
    verdicts: Mapping[int, Judged],
) -> Iterator[Record]:
    """The rejected texts and unanswered captions, in caption order."""
    for caption, number in numbers.items():
        about = {"caption": caption, "task": task.name}
        if number not in verdicts:
            why = collected.unanswered.get(number)
            reason = NOT_ASKED if why is None else UNANSWERED
            yield {**about, "text": None, "reason": reason, "detail": why}
            continue
        for text, reason in verdicts[number].rejected:
            yield {**about, "text": text, "reason": reason, "detail": None}
        if (refused := collected.records[number]["refused"]) is not None:
            yield {**about, "text": None, "reason": REFUSED, "detail": refused}


def _write_lines(path: Path, rows: Iterable[Record], task: PromptTask) -> int:
    written = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(json_bytes(row) + b"\n")
            written += 1
    return written


def _write_parquet(path: Path, rows: Iterable[Record], task: PromptTask) -> int:
    schema = pa.schema(
        [
            ("id", _TEXT),
            ("caption", _TEXT),
            (task.gives, pa.large_list(_TEXT)),
            ("task", _TEXT),
            ("prompt", _TEXT),
            ("model", _TEXT),
            ("temperature", pa.float64()),
            ("seed", pa.int64()),
            ("rules", _TEXT),
            ("engine", _TEXT),
        ]
    )
    written, held = 0, list[Record]()
    with pq.ParquetWriter(path, schema) as writer:
        for row in rows:
            held.append(row)
            if len(held) == _BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(held, schema))
                written, held = written + len(held), []
        writer.write_batch(pa.RecordBatch.from_pylist(held, schema))
    return written + len(held)
