"""Mistakes that people type: refused before torch is loaded, with the name that they meant."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import open_clip
import pytest
import yaml
from verb_times import by_command, commands, mistakes, prepare

from compoclip.cli.data import TASKS
from compoclip.cli.main import VERBS, main
from compoclip.cli.options import OptionParser
from compoclip.config import names_here, options_of
from compoclip.models.names import architectures, tags_of
from compoclip.programs.run import TrainOptions

REFUSED = mistakes()
HELPS = [f"{command} --help".strip() for command in ("", *commands())]
HEAVY = (
    *("torch", "numpy", "pyarrow", "PIL", "scipy", "open_clip", "timm", "transformers"),
    *("spacy", "peft", "ray", "gradio", "tensorboard", "wandb"),
)
"""Libraries that take a tenth of a second or more to import, and that no help needs."""
_RUN = """
import shlex, sys
class Refuse:
    heavy = set(sys.argv[1:])
    def find_spec(self, name, path, target=None):
        assert name not in self.heavy, f"{name} is imported"
sys.meta_path.insert(0, Refuse())
from compoclip.cli.main import main
for line in sys.stdin.read().splitlines():
    if not line.endswith("--help"):
        Refuse.heavy = {"torch"}
    print("$", line, file=sys.stderr, flush=True)
    try:
        code = main(shlex.split(line))
    except SystemExit as end:
        code = end.code
    print("exit", code, file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Command -> the lines that it prints, of one process that cannot import what is heavy."""
    place = tmp_path_factory.mktemp("typed")
    prepare(place)
    before = sorted(place.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *HEAVY],
        input="\n".join([*HELPS, *REFUSED]),
        capture_output=True,
        text=True,
        check=True,
        cwd=place,
    )
    assert sorted(place.rglob("*")) == before
    parts = [part.splitlines() for part in f"\n{done.stderr}".split("\n$ ")[1:]]
    return {command: lines for command, *lines in parts}


@pytest.mark.parametrize("command", REFUSED)
def test_a_mistake_is_one_line_before_torch_is_loaded(
    answers: dict[str, list[str]], command: str
) -> None:
    *lines, code = answers[command]
    assert REFUSED[command] in lines[-1]
    assert code in ("exit 1", "exit 2")
    assert len(lines) == 1


def test_help_needs_nothing_heavy(answers: dict[str, list[str]]) -> None:
    assert {command: answers[command] for command in HELPS if answers[command] != ["exit 0"]} == {}


def test_every_verb_has_such_a_mistake() -> None:
    wrong = by_command(REFUSED, [*commands()])
    without = {name for name, lines in wrong.items() if len(lines) == 1}
    assert without == {"data", "world"}, "add a mistake of the verb to tests/mistakes.yaml"


def test_tags_of_published_weights_are_those_of_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {
        name: tuple(open_clip.list_pretrained_tags_by_model(name)) for name in architectures()
    }
    monkeypatch.delitem(sys.modules, "open_clip")  # as where no model is loaded yet
    assert {name: tags_of(name) for name in architectures()} == listed
    assert listed["ViT-B-32-quickgelu"]
    assert "openai" in listed["ViT-B-32"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--learning-rate 1e-3", "did you mean --lr?"),
        ("--per_device_train_batch_size 8", "did you mean --batch-size?"),
        ("--max-bad 3", "--max-bad is a key: write --set max_bad=VALUE"),
        ("--max_grad_norm 1", "--max-grad-norm is a key: write --set clip_grad=VALUE"),
        ("--epoch 1 --bs 2", "did you mean --epochs?; did you mean --batch-size?"),
    ],
)
def test_names_of_other_programs(capsys: pytest.CaptureFixture[str], words: str, hint: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "clip-ft", "--data", "x", "--out", "y", *words.split()])
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "ours"),
    [("finetune", "train or tune"), ("eval", "evaluate"), ("trane", "train or tune")],
)
def test_verbs_of_other_programs(capsys: pytest.CaptureFixture[str], verb: str, ours: str) -> None:
    assert main([verb]) == 2
    assert f"no verb '{verb}'; did you mean {ours}?" in capsys.readouterr().err


def test_no_names_here_is_a_name_of_another_option() -> None:
    known = options_of(TrainOptions)
    assert [name for name in known if names_here(name, "options", known) not in ((), (name,))] == []


def test_help_of_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "evaluate"])
    assert "usage: compoclip evaluate" in capsys.readouterr().out


def test_a_script_without_a_main_guard_is_named_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "from compoclip.process import require_main_guard\n"
        "require_main_guard('fork')\n"
        "require_main_guard('spawn')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert f"{script}: every worker process runs this script again" in done.stderr
    script.write_text(f"{script.read_text()}if __name__ == '__main__': print('guarded')\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout == "guarded\n"


def parsers(monkeypatch: pytest.MonkeyPatch) -> dict[str, OptionParser]:
    """Return the parser of the options of every command, by its program."""
    found = {}

    def help_of(parser: OptionParser, file: object = None) -> None:
        found[parser.prog] = parser

    monkeypatch.setattr(OptionParser, "print_help", help_of)
    tasks = [["data", task] for task in TASKS.table]
    verbs = [[verb] for verb in VERBS if verb not in ("data", "train", "sweep")]
    for words in (*tasks, *verbs, ["train", "fsc-clip"], ["sweep", "clip-ft"]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
    return found


def test_names_of_other_programs_are_hinted_at_by_every_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = yaml.safe_load(files("compoclip").joinpath("other_names.yaml").read_text())
    assert all(isinstance(name, str) for name in (*table["options"], *table["verbs"]))
    missing = []
    hints = 0
    for program, parser in parsers(monkeypatch).items():
        options = {**parser.options, **parser.keys}
        for name, others in table["options"].items():
            for other in others if name in options else ():
                if other.replace("-", "_") in options:
                    continue  # an option of another meaning, such as --base of report
                with pytest.raises(SystemExit):
                    parser.error(f"unrecognized arguments: --{other} x")
                said = capsys.readouterr().err
                option = options[name]
                place = option.usage.metavar.split()[0] if option.usage.positional else option.flag
                hints += 1
                if place not in said and f"--set {name}=" not in said:
                    missing.append((program, other, said))
    assert missing == []
    assert hints > 500
