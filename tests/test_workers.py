"""Worker processes: order, errors, deaths, and that none outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compoclip.errors import CompoclipError, UsageError
from compoclip.workers import Workers, WorkersDiedError, available_cores, threads_each


def double(number: int) -> int:
    """Later ones are done sooner."""
    time.sleep(0.02 * (number % 3 == 0))
    return 2 * number


def process_of(_: object) -> int:
    return os.getpid()


def big(size: int) -> bytes:
    return bytes(size)


class OddError(Exception):
    """Does not survive pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


def fail(kind: str) -> object:
    if kind == "usage":
        raise UsageError("no such thing")
    if kind == "odd":
        raise OddError(1, 2)
    if kind == "system":
        raise OSError(28, "No space left on device")
    return lambda: None


def die_once(mark: Path, number: int) -> int:
    """Be killed at task 1, the first time that it is asked for."""
    if number == 1 and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_in_order_and_tasks_are_drawn_as_needed() -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(40):
            drawn.append(number)
            yield number

    with Workers(2) as workers:
        results = workers.map(double, tasks())
        assert next(results) == 0
        assert len(drawn) <= 9
        assert list(results) == [2 * number for number in range(1, 40)]
        assert sorted(workers.as_done(double, range(7))) == [2 * number for number in range(7)]
        assert list(workers.map(pow, [2, 3], [5, 2])) == [32, 9]
        assert list(workers.map(double, [])) == []
        assert [len(made) for made in workers.map(big, [5_000_000] * 4)] == [5_000_000] * 4


def test_there_are_no_more_workers_than_tasks() -> None:
    with Workers(4) as workers:
        assert len(set(workers.map(process_of, range(1)))) == 1


def test_errors_arrive_as_they_were_and_leave_the_workers_usable() -> None:
    with Workers(2) as workers:
        with pytest.raises(UsageError, match="no such thing") as caught:
            list(workers.map(fail, ["usage", "usage", "usage"]))
        assert "in fail" in str(caught.value.__cause__)
        with pytest.raises(OSError, match="No space left"):
            list(workers.map(fail, ["system"]))
        with pytest.raises(RuntimeError, match="OddError: odd"):
            list(workers.map(fail, ["odd"]))
        with pytest.raises(Exception, match=r"pickle|lambda"):
            list(workers.map(fail, ["lambda"]))
        assert list(workers.map(double, [4])) == [8]


def test_a_worker_that_is_killed_is_replaced_and_its_tasks_done_again(tmp_path: Path) -> None:
    with Workers(2) as workers:
        found = list(workers.map(die_once, [tmp_path / "mark"] * 9, range(9)))
        assert found == list(range(9))
    assert (tmp_path / "mark").exists()


def test_workers_that_die_again_and_again_are_given_up() -> None:
    with Workers(2) as workers, pytest.raises(WorkersDiedError, match="died 4 times in a row"):
        list(workers.map(die, range(3)))
    with (
        Workers(1, retries=0) as workers,
        pytest.raises(CompoclipError, match="died 1 time in a row"),
    ):
        list(workers.as_done(die, range(3)))


def test_a_script_that_starts_itself_in_every_worker_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from compoclip.workers import Workers\n"
        "with Workers(1, retries=0) as workers:\n"
        "    print(list(workers.map(abs, [-1])))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "every worker process runs this script again" in last
    assert 'if __name__ == "__main__":' in last


def test_results_that_nobody_waits_for_do_not_reach_the_next_call() -> None:
    with Workers(2) as workers:
        first = workers.map(double, range(9))
        assert next(first) == 0
        first.close()
        assert list(workers.map(double, [100, 101])) == [200, 202]


def wait_in(folder: Path) -> None:
    """A task that leaves a file while it is under way."""
    place = folder / f"{os.getpid()}.tmp"
    try:
        place.write_text("")  # the signal may come as soon as the file is there
        time.sleep(600)
    finally:
        place.unlink()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, how: int) -> None:
    code = (
        "import sys; from pathlib import Path; from compoclip.workers import Workers\n"
        "from test_workers import wait_in\n"
        "if __name__ == '__main__':\n"
        "    with Workers(1) as workers: list(workers.map(wait_in, [Path(sys.argv[1])] * 2))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env=here,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background
    )
    until(lambda: len(list(tmp_path.glob("*.tmp"))) == 1)
    pids = [int(path.stem) for path in tmp_path.glob("*.tmp")]
    assert not any(map(gone, pids))
    parent.send_signal(how)
    parent.wait(120)
    until(lambda: all(map(gone, pids)))
    assert list(tmp_path.glob("*.tmp")) == []


def cores_of(_: object) -> int:
    return available_cores()


def test_a_worker_has_one_core() -> None:
    assert available_cores() >= 1
    with Workers(1) as workers:
        assert list(workers.map(cores_of, range(1))) == [1]


def test_threads_of_workers_leave_this_process_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with threads_each(2):
        assert [os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")] == ["2", "2"]
    assert dict(os.environ) == before
