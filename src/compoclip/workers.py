"""Worker processes: fresh interpreters that end with the process that started them.

`concurrent.futures` does the work. Added here: results are bounded and in order, work that dies
with a worker is done again, and an interrupted run ends its workers at once.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from multiprocessing import get_context, parent_process, resource_tracker
from typing import Any, Self, TypeVar

from compoclip.console import counted
from compoclip.errors import CompoclipError
from compoclip.interrupts import ENDING, TerminatedError
from compoclip.plugins import fence
from compoclip.process import require_main_guard, set_up

T = TypeVar("T")
R = TypeVar("R")
#: Times that workers may die in a row, without a result between, before the work is given up.
RETRIES = 3
#: Tasks under way, or done and waiting for an earlier one, for each worker (results in order).
_HELD = 4
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GRACE = 2.0  # seconds that a worker has to tidy up the task it is stopped in
_Task = tuple[int, tuple[Any, ...]]


def available_cores() -> int:
    """Return the number of cores for this process; one in a worker, as others use the rest."""
    if parent_process() is not None:
        return 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_cores() -> int:
    """Return the number of cores for this process if ranks on one machine (torchrun) share them."""
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


@contextmanager
def threads_each(threads: int) -> Iterator[None]:
    """Let processes that start inside compute with so many threads; this process stays as it is.

    They read the number from the environment when they import torch.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class WorkersDiedError(CompoclipError):
    """Workers were killed over the same work, again and again."""


class Workers:
    """Up to `count` worker processes, as a context; they are started when there is work for them.

    Work is a function at the top level of a module; tasks and results can be pickled. When a worker
    dies, all start anew and repeat what was under way, so repeating a task must do no harm.
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
        with 1 a task is drawn when a worker is free for it. retries: see `RETRIES`."""
        self._count, self._prepare, self._ahead, self._retries = count, prepare, ahead, retries
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

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
        todo: Iterator[_Task] = enumerate(tasks)
        running: dict[Future[R], _Task] = {}
        results: dict[int, R] = {}
        following = deaths = 0  # number of the next result; deaths since the last one
        try:
            while True:
                room = self._count * self._ahead - len(running)
                if in_order:
                    room = min(room, self._count * _HELD - len(running) - len(results))
                for task in islice(todo, max(room, 0)):
                    running[self._submit(work, task[1])] = task
                if not running:
                    return
                finished = wait(running, return_when=FIRST_COMPLETED).done
                if any(isinstance(future.exception(), BrokenProcessPool) for future in finished):
                    deaths += 1
                    self._end(deaths)
                    todo = chain(running.values(), todo)
                    running = {}
                    continue
                deaths = 0
                for future in finished:
                    number, _ = running.pop(future)
                    results[number] = future.result()
                for number in sorted(results):
                    if in_order and number > following:
                        break
                    following += 1
                    yield results.pop(number)
        finally:
            if running:  # what is under way now is of no use to a later call
                self._end()

    def _submit(self, work: Callable[..., R], arguments: tuple[Any, ...]) -> Future[R]:
        """Start a task; a pool that is broken already is noticed when its result is due."""
        task = pickle.dumps((work, arguments))
        if self._pool is None:
            # Fresh interpreters: forking a process that holds threads can hang.
            require_main_guard("spawn")
            self._pool = ProcessPoolExecutor(
                self._count, get_context("spawn"), _begin, (self._prepare,)
            )
        try:
            with _deaf():
                return self._pool.submit(_carry_out, task)
        except BrokenProcessPool as error:
            broken = Future[R]()
            broken.set_exception(error)
            return broken

    def _end(self, deaths: int = 0) -> None:
        """End all workers. deaths: raise WorkersDiedError when these are too many."""
        pool, self._pool = self._pool, None
        # Python 3.14 has `terminate_workers`.
        processes = [*(pool._processes or {}).values()] if pool else []
        for process in processes:
            process.terminate()
        latest = time.monotonic() + _GRACE
        for process in processes:
            process.join(max(0.0, latest - time.monotonic()))
            process.kill()
            process.join()
        if pool:
            pool.shutdown(cancel_futures=True)
        if deaths <= self._retries:
            return
        raise WorkersDiedError(
            f"workers died {counted(deaths, 'time')} in a row (out of memory, or by the error "
            "above); use fewer --workers"
        )


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


@contextmanager
def at_once(jobs: int, *, in_order: bool = False) -> Iterator[Callable[..., Iterator[Any]]]:
    """Give `map` over runs of which several go on at once and share the cores, as `mapper` does."""
    cores = available_cores() // max(1, jobs)
    with (
        threads_each(max(1, cores)) if jobs > 1 else nullcontext(),
        mapper(jobs, in_order=in_order, ahead=1) as apply,
    ):
        yield apply


def in_batches(
    make: Callable[[list[T]], R], items: Iterable[T], size: int, workers: int
) -> Generator[R, None, None]:
    """Yield the results of batches of items, in order; several batches are made by processes."""
    stream = iter(items)
    batches = iter(lambda: list(islice(stream, size)), [])
    first = list(islice(batches, 2))
    with mapper(workers if len(first) > 1 else 1) as map_batches:
        yield from map_batches(make, chain(first, batches))


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started inside the block ignore Ctrl-C, which is for the one that starts them."""
    resource_tracker.ensure_running()  # else it is started below, and lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- In a worker. ---


def _begin(prepare: Callable[[], object] | None) -> None:
    """Set up a worker, which ends when its parent does."""
    set_up()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)


def _carry_out(task: bytes) -> Any:
    """Do a task; SIGTERM abandons it, and its files go as the stack unwinds."""
    before = signal.signal(signal.SIGTERM, ENDING)
    try:
        with fence():
            work, arguments = pickle.loads(task)  # noqa: S301 (sent by the parent)
            return work(*arguments)
    except TerminatedError:
        os._exit(128 + signal.SIGTERM)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (our own error)
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
