"""`python -m bench peers`: what is compared, when a peer fails, and what our commands do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import peer_programs, peers
from bench.peer_data import PARTS, PeerData
from bench.peer_programs import NUMBERS, SECONDS, losses_of, scores_of_photos
from bench.peers import OURS, PEERS, READERS, WORKS, Measured, Task, Way, Work, compare
from compoclip.cli.main import main as compoclip
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import ModelConfig
from models_thin import config

PYTHON = Path(sys.executable)
TOOL = """
import json, sys
from pathlib import Path
score, code = sys.argv[1:]
Path("numbers.json").write_text(json.dumps({"a": float(score), "b": 0.5}))
sys.exit(code if code != "0" else 0)
"""


@pytest.fixture
def data(tmp_path: Path) -> Any:
    """Data whose script writes a number, and ends with a message unless that is "0"."""
    script = tmp_path / "tool.py"
    script.write_text(TOOL)
    return SimpleNamespace(script=script)


def test_tools_run_in_turns_and_the_failing_ones_say_why(data: Any, tmp_path: Path) -> None:
    task = Task(
        "a work",
        1e-6,
        [
            Way(OURS, ["{data.script} 0.25 0"]),
            Way("equal", ["{data.script} 9 0", "{data.script} 0.25 0"], differs="twice"),
            Way("broken", ["{data.script} 0.25 'no such file'"]),
            Way("silent", ["{data.script} 0.25 0"], read="log"),
            Way("absent", ["{data.script} 0.25 0"]),
            Way("not asked for", ["{data.script} 0.25 0"]),
        ],
    )
    tools: dict[str, Path | str] = dict.fromkeys((OURS, "equal", "broken", "silent"), PYTHON)
    tools["absent"] = "cannot be installed"
    results = {m.tool: m for m in peers.measure_work(task, tools, data, 2, tmp_path)}
    assert list(results) == [*tools]
    assert [len(result.seconds) for result in results.values()] == [2, 2, 0, 0, 0]
    assert results["equal"].numbers == results[OURS].numbers == {"a": 0.25, "b": 0.5}
    assert results["equal"].seconds[0] > 0 < results["equal"].gigabytes
    assert results["broken"].problem == "no such file"
    assert "cannot be read" in results["silent"].problem
    assert results["absent"].problem == "cannot be installed"
    assert [path.name for path in tmp_path.iterdir()] == ["tool.py"]


def test_the_seconds_that_a_program_names_count(data: Any, tmp_path: Path) -> None:
    data.script.write_text(TOOL.replace('"b": 0.5', f'"{SECONDS}": 77.0'))
    task = Task("a work", 1e-6, [Way(OURS, ["{data.script} 0.25 0"])])
    (result,) = peers.measure_work(task, {OURS: PYTHON}, data, 1, tmp_path)
    assert (result.seconds, result.numbers) == ([77.0], {"a": 0.25})


def test_medians_spreads_and_differences_are_in_the_rows() -> None:
    ours = Measured(OURS, "", [3.0, 1.0, 2.0], [10**9, 2 * 10**9], {"t2i r1": 0.5, "r5": 1.0})
    peer = Measured("peer", "in parts", [6.0, 4.0, 8.0], [4 * 10**9], {"t2i r1": 0.5, "x": 0.0})
    absent = Measured("absent", problem="cannot be installed")
    seconds, memory, failed = peers.rows_of("retrieval", [ours, peer, absent])
    assert (seconds.what, seconds.ours, seconds.baseline) == (
        "retrieval: CPU seconds (1.0 to 3.0)",
        2.0,
        6.0,
    )
    assert seconds.ratio == 3.0
    assert seconds.against == "peer (4.0 to 8.0), equal: 1 number within 1e-06; in parts"
    assert (memory.ours, memory.baseline, memory.ratio) == (2.0, 4.0, 2.0)
    assert (failed.ours, failed.baseline, failed.against) == (
        2.0,
        None,
        "absent: cannot be installed",
    )
    assert [row.ours for row in peers.rows_of("items", [ours])] == [2.0, 2.0]
    with pytest.raises(CompoclipError, match="items: out of memory"):
        peers.rows_of("items", [Measured(OURS, problem="out of memory"), peer])


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ({"a": 0.1}, {"a": 0.1 + 1e-8, "b": 1.0}, "equal: 1 number within 1e-06"),
        ({"a": 0.1, "b": 1.0}, {"a": 0.1, "b": 1.0}, "equal: 2 numbers within 1e-06"),
        (
            {"a": 0.1, "b": 1.0, "c": 2.0},
            {"a": 0.2, "b": 0.5, "c": 2.0},
            "unequal: 2 of 3 numbers, most of all b: 1 and 0.5",
        ),
        ({"a": 0.1}, {"a": float("nan")}, "unequal: 1 of 1 number, most of all a: 0.1 and nan"),
        ({"a": 0.1}, {"b": 0.1}, "nothing to compare"),
    ],
)
def test_numbers_that_both_have_are_compared(
    ours: dict[str, float], theirs: dict[str, float], words: str
) -> None:
    assert compare(ours, theirs, 1e-6) == words


def test_equal_numbers_are_equal_within_nothing() -> None:
    assert compare({"captions": 8.0}, {"captions": 8.0}, 0) == "equal: 1 number within 0"


def test_numbers_of_peers_are_read_under_common_names(tmp_path: Path) -> None:
    files = {
        "sugar_crepe_add_att": {"image_acc": 1.0, "text_acc": 0.25},
        "flickr8k": {"image_retrieval_recall@5": 0.5, "text_retrieval_recall@10": 0.75},
        "eurosat": {"acc1": 0.1, "acc5": 0.2},
    }
    for name, metrics in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"metrics": metrics}))
    (tmp_path / "spent.json").write_text(json.dumps({"seconds": 1.0}))
    assert READERS["clip_benchmark"](tmp_path) == {
        "add_att": 0.25,
        "t2i r5": 0.5,
        "i2t r10": 0.75,
        "eurosat": 0.1,
    }
    log = tmp_path / "logs" / "run" / "out.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "Epoch: 0 Contrastive_loss: 3.5 (3.5) Loss: 9 (9)\nContrastive_loss: 2.5 (3.0)\n"
    )
    assert READERS["open_clip_log"](tmp_path) == {"first loss": 3.5, "mean loss": 3.0}


def test_an_environment_is_reused_or_says_why_it_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faiss" / "bin").mkdir(parents=True)
    record = {"packages": list(PEERS["faiss"])}
    (tmp_path / "faiss" / "packages.json").write_text(json.dumps(record))
    assert peers.prepare_environment("faiss", tmp_path) == tmp_path / "faiss" / "bin" / "python"
    monkeypatch.setitem(peers._TABLE["packages"], "mteb", ["no such package"])
    with pytest.raises(CompoclipError, match="mteb cannot be installed: ERROR: Invalid requir"):
        peers.prepare_environment("mteb", tmp_path)


def test_every_row_of_the_table_can_be_carried_out() -> None:
    assert [task.ways[0].tool for task in WORKS.values()] == [OURS] * len(WORKS)
    tools = {way.tool for task in WORKS.values() for way in task.ways}
    assert tools == {OURS, *PEERS}
    assert all("==" in package for packages in PEERS.values() for package in packages)
    assert {way.read for task in WORKS.values() for way in task.ways} == {*READERS}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> PeerData:
    """Made data with as few photos as --quick has, and a thin model."""
    folder = tmp_path_factory.mktemp("peers")
    inputs = PeerData(folder, None, photos=8, pairs=16)
    thin = create_model(ModelConfig(config(text={"vocab_size": 49408, "context_length": 32})))
    save_model(thin, folder / "model")
    inputs.__dict__["model"] = str(folder / "model")
    return inputs


@pytest.mark.parametrize(
    ("work", "names"),
    [
        ("items", {"all items", *PARTS}),
        ("retrieval", {"t2i r1", "i2t r10"}),
        ("zero-shot", {"eurosat", "caltech101"}),
        ("train", {"first loss", "mean loss"}),
        ("negatives", {"first loss", "mean loss"}),
        ("cached", {"first loss", "mean loss"}),
        ("frozen", {"first loss", "mean loss"}),
        ("index", {"0.jpg", "7.jpg"}),
        ("find", {"query 7, 7.jpg"}),
        ("rewrite", {"captions"}),
    ],
)
@pytest.mark.slow
def test_our_commands_give_the_numbers_that_are_compared(
    work: Work,
    names: set[str],
    inputs: PeerData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    way = WORKS[work].ways[0]
    for module, program, *words in way.words(inputs):
        assert (module, program) == ("-m", OURS)
        assert compoclip(words) == 0, capsys.readouterr().err
        (tmp_path / "output.txt").write_text(capsys.readouterr().out)
    assert names <= READERS[way.read](tmp_path).keys()


@pytest.mark.parametrize("together", [(), ("together=yes",)])
def test_our_search_gives_the_nearest_vectors_and_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = np.random.default_rng(0).standard_normal((60, 8), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save("vectors.npy", vectors)
    np.save("queried.npy", vectors[::-1])
    peer_programs.main(["search", OURS, "vectors.npy", "queried.npy", "50", "5", *together])
    numbers = READERS["program"](tmp_path)
    assert numbers.pop(SECONDS) >= 0
    scores = vectors[:-6:-1] @ vectors[:50].T
    assert numbers == {
        f"query {query}, {row}": pytest.approx(scores[query, row], rel=1e-5)
        for query in range(5)
        for row in np.argsort(-scores[query])[:10]
    }


def test_what_programs_write_is_read(tmp_path: Path) -> None:
    assert losses_of([4.0, 1.0]) == {"first loss": 4.0, "mean loss": 2.5}
    numbers = scores_of_photos([[("a.jpg", 0.5)], [("b.jpg", 0.25)]])
    (tmp_path / NUMBERS).write_text(json.dumps(numbers))
    assert READERS["program"](tmp_path) == {"query 0, a.jpg": 0.5, "query 1, b.jpg": 0.25}
