"""`compoclip sweep METHOD --grid NAME=VALUES ...`: many runs, one table, one report."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from compoclip import console
from compoclip.cli.train import Called, ConfigFile
from compoclip.config import OptionMark, one_line, options_of
from compoclip.request import TrainRequest
from compoclip.run import TrainOptions
from compoclip.sweep import (
    BASE,
    TABLE,
    SweepOptions,
    SweepTable,
    held_options,
    own_options,
    sweep,
)


def main(argv: Sequence[str]) -> int:
    """Parse, train and measure every run, print the table; 1 when a run failed."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    own, held = own_options(), held_options()
    called = Called.by(argv, "sweep", own, set(held) - set(own))
    called = replace(called, rest={name: _texts(value) for name, value in called.rest.items()})

    def parsed(
        options: SweepOptions, run: TrainOptions, method: dict[str, Any], config: ConfigFile = None
    ) -> int:
        return start(options, called.request(with_shared(run, options), method))

    # The rest of the docstring heads the options of the sweep.
    examples = (inspect.getdoc(SweepOptions) or "").partition("\nArgs:")[0].partition("Examples:")
    about = "".join(examples[1:]).strip()
    return called.understood(parsed, f"compoclip sweep {called.name}", about, held, own)


def usage() -> str:
    """The text of `compoclip sweep --help`."""
    return "\n".join(
        [
            "usage: compoclip sweep METHOD --data DATA --grid NAME=VALUE,VALUE ... --out OUT",
            "       compoclip sweep --config FILE    (docs/guide/configuration.md)",
            "       compoclip sweep METHOD --help lists all options, those of train among them",
            "",
            "trains a method with every combination of values, measures each run on --on",
            "BENCHMARK ..., and writes one table and one report; the same command goes on",
        ]
    )


def _texts(value: Any) -> Any:
    """A mapping of a file, NAME: VALUES, as the command line spells it; all else as it is."""
    if not isinstance(value, dict):
        return value
    return tuple(
        f"{name}={each if isinstance(each, str) else one_line(_listed(each))}"
        for name, each in value.items()
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def start(options: SweepOptions, request: TrainRequest) -> int:
    """Carry out the sweep, print its table; returns the exit code."""
    table = sweep(options, request)
    if options.json:
        console.emit_json(_record(options.out, table))
    else:
        _show(options.out, table)
    return 1 if table.failed else 0


def _show(out: Path, table: SweepTable) -> None:
    """The table without the names of runs, which their values tell, and where everything is."""
    rows = [
        row[1:] if each.name != BASE else [BASE, *row[2:]]
        for row, each in zip(table.rows, table.lines)
    ]
    print(console.table(rows, table.header[1:], left=len(table.varied)))
    if table.best is not None:
        print(f"best by {table.sort_by}: {out / 'runs' / table.best}")
    print(f"table: {out / TABLE}{f'   report: {table.report}' if table.report else ''}")
    for each in table.failed:
        console.note(f"{each.name} failed: {each.error}")
    if table.failed:
        many = console.counted(len(table.failed), "run")
        console.note(f"{many} failed; the same command tries again")


def _record(out: Path, table: SweepTable) -> Any:
    """The same for --json."""
    runs = [
        {**vars(each), "folder": None if each.name == BASE else str(out / "runs" / each.name)}
        for each in table.lines
    ]
    place = str(table.report) if table.report else None
    return _plain({"runs": runs, "sorted_by": table.sort_by, "report": place})


def _plain(value: Any) -> Any:
    """A value in the types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def with_shared(run: TrainOptions, sweep: SweepOptions) -> TrainOptions:
    """The options of the run, with those that a sweep has, too, where the run makes use of them.

    It does when another option that is declared with them is given: a benchmark to measure on is
    passed on to a run that measures while it trains.
    """
    known = {each.name for each in fields(sweep)}
    options = options_of(type(run))
    own = {name for name in known & {*options} if not options[name].marked(OptionMark.ONCE)}
    for declaring in type(run).__mro__:
        names = set(inspect.get_annotations(declaring))
        shared = names & own
        asked = any(getattr(run, name) != options[name].default for name in names - known)
        if shared and asked:
            run = replace(run, **{name: getattr(sweep, name) for name in shared})
    return run
