"""Methods, rewrites, losses and benchmarks from files of one's own, and from other packages."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import own_files
from benchmark_files import write_photo
from compoclip import plugins
from compoclip.benchmarks.targets import parse_targets
from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.run import Options, evaluate
from compoclip.files import read_json
from compoclip.methods.base import Method
from compoclip.methods.compose import loss_named
from compoclip.methods.read_clip.decoders import load_decoder
from compoclip.methods.registry import load_recipe, method_names, method_summaries
from compoclip.models.checkpoint import load_model
from compoclip.rewrites import base as rewrites
from compoclip.rewrites.base import Refused, get_rewrite
from compoclip.workers import Workers
from evaluation_helpers import FakeEncoder
from method_data import arguments

pytestmark = pytest.mark.usefixtures("warm_workers")

LINES = ["a red star above a blue mug", "two dogs on a green mat", "a cup left of a plate"]
FEW = ("--epochs=0.4", "--warmup=1", "--workers=0")
TAKEN = "'negclip' is a rewrite already"


def weights(run: Path) -> bytes:
    return (run / "model" / "open_clip_model.safetensors").read_bytes()


def trained(world: Path, method: str, out: Path, *more: str) -> dict[str, Any]:
    """The provenance of a short run."""
    assert main([*arguments(world, method, out), *FEW, *more]) == 0
    return dict(load_model(out / "model").provenance)


def test_a_rewrite_of_one_s_own_trains_with_any_workers_and_from_any_folder(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = own_files.write(tmp_path, "my_rewrite.py", own_files.REWRITE)
    monkeypatch.chdir(tmp_path)
    relative = trained(world, "negclip", tmp_path / "a", "--texts", "+./my_rewrite.py")
    trained(world, "negclip", tmp_path / "b", "--texts", f"+{file}", "--workers=2")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert relative["sources"] == {
        "my_rewrite.py": plugins.sources_of(get_rewrite(str(file)))[str(file)]
    }
    assert relative["method"] == "negclip+denied"
    assert relative["run"]["rewrites"]["denied"]["coverage"] == 1.0
    trained(world, "negclip", tmp_path / "c", "--texts", "./my_rewrite.py:denied")
    assert weights(tmp_path / "c") != weights(tmp_path / "a")  # in place of the method's own


def test_two_files_of_one_name_and_what_they_import_are_noticed_on_resume(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    helper = own_files.write(tmp_path / "lib" / "deep", "scales.py", "HALF = 0.5\n")
    own_files.write(tmp_path / "lib" / "deep", "__init__.py", "")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    loss = own_files.LOSS.replace("0.5 *", "HALF *")
    files = {
        own_files.write(tmp_path / "a", "mine.py", own_files.METHOD): "a/mine.py",
        own_files.write(tmp_path / "b", "mine.py", own_files.REWRITE): "b/mine.py",
        own_files.write(
            tmp_path / "c", "mine.py", f"from deep.scales import HALF\n{loss}"
        ): "c/mine.py",
        helper: "lib/deep/scales.py",
    }
    method, rewrite, term, _ = files
    more = (f"--texts=+{rewrite}", f"--terms=+{term}")
    run = [*arguments(world, str(method), tmp_path / "run"), *FEW, *more]
    assert main([*run, "--set=stop_after=1"]) == 0
    for file, name in files.items():
        code = file.read_text()
        file.write_text(f"{code}\n# another\n")
        capsys.readouterr()
        assert main([*run, "--resume"]) == 1
        assert f"with other settings: {name} changed; use" in capsys.readouterr().err
        file.write_text(code)
    assert main([*run, "--resume"]) == 0
    sources = load_model(tmp_path / "run" / "model").provenance["sources"]
    assert set(sources) == {*files.values(), "lib/deep/__init__.py"}
    for name in ("deep", "deep.scales"):
        sys.modules.pop(name)


def test_a_loss_of_one_s_own_is_a_term(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_files.write(tmp_path, "my_loss.py", own_files.LOSS)
    made = trained(world, "negclip", tmp_path / "run", f"--terms=+{file}")
    assert f"the recipe is changed by --terms +{file}" in capsys.readouterr().err
    assert {each["name"]: each["weight"] for each in made["terms"]} == {"negclip": 1, "half": 0.25}
    heavy = trained(
        world, "negclip", tmp_path / "set", f"--terms=+{file}:half", "--set=terms.half.weight=2"
    )
    assert heavy["terms"][1]["weight"] == 2
    assert weights(tmp_path / "run") != weights(tmp_path / "set")


def test_a_rewrite_of_one_s_own_for_texts_files_and_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_files.write(tmp_path, "my_rewrite.py", own_files.REWRITE)
    assert main(["rewrite", LINES[0], f"--rewrites=negclip,{file}", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [each["rewrite"] for each in made] == ["negclip", "denied"]
    captions = own_files.write(tmp_path, "captions.txt", "\n".join(LINES))
    options = [str(captions), f"--rewrites={file}"]
    for workers in (1, 2):
        out = tmp_path / f"{workers}.jsonl"
        assert main(["rewrite", *options, "-o", str(out), f"--workers={workers}"]) == 0
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()
    assert "denied" in capsys.readouterr().out
    shard = tmp_path / "in.jsonl"
    shard.write_text("".join(json.dumps({"caption": each}) + "\n" for each in LINES))
    assert main(["rewrite", str(shard), f"--rewrites={file}", "-o", str(tmp_path / "out")]) == 0
    (row, *_) = (tmp_path / "out" / "in.jsonl").read_text().splitlines()
    assert json.loads(row)["neg_rule"] == ["denied denied"]


def test_a_benchmark_of_one_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own_files.write(tmp_path, "my_benchmark.py", own_files.BENCHMARK)
    for k in range(6):
        write_photo(tmp_path / f"{k}.jpg")

    def measured(spec: str) -> Any:
        targets = parse_targets([spec], tmp_path)
        quick = Options(resamples=20)
        loaded = [each.load() for each in targets]
        (result,) = evaluate("m", FakeEncoder(), loaded, tmp_path / "out", quick)
        return result

    whole = measured(str(file))
    assert (whole.benchmark, whole.aggregates["micro"].n) == ("mugs", 6)
    for spec in (f"{file}:left", f"{file}:mugs:left", f"{file}:mugs:left,root={tmp_path}"):
        assert measured(spec).aggregates["micro"].n == 3
    file.write_text(own_files.BENCHMARK.replace("wrong", "false"))
    again = measured(str(file))
    assert again.data_hash != whole.data_hash  # so that no result of the earlier file is kept
    stored = read_json(tmp_path / "out" / "m" / "mugs.json")
    assert stored["data_hash"] == again.data_hash
    assert main(["list", "benchmarks", str(file)]) == 0
    assert "Mugs" in capsys.readouterr().out
    assert main(["data", "check", str(file), f"--data={tmp_path}"]) == 0


def type_of_rewrite(name: str) -> str:
    return type_name(get_rewrite(name))


def type_name(thing: object) -> str:
    return type(thing).__name__


def test_worker_processes_import_what_a_file_defines(tmp_path: Path) -> None:
    file = own_files.write(tmp_path, "my.rewrite.py", own_files.REWRITE)
    made = get_rewrite(str(file))
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301
    with Workers(1) as workers:
        assert list(workers.map(type_of_rewrite, [str(file)])) == ["Denied"]
        assert list(workers.map(type_name, [made])) == ["Denied"]


@pytest.mark.parametrize(
    ("load", "code", "name", "message"),
    [
        (load_recipe, None, "", "no such file"),
        (load_recipe, "x = (", "", r"SyntaxError: '\(' was never closed"),
        (load_recipe, "x = 1", "", "it has: none, a function under @recipe"),
        (load_recipe, own_files.METHOD, ":other", "it has: .*mine.py:"),
        (load_recipe, "raise KeyError('gone')", "", "KeyError: 'gone'; fix the file"),
        (get_rewrite, None, "", "no such file"),
        (get_rewrite, "x = 1", "", "none, a class with name, version, keeps_meaning and __call__"),
        (get_rewrite, own_files.REWRITE, ":other", "it has: .*mine.py:denied"),
        (get_rewrite, own_files.REWRITE.replace('"denied"', '"negclip"'), "", TAKEN),
        (get_rewrite, own_files.SAMPLED.replace("nameless", "negclip"), "", TAKEN),
        (get_rewrite, "import no_such_module", "", "ModuleNotFoundError: No module named"),
        (load_decoder, "from torch import nn", "", "of its decoders; it has: none, a class with"),
    ],
)
def test_a_file_without_the_part_is_one_clear_line(
    load: Callable[[str], object], code: str | None, name: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    if code is not None:
        file.write_text(code)
    with pytest.raises(CompoclipError, match=message) as raised:
        load(f"{file}{name}")
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


EXITS = ("sys.exit(0)", "exit()", "raise BaseException('x')", "1 / 0")


def exiting(code: str, before: str, end: str) -> str:
    """The code, with an end before one of its lines."""
    line = next(line for line in code.splitlines() if before in line)
    indent = line[: len(line) - len(line.lstrip())]
    return "import sys\n" + code.replace(line, f"{indent}{end}\n{line}").replace(
        "from __future__ import annotations\n", ""
    )


@pytest.mark.parametrize("end", EXITS)
def test_a_file_that_ends_the_process_is_an_error_that_names_it(
    end: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = own_files.write(tmp_path, "captions.txt", "\n".join(LINES))
    rewriting = ["rewrite", str(captions), "--rewrites=FILE", "-o", str(tmp_path / "a.jsonl")]
    run = [*arguments(world, "negclip", tmp_path / "run"), *FEW]
    train = ["train", "FILE", *run[2:]]
    for code, before, commands in (
        (own_files.METHOD, "from compoclip.losses", [train]),
        (own_files.METHOD, "losses = ", [train, ["list", "methods", "FILE"]]),
        (own_files.LOSS, "return 0.5", [[*run, "--terms=+FILE"]]),
        (
            own_files.REWRITE,
            "if not caption.tokens",
            [["rewrite", LINES[0], "--rewrites=FILE"], rewriting, [*run, "--texts=+FILE"]],
        ),
        (own_files.BENCHMARK, "for k in range(6)", [["data", "check", "FILE"]]),
    ):
        file = own_files.write(tmp_path, "mine.py", exiting(code, before, end))
        for words in commands[: None if end == EXITS[0] else 1]:
            command = [word.replace("FILE", str(file)) for word in words]
            assert main(command) == 1, command
            said = capsys.readouterr().err.splitlines()[-1]
            assert str(file) in said
            assert said.endswith("; fix the file")
            assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_method_may_be_of_another_encoding_if_it_says_so(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "method.py"
    code = f"# -*- coding: {encoding} -*-\n# caf\u00e9{own_files.METHOD}"
    file.write_bytes(code.encode(encoding))
    assert load_recipe(str(file))().name == "mine"
    file.write_bytes('x = "caf\u00e9"\n'.encode("latin-1"))
    with pytest.raises(CompoclipError, match=r"method\.py: SyntaxError: .*'utf-8' codec"):
        load_recipe(str(file))


def test_files_without_a_loss_or_benchmark_say_what_they_lack(
    tmp_path: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_files.write(tmp_path, "empty.py", "x = 1")
    assert main([*arguments(world, "negclip", tmp_path / "a"), f"--terms=+{file}"]) == 2
    assert "none, a LossTerm at the top level" in capsys.readouterr().err
    with pytest.raises(UsageError, match="none, a CaseReader, or META and load"):
        parse_targets([str(file)], tmp_path)
    taken = own_files.write(
        tmp_path, "taken.py", own_files.BENCHMARK.replace('id="mugs"', 'id="aro"')
    )
    with pytest.raises(UsageError, match="'aro' is a benchmark already"):
        parse_targets([str(taken)], tmp_path)
    reads = own_files.LOSS.replace("weight=0.25", "reads=NEGATIVES").replace(
        "import LossTerm", "import LossTerm\nfrom compoclip.methods.base import NEGATIVES"
    )
    term = own_files.write(tmp_path, "reads.py", reads)
    assert main([*arguments(world, "clip-ft", tmp_path / "b"), f"--terms=+{term}"]) == 2
    assert "clip-ft has only captions; add texts with --texts" in capsys.readouterr().err


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Packages that add a thing of each kind, and a rewrite that is an instance of our class."""
    site = tmp_path / "site"
    for package, kind, code, name, value in (
        ("their_methods", "methods", own_files.METHOD, "their-method", "mine"),
        ("their_rewrites", "rewrites", own_files.REWRITE, "denied", "Denied"),
        ("their_sampled", "rewrites", own_files.SAMPLED, "nameless", "NAMELESS"),
        ("their_losses", "losses", own_files.LOSS, "their-half", "TERM"),
        ("their_benchmarks", "benchmarks", own_files.BENCHMARK, "mugs", "MUGS"),
    ):
        entry = {name: f"{package}:{value}"}
        own_files.install(site, package, code, f"compoclip.{kind}", **entry)
    monkeypatch.syspath_prepend(site)
    rewrites._registered.cache_clear()
    yield
    rewrites._registered.cache_clear()
    for package in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[package]


@pytest.mark.usefixtures("packages")
def test_other_packages_add_all_four(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "their-method" in method_names()
    assert method_summaries()["their-method"] == "(of their_methods 1.0)"
    assert "their_methods" not in sys.modules
    for verb, name in (
        ("methods", "mine"),
        ("rewrites", "denied"),
        ("losses", "their-half"),
        ("benchmarks", "mugs"),
    ):
        assert main(["list", verb]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[-2:] for line in lines if line.startswith(f"{name} ")] == [
            [f"their_{verb}", "1.0"]
        ]
        assert sum(line.endswith("  compoclip") for line in lines) > 5
        assert main(["list", verb, "--json"]) == 0
        listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
        origin = "from" if verb == "methods" else "origin"
        assert listed[name][origin] == f"their_{verb} 1.0"
    made = trained(
        world, "their-method", tmp_path / "run", "--texts=+denied", "--terms=+their-half"
    )
    assert set(made["sources"]) == {"their_methods.py", "their_rewrites.py", "their_losses.py"}


@pytest.mark.usefixtures("packages")
def test_a_package_may_add_an_instance_of_a_class_of_ours() -> None:
    assert get_rewrite("nameless")(parse("a dog"), random.Random(0)) == Refused("no-name")


def test_packages_that_are_broken_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    own_files.install(site, "gone", "import no_such", "compoclip.methods", gone="gone:recipe")
    monkeypatch.syspath_prepend(site)
    own_files.install(site, "ends", "import sys; sys.exit(0)", "compoclip.losses", ends="ends:TERM")
    monkeypatch.syspath_prepend(site)
    with pytest.raises(CompoclipError, match=r"method 'gone' of entry point 'gone:recipe' cannot"):
        load_recipe("gone")
    with pytest.raises(CompoclipError, match=r"loss 'ends' of .* imported: SystemExit: 0"):
        loss_named("ends")


def scaled(factor: float, features: object, layout: object) -> float:
    return factor


def test_sources_are_those_from_outside_the_package() -> None:
    assert load_recipe("fsc-clip")().sources == {}
    assert load_recipe("ce-clip")().sources == {}
    assert str(Path(__file__)) in plugins.sources_of(partial(scaled, 2.0))
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def loss(f, y):\n    return f * 2", space)  # noqa: S102
    first = plugins.sources_of(space["loss"])
    exec("def loss(f, y):\n    return f * 3", space)  # noqa: S102
    assert list(first) == ["loss (typed in)"]
    second = plugins.sources_of(space["loss"])
    assert first != second
    assert plugins.sources_of(space["loss"], space["loss"]) == second
    assert isinstance(load_recipe("negclip")(), Method)
