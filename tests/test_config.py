"""Configuration files: what they may hold, and that a run is repeated from its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pytest

import compoclip
import own_files
from build.photos import write_photos
from compoclip.benchmarks.targets import parse_targets
from compoclip.cli.main import main
from compoclip.cli.options import OptionParser
from compoclip.config import (
    CONFIG,
    Shown,
    checked,
    config_text,
    of_setting,
    options_of,
    place_in,
    read_config,
    typed,
)
from compoclip.data.options import DataOptions
from compoclip.data.places import mixture_of
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.optim import Optim
from compoclip.methods.registry import method_names
from compoclip.models.checkpoint import load_model
from compoclip.programs.request import TrainRequest, known_options
from compoclip.training.settings import OptimOptions
from compoclip.typed import at_home, convert
from method_data import arguments
from train_helpers import weight_hashes

FEW = ("--epochs=0.4", "--warmup=1", "--workers=0")


def written(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a wrong command prints."""
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


# --- Reading. ---


def test_yaml_is_read_without_its_surprises(tmp_path: Path) -> None:
    text = "split: no\non: [off, 1e-6]\nlr: 1e-5\nlong-name: 1:30\nepochs: 2\ndraft: true\nx: ~\n"
    found = read_config(written(tmp_path, text))
    assert found == {
        "split": "no",
        "on": ["off", 1e-6],
        "lr": 1e-5,
        "long_name": "1:30",
        "epochs": 2,
        "draft": True,
        "x": None,
    }
    assert read_config(written(tmp_path, "# nothing\n")) == {}
    assert read_config(written(tmp_path, '{"lr": 1e-5, "texts": ["+a"]}')) == {
        "lr": 1e-5,
        "texts": ["+a"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 1\nlr: 2\n", "line 2: not YAML ('lr' is there twice); fix the file"),
        ("batch-size: 1\nbatch_size: 2\n", "'batch_size' is there twice"),
        ("- lr\n", "not a list of options with lines 'NAME: VALUE'"),
        ("1: 2\n", "not a list of options"),
        ("lr: [1\nseed: 2\n", "line 2: not YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "line 1: not YAML (anchors, aliases and tags"),
        ("a: 1\nb: !!int x\n", "line 2: not YAML (anchors, aliases and tags"),
        ("a: !!timestamp x\n", "anchors, aliases and tags"),
        ("a: ! x\n", "anchors, aliases and tags"),
        ("a: &x 1\n", "anchors, aliases and tags"),
        ("a: [*x]\n", "anchors, aliases and tags"),
        (f"a: {'[' * 60_000}", "not YAML (nested too deeply)"),
        ("a:\n" + "".join(f"{' ' * k}- \n" for k in range(200)), "nested too deeply"),
        (f"a: {'9' * 5000}", "not YAML (a number has thousands of digits)"),
        (f"# {'x' * (1 << 20)}", "too long for a list of options"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_config(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match="no such file"):
        read_config(tmp_path / "none.yaml")
    file = tmp_path / "run.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CompoclipError, match="not UTF-8 text"):
        read_config(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 2", "fsc-clip has no option 'epoch'; did you mean epochs?"),
        ("gama: 2", "fsc-clip has no option 'gama'; did you mean gamma?"),
        ("config: a.yaml", "fsc-clip has no option 'config'"),
        ("epochs: two", "epochs must be a number"),
        ("epochs: true", "epochs must be a number"),
        ("batch_size: 2.5", "batch_size must be a whole number"),
        ("lora: 1", "lora must be true or false"),
        ("attention: max", "attention must be one of minmax"),
        ("texts: [1]", "texts must be a list of texts"),
        ("data: 3", "data must be a text"),
        ("workers: many", "workers must be a whole number or one of auto"),
        ("relative_to: 3", "relative_to must be a path"),
        ("relative_to: /no/such", "relative_to: no folder /no/such; correct or remove the line"),
        ('data: "a\\0b"', "data must be a text"),
        ('images: "a\\0b"', "images must be a path"),
        ('data: "\\ud800"', "data must be a text"),
        (f"data: [{'[], ' * 1000}]", "data must be a text"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_file_and_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = written(tmp_path, f"method: fsc-clip\n{text}\n")
    assert main(["train", "--config", str(file), "--out", str(tmp_path / "run")]) == 2
    assert said(capsys).startswith(f"compoclip train: {file}: {message}")


def test_the_method_is_named_in_the_file_or_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "data: x.tsv\n")
    assert main(["train", f"--config={file}"]) == 2
    assert f"or in {file} (method: NAME)" in said(capsys)
    assert main(["train", "--config", str(written(tmp_path, "method: 3\n"))]) == 2
    assert "method: 3 (int) is not the name of a method" in said(capsys)
    assert main(["train", "--config", str(written(tmp_path, 'method: "a\\0.py"\n'))]) == 2
    assert "method: 'a\\x00.py' (str) is not the name of a method" in said(capsys)
    # Parameters are those of the method that is taken.
    file = written(tmp_path, "method: fsc-clip\ngamma: 1\n")
    assert main(["train", "negclip", f"--config={file}"]) == 2
    assert f"{file}: negclip has no option 'gamma'" in said(capsys)


# --- Values and their types. ---


def test_values_take_the_form_that_an_option_wants() -> None:
    for value, kind, wanted in (
        ("~/x", Path, Path("~/x").expanduser()),
        (Path("x"), str, "x"),
        (2, float, 2.0),
        (True, float, True),
        ("a", tuple[str, ...], ("a",)),
        (["a"], Annotated[tuple[str, ...], Shown(place=True)], ("a",)),
        ([1, "a"], tuple[int, ...], [1, "a"]),  # which the check of the type then names
        ("auto", int | Literal["auto"], "auto"),
        (3, Path | float | None, 3.0),
        (None, Path | None, None),
        ("x", Path | None, Path("x")),
    ):
        found = convert(value, kind)
        assert (found, type(found)) == (wanted, type(wanted))


REFUSED = "refused"
HOME = Path("/home/somebody")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("held_out", "1e-1", 0.1),
        ("held_out", ".2", 0.2),
        ("held_out", "2", 2.0),
        ("held_out", "nan", REFUSED),
        ("held_out", "x", REFUSED),
        ("fraction", "5e-1", 0.5),
        ("split_seed", "+1", 1),
        ("split_seed", "-1", -1),
        ("split_seed", "01", REFUSED),
        ("split_seed", "1_000", REFUSED),
        ("split_seed", "1e3", REFUSED),
        ("split_seed", "\uff11", REFUSED),
        ("quoting", "FALSE", False),
        ("quoting", "true", True),
        ("quoting", "no", REFUSED),
        ("split", "none", None),
        ("split", "null", None),
        ("split", "None", None),
        ("split", "val", "val"),
        ("orientation", "stored", "stored"),
        ("orientation", "none", None),
        ("orientation", "left", REFUSED),
        ("images", "~/photos", HOME / "photos"),
        ("images", "none", Path("none")),
        ("images", "~no-such-user/photos", Path("~no-such-user/photos")),
        ("templates", "~/templates.txt", str(HOME / "templates.txt")),
        ("templates", "a {}", "a {}"),
        ("exclude", "old", ("old",)),
    ],
)
def test_a_text_means_the_same_however_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: object
) -> None:
    monkeypatch.setenv("HOME", str(HOME))
    options = options_of(DataOptions)
    option = options[name]
    folder = write_photos(tmp_path / "set", "cat/1.png")

    def in_target() -> object:
        (target,) = parse_targets([f"zero_shot:{folder},{name}={text}"], tmp_path)
        return target.images if name == "images" else target.options[name]

    ways: dict[str, Callable[[], object]] = {
        "--set": lambda: typed({name: of_setting(text, option.kind)}, options)[name],
        "file": lambda: checked(
            tmp_path / "run.yaml",
            read_config(written(tmp_path, f"{name}: {text}")),
            options,
            "train",
        )[name],
        "target": in_target,
    }
    if option.plain is not bool:
        parser = OptionParser("compoclip", "", {"options": [option]})
        ways["flag"] = lambda: parser.read([f"{option.flag}={text}"])[name]
    for way, read in ways.items():
        try:
            value = read()
        except (UsageError, SystemExit):
            value = REFUSED
        assert value == expected, way
        assert type(value) is type(expected), way


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~/rows.jsonl", "H/rows.jsonl"),
        ("~", "H"),
        ("name=~/model", "name=H/model"),
        ("ViT-B-32@~/model.pt", "ViT-B-32@H/model.pt"),
        ("local-dir:~/model", "local-dir:H/model"),
        ("+~/parts.py:NAME", "+H/parts.py:NAME"),
        ("retrieval:~/a.csv,images=~/b", "retrieval:H/a.csv,images=H/b"),
        ("a/~/b~", "a/~/b~"),
        ("a ~/b", "a ~/b"),
    ],
)
def test_the_folder_of_the_user_in_a_text(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "H")
    assert at_home(text) == expected


def test_the_folder_of_the_user_in_whatever_names_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    request = TrainRequest.of("clip-ft", {"data": "~/p.jsonl", "out": "~/run", "on": ["~/suite"]})
    options = request.options
    assert (options.data, options.out) == (f"{tmp_path}/p.jsonl", tmp_path / "run")
    assert options.on == (f"{tmp_path}/suite",)
    for name in "ab":
        (tmp_path / name).write_text("")
    assert mixture_of("~/a=1 ~/b=2") == {f"{tmp_path}/a": 1, f"{tmp_path}/b": 2}


def test_a_place_is_found_in_a_text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "my.py").touch()
    (tmp_path / "a=1").touch()
    for text in ("data", "my.py", "my.py:NAME", "data=0.7", "data/{000..9}.tar", "a=1"):
        assert place_in(text, tmp_path) == f"{tmp_path}/{text}"
    assert place_in("+./my.py:NAME", tmp_path) == f"+{tmp_path}/my.py:NAME"
    assert place_in("ViT-B-32@data/x.pt", tmp_path) == f"ViT-B-32@{tmp_path}/data/x.pt"
    assert place_in("local-dir:data", tmp_path) == f"local-dir:{tmp_path}/data"
    for text in ("", "bundled", "+synonym", "ViT-B-32:openai", "hf:data/x", "+clip.clip", "/data"):
        assert place_in(text, tmp_path) == text


def test_a_file_written_is_read_back_whatever_it_holds(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "a": "no",
        "b": "1e-6",
        "c": 1e-6,
        "d": ["on", "~", "", "null"],
        "e": "ü: #x",
        "f": True,
        "g": "true",
        "h": 3,
        "i": "3",
        "j": float("inf"),
        "k": 0.1,
        "l": "1.5",
    }
    text = config_text("two\nlines", {**values, "none": None, "empty": (), "path": Path("x")})
    assert text.startswith("# two\n# lines\na: ")
    found = read_config(written(tmp_path, text))
    assert found.pop("relative_to") == str(Path.cwd())
    assert found == {**values, "path": "x"}


@pytest.mark.parametrize("name", method_names())
def test_every_method_is_written_and_read_back(tmp_path: Path, name: str) -> None:
    options = known_options(name)
    must = {each for each, option in options.items() if option.default is MISSING}
    assert must == {"data", "out"}
    request = TrainRequest.of(name, {"data": "x.tsv", "out": Path("run"), "lr": 0.5})
    values = read_config(written(tmp_path, request.text()))
    assert values.pop("method") == name
    again = TrainRequest.of(name, checked(tmp_path, values, options, name))
    assert again.text() == request.text()
    assert again.composed().optim == request.composed().optim
    repeated = read_config(written(tmp_path, request.text(repeats=True)))
    assert set(values) - set(repeated) == {
        each for each in values if each in options and options[each].usage.once
    }


# --- Runs. ---

COMPOSED = ("--texts", "+synonym", "--terms", "+hard-positives", "--set", "terms.clip.weight=0.5")
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "parameters and flags": (
        "fsc-clip",
        (
            *("--gamma=1", "--attention=softmax", "--attention-grad", "--no-crop"),
            *("--micro-batch=4", "--set", "beta2=0.9", "max_logit_scale=50"),
        ),
    ),
    "composed": ("fsc-clip", (*COMPOSED, "--set", "optim.weight_decay=0.3")),
    "adapters": ("negclip", ("--lora", "--lora-rank=2")),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_is_repeated_from_its_own_file(world: Path, tmp_path: Path, case: str) -> None:
    method, options = RUNS[case]
    words = [*arguments(world, method, tmp_path / "a"), *FEW, *options]
    if case == "adapters":
        words = [word for word in words if not word.startswith("--lr")]  # ten times the method's
    assert main(words) == 0
    file = tmp_path / "a" / CONFIG
    assert main(["train", "--config", str(file), "--out", str(tmp_path / "b")]) == 0
    assert weight_hashes(tmp_path / "b") == weight_hashes(tmp_path / "a")
    assert (tmp_path / "b" / CONFIG).read_text() == file.read_text()
    one, other = (load_model(tmp_path / run / "model").provenance for run in "ab")
    for name in ("method", "settings", "terms", "texts", "optim", "composed", "data", "crop"):
        assert one[name] == other[name]
    merged = tmp_path / "merged.yaml"  # the command line wins
    words = ["train", f"--config={file}", f"--out={tmp_path / 'c'}", "--lr=5e-3"]
    assert main([*words, f"--save-config={merged}"]) == 0
    assert read_config(merged)["lr"] == 5e-3


def test_a_method_of_one_s_own_is_repeated_from_another_folder(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_files.write(tmp_path, "my_method.py", own_files.METHOD)
    own_files.write(tmp_path, "my_rewrite.py", own_files.REWRITE)
    own_files.write(tmp_path, "my_loss.py", own_files.LOSS)
    (tmp_path / "data").symlink_to(world)
    monkeypatch.chdir(tmp_path)
    own = ("--weight=0.5", "--texts", "+./my_rewrite.py", "--terms", "+./my_loss.py:half")
    assert main([*arguments(Path("data"), "my_method.py", Path("a")), *FEW, *own]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["train", f"--config=../a/{CONFIG}", "--out=b"]) == 0
    assert weight_hashes(Path("b")) == weight_hashes(tmp_path / "a")
    found = read_config(Path("b", CONFIG))
    assert found["method"] == str(tmp_path / "my_method.py")
    assert found["terms"] == [f"+{tmp_path}/my_loss.py:half"]
    assert found["data"] == str(tmp_path / "data" / "plain.jsonl")


def test_a_run_goes_on_from_its_file(world: Path, tmp_path: Path) -> None:
    words = arguments(world, "fsc-clip", tmp_path / "whole")
    file = tmp_path / "run.yaml"
    assert main([*words, *FEW, "--gamma=1", f"--save-config={file}"]) == 0
    assert not (tmp_path / "whole").exists()
    started = ["train", f"--config={file}"]
    assert main(started) == 0  # the folder, too, is in a file that one asks for
    half = [*started, f"--out={tmp_path / 'half'}"]
    assert main([*half, "--set=stop_after=1"]) == 0
    assert not (tmp_path / "half" / "model").exists()
    own = ["train", f"--config={tmp_path / 'half' / CONFIG}", f"--out={tmp_path / 'half'}"]
    assert main([*own, "--resume"]) == 0
    assert weight_hashes(tmp_path / "half") == weight_hashes(tmp_path / "whole")


def test_a_file_gives_defaults_that_the_help_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "method: fsc-clip\nlr: 1e-3\ngamma: 3\ndata: x.tsv\ncrop: false\n")
    with pytest.raises(SystemExit):
        main(["train", f"--config={file}", "--help-all"])
    text = " ".join(capsys.readouterr().out.split())
    for shown in ("(default: 0.001)", "(default: 3.0)", "(default: x.tsv)", "(default: no-crop)"):
        assert shown in text


def test_flags_of_a_file_are_taken_back(
    world: Path, tmp_path: Path, run_of_file: Callable[[str, str], dict[str, Any]]
) -> None:
    found = run_of_file("lora: true\ncrop: true\nset: [optim.eps=1e-7]\n", "--no-lora")
    assert found["lora"] is False
    assert found["crop"] is True
    assert found["set"] == ["optim.eps=1e-7"]
    assert run_of_file("set: [a.b=1]\n", "--set=optim.eps=1e-3")["set"] == ["optim.eps=1e-3"]


def test_parts_of_a_method_have_names_with_a_dot(
    run_of_file: Callable[[str, str], dict[str, Any]],
) -> None:
    text = "set: [optim.eps=1e-7]\nterms.clip.weight: 0.5\ntrains.image_tower: false\n"
    settings = ["optim.eps=1e-7", "terms.clip.weight=0.5", "trains.image_tower=false"]
    assert run_of_file(text, "--lr=1e-4")["set"] == settings
    assert run_of_file(text, "--set=optim.eps=1e-3")["set"] == ["optim.eps=1e-3"]
    named = run_of_file("texts: [+mosaic]\nset:\n  texts.graph.weights: [1, 0, 0]\n", "--lr=1e-4")
    assert named["set"] == ["texts.graph.weights=[1, 0, 0]"]


def test_parts_of_a_method_in_python() -> None:
    values = {"data": "x", "out": "y", "set": ("optim.eps=1e-7",)}
    weights = {"texts.graph.weights": (0.08, 0, 0.46), "texts.graph.filtered": False}
    request = TrainRequest.of("mosaic-clip", {**values, **weights, "max_negatives": 4})
    settings = ["texts.graph.weights=[0.08, 0, 0.46]", "texts.graph.filtered=false"]
    assert request.options.set == ("optim.eps=1e-7", *settings)
    method = request.composed()
    (graph,) = method.plan.texts
    assert graph.record()["weights"] == (0.08, 0.0, 0.46)
    assert graph.record()["filtered"] is False
    assert graph.record()["stages"][1]["negatives"] == 4
    assert method.optim.eps == 1e-7
    for name, message in (
        ("texts.graf.weights", "no 'graf'; did you mean graph"),
        ("part.weights", "no part 'part'"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainRequest.of("mosaic-clip", {**values, name: 1}).composed()


def test_rare_options_are_keys_and_no_flags(
    run_of_file: Callable[[str, str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_of_file("min_lr: 1e-7\n", "--set=max_bad=3")
    assert (found["min_lr"], found["max_bad"]) == (1e-7, 3)
    assert "set" not in found
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        run_of_file("", "--max-bad=3")
    assert "--max-bad is a key: write --set max_bad=VALUE" in capsys.readouterr().err
    for word, message in (
        ("--set=max_bad=many", "--set max_bad must be a whole number"),
        (
            "--set=max_bat=3",
            "--set max_bat=3: clip-ft has no option 'max_bat'; did you mean max_bad",
        ),
        (
            "--set=weight-decai=3",
            "clip-ft has no option 'weight_decai'; did you mean weight_decay?",
        ),
        ("--set=learning_rate=3", "clip-ft has no option 'learning_rate'; did you mean lr?"),
        ("--set=max_bad", "--set max_bad: write PATH=VALUE"),
    ):
        assert main(["train", "clip-ft", "--data=x", "--out=y", word, "--save-config=z"]) == 2
        assert message in said(capsys)


def test_options_of_the_optimiser_are_the_method_s_unless_given() -> None:
    def optim(**values: Any) -> Any:
        return TrainRequest.of("clip-ft", {"data": "x", "out": "y", **values}).composed().optim

    assert (optim().lr, optim().warmup_share) == (5e-6, 0.1)
    assert (optim(lora=True).lr, optim(lora=True, lr=1e-5).lr) == (5e-5, 1e-5)
    assert (optim(warmup=7).warmup, optim(warmup=7).warmup_share) == (7, 1.0)
    assert optim(set=("optim.lr=2e-6",), lora=True).lr == pytest.approx(2e-5)


@pytest.fixture
def run_of_file(tmp_path: Path) -> Callable[[str, str], dict[str, Any]]:
    """The options that a file and one word of the command line come to."""

    def options(text: str, word: str) -> dict[str, Any]:
        file = written(tmp_path, f"method: clip-ft\ndata: x.tsv\nout: run\n{text}")
        saved = tmp_path / "saved.yaml"
        assert main(["train", f"--config={file}", word, f"--save-config={saved}"]) == 0
        return read_config(saved)

    return options


def test_python_leaves_the_file_too(world: Path, tmp_path: Path) -> None:
    few = {"epochs": 0.4, "batch_size": 8, "lr": 1e-3, "warmup": 1, "device": "cpu"}
    data, base = world / "plain.jsonl", world / "base"
    compoclip.train(base, "fsc-clip", data, out=tmp_path / "a", gamma=1.0, **few)
    file = tmp_path / "a" / CONFIG
    assert main(["train", f"--config={file}", f"--out={tmp_path / 'b'}"]) == 0
    assert weight_hashes(tmp_path / "b") == weight_hashes(tmp_path / "a")
    # A model in memory has no name that a file could hold.
    compoclip.train(compoclip.load(base), "clip-ft", data, out=tmp_path / "c", **few)
    assert not (tmp_path / "c" / CONFIG).exists()


def test_a_run_has_every_setting_of_the_optimiser_as_an_option() -> None:
    hints = get_type_hints(Optim)
    assert [field.name for field in fields(OptimOptions)] == [field.name for field in fields(Optim)]
    assert get_type_hints(OptimOptions) == {name: kind | None for name, kind in hints.items()}
