"""Prompt a language model once per caption: threads, retries, a record of all answers.

The record is a file of `recordfile`: one line per distinct caption, in order of the answers, each
on disk at once. A resumed run looks up captions in it by number and asks only about the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError
from compoclip.language.engine import Answer, AskError, Engine, PromptTask, Sampling, answer_seed
from compoclip.language.judge import NONE, judge_answers
from compoclip.recordfile import Record, appending

#: A further try of an answer that was of no use draws at this temperature at least.
LIVELY = 0.7
#: After so many questions in a row without an answer (or twice as many as are under way), stop.
MOST_FAILURES = 12


@dataclass(frozen=True)
class Asking:
    """Settings of the sampling.

    temperature: of the first try; further tries use at least `LIVELY`. seed: with caption and try,
    fixes the sampling of an answer. tries: most prompts per caption without a usable answer.
    """

    temperature: float
    max_tokens: int
    seed: int = 0
    tries: int = 2

    def sampling(self, caption: str, attempt: int) -> Sampling:
        """Return the parameters of one try."""
        temperature = max(self.temperature, LIVELY) if attempt else self.temperature
        return Sampling(temperature, self.max_tokens, answer_seed(self.seed, attempt, caption))


@dataclass
class Collected:
    """The recorded answers.

    records: by number of the caption. before: number of records at the start. unanswered: why a
    caption has no answer this time; the next run asks again.
    """

    records: dict[int, Record] = field(default_factory=dict)
    before: int = 0
    unanswered: dict[int, str] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Add a record; the first of a caption counts. Raises TypeError if it is damaged."""
        texts = [(answer["text"], answer["cut_off"]) for answer in record["answers"]]
        counts = [
            answer[name] for answer in record["answers"] for name in ("tokens_in", "tokens_out")
        ]
        if not (
            type(record["n"]) is int
            and isinstance(record["engine"], str)
            and isinstance(record["refused"], str | None)
            and all(isinstance(text, str) and type(cut_off) is bool for text, cut_off in texts)
            and all(count is None or type(count) is int for count in counts)
        ):
            raise TypeError("not a record of answers")
        self.records.setdefault(record["n"], record)


def collect(
    task: PromptTask,
    captions: Sequence[str],
    engine: Engine,
    asking: Asking,
    path: Path,
    made_from: Mapping[str, Any],
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Collected:
    """Ask about all captions without a recorded answer, and record the answers.

    Args:
        task: The prompt.
        captions: Distinct captions.
        engine: Answers the prompts, from several threads if it allows.
        asking: Settings of the sampling.
        path: The record, see `recordfile`.
        made_from: Inputs of the record, to refuse a record made from others.
        track: Wraps the stream of finished captions, for progress.

    Raises:
        CompoclipError: When no further prompt can succeed; the answers so far are recorded.
    """
    collected = Collected()

    def resume(record: Record) -> None:
        number = record["n"]
        if not 0 <= number < len(captions) or record["caption"] != captions[number]:
            raise ValueError("a record of another caption")
        collected.add(record)

    with appending(path, made_from, resume) as (append, _):
        collected.before = len(collected.records)
        todo = [
            number
            for number, caption in enumerate(captions)
            if number not in collected.records and task.asks(caption)
        ]
        judging = threading.Lock()

        def work(number: int) -> tuple[int, Record | AskError]:
            caption = captions[number]
            try:
                record = _question(task, caption, engine, asking, judging)
            except AskError as error:
                return number, error
            return number, {"n": number, "caption": caption, **record, "engine": engine.name}

        in_a_row = 0
        # Its threads do not keep the process alive: what an interruption leaves is asked again.
        with ThreadPool(engine.concurrency) as pool:
            for number, outcome in track(pool.imap_unordered(work, todo)):
                if isinstance(outcome, AskError):
                    collected.unanswered[number] = str(outcome)
                    in_a_row += 1
                    if in_a_row >= max(MOST_FAILURES, 2 * engine.concurrency):
                        raise CompoclipError(
                            f"{engine.name}: no answer to {in_a_row} questions in a row (last: "
                            f"{outcome}); {len(collected.records)} are on record, the same "
                            "command resumes"
                        )
                    continue
                in_a_row = 0
                collected.add(outcome)
                append(outcome)
    return collected


def _question(
    task: PromptTask, caption: str, engine: Engine, asking: Asking, judging: threading.Lock
) -> Record:
    """The answers about one caption, the last of which is of use if any is."""
    answers: list[tuple[Answer, Sampling]] = []
    refused = None
    for attempt in range(asking.tries):
        sampling = asking.sampling(caption, attempt)
        try:
            answers.append((engine.ask(task.messages(caption), sampling), sampling))
        except AskError as error:
            if not error.final:
                raise
            refused = str(error)
            break
        with judging:  # taggers are not made for threads
            judged = judge_answers(task, caption, [(a.text, a.cut_off) for a, _ in answers])
        if judged.accepted or any(reason == NONE for _, reason in judged.rejected):
            break
    listed = [{**asdict(answer), **asdict(sampling)} for answer, sampling in answers]
    for recorded in listed:
        del recorded["max_tokens"]
    return {"answers": listed, "refused": refused}
