"""Runs jobs in several processes of one thread each, within a budget of time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context

from compoclip.console import counted, note
from compoclip.errors import CompoclipError, RunInterruptedError
from lab.job import Job, Outcome

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def run_all(
    jobs: Sequence[Job],
    run: Callable[[Job], Outcome],
    workers: int,
    budget: float,
) -> list[Job]:
    """Run the jobs in order, `workers` at a time; returns those left because of the budget.

    budget: seconds; a job is not started when, at the mean time of those finished, it would end
    later. `run` must be importable by name. Raises what the first job that fails raises, after
    those under way have ended, CompoclipError when a process dies, and RunInterruptedError after
    Ctrl-C.
    """
    if not jobs:
        return []
    for name in _THREADS:
        os.environ[name] = "1"  # read when the processes import torch
    waiting, running = list(jobs), dict[Future[Outcome], Job]()
    progress = _Progress(len(jobs), workers)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent)
    try:
        while running or waiting:
            while waiting and len(running) < workers and progress.fits(budget):
                job = waiting.pop(0)
                with _deaf():
                    running[pool.submit(run, job)] = job
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.pop(future)
                progress.tell(future.result(), len(waiting) + len(running))
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise RunInterruptedError(
            "interrupted; the same command goes on with what is left"
        ) from None
    except BrokenExecutor:
        raise CompoclipError(
            "a process was ended from outside (out of memory?); the same command goes on"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
    return waiting


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started in here do not hear Ctrl-C, which is for the one that starts them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """Says what is done and when the rest will be."""

    def __init__(self, total: int, workers: int) -> None:
        self._start = time.monotonic()
        self._total, self._workers = total, workers
        self._seconds: list[float] = []

    def fits(self, budget: float) -> bool:
        """Whether one more job ends in time, as far as is known."""
        mean = sum(self._seconds) / len(self._seconds) if self._seconds else 0.0
        return time.monotonic() - self._start + mean <= budget

    def tell(self, outcome: Outcome, left: int) -> None:
        """Print a line about a finished job."""
        if outcome.speed:  # the base takes no time worth counting
            self._seconds.append(outcome.seconds)
        mean = sum(self._seconds) / max(1, len(self._seconds))
        speed = f", {outcome.speed:.0f} images/s" if outcome.speed else ""
        rest = mean * left / self._workers
        to_go = f"{rest / 60:.0f} min" if rest >= 90 else f"{rest:.0f} s"
        note(
            f"[{self._total - left} of {self._total}] {outcome.name}: {outcome.seconds:.0f} s"
            f"{speed}; {counted(left, 'job')} and about {to_go} left"
        )


def _end_with_parent() -> None:
    """One thread of computation, and no process that outlives the one that started it."""
    import torch

    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
