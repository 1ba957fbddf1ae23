"""Runs a command for `harness.run_process`, and writes what it took: LIMIT RESULT COMMAND...

The memory that the system reports of a process begins with that of the one that started it. So the
commands are started by this small process, not by the stage, which has imported torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from compoclip.interrupts import PARENT, end_with_parent


def main(limit: float, result: Path, command: list[str]) -> None:
    """Run the command, kill it after `limit` seconds, and write a JSON record."""
    end_with_parent()
    start = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, PARENT: str(os.getpid())})
    timer = threading.Timer(limit, process.kill)
    timer.daemon = True
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    record = {
        "seconds": time.monotonic() - start,
        "processor": usage.ru_utime + usage.ru_stime,
        "peak_bytes": 1024 * usage.ru_maxrss,
        "code": process.returncode,
    }
    result.write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
