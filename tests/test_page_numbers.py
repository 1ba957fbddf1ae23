"""Every measured number of a page of results stands in a report, where its protocol is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Page -> its reports, and the numbers that no table has: sizes of runs, differences of columns.
PAGES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "docs/lab.md": (("lab", "effort", "probes"), {"4.0", "14.1", "99.8"}),
    "docs/real-photos.md": (("real-photos", "effort-photos", "probes"), set()),
    "docs/compo.md": (("compo", "lab", "effort", "real-photos", "demo"), {"32,000"}),
    "docs/base-model.md": (
        ("base-model",),
        {"0.1", "6.4", "12.9", "11.0", "13.1", "160,000", "60,000", "11,500", "20,000", "45,000"},
    ),
    "docs/demo.md": (("demo", "base-model", "compo", "lab"), set()),
    "docs/parser.md": (("parser",), set()),
    "docs/analysis.md": (("analysis",), set()),
    "docs/rescoring.md": (("rescoring",), set()),
    "docs/guide/tune.md": (("tune",), set()),
}

_FRONT = re.compile(r"<!-- front:.*?<!-- end -->", re.DOTALL)  # checked against docs/front.json
_NO_PROSE = re.compile(r"```.*?```|\]\([^)]*\)|`[^`]*`", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.,/-])(?:\d+\.\d+|\d{1,3}(?:,\d{3})+)(?![\w.])")
_DIGITS = re.compile(r"\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> set[str]:
    """Return what is written with a decimal point or a comma, outside of code and links."""
    return set(_NUMBER.findall(_NO_PROSE.sub("", _FRONT.sub("", text))))


@pytest.mark.parametrize("page", PAGES)
def test_numbers_of_a_page_stand_in_its_reports(page: str) -> None:
    reports, constants = PAGES[page]
    recorded = constants.copy()
    for name in reports:
        files = [ROOT / "reports" / f"{name}{ending}" for ending in (".md", ".tsv")]
        for text in (file.read_text(encoding="utf-8") for file in files if file.exists()):
            recorded.update(number.rstrip(",") for number in _DIGITS.findall(text))
    stated = numbers((ROOT / page).read_text(encoding="utf-8"))
    assert stated
    assert sorted(stated - recorded) == []


def test_a_number_that_no_report_has_is_found() -> None:
    text = (
        "Binding is 61.2 (`--lr 0.5`), [see](a-1.5.md) 1,204 steps; version 2.10.1.\n```\n9.9\n```"
    )
    assert numbers(text) == {"61.2", "1,204"}
