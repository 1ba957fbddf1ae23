"""The verbs evaluate and compare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from benchmark_files import red_cubes, write_mini
from compoclip.benchmarks.targets import find_in, parse_targets, read_suite
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.results import load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.checkpoint import create_model, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.programs import run
from evaluation_helpers import TINY, FakeEncoder, choice_benchmark

# --- Evaluate ---


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tiny" / "model"
    save_model(create_model(ModelConfig(TINY), seed=3), folder)
    return folder


@pytest.fixture
def root(tmp_path) -> Path:
    """SugarCrepe in miniature, made here: 4 items a part over 5 photos, and its edition file."""
    return write_mini(tmp_path / "data", 5, **red_cubes(5))


def test_end_to_end_with_a_real_model(model, root, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["evaluate", str(model), "--on", "sugarcrepe", "--data", str(root)]
    assert main([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "sugarcrepe@mini (vl_compo)" in printed
    assert "swap_obj" not in printed
    assert "Measured 1 model on 1 benchmark, 28 items." in printed
    assert "tiny: compositionality " in printed
    assert printed.splitlines()[-1] == f"next: compoclip report {out} -o report.html"
    (result,) = load_results(out / "tiny")
    assert result.aggregates["micro"].n == 28
    assert not result.partial
    assert result.identity == json.loads(json.dumps(load_model(model).identity.to_json()))

    loaded = load_model(model)
    row = load_items(result).to_pylist()[9]
    image = loaded.preprocess.evaluation(Image.open(row["images"][0]))[None]
    text = loaded.tokenizer(row["texts"])
    features = loaded.encoder.features(image, text)
    scores = (features.image @ features.text.T).detach().numpy()[0]
    assert row["scores"] == pytest.approx(scores.tolist(), abs=1e-6)

    assert main([*arguments, "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    assert "already measured" in captured.err
    (record,) = json.loads(captured.out)
    assert record["benchmark"] == "sugarcrepe@mini"
    grounded = record["grounded"]
    assert grounded["blind_models"] == []
    assert {column["name"] for column in grounded["columns"]} == record["scores"].keys()
    gains = [max(0.0, column["gain"]["value"]) for column in grounded["columns"]]
    assert grounded["mean"]["value"] == pytest.approx(sum(gains) / len(gains))


def test_cut_features_are_those_of_the_first_dimensions(model, root, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["evaluate", str(model), "--on", "sugarcrepe", "--data", str(root)]
    arguments += ["--out", str(out), "--dimensions"]
    assert main([*arguments, "5"]) == 0
    assert "features cut to 5 dimensions" in capsys.readouterr().out
    (result,) = load_results(out / "tiny")
    assert result.identity["dimensions"] == 5
    loaded = load_model(model)
    row = load_items(result).to_pylist()[9]
    image = loaded.preprocess.evaluation(Image.open(row["images"][0]))[None]
    features = loaded.encoder.features(image, loaded.tokenizer(row["texts"]))
    u, t = features.image[0, :5].tolist(), features.text[:, :5].tolist()
    for found, text in zip(row["scores"], t):
        lengths = sum(a * a for a in u) * sum(b * b for b in text)
        product = sum(a * b for a, b in zip(u, text))
        assert found == pytest.approx(product / lengths**0.5, abs=1e-5)
    assert main([*arguments, "17"]) == 1
    assert "--dimensions 17: its features have 16" in capsys.readouterr().err


def test_texts_with_the_same_tokens_share_a_key_and_cut_texts_are_known(model):
    encoder = ModelEncoder(load_model(model))
    keys = encoder.text_keys(["A  red cube", "a red cube", "a red ball", "cube " * 30])
    assert keys[0] == keys[1]
    assert keys[1].key != keys[2].key
    assert [key.truncated for key in keys] == [False, False, False, True]
    assert keys[0].length == 5


def test_several_models_begin_with_one_table(model, root, tmp_path, capsys):
    (root / "coco/val2017/2.png").unlink()
    arguments = ["evaluate", f"a={model}", f"b={model}", "--on", "sugarcrepe:add_*"]
    arguments += ["--data", str(root), "--out", str(tmp_path / "out"), "--allow-partial"]
    assert main(arguments) == 0
    table, said, hint = capsys.readouterr().out.strip().split("\n\n")
    header, _, first, *_ = table.splitlines()
    assert header.split() == ["a", "b", "chance"]
    assert first.startswith("sugarcrepe@mini (micro, 6 of 8 items)")
    assert "PARTIAL data: sugarcrepe@mini" in table
    assert "b: too few photos to judge any of 2 skills." in said
    assert hint.startswith("--details adds the sub-tasks\nnext: compoclip report ")
    assert main([*arguments, "--details"]) == 0
    again, *details = capsys.readouterr().out.strip().split("\n\n")
    assert again == table
    heads = [each.splitlines()[0] for each in details]
    assert [name for name in ("a", "b") for head in heads if head.startswith(f"{name} on ")] == [
        "a",
        "b",
    ]


def test_a_suite_names_places_and_ids(root, tmp_path):
    suite = {
        "benchmarks": [
            {"name": "sugarcrepe", "root": "data", "id": "first"},
            {
                "name": "sugarcrepe:swap_*",
                "images": "data/coco/val2017",
                "options": {"annotations": "data/sugarcrepe"},
            },
        ]
    }
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    first, second = (t.load() for t in parse_targets([str(tmp_path)], Path("unused")))
    assert first.name == "first"
    assert len(first.content) == 28
    assert second.name == "sugarcrepe"
    assert {case.subtask for case in second.content} == {"swap_obj", "swap_att"}
    assert all(ref.path.is_file() for case in second.content for ref in case.images)


def test_a_data_root_is_searched_for_what_is_complete(root, capsys):
    assert [t.spec for t in find_in(root)] == ["sugarcrepe"]
    (root / "elevater/shapes/cube").mkdir(parents=True)
    (root / "sugarcrepe/add_obj.json").unlink()
    assert [t.spec for t in find_in(root)] == ["zero_shot:shapes"]
    assert "sugarcrepe: left out" in capsys.readouterr().err
    with pytest.raises(CompoclipError, match="holds neither"):
        find_in(root / "coco")


def test_all_is_what_the_data_root_holds(root, tmp_path):
    assert [(t.spec, t.root) for t in parse_targets(["all"], root)] == [("sugarcrepe", root)]
    suite = {"benchmarks": [{"name": "sugarcrepe:swap_*", "id": "swaps"}]}
    (root / "suite.json").write_text(json.dumps(suite))
    (target,) = parse_targets(["all"], root)
    named = target.load()
    assert (target.spec, named.name, named.known_as) == (
        "sugarcrepe:swap_*",
        "swaps",
        "sugarcrepe@mini",
    )
    with pytest.raises(UsageError, match="no such folder; say with --data"):
        parse_targets(["all"], tmp_path / "nowhere")


def test_targets_carry_their_places_and_options():
    (target,) = parse_targets(
        ["retrieval:coco,root=/r,images=/i,pre_caption_words=30,id=x"], Path("/d")
    )
    assert (target.spec, target.root, target.images, target.id) == (
        "retrieval:coco",
        Path("/r"),
        Path("/i"),
        "x",
    )
    assert target.options == {"pre_caption_words": 30}
    (plain,) = parse_targets(["sugarcrepe:add_obj,swap_*"], Path("/d"), Path("/p"))
    assert (plain.spec, plain.root, plain.images) == (
        "sugarcrepe:add_obj,swap_*",
        Path("/d"),
        Path("/p"),
    )


@pytest.mark.parametrize("text", ["sugarcrepe", "sugarcrepe:swap_att", "retrieval_3", "winoground"])
def test_a_name_is_no_folder_beside_the_command(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of data has folders with the names of benchmarks."""
    expected = parse_targets([text], tmp_path)
    name = text.partition(":")[0]
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_targets([text], tmp_path) == expected
    with pytest.raises(CompoclipError, match=f"{name}: holds neither"):
        parse_targets([f"./{name}"], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sugarcrepe,images=", "not KEY=VALUE"),
        ("sugarcrepe,root=a,root=b", "twice"),
        ("./nowhere", "no such folder"),
        ("retrieval_3:coco", "a suite has no parts; name a benchmark: retrieval:coco, retr"),
        ("FOLDER:aro", "a suite has no parts; name a benchmark: NAME,root="),
        ("FOLDER/suite.json:aro", "a suite has no parts; name a benchmark: NAME,root="),
        ("retrieval:coco,pre_caption_words=few", "whole number"),
    ],
)
def test_malformed_targets_are_usage_errors(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        parse_targets([text.replace("FOLDER", str(tmp_path))], Path("data"))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"benchmarks": []}',
        '{"benchmarks": [{"name": "sugarcrepe"}], "images": "photos"}',
        '{"benchmarks": [3]}',
        '{"benchmarks": [{"root": "x"}]}',
        '{"benchmarks": [{"name": "sugarcrepe", "roots": "x"}]}',
        '{"benchmarks": [{"name": "sugarcrepe", "images": 3}]}',
    ],
)
def test_malformed_suites_name_the_file(tmp_path, text):
    (tmp_path / "suite.json").write_text(text)
    with pytest.raises(CompoclipError, match=r"suite\.json"):
        read_suite(tmp_path / "suite.json")


def test_names_of_models(model):
    assert run.named_models([str(model), "b=random:RN50", "bundled"]) == {
        "tiny": str(model),
        "b": "random:RN50",
        "bundled": "bundled",
    }
    with pytest.raises(UsageError, match="two models are called 'bundled'"):
        run.named_models(["bundled", "bundled"])
    options = run.EvaluateOptions(on=("sugarcrepe",))
    with pytest.raises(UsageError, match="'a:b' and 'a/b' have one file name, a_b"):
        run.evaluate(options, {"a:b": "bundled", "a/b": "bundled"})


def test_sugarcrepe_with_the_real_photos(model, shared_data, tmp_path, capsys):
    place = shared_data / "annotations/sugarcrepe"
    photos = shared_data / "photos/sugarcrepe_coco/images"
    on = f"sugarcrepe,annotations={place},images={photos}"
    arguments = ["evaluate", str(model), "--on", on, "--out", str(tmp_path), "--allow-partial"]
    assert main(arguments) == 0
    (result,) = load_results(tmp_path)
    micro = result.aggregates["micro"]
    assert (micro.n, micro.expected) == (295, 7511)
    assert result.partial
    assert "PARTIAL" in capsys.readouterr().out


# --- Compare ---


def folders(tmp_path, *names: str) -> list[str]:
    toy = choice_benchmark(tmp_path / "p", n=20)
    for name in names:
        evaluate(name, FakeEncoder(name), [toy], tmp_path / "out", Options(resamples=50))
    return [str(tmp_path / "out" / name) for name in names]


def test_one_table_for_each_other_model(tmp_path, capsys):
    places = folders(tmp_path, "base", "one", "two")
    single = f"{places[2]}/toy.json"  # will do as well as its folder
    assert main(["compare", *places[:2], single, "--resamples", "100"]) == 0
    text = capsys.readouterr().out
    assert "one against base (base)" in text
    assert "two against base (base)" in text
    assert "toy micro" in text
    assert main(["compare", *places, "--resamples", "100", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [each["other"] for each in data] == ["one", "two"]
    assert {each["name"] for each in data[0]["subtasks"]} == {"even", "odd"}
    gain, models = data[0]["mean_grounded_gain"], data[0]["grounded"]
    assert gain["base"] == models["base"]["mean"]["value"]
    assert gain["other"] == models["one"]["mean"]["value"]
    assert {column["name"] for column in models["one"]["columns"]} == {"even", "odd"}


def test_errors_are_one_line(tmp_path, capsys):
    places = folders(tmp_path, "base", "one")
    assert main(["compare", places[0]]) == 2
    assert main(["compare", *places, "--resamples", "0"]) == 2
    capsys.readouterr()
    assert main(["compare", places[0], str(tmp_path / "out")]) == 1
    assert main(["compare", places[0], str(tmp_path / "none")]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2
    assert "several models" in lines[0]
    assert "no such file or folder" in lines[1]
