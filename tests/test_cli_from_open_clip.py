"""`train --from-open-clip`: every flag of open_clip is translated, harmless, or refused by name."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from compoclip.cli.from_open_clip import FLAG as FROM_OPEN_CLIP
from compoclip.cli.from_open_clip import flags, our_words, translated
from compoclip.cli.main import main
from compoclip.cli.train import KEYS, called
from compoclip.config import names_here, options_of, read_config
from compoclip.errors import CompoclipError, UsageError
from compoclip.programs.run import TrainOptions

HEAD = "python -m open_clip_train.main"
BASE = "--model ViT-B-32 --pretrained openai --name first"


def run(text: str) -> dict[str, Any]:
    return translated(f"{BASE} {text}")[0]


def csv(folder: Path, image: str = "a.png", separator: str = "\t", name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(f"filepath{separator}title\n{image}{separator}a red cup\n")
    return path


class FoundError(Exception):
    """Carries open_clip's parser."""


def test_the_table_has_every_flag_of_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    params = pytest.importorskip(
        "open_clip_train.params", reason="open_clip_train is not installed"
    )

    def caught(parser: argparse.ArgumentParser, args: Any) -> None:
        raise FoundError(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", caught)
    with pytest.raises(FoundError) as raised:
        params.parse_args([])
    (parser,) = raised.value.args
    actions = {a.option_strings[0][2:]: a for a in parser._actions if a.dest != "help"}
    rows = {flag: row for group in flags().values() for flag, row in group.items()}
    assert rows.keys() == actions.keys()
    for flag, action in actions.items():
        kind = "words" if action.nargs in ("*", "+") else getattr(action.type, "__name__", "str")
        kind = "switch" if action.nargs == 0 else kind
        assert rows[flag].get("is", "str") == kind, flag
        default = rows[flag].get("default", action.default if kind != "switch" else False)
        assert default == action.default or flag in ("lr", "beta1"), flag  # see below
        if flag in flags()["translated"] and action.choices:
            assert {*rows[flag]["values"]} <= {*action.choices}
    of_vit, of_resnet = (params.get_default_params(name) for name in ("ViT-B-32", "RN50"))
    assert (of_vit["beta2"], of_resnet["eps"]) == (0.98, 1e-8)
    assert (of_vit["lr"], of_vit["beta1"]) == (5e-4, 0.9)


def test_every_flag_is_in_one_group_and_says_what_happens() -> None:
    groups = flags()
    assert [*groups] == ["renamed", "translated", "harmless", "refused"]
    every = [flag for group in groups.values() for flag in group]
    assert len(every) == len({*every}) == 90
    for flag in groups["renamed"]:
        assert len(names_here(flag, "options", options_of(TrainOptions))) == 1, flag
    assert all(row["reason"] for row in groups["harmless"].values())
    assert all(row["remedy"] for row in groups["refused"].values())


def test_harmless_flags_change_nothing_and_are_said() -> None:
    plain = run("")
    for flag, row in flags()["harmless"].items():
        value = {"switch": "", "int": " 3", "float": " 1.5"}.get(row.get("is", ""), " text")
        changed, without_effect, _ = translated(f"{BASE} --{flag}{value}")
        assert changed == plain
        assert without_effect == {flag: row["reason"]}


def test_refused_flags_are_named_with_a_remedy() -> None:
    for flag, row in flags()["refused"].items():
        value = {"switch": "", "int": " 3", "float": " 1.5", "words": " 1"}.get(row.get("is", ""))
        with pytest.raises(UsageError) as raised:
            run(f"--{flag}{' text' if value is None else value}")
        assert str(raised.value).startswith(f"{FROM_OPEN_CLIP}: --{flag}: has no counterpart; ")
        assert row["remedy"] in str(raised.value)


def test_the_defaults_of_open_clip_are_written_out() -> None:
    assert translated(BASE) == (
        {
            "beta2": 0.98,
            "eps": 1e-6,
            "model": "ViT-B-32:openai",
            "out": "logs/first",
            "workers": 4,
            "epochs": 32,
            "lr": 5e-4,
            "beta1": 0.9,
            "weight_decay": 0.2,
            "warmup": 10000,
            "seed": 0,
            "log_every": 100,
            "batch_size": 64,
            "precision": "fp16",
            "mask_duplicates": False,
        },
        {},
        1,
    )


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("--lr 1e-5 --wd 0.1 --beta1 0.8 --beta2 0.95 --eps 1e-7 --warmup 5 --epochs 3 --seed 7", {
            "lr": 1e-5, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-7,
            "warmup": 5, "epochs": 3, "seed": 7,
        }),
        ("--batch-size 32 --accum-freq 4", {"batch_size": 128, "micro_batch": 32}),
        ("--precision fp32", {"precision": "fp32"}),
        ("--precision amp_bfloat16", {"precision": "bf16"}),
        ("--lr-scheduler const --lr 1e-4", {"min_lr": 1e-4, "lr": 1e-4}),
        ("--skip-scheduler", {"min_lr": 5e-4, "warmup": 0}),
        ("--lock-image", {"freeze": ["image"]}),
        ("--lock-image --lock-image-unlocked-groups 1 --lock-text", {
            "freeze": ["image-trunk", "text"]
        }),
        ("--grad-checkpointing --torchcompile", {"grad_checkpointing": True, "compile": True}),
        ("--grad-clip-norm 1.0 --log-every-n-steps 5", {"clip_grad": 1.0, "log_every": 5}),
        ("--siglip --force-quick-gelu", {"contrast": "sigmoid", "activation": "quick_gelu"}),
        ("--report-to wandb,tensorboard", {"track": ["wandb", "tensorboard"]}),
        ("--report-to all", {"track": ["tensorboard", "wandb"]}),
        ("--device cpu --workers 0", {"device": "cpu", "workers": 0}),
        ("--resume latest", {"resume": True}),
        ("--logs None", {"out": "first"}),
        ("--model hf-hub:a/b", {"model": "hf-hub:a/b", "beta2": 0.999, "eps": 1e-8}),
        ("--train-data a-{00..09}.tar", {"data": "a-{00..09}.tar", "split": "all"}),
        ("--imagenet-val /i --imagenet-v2 /v", {
            "on": ["zero_shot:imagenet-1k,images=/i", "zero_shot:imagenet-v2,images=/v"]
        }),
        ("--warm 9", {"warmup": 9}),  # its parser takes the beginnings of flags
    ],
)  # fmt: skip
def test_flags_are_translated(text: str, options: dict[str, Any]) -> None:
    plain, changed = run(""), run(text)
    assert changed == plain | options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--opt timm/lamb", r"--opt timm/lamb: has no counterpart; use one of: 'adamw'"),
        ("--precision pure_bf16", "--precision pure_bf16: has no counterpart; use one of: 'amp'"),
        ("--dataset-type synthetic", "--dataset-type synthetic: has no counterpart"),
        ("--lr-scheduler const-cooldown", "--lr-scheduler const-cooldown: has no counterpart"),
        ("--lock-image-unlocked-groups 3", "--lock-image-unlocked-groups 3: has no counterpart"),
        ("--csv-separator ::", "--csv-separator ::: has no counterpart"),
        ("--resume epoch_3.pt", "--resume epoch_3.pt: has no counterpart; use one of: 'latest'"),
        ("--train-data a.tar::b.tar", "a.tar::b.tar: name the data behind the text .*b.tar=0.3"),
        ("--train-data none.csv", "none.csv"),
        ("--model ViT-B-99 --pretrained ''", "--model ViT-B-99: is no model of open_clip; correct"),
        ("--batch-size many", "argument --batch-size: invalid int value: 'many'; correct the comm"),
        ("--lr", "argument --lr: expected one argument"),
        ("--learning-rate 3", "--learning-rate: is no flag of open_clip"),
        ("stray", "stray: is no flag of open_clip"),
        ("--name 'open", r"the quotes of the command do not match \(No closing quotation\)"),
    ],
)
def test_what_has_no_counterpart_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(CompoclipError, match=message) as raised:
        run(text)
    assert "\n" not in str(raised.value)


def test_photos_of_a_csv_lie_where_their_paths_say(tmp_path: Path) -> None:
    plain = {"image_column": "filepath", "caption_column": "title"}
    for image, more in (("a.png", {"images": "."}), (f"{tmp_path}/a.png", {})):
        for separator in ("\t", ","):
            path = csv(tmp_path, image, separator)
            options = run(f"--train-data {path} --val-data {path}")
            assert options == run("") | plain | more | {
                "data": str(path),
                "split": "all",
                "on": [f"retrieval:{path},split=all," + ",".join(
                    f"{key}={value}" for key, value in {**plain, **more}.items()
                )],
            }  # fmt: skip


def test_processes_of_torchrun_multiply_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"torchrun --nnodes=2 --nproc_per_node 4 -m open_clip_train.main {BASE}"
    options, _, processes = translated(command)
    assert (options["batch_size"], processes) == (512, 8)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert translated(f"cd src && {HEAD} \\\n {BASE}")[0]["batch_size"] == 128


def test_without_weights_a_model_is_trained_from_scratch() -> None:
    words = our_words([FROM_OPEN_CLIP, "--model RN50 --name first"], KEYS)
    assert words[0] == "clip"
    assert "--from-scratch" in words
    assert Path(words[words.index("--model") + 1]).name == "RN50.json"
    for model in (["--model", "bundled"], ["--model=bundled"]):
        words = our_words([FROM_OPEN_CLIP, "--model RN50 --name first", *model], KEYS)
        assert "--from-scratch" not in words
        assert [word for word in words if "--model" in word] == model[:1]


def test_the_run_folder_needs_a_name_or_comes_behind() -> None:
    assert "out" not in translated("--model RN50")[0]
    with pytest.raises(UsageError, match="give --data and --out, such as compoclip train clip"):
        called(our_words([FROM_OPEN_CLIP, "--model RN50"], KEYS), "train", ())
    words = our_words([FROM_OPEN_CLIP, "--model RN50", "--out", "x"], KEYS)
    assert words[-2:] == ["--out", "x"]
    with pytest.raises(UsageError, match="write the command of open_clip behind it"):
        our_words([FROM_OPEN_CLIP], KEYS)


def test_the_printed_command_is_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the same file of options; what comes behind the text overrides it."""
    monkeypatch.chdir(tmp_path)
    csv(tmp_path)
    text = f"{HEAD} {BASE} --train-data rows.csv --batch-size 8 --grad-checkpointing --local-loss"
    command = ["train", FROM_OPEN_CLIP, text, "--epochs", "2", "--save-config", "theirs.yaml"]
    assert main(command) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "the same run in the words of compoclip:"
    assert said[2].startswith("  --local-loss is left out: the loss and its gradient are those")
    program, *words = shlex.split(said[1])
    assert program == "compoclip"
    assert main([*words[:-1], "ours.yaml"]) == 0
    assert read_config(Path("ours.yaml")) == read_config(Path("theirs.yaml"))
    assert read_config(Path("ours.yaml"))["epochs"] == 2.0
    assert main(["train", "negclip", f"{FROM_OPEN_CLIP}={text}", "--save-config", "n.yaml"]) == 0
    assert read_config(Path("n.yaml"))["method"] == "negclip"
    method, values = called(our_words([FROM_OPEN_CLIP, text], KEYS), "train", ())
    assert (method, values["batch_size"], values["images"]) == ("clip-ft", 8, Path())
