"""scripts/front.py: the pages that quote the demo tell of one run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from front import COLUMNS, DEMO, PAGES, PARTS, RECORD, TITLES, rendered

from compoclip.errors import CompoclipError
from compoclip.evaluation.numerals import percent

ROOT = Path(__file__).resolve().parents[1]
RUN = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_tells_of_the_recorded_run(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- front: " in page
    assert page == rendered(page, RUN), "run python scripts/front.py"


@pytest.mark.parametrize("name", [name for name in PAGES if name != "docs/compo.md"])
def test_scores_stand_in_recorded_parts_alone(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    prose = re.sub(r"<!-- front: .*?<!-- end -->|```.*?```|`[^`]*`", "", page, flags=re.DOTALL)
    scores = [number for number in re.findall(r"\b\d+\.\d\b", prose) if number != "3.0"]
    assert not scores


def test_the_record_is_whole() -> None:
    assert [column["title"] for column in RUN["columns"]] == [column.title for column in COLUMNS]
    for column in RUN["columns"]:
        assert column["scores"].keys() == TITLES.keys()
        assert column["changes"].keys() == {*DEMO} - {"base"}
        for score in column["scores"].values():
            assert 0 <= score["low"] <= score["value"] <= score["high"] <= 1
    for name, change in RUN["gain_changes"].items():
        gained = RUN["gains"][name]["value"] - RUN["gains"]["base"]["value"]
        assert change["difference"] == pytest.approx(gained)


def test_the_recipe_to_begin_with_is_the_best_of_the_run() -> None:
    best = RUN["best"]
    assert RUN["gains"][best]["value"] == max(gain["value"] for gain in RUN["gains"].values())
    for change in RUN["from_best"].values():
        assert change["difference"] < 0
    assert RUN["texts"][best] > 0


def test_a_part_that_is_not_known_is_refused() -> None:
    with pytest.raises(CompoclipError, match="nothing: no such part; one of headline table"):
        rendered("<!-- front: nothing -->\n<!-- end -->\n", RUN)


@pytest.mark.parametrize(
    ("picture", "tuned"),
    [
        ("before-after", "negclip"),
        ("before-after-phone", "negclip"),
        ("gallery-negclip", "negclip"),
        ("gallery-compo", "compo"),
    ],
)
def test_pictures_have_the_scores_of_the_recorded_run(picture: str, tuned: str) -> None:
    """They are drawn by scripts/before_after.py of the results of the run."""
    drawn = (ROOT / "docs" / f"{picture}.svg").read_text(encoding="utf-8")
    (column,) = (column for column in RUN["columns"] if column["title"] == "exchanged colours")
    base, other = (percent(column["scores"][name]["value"]) for name in ("base", tuned))
    rate = re.sub(r"<[^>]*>", " ", drawn)
    assert re.search(rf"bind_colour.* {base} .* {other} ", rate, re.DOTALL)


def test_costs_stand_beside_gains() -> None:
    for sentence in PARTS["gains and costs"](RUN).splitlines():
        assert "retrieval in the old vocabulary by " in sentence
        assert "exchanged colours by " in sentence
        assert sentence.count(" to ") == 4
