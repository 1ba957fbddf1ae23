"""`compoclip caption`: real captions, a server that misbehaves, kill and resume, training."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import chat_server
from build.tables import read_jsonl, write_lines
from compoclip.cli.main import main
from compoclip.language.engine import load_task
from compoclip.models.checkpoint import load_model
from method_data import arguments
from ranks_helpers import Forked
from real_captions import negclip
from test_language_server import tiny_model


@pytest.fixture(scope="module")
def good() -> Iterator[str]:
    with chat_server.running("good") as url:
        yield url


@pytest.fixture(scope="module")
def captions(shared_data: Path) -> list[str]:
    """100 real captions, all different."""
    found = (" ".join(row["title"].split()) for row in negclip(shared_data))
    return list(dict.fromkeys(found))[:100]


def run(data: Path | str, out: Path, url: str, *more: str, task: str = "negatives") -> int:
    options = [f"--task={task}", f"--out={out}", f"--server={url}", "--model=tiny"]
    return main(["caption", str(data), *options, *more])


@pytest.mark.slow
def test_real_captions_through_a_server_that_misbehaves(
    captions: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    special = [f"a {word} on a mat" for word in ("xrefuse", "xbad", "xdown")]
    data = write_lines(tmp_path / "captions.txt", [*captions, *special])
    out = tmp_path / "negatives.jsonl"
    more = ["--timeout=2", "--retries=3", "--concurrency=16"]
    with chat_server.running("bad") as url:
        assert run(data, out, url, *more, "--json") == 1  # one has no answer
        seen = chat_server.stats(url)
        first = json.loads(capsys.readouterr().out)
        made = read_jsonl(out)
        assert [row["caption"] for row in made] == [*captions, *special]
        assert [row["id"] for row in made] == [str(n) for n in range(1, 104)]
        provenance = {key: made[0][key] for key in made[0] if key not in ("id", "caption")}
        assert provenance.pop("negative")
        rules = provenance.pop("rules")
        assert rules.startswith("3 (hanta")
        assert provenance == {
            "task": "negatives",
            "prompt": load_task("negatives").hash,
            "model": "tiny",
            "temperature": 0.7,
            "seed": 0,
            "engine": f"{url}/v1",
        }
        # Every fault was met, and each caption asked until it had an answer.
        slots = Counter(map(chat_server.slot, captions))
        assert all(slots[number] for number in range(len(chat_server.FAULTS)))
        faulty = sum(slots[number] for number in range(len(chat_server.FAULTS)))
        twice = slots[3] + slots[4]
        assert sum(seen["asked"][c] for c in captions) >= len(captions) + faulty + twice
        assert seen["asked"][special[2]] == 4
        assert 1 < seen["most_at_once"] <= 16
        assert first["unanswered"] == 1
        assert first["refused"] == 1
        assert first["answered_now"] == 102
        # A request that timed out on a busy machine may have used up the fault of its caption.
        assert 2 < first["rejected"]["refusal"] <= slots[7] + 2
        assert 0 < first["rejected"]["empty-caption"] <= slots[9]
        usable = sum(bool(row["negative"]) for row in made)
        assert usable == first["with_text"] > 85  # the server has none where `replace` refuses
        assert first["tokens_in"] == 100 * first["answers"]
        side = read_jsonl(tmp_path / "negatives.rejected.jsonl")
        reasons = {row["caption"]: row["reason"] for row in side}
        assert reasons[special[0]] == "refusal"
        assert reasons[special[1]] == "refused-by-the-server"
        assert reasons[special[2]] == "no-answer"
        assert "HTTP 500" in next(row["detail"] for row in side if row["caption"] == special[2])
        # Once more: only the one without an answer is asked about.
        assert run(data, out, url, "--timeout=2", "--retries=0") == 1
        again = chat_server.stats(url)["asked"]
    shown = capsys.readouterr()
    assert "no answer: 1 (last: HTTP 500" in shown.out
    assert "1 caption answered" not in shown.out
    assert {c: n for c, n in again.items() if n != seen["asked"][c]} == {special[2]: 5}
    assert read_jsonl(out) == made


@pytest.mark.slow
def test_killed_and_resumed(captions: list[str], tmp_path: Path) -> None:
    captions = captions[:40]
    data = write_lines(tmp_path / "captions.txt", captions)
    out = tmp_path / "killed.jsonl"
    part = tmp_path / "killed.answers.jsonl.part"
    with chat_server.running("good", 0.05) as url:
        command = ["compoclip", "caption", str(data), "--task=negatives", f"--out={out}"]
        process = Forked([*command, f"--server={url}", "--model=tiny", "--concurrency=4"])
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if part.exists() and part.read_bytes().count(b"\n") >= 10:
                break
            time.sleep(0.02)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        with part.open("ab") as file:
            file.write(b'{"n": 3, "capt')  # torn in the middle of a line
        kept = {row["n"] for row in map(json.loads, part.read_bytes().splitlines()[:-1])}
        assert 10 <= len(kept) < 40
        assert not out.exists()
        before = chat_server.stats(url)["asked"]
        assert run(data, out, url, "--concurrency=16") == 0
        after = chat_server.stats(url)["asked"]
        assert run(data, tmp_path / "whole.jsonl", url, "--concurrency=3") == 0
    made = read_jsonl(out)
    assert [row["caption"] for row in made] == captions
    answers = read_jsonl(tmp_path / "killed.answers.jsonl")
    assert sorted(row["n"] for row in answers) == list(range(40))
    # What was on record was not asked again; what was under way at the end, at most once.
    for number, caption in enumerate(captions):
        assert after[caption] - before.get(caption, 0) == (number not in kept)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.fixture
def few(world: Path, tmp_path: Path) -> Path:
    """The world's model and images with the captions of 16 scenes."""
    folder = tmp_path / "few"
    folder.mkdir()
    for path in world.iterdir():
        (folder / path.name).symlink_to(path)
    rows = (world / "plain.jsonl").read_text().splitlines()[:16]
    (folder / "plain.jsonl").unlink()
    write_lines(folder / "plain.jsonl", rows)
    return folder


@pytest.mark.slow
def test_what_train_takes(good: str, few: Path, tmp_path: Path) -> None:
    data = few / "plain.jsonl"
    options = {
        "positives-replace": ("hard-positives", "--positives", "p.jsonl"),
        "negatives": ("tsvlc-llm", "--negatives", "n.parquet"),
        "dense": ("dac", "--bags", "d.parquet"),
        "paraphrase": ("clic", "--paraphrases", "c.jsonl"),
    }
    made = {}
    for task, (method, option, name) in options.items():
        assert run(data, tmp_path / name, good, task=task) == 0
        steps = [f"{option}={tmp_path / name}", "--epochs=1"]
        out = tmp_path / method
        assert main(arguments(few, method, out, *steps)) == 0
        made[method] = load_model(out / "model").provenance["run"]["rewrites"]
    assert made["hard-positives"]["written-positive"]["made"] > 5
    assert made["hard-positives"]["written-positive"]["refused"].keys() <= {"none-written"}
    assert made["tsvlc-llm"]["written-negative"]["made"] > 5
    assert made["dac"]["dac-bag" if "dac-bag" in made["dac"] else "bag"]["made"] > 16
    assert made["clic"]["clic-3"]["made"] > 5
    table = pq.read_table(tmp_path / "n.parquet")
    assert table.num_rows == 48
    assert table.column("engine")[0].as_py() == f"{good}/v1"
    bag = pq.read_table(tmp_path / "d.parquet").to_pylist()[0]
    assert (bag["id"], len(bag["sentences"])) == ("0.png#0", 3)


def test_repeated_captions_are_asked_about_once(good: str, tmp_path: Path) -> None:
    data = write_lines(
        tmp_path / "c.txt", ["a red cup on a box", "", "a dog runs", "a red cup on a box "]
    )
    out = tmp_path / "out.jsonl"
    assert run(data, out, good) == 0
    made = read_jsonl(out)
    assert [row["id"] for row in made] == ["1", "2", "3", "4"]
    assert made[0]["negative"] == made[3]["negative"] != []
    assert made[1]["negative"] == []
    assert chat_server.stats(good)["asked"]["a red cup on a box"] == 1
    side = read_jsonl(tmp_path / "out.rejected.jsonl")
    reasons = {row["caption"]: row["reason"] for row in side if row["reason"] != "repeated"}
    assert reasons == {"": "not-asked", "a dog runs": "answers-none"}


def test_what_is_not_started(
    good: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = write_lines(tmp_path / "c.txt", ["a red cup"])
    out = tmp_path / "out.jsonl"

    def fails(code: int, message: str, *more: str, task: str = "negatives") -> None:
        assert run(data, out, good, *more, task=task) == code
        assert message in capsys.readouterr().err

    fails(2, "no task 'poem'; known: dense", task="poem")
    fails(2, "holds no caption to ask about", task="positives-swap")
    fails(2, "--tries must be at least 1", "--tries=0")
    fails(2, "name a .jsonl or .parquet file", f"--out={tmp_path / 'out.csv'}")
    fails(2, "--key-env NO_KEY: this environment variable is not set", "--key-env=NO_KEY")
    fails(1, "has the model 'huge'", "--model=huge")
    fails(1, "has moved to", "--model=moved")
    monkeypatch.setenv("MY_KEY", "sk-secret")
    fails(1, "HTTP 401, no such key: ***; name the variable", "--model=locked", "--key-env=MY_KEY")
    assert "Bearer sk-secret" in chat_server.stats(good)["keys"]
    for place in tmp_path.iterdir():
        assert "sk-secret" not in place.read_text()
    for place in tmp_path.glob("out*"):
        place.unlink()
    assert run(data, out, good) == 0
    fails(2, "was made with other settings (seed was 0, is 1)", "--seed=1")
    (tmp_path / "out.answers.jsonl").unlink()
    fails(2, "exists without out.answers.jsonl, from which it is made")


def test_a_dead_server_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_lines(tmp_path / "c.txt", [f"a red cup {n}" for n in range(60)])
    more = ["--retries=0", "--concurrency=2"]
    assert run(data, tmp_path / "out.jsonl", "http://127.0.0.1:9", *more) == 1
    shown = capsys.readouterr().err
    assert "no answer to 12 questions in a row" in shown
    assert "the same command resumes" in shown
    assert not (tmp_path / "out.jsonl").exists()


def test_a_model_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model(tmp_path / "tiny", chat=True)
    data = write_lines(tmp_path / "c.txt", ["a red cup on the box", "the box on a cup"])
    options = ["--task=negatives", f"--model={model}", f"--out={tmp_path / 'o.jsonl'}"]
    assert main(["caption", str(data), *options, "--max-tokens=8", "--device=cpu", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["answers"] >= 2
    assert made["tokens_out"] > 0
    assert read_jsonl(tmp_path / "o.jsonl")[0]["engine"].startswith("transformers ")
