"""scripts/before_after.py: the picture holds what the results say and needs no other file."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from before_after import main

from compoclip.errors import CompoclipError
from report_study import make_study


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    return make_study(folder, photos=80, models=("base", "negclip"), resamples=20)


def test_items_before_and_after(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "items.svg"
    argv = [str(results / "base"), str(results / "negclip"), "-o", str(out)]
    assert main([*argv, "--skills", "binding", "attribute", "--count", "2"]) == 0
    text = out.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert len(re.findall("<image ", text)) == text.count('href="data:image/') == 2
    assert text.count("✗ wrong") == text.count("✓ right") == 2
    assert text.count(">base<") == text.count(">negclip<") == 2
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    rates = re.findall(r">\w+: ([\d.]+) → ([\d.]+) % of 80 items<", text)
    assert len(rates) == 2
    assert all(float(base) < float(tuned) for base, tuned in rates)
    assert main([*argv, "--skills", "binding", "--count", "1", "--narrow"]) == 0
    narrow = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    assert narrow.attrib["width"] == "400"
    words = " ".join(narrow.itertext())
    assert words.count("✗ wrong") == words.count("✓ right") == 1
    with pytest.raises(CompoclipError, match="negclip is not significantly worse than base"):
        main([*argv, "--lost"])
    with pytest.raises(CompoclipError, match="--skills nothing: has "):
        main([*argv, "--skills", "nothing"])


def test_photos_that_have_moved(results: Path, tmp_path: Path) -> None:
    argv = [str(results / "base"), str(results / "negclip"), "-o", str(tmp_path / "a.svg")]
    argv += ["--skills", "binding"]
    photos, away = results.parent / "photos", tmp_path / "elsewhere" / "photos"
    away.parent.mkdir()
    photos.rename(away)
    try:
        with pytest.raises(CompoclipError, match="photos cannot be read; name their folder"):
            main(argv)
        assert main([*argv, "--images", str(away.parent)]) == 0
    finally:
        away.rename(photos)
