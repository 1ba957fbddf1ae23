"""scripts/site_hooks.py: faults of a built site are found, formulas drawn, llms.txt written."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("latex2mathml", reason="needs the extra docs")

from markdown import markdown
from mkdocs.exceptions import PluginError
from site_hooks import FormulaExtension, on_post_build


def test_a_site_with_faults_is_refused(tmp_path: Path) -> None:
    site, docs = tmp_path / "site", tmp_path / "docs"
    site.mkdir()
    docs.mkdir()
    (docs / "a.md").write_text("# Page A\n")
    config = {"site_dir": site, "docs_dir": docs, "site_name": "n", "site_description": "d"}
    (site / "a.html").write_text('<h1 id="top">A</h1><a href="a.html#top">x</a><a href="b:c">y</a>')
    on_post_build(config)
    assert "- [Page A](a.html)" in (site / "llms.txt").read_text()
    (site / "b.html").write_text('<a href="no.html"></a><a href="a.html#no"></a>.. math:: x')
    with pytest.raises(PluginError) as caught:
        on_post_build(config)
    for fault in ("a formula is not drawn", "no.html: no such file", "a.html#no: no such anchor"):
        assert f"b.html: {fault}" in str(caught.value)


def test_formulas_become_mathml() -> None:
    text = markdown(
        "Sum:\n\n.. math:: x^2\n\nEnd.\n\n    .. math::\n        y\n",
        extensions=[FormulaExtension()],
    )
    assert text.count("<math ") == 2
    assert ".. math::" not in text
