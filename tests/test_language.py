"""Patterns of English that have to be read twice stay out of pages, docstrings and messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = sorted(path for top in ("src", "world/src") for path in (ROOT / top).rglob("*.py"))
THINGS = "texts?|captions?|items?|images?|rows?|negatives?|positives?|files?|steps?|pairs?|rates?"
UNITS = "image|caption|photo|text|step|row|sub-task|sample|task|batch|layer|model|second"
NUMBER = rf"\b(one|two|three|four|ten|\d+) (\w+ )?({THINGS}) an? ({UNITS})\b"
EVERYWHERE = {  # pattern: what to write
    NUMBER: "per, not a",
    r"\bthat there (is|are) not\b": "unknown X",
    r"\bin the place of\b": "instead of",
    r"\bshown absent\b": "equivalent within the margin",
    r"\bwhat is (kept|learnt|held|told)\b": "the name of the thing",
    r"\blearnt\b": "learned, or gains",
}
OF_PAGES = {
    r"\b(those|that) of\b": "the name of the thing",
    r"\bthere (is|are) none\b|\b(is|are) none\b": "what there is, or that there is no X",
    r"\bgo(es|ing) on\b": "resumes, continues",
}
AS_A_WHOLE = re.compile(r"\s*(What|Whether|Those|That|The same)\b")


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the texts that stand alone: docstrings, also of attributes and of constants."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def messages(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the texts in what is raised, and in what `note` logs."""
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("note")
        if isinstance(node, ast.Raise) or called:
            for each in ast.walk(node):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each


@cache
def texts_of(path: Path) -> tuple[list[ast.Constant], list[ast.Constant]]:
    """Return the docstrings of a module, and its messages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [*docstrings(tree)], [*messages(tree)]


@pytest.mark.parametrize("pattern", [*EVERYWHERE, *OF_PAGES])
def test_pages_are_plain(pattern: str) -> None:
    found = [
        f"{page.relative_to(ROOT)}: {match[0]!r} (write {(EVERYWHERE | OF_PAGES)[pattern]})"
        for page in PAGES
        for match in re.finditer(pattern, page.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_docstrings_and_messages_are_plain() -> None:
    faults = []
    for path in CODE:
        for node in (*texts_of(path)[0], *texts_of(path)[1]):
            text = " ".join(str(node.value).split())
            faults += [
                f"{path.relative_to(ROOT)}:{node.lineno}: {match[0]!r} (write {plain})"
                for pattern, plain in EVERYWHERE.items()
                for match in re.finditer(pattern, text)
            ]
    assert faults == []


def test_docstrings_begin_with_a_verb_or_a_name() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {str(node.value)[:60]}"
        for path in CODE
        for node in texts_of(path)[0]
        if AS_A_WHOLE.match(str(node.value))
    ]
    assert faults == []


def test_the_checks_find_what_they_look_for() -> None:
    tree = ast.parse(
        'X = 1\n"""Whether it is."""\nraise E(f"{a} has two files a model")\nnote("x")'
    )
    assert [AS_A_WHOLE.match(str(each.value)) is not None for each in docstrings(tree)] == [True]
    texts = [str(each.value) for each in messages(tree)]
    assert texts == [" has two files a model", "x"]
    assert re.search(NUMBER, texts[0])
