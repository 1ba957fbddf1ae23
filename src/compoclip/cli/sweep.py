"""`compoclip sweep METHOD --grid NAME=VALUES ...`: many runs, one table, one report."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from compoclip import console
from compoclip.cli.train import CONFIG_FILE, called
from compoclip.config import options_of
from compoclip.errors import UsageError
from compoclip.files import only_writer, require_writable, write_text
from compoclip.request import TrainRequest
from compoclip.run import evaluate
from compoclip.sweep import SweepOptions, measuring_of, sweep


def main(argv: Sequence[str]) -> int:
    """Parse, train and measure every run, print the table; 1 when a run failed."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: compoclip sweep METHOD --data DATA --grid NAME=VALUE,VALUE ... --out OUT\n")
        print("Train with every combination of values and compare the runs.\n\nExample:")
        print("    compoclip sweep fsc-clip --data coco.csv --grid lr=1e-6,5e-6 --out sweeps/lr")
        print("\n`compoclip sweep METHOD --help` lists all options.")
        return 0 if argv else 2
    own = options_of(SweepOptions)
    without = ("resume", "stop_after", "push_to_hub")
    method, values = called(argv, "sweep", (CONFIG_FILE, *own.values()), without)
    options = SweepOptions(**{name: values.pop(name) for name in own if name in values})
    return start(options, TrainRequest.of(method, values))


def start(options: SweepOptions, request: TrainRequest) -> int:
    """Execute the sweep; write OUT/sweep.csv and OUT/report.html, print the table."""
    run, out = request.options, request.options.out
    require_writable(out)
    measuring = measuring_of(run, out)
    names = [each.name for each in measuring.benchmarks()] if run.on else []
    by = options.sort_by or next(iter(names), "loss")
    if by not in (*names, "loss"):
        raise UsageError(f"--sort-by {by}: there is {', '.join([*names, 'loss'])}")

    def rank(line: dict[str, Any]) -> tuple[bool, float, str]:
        score = line["loss"] if by == "loss" else -line["scores"].get(by, 0)
        return bool(line["error"]), score or 0.0, line["name"]

    with only_writer(out, folder=True):
        lines = sorted(sweep(options, request, by), key=rank)
        scored = ["base", *(each["name"] for each in lines if each["scores"])]
        if len(scored) > 1:
            from compoclip.report.write import write_report

            evaluate(measuring, {"base": run.model})
            runs = [out / "runs" / name for name in scored[1:]]
            results = [out / "results" / name for name in scored]
            write_report(results, out / "report.html", runs=runs, base="base", title="Sweep")
    varied = [*lines[0]["point"]]
    rows = [
        [
            each["name"],
            *(str(each["point"][name]) for name in varied),
            "failed" if each["error"] else f"{each['loss']:.4f}",
            *(f"{100 * each['scores'][n]:.1f}" if n in each["scores"] else "-" for n in names),
        ]
        for each in lines
    ]
    header = ["run", *varied, "loss", *names]
    text = io.StringIO()
    errors = ["error", *(each["error"] for each in lines)]
    csv.writer(text).writerows([*row, e] for row, e in zip([header, *rows], errors))
    write_text(out / "sweep.csv", text.getvalue())
    table = console.table([row[1:] for row in rows], header[1:], left=len(varied))
    failed = [each for each in lines if each["error"]]
    best = f"best by {by}: {out / 'runs' / lines[0]['name']}"
    console.tell(run.json, {"runs": lines, "sorted_by": by}, f"{table}\n{best}")
    if failed:
        console.note(f"{console.counted(len(failed), 'run')} failed; the same command tries again")
    return 1 if failed else 0
