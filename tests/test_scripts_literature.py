"""scripts/literature.py: recipes, published numbers with sources; the table of the lab."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from literature import at_a_glance

from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe, method_names
from lab.page import lab_table

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "scripts/published.json"
LAB = ROOT / "reports/lab.tsv"


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading, its header first."""
    part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_table_has_every_recipe() -> None:
    text = at_a_glance([load_recipe(name)() for name in method_names()])
    recipes = rows(text, "Recipes")
    assert recipes[0][:3] == ["recipe", "idea", "texts"]
    assert [row[0].strip("`") for row in recipes[2:]] == method_names()
    assert all(len(row) == len(recipes[0]) for row in recipes)
    found = {row[0].strip("`"): row for row in recipes[2:]}
    assert found["clic"][5] == "text"
    assert found["dac"][5] == "both (LoRA)"
    assert found["cs-clip"][2:5] == ["negclip/replace, units", "single", "negclip + 0.5 unit"]
    published = rows(text, "Published numbers")
    assert published[2][0] == "CLIP"
    assert ["cs-clip", "86.9 C"] in [row[:2] for row in published]
    text = at_a_glance([load_recipe(name)() for name in ("fsc-clip", "clip")])
    assert [row[0] for row in rows(text, "Published numbers")[2:]] == ["CLIP", "fsc-clip"]


def test_the_page_is_what_the_script_writes() -> None:
    text = at_a_glance([load_recipe(name)() for name in method_names()])
    written = (ROOT / "docs/literature.md").read_text(encoding="utf-8")
    assert written == f"{text}\n", "run python scripts/literature.py > docs/literature.md"


def test_every_published_number_has_a_source() -> None:
    data = json.loads(PUBLISHED.read_text())
    for method, numbers in data["methods"].items():
        assert set(numbers) <= set(data["columns"]), method
        for cell in numbers.values():
            letters = set(re.findall(r"[A-Z]", cell))
            assert letters, (method, cell)
            assert letters <= set(data["sources"])
            assert re.fullmatch(r"[\d., /A-Z]+", cell)


def test_the_table_of_the_lab_is_read() -> None:
    columns, found = lab_table(LAB)
    assert {"binding", "order", "i2t"} <= set(columns)
    assert {"base", "negclip"} <= set(found)


@pytest.mark.parametrize("content", [None, "", "nothing\n"])
def test_a_file_without_it_is_refused(content: str | None, tmp_path: Path) -> None:
    record = tmp_path / "lab.tsv"
    if content is not None:
        record.write_text(content)
    with pytest.raises(UsageError, match=r"lab\.tsv"):
        lab_table(record)


def test_the_page_names_no_recipe_that_is_not_there() -> None:
    text = (ROOT / "docs" / "literature.md").read_text(encoding="utf-8")
    named = {row[0].strip("`") for row in rows(text, "Recipes")[2:]}
    assert named
    assert named <= set(method_names())
