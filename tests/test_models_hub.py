"""The hub: what is pushed, what is fetched, offline; against a hub of our own over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from huggingface_hub import ModelCard, constants

import hub_server
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.results import save_results
from compoclip.models.checkpoint import load_model, save_model
from compoclip.models.conversion import convert, inspect_model
from compoclip.models.formats import hub
from compoclip.models.formats.hub import CardResult
from compoclip.programs.run import named_models
from method_data import arguments
from test_models_card import card, new, result

LEAKS = ("notes.txt", ".env", "optimizer.pt", "train.jsonl", "weights.bin", "compoclip.json~")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with things beside it that are nobody's business."""
    save_model(new(tmp_path, merges=True), tmp_path / "model", provenance={"method": "fsc-clip"})
    for name in LEAKS:
        (tmp_path / "model" / name).write_text("secret")
    (tmp_path / "model" / "state").mkdir()
    (tmp_path / "model" / "state" / "tensors.safetensors").write_bytes(b"secret")
    return tmp_path / "model"


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What reaches huggingface_hub, in the place of the network."""
    seen: dict[str, Any] = {"files": {}}

    class Api:
        def create_repo(self, repo: str, *, private: bool | None, exist_ok: bool) -> None:
            seen.update(repo=repo, private=private, exist_ok=exist_ok)

        def create_commit(self, repo: str, operations: Any, commit_message: str) -> Any:
            seen["message"] = commit_message
            for each in operations:
                given = each.path_or_fileobj
                data = given if isinstance(given, bytes) else Path(given).read_bytes()
                seen["files"][each.path_in_repo] = data
            return type("Commit", (), {"repo_url": f"https://hub/{repo}"})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return seen


def test_a_checkpoint_is_pushed_and_nothing_else(
    folder: Path, pushed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", f"local-dir:{folder}", "me/model", "--private"]) == 0
    assert f"{folder} -> https://hub/me/model: open_clip_config.json" in capsys.readouterr().out
    names = "open_clip_config.json open_clip_model.safetensors compoclip.json bpe.txt.gz README.md"
    assert set(pushed["files"]) == set(names.split())
    assert (pushed["repo"], pushed["private"], pushed["exist_ok"]) == ("me/model", True, True)
    assert_pushed(pushed["files"], folder)


def assert_pushed(files: dict[str, bytes], folder: Path) -> None:
    """The files as they are, without the place of the merges file on this machine."""
    for name, data in files.items():
        assert data == (folder / name).read_bytes().replace(f"{folder}/".encode(), b"")
        assert str(folder).encode() not in data


def test_other_forms(tmp_path: Path, pushed: dict[str, Any]) -> None:
    save_model(new(tmp_path), tmp_path / "model", provenance={})
    made = {
        "hf": {"config.json", "model.safetensors", "preprocessor_config.json", "vocab.json",
               "sentence_bert_config.json", "merges.txt", "tokenizer_config.json",
               "special_tokens_map.json", "vocab.txt",
               "compoclip.json", "README.md"},
        "hf-vision": {"config.json", "model.safetensors", "preprocessor_config.json", "vocab.txt"},
    }  # fmt: skip
    for form, names in made.items():
        convert(str(tmp_path / "model"), tmp_path / form, form)  # type: ignore[arg-type]
        (tmp_path / form / "pytorch_model.bin").write_text("secret")
        (tmp_path / form / "vocab.txt").write_text("words")
        pushed["files"].clear()
        hub.publish(tmp_path / form, "me/model")
        assert set(pushed["files"]) == names
    assert "html.unescape(ftfy.fix_text(text))" in (tmp_path / "hf" / "README.md").read_text()
    index = tmp_path / "hf" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "../x"}}))
    with pytest.raises(CompoclipError, match="names no file, or one that is outside"):
        hub.model_files(tmp_path / "hf")
    index.write_text(json.dumps({"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors"}}))
    with pytest.raises(CompoclipError, match=r"has no m-1\.safetensors"):
        hub.model_files(tmp_path / "hf")


def test_adapters(tmp_path: Path) -> None:
    (tmp_path / "adapter.json").write_text("{}")
    (tmp_path / "state.pt").write_text("")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(CompoclipError, match=r"has no adapter_model\.safetensors"):
        hub.model_files(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_text("")
    expected = ["adapter_config.json", "adapter_model.safetensors", "adapter.json"]
    assert hub.model_files(tmp_path) == expected


def test_results_go_into_the_card_and_its_index(folder: Path, pushed: dict[str, Any]) -> None:
    results, other = folder.parent / "results", folder.parent / "other"
    for place, weights in ((results, load_model(folder).identity.weights), (other, "another")):
        save_results(replace(result(weights), items="w.parquet"), pa.table({"item": [1]}), place)
    assert main(["push", str(folder), "me/model", "--results", str(results)]) == 0
    text = pushed["files"]["README.md"].decode()
    assert "| winoground | group | 25.0 |" in text
    (entry,) = ModelCard(text).data.eval_results
    assert (entry.dataset_type, entry.dataset_name) == ("winoground", "winoground")
    assert (entry.metric_type, entry.metric_value) == ("group", 0.25)
    before = card(folder)
    hub.publish(folder, "me/model")
    assert card(folder) == before  # a card that is there stays
    assert main(["push", str(folder), "me/model", "--results", str(other)]) == 1
    odd = [CardResult('a "b": {c} (1 of 2 items)', "r@1: #", 0.5, 0.4, 0.6, 0.1, 2)]
    hub.publish(folder, "me/model", results=odd)
    (entry,) = ModelCard(card(folder)).data.eval_results
    assert (entry.dataset_name, entry.metric_type) == (odd[0].benchmark, "r@1: #")


def test_train_and_convert_push_what_they_wrote(
    world: Path, tmp_path: Path, pushed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = [*arguments(world, "negclip", tmp_path / "run"), "--push-to-hub=me/negclip"]
    assert main([*run, "--set=stop_after=1"]) == 0
    assert "not pushed to me/negclip: the run is not finished" in capsys.readouterr().err
    assert pushed["files"] == {}
    assert main([*run, "--resume"]) == 0
    assert f"{tmp_path / 'run/model'} -> https://hub/me/negclip" in capsys.readouterr().err
    weights = (tmp_path / "run/model/open_clip_model.safetensors").read_bytes()
    assert pushed["files"]["open_clip_model.safetensors"] == weights
    assert {"README.md", "compoclip.json", "open_clip_config.json"} < set(pushed["files"])

    pushed["files"].clear()
    more = ("--lora", "--set=merge=false", "--epochs=0.5", "--push-to-hub=me/adapter")
    assert main(arguments(world, "negclip", tmp_path / "lora", *more)) == 0
    weights = {"adapter_config.json", "adapter_model.safetensors"}
    assert set(pushed["files"]) == {"adapter.json", *weights}

    pushed["files"].clear()
    capsys.readouterr()
    convert_to = ["convert", str(world / "base"), str(tmp_path / "hf"), "--to=hf", "--json"]
    assert main([*convert_to, "--push-to-hub", "me/hf"]) == 0
    assert json.loads(capsys.readouterr().out)["form"] == "hf"
    assert "model.safetensors" in pushed["files"]


@pytest.mark.parametrize(("name", "why"), [("a/b/c", "not a name"), ("me/model", "HF_HUB_OFFLINE")])
def test_what_cannot_be_pushed_is_told_before_the_work(
    name: str, why: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = arguments(world, "negclip", tmp_path / "run")
    for work in (run, ["convert", str(world / "base"), str(tmp_path / "hf"), "--to=hf"]):
        assert main([*work, f"--push-to-hub={name}"]) in (1, 2)
        assert why in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "hf").exists()


def test_what_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("403 Forbidden\n")

    assert main(["push", str(folder), "me/model"]) == 1  # conftest: no network
    assert "HF_HUB_OFFLINE forbids the network; unset it" in capsys.readouterr().err
    assert main(["push", str(folder.parent / "none"), "me/model"]) == 2
    assert "no such folder" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(UsageError, match="not a name on the hub"):
        hub.publish(folder, "a/b/c")
    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(CompoclipError, match=r"could not be pushed \(403 Forbidden\); log in with"):
        hub.publish(folder, "me/model")
    (folder / "open_clip_model.safetensors").unlink()
    assert main(["push", str(folder), "me/model"]) == 1
    assert "has no open_clip_model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("spec", ["RN50-quickgelu:openai", "hf-hub:nobody/nothing"])
def test_a_hub_that_does_not_answer_is_not_asked_again(
    spec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    asked: list[str] = []
    monkeypatch.setattr("time.sleep", lambda seconds: asked.append(str(seconds)))
    with pytest.raises(CompoclipError, match=r"no answer from http://127\.0\.0\.1:9: .*; connect"):
        load_model(spec)
    assert asked == []  # retries sleep between
    assert capfd.readouterr().err == ""
    assert constants.HF_HUB_OFFLINE is False


def test_local_dir_is_the_folder_everywhere(folder: Path, tmp_path: Path) -> None:
    named = f"local-dir:{folder}"
    weights = load_model(folder).identity.weights
    assert load_model(named).identity.weights == weights
    assert inspect_model(named, named)["kind"] == "open_clip checkpoint folder"
    assert convert(named, tmp_path / "hf", "hf")["form"] == "hf"
    assert load_model(f"local-dir:{tmp_path / 'hf'}").identity.weights == weights
    assert named_models([named]) == {folder.parent.name: named}
    with pytest.raises(UsageError, match="local-dir:nowhere: no such folder"):
        load_model("local-dir:nowhere")


def test_there_and_back_over_http(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Push a checkpoint with the real client, load it by hf-hub:, and again from the cache."""
    with hub_server.running() as server:
        server.serve_this_process(tmp_path / "home", monkeypatch)
        inspect = ["inspect", "hf-hub:me/model", "--json"]
        assert main(["push", str(folder), "me/model", "--message=First"]) == 0
        capsys.readouterr()
        assert main(inspect) == 0
        found = capsys.readouterr().out
        files = server.repositories["me/model"]
        assert set(files) == set(hub.model_files(folder))
        assert_pushed(files, folder)
        assert server.messages == ["First"]
        assert not any("secret" in str(data) for data in files.values())
        record = json.loads((folder / "compoclip.json").read_text())
        assert json.loads(found)["identity"] == record["identity"]
        before = len(server.seen)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert main(inspect) == 0
        assert capsys.readouterr().out == found  # from the cache
        assert len(server.seen) == before
