"""`compoclip towers BASE TUNED`: which tower carries what fine-tuning gained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from compoclip import console
from compoclip.cli.measuring import Measuring, benchmarks_of, settings_of
from compoclip.cli.options import joined, parse
from compoclip.cli.wise_ft import load_both
from compoclip.places import require_writable

if TYPE_CHECKING:
    from compoclip.analysis.towers import TowerStudy


@dataclass(frozen=True)
class TowersOptions:
    """Put each tuned tower beside the other tower of the base, and measure all four models.

    base, tuned, "tuned-image" (image tower of TUNED, text tower of BASE) and "tuned-text" (the
    other way round), with intervals and paired differences to the base. The last column is what
    both towers do together beyond the sum of what each does alone. OUT/results holds ordinary
    results for compare and report, OUT/towers.json all numbers. Each tower is encoded once, and an
    interrupted run goes on where it stopped.

    Example:
        compoclip towers bundled runs/fsc/model --on suite/ --out towers

    Args:
        base: The model that training started from, written as for evaluate.
        tuned: The fine-tuned model.
        out: Folder for results and numbers.
        json: Print the numbers as JSON.
    """

    base: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BASE")]
    tuned: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TUNED")]
    out: Path
    measuring: Measuring = field(default_factory=Measuring)
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, measure base, tuned and both swaps, print."""
    options = parse(TowersOptions, "towers", joined(argv, "--on"))
    require_writable(options.out)
    benchmarks = benchmarks_of(options.measuring)
    from compoclip.analysis.mixes import Pair
    from compoclip.analysis.towers import study_towers, towers_record
    from compoclip.files import write_atomically

    settings, device = settings_of(options.measuring, options.out / ".features")
    pair = Pair(*load_both(options.base, options.tuned))
    study = study_towers(pair, benchmarks, options.out / "results", settings, device)
    record = {"base": options.base, "tuned": options.tuned, "groups": towers_record(study)}
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    write_atomically(
        options.out / "towers.json", lambda place: place.write_text(text, encoding="utf-8")
    )
    if options.json:
        console.emit_json(record)
    else:
        print(_scores(study))
        print(f"\n{_differences(study)}")
    return 0


def _scores(study: TowerStudy) -> str:
    from compoclip.evaluation.layout import bracketed
    from compoclip.evaluation.tables import percent

    rows = [
        [
            group,
            *(
                f"{percent(s.value)} {bracketed(s.low, s.high)}"
                for s in (found[group] for found in study.scores.values())
            ),
        ]
        for group in study.groups
    ]
    means = [
        f"{group}: mean of {', '.join(dict.fromkeys(part.benchmark for part in parts))}"
        for group, parts in study.groups.items()
        if len(parts) > 1
    ]
    return "\n".join([console.table(rows, ["score", *study.scores]), *means])


def _differences(study: TowerStudy) -> str:
    from compoclip.evaluation.compare import not_judged

    rows = []
    for group in study.groups:
        found = [each[group] for each in study.differences.values()]
        more = study.interplay[group]
        rows.append(
            [
                group,
                *(_points(d.difference, d.low, d.high, d.verdict) for d in found),
                _points(more.value, more.low, more.high, ""),
            ]
        )
    header = ["against the base, points", *study.differences, "beyond the sum"]
    note = "+ / -: p < 0.05, paired, after Holm's correction over the rows of a model"
    few = not_judged(each for found in study.differences.values() for each in found.items())
    return "\n".join([console.table(rows, header), note, *few])


def _points(value: float, low: float | None, high: float | None, verdict: str) -> str:
    from compoclip.evaluation.layout import bracketed

    mark = {"higher": "+", "lower": "-"}.get(verdict, " ")
    return f"{100 * value:+.1f} {bracketed(low, high, '+')}{mark}"
