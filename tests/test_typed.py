"""One reading of values from outside: what is of a type, and the sentence for what is not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from compoclip.errors import CompoclipError
from compoclip.typed import Count, Natural, Within, build, is_a, read_fields, require_kind


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (str, ("", "é"), (None, 1, b"a", "\ud800", "a\0b")),
        (int, (0, -1, np.int64(3)), (True, 1.0, "1", None)),
        (float, (0, 1.5, np.float32(1)), (True, math.nan, math.inf, 10**400, "1", 1j)),
        (bool, (True,), (1, 0, "true", None)),
        (None, (None,), (0, False, "")),
        (object, (None, 3, "a"), ()),
        (Any, (None, 3, "a"), ()),
        (Path, (Path("a"),), ("a", Path("a\0"))),
        (Literal["a", "b"], ("a",), ("c", None, 1)),
        (int | None, (1, None), ("", 1.5)),
        (list[str], ([], ["a"]), (("a",), "a", [1], ["\ud800"], [None])),
        (list[str | None], (["a", None],), ([1],)),
        (tuple[int, ...], ((), (1,)), ([1], (1.5,))),
        (dict[str, float], ({}, {"a": 1}), ([], {"a": None}, {1: 1.0}, {"a": math.nan})),
        (dict[str, list[int]], ({"a": [1]},), ({"a": 1}, {"a": [True]})),
    ],
)
def test_values_are_of_a_type_or_not(
    kind: Any, good: tuple[Any, ...], bad: tuple[Any, ...]
) -> None:
    assert [value for value in good if not is_a(value, kind)] == []
    assert [value for value in bad if is_a(value, kind)] == []


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        (3, str, "f: x must be a text, found 3 (int); mend it"),
        ([1], list[str], "f: x must be a list of texts, found [1] (list); mend it"),
        ([1], dict[str, int], "f: x must be an object, found [1] (list); mend it"),
        ("a", int | None, "f: x must be a whole number or null, found 'a' (str); mend it"),
        ("c", Literal["a", "b"], "f: x must be one of a, b, found 'c' (str); mend it"),
        (-1, Natural, "f: x must not be negative, found -1 (int); mend it"),
        ((0, -1), tuple[Natural, ...], "f: x must not be negative, found -1 (int); mend it"),
        (0, Count, "f: x must be at least 1, found 0 (int); mend it"),
        (
            2,
            Annotated[float, Within(0, 1)],
            "f: x must lie between 0 and 1, found 2 (int); mend it",
        ),
    ],
)
def test_one_sentence_names_place_type_value_and_remedy(
    value: object, kind: Any, sentence: str
) -> None:
    with pytest.raises(CompoclipError) as error:
        require_kind("f: x", value, kind, "mend it")
    assert str(error.value) == sentence


def test_a_number_beyond_all_others_is_out_of_range() -> None:
    with pytest.raises(CompoclipError, match=r"f: x must lie between 0 and 5, found 1000"):
        require_kind("f: x", 10**400, Annotated[int, Within(0, 5)], "mend it")
    with pytest.raises(CompoclipError, match=r"f: inner.count is 1000.* too large to be exact"):
        build(_Outer, {"inner": {"count": 10**400}}, "f", "mend it")


def test_a_long_value_is_cut() -> None:
    with pytest.raises(CompoclipError) as error:
        require_kind("f: x", "a" * 10_000, int, "mend it")
    assert len(str(error.value)) < 150


def test_fields_of_a_record() -> None:
    kinds: dict[str, Any] = {
        "image": str,
        "captions": list[str],
        "split": str | None,
        "raw": object,
    }
    row = {"image": "a.jpg", "captions": ["a"], "raw": 3, "more": 1}
    assert read_fields(row, kinds, "f, row 1") == {**row, "split": None}
    for change, words in (
        ({"captions": "a"}, "f, row 1: 'captions' must be a list of texts, found 'a' (str); "),
        ({"split": 3}, "f, row 1: 'split' must be a text or null, found 3 (int); "),
    ):
        with pytest.raises(CompoclipError) as error:
            read_fields({**row, **change}, kinds, "f, row 1", "mend it")
        assert str(error.value) == f"{words}mend it"
    for damaged, words in (({"image": "a"}, "image"), ([], "[] (list)"), (None, "None (NoneType)")):
        with pytest.raises(CompoclipError) as error:
            read_fields(damaged, kinds, "f, row 1", "mend it")
        sentence = f"f, row 1 needs image, captions, raw; it has: {words}; mend it"
        assert str(error.value) == sentence


@dataclass(frozen=True)
class _Inner:
    count: Natural
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Outer:
    inner: _Inner
    scores: dict[str, float] = field(default_factory=dict)
    last: _Inner | None = None


def test_objects_become_dataclasses_and_errors_name_the_place() -> None:
    data = {"inner": {"count": 1, "names": ["a"]}, "scores": {"b": 2}, "last": None}
    built = build(_Outer, data, "f", "mend it")
    assert built == _Outer(_Inner(1, ("a",)), {"b": 2.0})
    assert type(built.scores["b"]) is float
    for change, words in (
        ({"inner": {"count": -1}}, "inner.count must not be negative, found -1 (int)"),
        ({"inner": {"count": 2**60}}, f"inner.count is {2**60} (int), too large to be exact"),
        (
            {"inner": {"count": 1, "names": ["a", 3]}},
            "inner.names[1] must be a text, found 3 (int)",
        ),
        ({"inner": {}}, "inner: no field 'count'"),
        ({"inner": 3}, "inner must be an object, found 3 (int)"),
        ({"more": 1}, "unknown field 'more' (str)"),
        ({"scores": {"b": math.nan}}, "scores.b must be a number, found nan (float)"),
        ({"last": 3}, "last must be an object, found 3 (int)"),
    ):
        with pytest.raises(CompoclipError) as error:
            build(_Outer, {**data, **change}, "f", "mend it")
        assert str(error.value) == f"f: {words}; mend it"
