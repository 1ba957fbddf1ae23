"""The command line as a process: what it imports, Ctrl-C, readers that go away, full outputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from compoclip.cli.main import VERBS, main
from compoclip.train.log import read_log
from compoclip.train.state import latest_state
from train_helpers import write_config, write_data

HEAVY = ("torch", "torchvision", "open_clip", "timm", "transformers", "pyarrow", "scipy")
EXTRAS = ("spacy", "peft", "ray", "gradio", "tensorboard", "wandb")
COMMAND = (sys.executable, "-m", "compoclip")


def imported(code: str) -> set[str]:
    """The top-level modules a fresh interpreter holds after `code`."""
    run = f"{code}\nimport sys\nprint('\\0', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.rpartition("\0")[2].split())


def test_importing_the_package_and_its_help_import_nothing_heavy() -> None:
    code = "import compoclip\nfrom compoclip.cli.main import main\nmain(['--help'])"
    modules = imported(code)
    assert "compoclip" in modules
    assert not modules.intersection((*HEAVY, *EXTRAS, "numpy", "PIL"))


def test_the_help_of_verbs_that_name_models_and_methods_imports_no_torch() -> None:
    helps = "\n".join(
        f"try: main([{verb!r}, '--help'])\nexcept SystemExit: pass"
        for verb in ("train", "evaluate", "compare")
    )
    modules = imported(f"from compoclip.cli.main import main\n{helps}")
    assert "tyro" in modules
    assert not modules.intersection((*HEAVY, *EXTRAS))


def test_the_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)


def training(folder: Path, out: str, *more: str) -> list[str]:
    return [
        "train",
        "clip-ft",
        "--from-scratch",
        f"--model={folder / 'config.json'}",
        f"--data={folder / 'data' / 'data.tsv'}",
        f"--out={folder / out}",
        "--batch-size=8",
        "--epochs=4000",
        "--log-every=1",
        *more,
    ]


def test_ctrl_c_leaves_a_run_that_goes_on_exactly(tmp_path: Path) -> None:
    write_config(tmp_path / "config.json")
    write_data(tmp_path / "data")
    process = subprocess.Popen(
        [*COMMAND, *training(tmp_path, "run", "--workers=2")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that put the tests into the background has them ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    log = tmp_path / "run" / "train.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.is_file() or len(read_log(log)) < 3):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    out, error = process.communicate(timeout=120)

    assert process.returncode == 130
    assert "Traceback" not in error
    state = latest_state(tmp_path / "run" / "state")
    assert state is not None
    step = int(state.name.removeprefix("step-"))
    *_, last = error.strip().splitlines()
    assert last.startswith(f"compoclip train: interrupted after step {step} of 20000")
    assert "--resume goes on" in last
    assert out == ""
    assert not (tmp_path / "run" / "model").exists()

    assert main(training(tmp_path, "whole", f"--stop-after={step + 2}")) == 0
    assert main(training(tmp_path, "run", f"--stop-after={step + 2}", "--resume")) == 0
    one, other = (
        load_file(latest_state(tmp_path / run / "state") / "tensors.safetensors")
        for run in ("whole", "run")
    )
    assert one.keys() == other.keys()
    assert [name for name in one if not one[name].equal(other[name])] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["evaluate", "--help"],
        ["rewrite", "a red cup on a blue table", "--json"],
    ],
)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(120) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--help"], "compoclip: cannot write the output (No space left on device)"),
        (["rewrite", "a red cup", "--json"], "compoclip rewrite: output: No space left on device"),
    ],
)
def test_an_output_that_is_full_is_one_line(arguments: list[str], message: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(message)
