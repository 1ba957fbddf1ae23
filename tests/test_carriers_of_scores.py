"""The carriers of a score: the classes that an item passes from an official file to a table."""

from __future__ import annotations

import re
import sys
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from benchmark_files import red_cubes, write_mini
from compoclip.benchmarks.targets import parse_targets
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.results import load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.tables import results_table
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from evaluation_helpers import TINY

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
ROOMS = ("compoclip.benchmarks.", "compoclip.evaluation.", "compoclip.report.")
TOOLS = {
    "what is known of a benchmark before a file is read": {
        *("CaseReader", "File", "Meta", "RemoteFile", "Target", "ZeroShotSet"),
    },
    "where photos lie, and which photo a case names": {"ImageRef", "_Folders"},
    "settings": {"Bootstrap", "Options"},
    "what encodes": {"Damaged", "FeatureStore", "ImageReader", "ModelEncoder", "TextKey"},
    "what judges": {"ItemForm"},
    "rules: which items a score averages": {"Aggregate", "MeanNode"},
    "what keeps tables that were read": {"_ReadTable"},
    "the comparison with guessing, which gives the remark behind a score": {
        *("Difference", "Evidence", "Pair", "ScorePart"),
    },
}
"""Classes that are met on the way and hold no item: by what they are for."""


class Met:
    """Notes the classes of the rooms whose objects functions of these rooms get or return."""

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Look at a call or a return, as `sys.setprofile` asks for."""
        if event == "return":  # also of generated constructors, which belong to no module
            self.note(value)
            self.note(frame.f_locals.get("self"))
        elif event == "call" and str(frame.f_globals.get("__name__")).startswith(ROOMS):
            code = frame.f_code
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                self.note(frame.f_locals.get(name))

    def note(self, value: Any, depth: int = 2) -> None:
        """Note the class of a value, and of the first that a list, tuple or mapping holds."""
        kind = type(value)
        if kind.__module__.startswith(ROOMS) and not issubclass(kind, Enum):
            self.classes[kind.__name__] = kind
        if depth and isinstance(value, list | tuple | dict):
            # One class warns in its own `values`, so the one of dict is called.
            inner = dict.values(value) if isinstance(value, dict) else value
            for one in [*inner][:2]:
                self.note(one, depth - 1)


def test_a_score_passes_through_the_carriers_of_the_page_alone(tmp_path: Path) -> None:
    chain = re.search(r"^    record -> (Row -> .*) -> row of a table$", PAGE.read_text(), re.M)
    assert chain is not None
    carriers = chain[1].split(" -> ")
    assert len(carriers) == 9
    root = write_mini(tmp_path / "data", 5, **red_cubes(5))
    encoder = ModelEncoder(create_model(ModelConfig(TINY), seed=3))
    met, before = Met(), sys.getprofile()
    sys.setprofile(met)
    try:
        (target,) = parse_targets(["sugarcrepe"], root)
        benchmark = target.load()
        evaluate("tiny", encoder, [benchmark], tmp_path / "out", Options(resamples=20))
        (results,) = load_results(tmp_path / "out")
        page = results_table(results).text()
    finally:
        sys.setprofile(before)
    expected = {*carriers}.union(*TOOLS.values())
    names = {
        next((base.__name__ for base in kind.__mro__ if base.__name__ in expected), name)
        for name, kind in met.classes.items()
    }
    unknown = names - expected
    advice = "carries a score: remove it, or add it to docs/architecture.md or to TOOLS"
    assert not unknown, f"{', '.join(sorted(unknown))} {advice}"
    assert {*carriers} <= names

    # One item by hand: its texts, its scores, the mean of its sub-task and the row that is printed.
    items = load_items(results).to_pylist()
    (case, *_) = benchmark.content.cases
    (item,) = (row for row in items if row["item"] == case.id)
    assert (item["texts"], item["subtask"]) == ([*case.texts], case.subtask)
    assert item["used.accuracy"] == float(item["scores"][0] > item["scores"][1])
    outcomes = [row["used.accuracy"] for row in items if row["subtask"] == case.subtask]
    mean = sum(outcomes) / len(outcomes)
    (printed,) = (line.split() for line in page.splitlines() if line.startswith(case.subtask))
    assert printed[:3] == [case.subtask, "accuracy", f"{100 * mean:.1f}"]
