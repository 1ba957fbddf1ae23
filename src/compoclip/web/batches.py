"""Dynamic batching: one thread runs the model on the items of many requests.

A request submits its texts and images and waits. The thread takes the waiting items, in order, up
to a full batch; an item for an idle model waits a few milliseconds for others. While the model
works, the next batch gathers, so that batches grow with the load.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from compoclip.console import counted
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.items import Scores
from compoclip.web.app import HttpError
from compoclip.web.limits import BatchSettings


class Encoding(NamedTuple):
    """Features of one request: texts (T, D) and images (N, D), unit-length float32, the tokens of
    the texts, and how many texts were cut to the model's context length."""

    texts: Scores
    images: Scores
    tokens: int
    truncated: int


@dataclass(frozen=True)
class _Waiting:
    texts: Sequence[str]
    images: Sequence[np.ndarray]  # what ImageReader.pixels gives
    items: int
    arrived: float = field(default_factory=time.monotonic)
    done: Future[Encoding] = field(default_factory=Future)


@dataclass
class ServedCounts:
    """Counts since the start.

    Args:
        requests: Requests encoded.
        items: Their images and texts.
        calls: Calls of the model.
        turned_away: Requests refused because the queue was full.
        held: Items in the queue now.
        peak: Most items that were in the queue at once.
    """

    requests: int = 0
    items: int = 0
    calls: int = 0
    turned_away: int = 0
    held: int = 0
    peak: int = 0


class Batcher:
    """Encodes the items of several threads together; `close` ends its thread.

    Nothing else may use the encoder meanwhile.
    """

    def __init__(self, encoder: ModelEncoder, settings: BatchSettings) -> None:
        self.settings = settings
        self.counts = ServedCounts()
        self._encoder = encoder
        self._jobs: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @contextmanager
    def room(self, items: int) -> Iterator[None]:
        """Reserve places in the queue while the block runs: enter it before items take memory.

        Raises HttpError (503) when there are too few places.
        """
        with self._changed:
            if self.counts.held + items > self.settings.queue:
                self.counts.turned_away += 1
                free = counted(self.settings.queue - self.counts.held, "place")
                raise HttpError(503, f"the queue has {free} left; try again")
            self.counts.held += items
            self.counts.peak = max(self.counts.peak, self.counts.held)
        try:
            yield
        finally:
            with self._changed:
                self.counts.held -= items

    def encode(self, texts: Sequence[str], images: Sequence[np.ndarray]) -> Encoding:
        """Encode the items of one request and wait for the features.

        images: as the encoder's `read_image.pixels` gives them. Raises HttpError (503) after
        `close`, RuntimeError when the model failed; its error is the cause.
        """
        job = _Waiting(texts, images, len(texts) + len(images))
        with self._changed:
            if self._closed:
                raise HttpError(503, "the server is ending; try again")
            self._jobs.append(job)
            self._changed.notify_all()
        return job.done.result()

    def close(self) -> None:
        """Encode the waiting items, refuse new ones, end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        with self._encoder.evaluating():
            while jobs := self._gathered():
                self._encode(jobs)

    def _gathered(self) -> list[_Waiting]:
        """The next jobs, a batch of items if so many wait; none once it is closed."""
        size = self.settings.size
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            # The time counts from the arrival: what came while the model worked has waited already.
            left = self._jobs[0].arrived + self.settings.wait - time.monotonic()
            self._changed.wait_for(
                lambda: self._closed or sum(job.items for job in self._jobs) >= size, max(left, 0)
            )
            jobs = [self._jobs.popleft()]
            items = jobs[0].items
            while self._jobs and items + self._jobs[0].items <= size:
                jobs.append(self._jobs.popleft())
                items += jobs[-1].items
        return jobs

    def _encode(self, jobs: Sequence[_Waiting]) -> None:
        """Give every job its features, or the error that it causes itself."""
        texts = [text for job in jobs for text in job.texts]
        images = [image for job in jobs for image in job.images]
        try:
            keys = self._encoder.text_keys(texts) if texts else []
            text_rows = self._by_call(texts, self._encoder.encode_texts)
            image_rows = self._by_call(images, self._encoder.encode_images)
        except Exception as error:
            if len(jobs) > 1:  # a failure of one is no failure of those it was put together with
                for job in jobs:
                    self._encode([job])
                return
            failure = RuntimeError("the model failed")
            failure.__cause__ = error
            jobs[0].done.set_exception(failure)
            return
        self.counts.requests += len(jobs)
        self.counts.items += sum(job.items for job in jobs)
        text = image = 0
        for job in jobs:
            text_slice = slice(text, text + len(job.texts))
            image_slice = slice(image, image + len(job.images))
            tokens = sum(key.length for key in keys[text_slice])
            cut = sum(key.truncated for key in keys[text_slice])
            job.done.set_result(
                Encoding(text_rows[text_slice], image_rows[image_slice], tokens, cut)
            )
            text, image = text_slice.stop, image_slice.stop

    def _by_call(self, items: Sequence[Any], encode: Callable[[Sequence[Any]], Scores]) -> Scores:
        """Features of items, at most a batch of them in a call of the model."""
        parts = []
        for start in range(0, len(items), self.settings.size):
            self.counts.calls += 1
            parts.append(encode(items[start : start + self.settings.size]))
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)
