"""Worker processes: fresh interpreters that end with the process that started them.

Each has its own pipe. A worker whose pipe closes ends, so none outlives this process; a pipe
that closes on the other side means that the worker has died. There are no threads on this side and
no queue that workers lock, unlike in `concurrent.futures`, so that an interrupted run can end
workers at any moment without waiting: a worker killed within a message leaves nothing blocked.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing import current_process, get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Self, TypeVar

from compoclip.console import counted
from compoclip.errors import CompoclipError
from compoclip.interrupts import ENDING, TerminatedError
from compoclip.own import fence
from compoclip.process import require_main_guard, set_up

T = TypeVar("T")
R = TypeVar("R")
#: Times that workers may die in a row, without a result between, before the work is given up.
RETRIES = 3
#: Tasks under way, or done and waiting for an earlier one, for each worker (results in order).
_HELD = 4
_GRACE = 2.0  # seconds that a worker has to tidy up the task it is stopped in
_Task = tuple[int, tuple[Any, ...]]


def available_cores() -> int:
    """Return the number of cores for this process; one in a worker, as others use the rest."""
    if current_process().daemon:
        return 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_cores() -> int:
    """Return the number of cores for this process if ranks on one machine (torchrun) share them."""
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


class WorkersDiedError(CompoclipError):
    """Workers were killed over the same work, again and again."""


class Workers:
    """Up to `count` worker processes, as a context; they are started when there is work for them.

    Work is a function at the top level of a module; tasks and results can be pickled. A task whose
    worker dies is repeated by a new one, so repeating it must do no harm.
    """

    def __init__(
        self,
        count: int,
        *,
        prepare: Callable[[], object] | None = None,
        ahead: int = 2,
        retries: int = RETRIES,
    ) -> None:
        """prepare: called in every worker before its first task. ahead: tasks per worker at once;
        with 1 a long task never waits behind another. retries: see `RETRIES`."""
        self._count, self._prepare, self._ahead, self._retries = count, prepare, ahead, retries
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end(self._workers)

    def map(self, work: Callable[..., R], *tasks: Iterable[Any]) -> Generator[R, None, None]:
        """Yield results in the order of the tasks, which are read as needed.

        Raises the errors of the work, and WorkersDiedError.
        """
        return self._results(work, zip(*tasks), in_order=True)

    def as_done(self, work: Callable[[T], R], tasks: Iterable[T]) -> Generator[R, None, None]:
        """Yield results as they are finished. Raises like `map`."""
        return self._results(work, zip(tasks), in_order=False)

    def _results(
        self, work: Callable[..., R], tasks: Iterable[tuple[Any, ...]], in_order: bool
    ) -> Generator[R, None, None]:
        todo = enumerate(tasks)
        again = deque[_Task]()  # those whose worker died
        made: dict[int, R] = {}
        given = deaths = 0  # results given out; deaths since the last result
        try:
            while True:
                while self._has_room(len(made) if in_order else 0):
                    task = again.popleft() if again else next(todo, None)
                    if task is None:
                        break
                    self._least_busy().send(work, task)
                busy = {each.pipe: each for each in self._workers if each.tasks}
                if not busy:
                    return
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    try:
                        number, result, error = worker.pipe.recv()
                    except (EOFError, OSError):
                        deaths += 1
                        if deaths > self._retries:
                            raise _dying(deaths, worker) from None
                        again += worker.tasks.items()
                        self._end([worker])
                        continue
                    del worker.tasks[number]
                    if error is not None:
                        raise error
                    deaths = 0
                    made[number] = result
                for number in sorted(made):
                    if in_order and number > given:
                        break
                    given += 1
                    yield made.pop(number)
        finally:  # what is under way now is of no use to a later call
            self._end([each for each in self._workers if each.tasks])

    def _has_room(self, held: int) -> bool:
        """Return whether a worker can take a task. held: results that wait for earlier ones."""
        tasks = [len(each.tasks) for each in self._workers]
        if len(tasks) == self._count and min(tasks) >= self._ahead:
            return False
        return not held or held + sum(tasks) < _HELD * self._count

    def _least_busy(self) -> _Worker:
        """The worker with the fewest tasks; a new one rather than one that has any."""
        worker = min(self._workers, key=lambda each: len(each.tasks), default=None)
        if worker is None or (worker.tasks and len(self._workers) < self._count):
            worker = _Worker(self._prepare)
            self._workers.append(worker)
        return worker

    def _end(self, workers: Iterable[_Worker]) -> None:
        ended = list(workers)
        self._workers = [each for each in self._workers if each not in ended]
        for each in ended:
            each.process.terminate() if each.tasks else each.process.kill()
        latest = time.monotonic() + _GRACE
        for each in ended:
            each.process.join(max(0.0, latest - time.monotonic()))
            each.process.kill()
            each.process.join()
            each.pipe.close()


@contextmanager
def mapper(
    workers: int, *, in_order: bool = True, ahead: int = 2
) -> Iterator[Callable[..., Iterator[Any]]]:
    """Give `map` over so many processes, in this one for fewer than two. ahead: see `Workers`."""
    if workers < 2:
        yield map
        return
    with Workers(workers, ahead=ahead) as pool:
        yield pool.map if in_order else pool.as_done


def in_batches(
    make: Callable[[list[T]], R], items: Iterable[T], size: int, workers: int
) -> Generator[R, None, None]:
    """Yield the results of batches of items, in order; several batches are made by processes."""
    stream = iter(items)
    batches = iter(lambda: list(islice(stream, size)), [])
    first = list(islice(batches, 2))
    with mapper(workers if len(first) > 1 else 1) as each:
        yield from each(make, chain(first, batches))


class _Worker:
    """One of them, as this process sees it. tasks: what it has to do, by number."""

    def __init__(self, prepare: Callable[[], object] | None) -> None:
        # Fresh interpreters: forking a process that holds threads can hang.
        require_main_guard("spawn")
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self.tasks: dict[int, tuple[Any, ...]] = {}
        self.process = context.Process(target=_serve, args=(other, prepare), daemon=True)
        with _deaf():
            self.process.start()
        other.close()

    def send(self, work: Callable[..., Any], task: _Task) -> None:
        """Send a task. A worker that has died is noticed when its result is received."""
        number, arguments = task
        message = (number, pickle.dumps((work, arguments)))
        self.tasks[number] = arguments
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(message)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started inside the block ignore Ctrl-C, which is for the one that starts them."""
    resource_tracker.ensure_running()  # else it is started below, and lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, prepare: Callable[[], object] | None) -> None:
    """The main function of a worker: tasks in turn, until the pipe closes or SIGTERM comes."""
    tasks: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    try:
        ENDING.install()  # SIGTERM abandons the task under way; its files go as the stack unwinds
        set_up()
        threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
        if prepare is not None:
            prepare()
        while True:
            number, task = tasks.get()
            try:
                with fence():
                    work, arguments = pickle.loads(task)  # noqa: S301 (sent by the parent)
                    answer = pickle.dumps((number, work(*arguments), None))
            except Exception as error:
                answer = pickle.dumps((number, None, _portable(error)))
            pipe.send_bytes(answer)
    except (TerminatedError, BrokenPipeError, ConnectionResetError):
        os._exit(1)


def _listen(pipe: Connection, tasks: queue.SimpleQueue[tuple[int, bytes]]) -> None:
    """Take tasks in while others are worked on; stop the process when there can be no more."""
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note; a plain RuntimeError if it cannot be pickled."""
    error.add_note(f"In a worker process:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (our own error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _dying(deaths: int, last: _Worker) -> WorkersDiedError:
    last.process.join(_GRACE)
    if last.process.exitcode == 1:  # by an error of its own, which it has printed
        return WorkersDiedError(
            f"workers failed {counted(deaths, 'time')} in a row, with the error above; a script "
            'must have what it runs under `if __name__ == "__main__":`'
        )
    return WorkersDiedError(
        f"workers died {counted(deaths, 'time')} in a row (out of memory?); use fewer --workers"
    )
