"""Several processes of one run, as torchrun would start them, for functions of tests."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest

# One clean interpreter imports torch and reads word lists once, every process is forked from it.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "compoclip.cli.train",
        "compoclip.training.run",
        "compoclip.evaluation.run",
        "method_data",
        "ranks_helpers",
        "ranks_warm",
    ]
)
SECONDS = 600  # a hang, however busy the machine is


def in_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(ranks, *arguments)` returns in each of `world` processes that have met.

    An exception is returned as the string of its trace.
    """
    context, port = warm_context(), free_port()
    pipes, processes = [], []
    for rank in range(world):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_main, args=(theirs, rank, world, port, function, arguments), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results = []
    for rank, pipe in enumerate(pipes):
        assert pipe.poll(SECONDS), f"process {rank} of {world} hangs"
        results.append(pipe.recv())
    for process in processes:
        process.join(SECONDS)
    return results


def free_port() -> int:
    """Return a port that the system gives to no client before the store takes it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def warm_context() -> ForkServerContext:
    """Where processes are forked from; its interpreter is started unless it runs, where it finds
    what it imports: the path of this one is not handed on to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        ensure_running()
    return CONTEXT


def _main(
    pipe: Connection,
    rank: int,
    world: int,
    port: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch

    from compoclip.ranks import process_group, silent

    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world)
    )
    try:
        with process_group(torch.device("cpu")) as ranks, silent() if rank else nullcontext():
            result = function(ranks, *arguments)
            ranks.exchange(None)  # the first holds the store: it must not leave before the others
    except Exception:
        result = traceback.format_exc()
    pipe.send(result)


class Forked:
    """A command in a forked process, with the interface of `subprocess.Popen`; starts at once."""

    def __init__(
        self,
        command: list[str],
        env: Mapping[str, str] = os.environ,
        preexec_fn: Callable[[], object] | None = None,
        **_: object,
    ) -> None:
        self._printed = Path(tempfile.mkdtemp())
        words = command[command.index("compoclip") + 1 :]
        self._process = warm_context().Process(
            target=_command, args=(words, dict(env), self._printed, preexec_fn)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.poll = lambda: self._process.exitcode
        self.kill = self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float = SECONDS) -> tuple[str, str]:
        """Wait; what it printed on standard output and error."""
        self._process.join(timeout)
        out, error = ((self._printed / name).read_text() for name in ("out", "error"))
        shutil.rmtree(self._printed)
        return out, error


def _command(
    words: list[str],
    env: dict[str, str],
    printed: Path,
    before: Callable[[], object] | None,
) -> None:
    import torch

    from compoclip.cli.main import main

    torch.set_num_threads(1)
    os.environ.update(env)
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not forked
    for name, number in (("out", 1), ("error", 2)):
        with (printed / name).open("w") as file:
            os.dup2(file.fileno(), number)
    if before:
        before()
    sys.exit(main(words))


def commanded(world: int, arguments: list[str]) -> list[tuple[int | None, str, str]]:
    """Exit code, output and errors of a command in each of `world` processes, with the environment
    that torchrun gives them."""
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    names["COLUMNS"] = "200"  # tables are whole
    started = [
        Forked(["compoclip", *arguments], {**os.environ, **names, "RANK": str(rank)})
        for rank in range(world)
    ]
    printed = [each.communicate() for each in started]
    return [(each.returncode, *of) for each, of in zip(started, printed)]
