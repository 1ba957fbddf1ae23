"""What the documentation says can be done is done: every command, every block of Python."""

from __future__ import annotations

import inspect
import re
import runpy
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml
from PIL import Image

from build.results import few_resamples
from compoclip.benchmarks.names import benchmark_names
from compoclip.cli import options, train
from compoclip.cli.main import all_verbs, main
from compoclip.methods.registry import method_names
from compoclip.report import write
from compoclip.training.settings import RunSettings
from doc_commands import (
    PAGES,
    ROOT,
    Command,
    commands_of,
    documented,
    link_inputs,
    small,
    write_configs,
    write_ready,
)

# Commands that are not run alone, by how they start (or by page), and why; all are parsed.
NOT_RUN = {
    "compoclip play": "serves until it is stopped; tested in test_play_server",
    "compoclip serve": "serves until it is stopped; tested in test_serve",
    "compoclip caption": "asks a language model; tested in test_cli_caption",
    "compoclip tune": "needs 50 photos; tested in test_tune",
    "compoclip train --from-open-clip": "needs weights; tested in test_cli_from_open_clip",
    "compoclip push": "uploads; tested in test_models_hub",
    "python -m bench": "real sizes; each stage is tested in test_bench",
    "compoclip data fetch": "downloads; tested against a local server",
    "compoclip reproduce": "downloads and trains; tested in test_reproduce",
    "compoclip bundle": "needs a run and results of its model; tested in test_bundle",
    "compoclip verify": "needs a bundle; tested in test_bundle",
    "docs/guide/your-own.md": "run one after the other below",
    "docs/guide/other-trainers.md": "needs other libraries; in test_examples, test_ecosystem",
    "docs/corpora.md": "needs shards or Ray; each form is run in test_corpora_run, test_cluster",
    "examples/mosaic-clip/README.md": "needs CC12M or the photos; in test_examples",
}


class ParsedError(BaseException):
    """Raised in place of doing what was parsed."""


EXTRAS = {
    "--to onnx": ("onnxscript",),
    "--to lancedb": ("lancedb",),
    "--track": ("tensorboard", "wandb"),
}
"""Packages of the project's extras that commands need, by their options."""


def runs_alone(command: Command) -> bool:
    without = command.page in NOT_RUN or command.text.startswith(tuple(NOT_RUN))
    return not without and command.words[-1] != "--help"  # which parsing shows


def shape(command: Command) -> str:
    """A command in small without what makes no difference to it: names of runs, results, outputs
    and models, sizes, and a method, each of which trains in test_methods_golden."""
    text = re.sub(r"\b(runs|results|sweeps)/[\w-]+", r"\1/NAME", " ".join(small(command)))
    text = re.sub(r"^train [\w-]+(?= )", "train METHOD", text)
    text = re.sub(r"(--(?:count|epochs)) \S+", r"\1 N", text)
    return re.sub(r"\b[\w-]+(?==(?:runs/|base))|(?<= -o )\S+", "NAME", text)


# One of each shape, however many pages have it.
RUN = list({shape(command): command for command in documented() if runs_alone(command)}.values())


def name(command: Command) -> str:
    return f"{command.page}: {command.text[10:60]}"


@pytest.fixture(scope="module", autouse=True)
def narrow_measurements() -> Iterator[None]:
    """No test of this file asserts an interval of what a command measured."""
    with few_resamples():
        yield


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ready(tmp_path_factory.mktemp("docs") / "ready")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the method and the configuration files that commands name."""
    folder = tmp_path_factory.mktemp("named")
    assert main(["new", "method", "my-idea", "--out", str(folder)]) == 0
    write_configs(folder)
    repeats = folder / "runs" / "first" / "config.yaml"
    repeats.parent.mkdir(parents=True)
    shutil.copy(folder / "run.yaml", repeats)
    return folder


@pytest.fixture
def only_parse(monkeypatch: pytest.MonkeyPatch, named: Path) -> None:
    monkeypatch.chdir(named)

    def start(*_: object) -> None:
        raise ParsedError

    monkeypatch.setattr(options, "check_options", start)  # the last step of parsing
    monkeypatch.setattr(train, "start", start)
    monkeypatch.setattr(train, "start_sweep", start)


def test_commands_are_found_where_they_stand() -> None:
    page = (
        "say `compoclip methods`\n\n```sh\ncompoclip data ls  # all\n"
        "make demo\ncompoclip compare a \\\n    b\n```\n    compoclip parse 'a b'\n"
    )
    found = list(commands_of("p", page))
    assert [c.words for c in found] == [["data", "ls"], ["compare", "a", "b"], ["parse", "a b"]]
    assert len(RUN) > 30


@pytest.mark.parametrize("command", documented(), ids=name)
def test_every_command_is_understood(command: Command, only_parse: None) -> None:
    if command.words[-1] == "--help":
        with pytest.raises(SystemExit) as ended:
            command.run(command.words)
        assert ended.value.code == 0
    else:
        with suppress(ParsedError):
            assert command.run(command.words) == 0  # --save-config, which ends before the run


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("command", RUN, ids=name)
def test_every_command_runs(
    command: Command, ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, packages in EXTRAS.items():
        for package in packages if option in command.text else ():
            pytest.importorskip(package, reason=f"{option} needs it")
    words = small(command)
    if words[0] == "sweep":  # test_cli_sweep.py reads the report of one
        monkeypatch.setattr(write, "write_report", MagicMock())
    link_inputs(words, ready, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert command.run(words) == 0


@pytest.mark.slow
def test_seven_commands_compare_an_own_method_with_plain_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "guide" / "your-own.md").read_text(encoding="utf-8")
    block = page.partition("```sh\n")[2].partition("```")[0]
    commands = list(commands_of("your-own.md", f"```sh\n{block}```"))
    assert len(commands) == len(block.splitlines()) == 7
    less = {
        "world train": ["--count=16"],
        "world suite": ["--items-per-task=2"],
        "train": ["--max-steps=2", "--batch-size=8", "--device=cpu"],
        "evaluate": ["--device=cpu"],
        "compare": ["--resamples=20"],
    }
    monkeypatch.chdir(tmp_path)
    for command in commands:
        task = " ".join(command.words[:2] if command.words[0] == "world" else command.words[:1])
        assert command.run([*command.words, *less.get(task, [])]) == 0, command.text
    assert "mine against plain (base), on the same items" in capsys.readouterr().out


def test_the_python_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
    assert len(blocks) == 4
    code = "\n".join(blocks)
    for sizes in ("epochs=4, batch_size=64", "epochs=2, batch_size=32"):
        assert code.count(sizes) == 1
        code = code.replace(sizes, "epochs=0.2, batch_size=8")
    (tmp_path / "guide.py").write_text(code)
    Image.new("RGB", (40, 40), "red").save(tmp_path / "photo.png")
    train, suite = tmp_path / "world" / "train", tmp_path / "world" / "suite"
    assert main(["world", "train", f"--out={train}", "--count=80"]) == 0
    few = ["--items-per-task=5", "--benchmarks", "sugarcrepe"]
    assert main(["world", "suite", f"--out={suite}", *few]) == 0
    monkeypatch.chdir(tmp_path)
    made = runpy.run_path("guide.py")
    assert made["scores"].shape == (1, 2)
    assert {each.benchmark for each in made["results"]} >= {"world-sugarcrepe"}
    assert {each.model for each in made["results"]} == {"base", "tuned"}
    assert made["mine"].identity.base == made["tuned"].identity.base


def test_only_the_help_says_what_workers_auto_means() -> None:
    told = [page for page in PAGES if "cores but" in (ROOT / page).read_text(encoding="utf-8")]
    assert not told
    account = " ".join((inspect.getdoc(RunSettings) or "").split())
    for words in ("all cores but one, 16 at most", "one for every eight cores", "4,096 images"):
        assert words in account


def test_the_readme_counts_methods_and_benchmarks_to_the_nearest_ten() -> None:
    methods, benchmarks = (round(len(names()), -1) for names in (method_names, benchmark_names))
    counts = f"about {methods} methods and {benchmarks} benchmarks"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert counts in text, f'write "There are {counts}" in README.md'


def test_the_pages_name_every_method_and_verb() -> None:
    pages = {"methods": (ROOT / "docs" / "methods").glob("*.md")}
    pages["verbs"] = [ROOT / "docs" / "guide" / "getting-started.md"]
    names = {"methods": {*method_names()} - {"clip", "clip-ft-mosaic", "compo"}}
    names["verbs"] = {*all_verbs().table}
    for kind, paths in pages.items():
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
        lacking = {name for name in names[kind] if f"`{name}`" not in text}
        assert not lacking, f"these {kind} are on no page of docs/"


def test_every_page_is_in_the_contents() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        assert not isinstance(parts, int | None)
        return [page for part in parts for page in pages(part)]  # type: ignore[attr-defined]

    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert there == set(pages(site["nav"]))
