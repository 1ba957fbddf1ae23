"""`compoclip cache`: sizes of what is kept, and its removal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compoclip.captions.store import ParseStore
from compoclip.cli.main import main
from compoclip.files import cache_folder, cache_paths, write_cache

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main(["cache", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("user_cache")
def test_what_is_kept_is_measured_and_removed(tmp_path: Path, capsys: Capture) -> None:
    nothing = {"parses": 0, "features": 0, "indexes": 0}
    assert shown(capsys) == {"folder": str(cache_folder()), "bytes": nothing, "cleared": []}
    store = cache_folder() / "parses.sqlite"
    ParseStore(store).get_or_parse("a red star above a blue mug")
    part = cache_folder() / "features" / "abc" / "part-0.bin"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    index = cache_paths(tmp_path / "data.jsonl", ".lines")[1]
    index.write_bytes(bytes(20))
    found = shown(capsys)["bytes"]
    assert found["parses"] >= store.stat().st_size > 0
    assert (found["features"], found["indexes"]) == (1000, 20)
    # One kind alone; what is there stays of use.
    assert shown(capsys, "--clear=features")["cleared"] == ["features"]
    assert shown(capsys)["bytes"] == {**found, "features": 0}
    assert not part.exists()
    assert main(["cache", "--clear=all"]) == 0
    out = capsys.readouterr().out
    assert out.count("removed") == 3
    assert out.splitlines()[-1].endswith(str(cache_folder()))
    assert shown(capsys)["bytes"] == nothing
    # The store makes itself anew.
    assert ParseStore(store).get_or_parse("a red star").text == "a red star"


@pytest.mark.usefixtures("user_cache")
def test_an_index_beside_its_data_is_none_of_it(tmp_path: Path, capsys: Capture) -> None:
    place = write_cache(tmp_path / "data.jsonl", ".lines", lambda path: path.write_bytes(b"1"))
    assert shown(capsys, "--clear=all")["bytes"]["indexes"] == 0
    assert place.is_file()
