"""`compoclip train --from-open-clip "..."`: the command of a run of open_clip, as one of ours.

Every flag of open_clip's training script is a row of `open_clip.yaml`: renamed, translated here,
harmless, or refused with a remedy. Defaults of open_clip are written out, so that the run is the
same, and equal captions are not masked. Rows of one photo are one sample, as in all data.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from compoclip.config import names_here, options_of, package_yaml
from compoclip.console import note
from compoclip.data.prompts import library_folder
from compoclip.errors import UsageError, closest, require
from compoclip.patterns import has_ending
from compoclip.programs.run import TrainOptions
from compoclip.ranks import launched

FLAG = "--from-open-clip"
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "switch": {"action": "store_true"},
    "int": {"type": int},
    "float": {"type": float},
    "words": {"nargs": "*"},
}
_SCRIPT = re.compile(r"(.*[./])?(open_clip_train|training)[./]main(\.py)?|(.*/)?main\.py")
_PROCESSES = re.compile(r"--(?:nproc[-_]per[-_]node|nnodes)[ =](\d+)")


@cache
def flags() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the table of open_clip's flags: group -> flag -> what is known of it."""
    return package_yaml(Path(__file__).with_name("open_clip.yaml"))


def our_words(argv: Sequence[str], keys: Collection[str]) -> Sequence[str]:
    """Return the arguments of `compoclip train`, with those that a command of open_clip stands for.

    Further arguments override what is translated. Prints the command, and which flags are left out.
    keys: options that --set takes. Raises UsageError for flags without a counterpart.
    """
    argv = [part for word in argv for part in re.split(f"(?<=^{FLAG})=", word)]
    if FLAG not in argv:
        return argv
    place = argv.index(FLAG)
    before, text, rest = argv[:place], argv[place + 1 : place + 2], argv[place + 2 :]
    _need(text, "", "write the command of open_clip behind it, as a text in quotes")
    options, without_effect, processes = translated(text[0])
    if any(word.partition("=")[0] == "--model" for word in (*before, *rest)):
        options = {k: v for k, v in options.items() if k not in ("model", "from_scratch")}
    if not before or before[0].startswith("-"):
        before = ["clip" if "from_scratch" in options else "clip-ft", *before]
    words = [before[0], *_words(options, keys), *before[1:], *rest]
    start = ["compoclip"]
    if processes > 1:
        start = ["torchrun", "--nproc-per-node", str(processes), "-m", "compoclip"]
    note(f"the same run in the words of compoclip:\n  {shlex.join([*start, 'train', *words])}")
    for flag, reason in without_effect.items():
        note(f"  --{flag} is left out: {reason}")
    return words


def _words(options: Mapping[str, Any], keys: Collection[str]) -> list[str]:
    """Options as arguments of the command line."""
    words, settings = [], ["--set"]
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name in keys:
            settings.append(f"{name}={text}")
            continue
        values = map(str, value) if isinstance(value, list) else [text]
        words += [f"--{name.replace('_', '-')}", *(() if value is True else values)]
    return [*words, *settings]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{FLAG}: {message}; correct the command of open_clip")


def _need(condition: object, flag: str, problem: str) -> None:
    """Raise UsageError that names a flag and its value, unless the condition is met."""
    require(condition, f"{FLAG}: {flag}" if flag else FLAG, problem, UsageError)


def _parsed(words: Sequence[str]) -> dict[str, Any]:
    """The flags of a command with their values. Raises UsageError for unknown and refused ones."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    table = {flag: row for group in flags().values() for flag, row in group.items()}
    for flag, row in table.items():
        parser.add_argument(f"--{flag}", dest=flag, **_KINDS.get(row.get("is", ""), {}))
    parsed, unknown = parser.parse_known_args(words)
    for word in unknown:
        hint = closest(word, [f"--{flag}" for flag in table])
        _need(False, word, f"is no flag of open_clip; {hint}")
    for flag, value in vars(parsed).items():
        remedy, values = table[flag].get("remedy"), table[flag].get("values")
        _need(not remedy, f"--{flag}", f"has no counterpart; {remedy}")
        if values is not None and value not in values:
            choices = ", ".join(map(repr, values))
            _need(False, f"--{flag} {value}", f"has no counterpart; use one of: {choices}")
    return vars(parsed)


def translated(command: str) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return our options, flags without effect with the reason, and the number of processes."""
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise UsageError(f"{FLAG}: the quotes of the command do not match ({error})") from error
    scripts = [place for place, word in enumerate(words) if _SCRIPT.fullmatch(word)]
    first = scripts[-1] + 1 if scripts else 0
    stated, groups = _parsed(words[first:]), flags()
    rows = groups["renamed"] | groups["translated"]
    value: dict[str, Any] = {f: stated.get(f, row.get("default")) for f, row in rows.items()}
    counts = _PROCESSES.findall(" ".join(words[:first]))
    processes = math.prod(map(int, counts)) if counts else launched()[1]
    options = _model(value) | _data(value)
    for flag in groups["renamed"]:
        (ours,) = names_here(flag, "options", options_of(TrainOptions))
        if value[flag] is not None:
            options[ours] = value[flag]
    for flag, row in rows.items():
        options |= row.get("values", {}).get(value[flag], {})
    if value["name"]:
        folder = "" if value["logs"].lower() == "none" else value["logs"]
        options["out"] = str(Path(folder) / value["name"])
    options["batch_size"] = value["batch-size"] * value["accum-freq"] * processes
    if value["accum-freq"] > 1:
        options["micro_batch"] = value["batch-size"]
    if value["skip-scheduler"] or value["lr-scheduler"] == "const":
        options["min_lr"] = value["lr"]
    if value["device"] != "cuda":  # which the default, auto, takes where there is one
        options["device"] = value["device"]
    options["mask_duplicates"] = False
    without_effect = {f: groups["harmless"][f]["reason"] for f in stated if f in groups["harmless"]}
    return options, without_effect, processes


def _model(value: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the model: which, from what weights, what of it is frozen."""
    name, weights = value["model"], value["pretrained"]
    vit = "vit" in name.lower()
    options: dict[str, Any] = {"beta2": 0.98 if vit else 0.999, "eps": 1e-6 if vit else 1e-8}
    if name.startswith(("hf-hub:", "local-dir:")):
        options["model"] = name
    elif weights:
        options["model"] = f"{name}{'@' if os.path.exists(weights) else ':'}{weights}"
    else:
        folder = library_folder("open_clip") / "model_configs"
        config = folder / f"{name.replace('/', '-')}.json"
        _need(config.is_file(), f"--model {name}", "is no model of open_clip; correct its name")
        options |= {"from_scratch": True, "model": str(config)}
    image = "image-trunk" if value["lock-image-unlocked-groups"] else "image"
    locked = {image: value["lock-image"], "text": value["lock-text"]}
    if any(locked.values()):
        options["freeze"] = [part for part, is_locked in locked.items() if is_locked]
    return options


def _data(value: Mapping[str, Any]) -> dict[str, Any]:
    """The options of training data and benchmarks."""
    options: dict[str, Any] = {}
    data, benchmarks = value["train-data"], []
    if data:
        remedy = flags()["refused"]["train-data-upsampling-factors"]["remedy"]
        _need("::" not in data, f"--train-data {data}", remedy)
        options = {"data": data, "split": "all", **_of_csv(data, value)}
    if value["val-data"]:
        settings = {"split": "all", **_of_csv(value["val-data"], value)}
        listed = (f"{name}={text}" for name, text in settings.items())
        benchmarks.append(",".join([f"retrieval:{value['val-data']}", *listed]))
    for flag, name in (("imagenet-val", "imagenet-1k"), ("imagenet-v2", "imagenet-v2")):
        if value[flag]:
            benchmarks.append(f"zero_shot:{name},images={value[flag]}")
    return options | ({"on": benchmarks} if benchmarks else {})


def _of_csv(data: str, value: Mapping[str, Any]) -> dict[str, str]:
    """The options of a CSV, whose relative paths start here; none for other data."""
    by_ending = value["dataset-type"] == "auto" and has_ending(Path(data), ".csv", ".tsv")
    if value["dataset-type"] != "csv" and not by_ending:
        return {}
    from compoclip.tables import read_delimited

    columns = {"image_column": value["csv-img-key"], "caption_column": value["csv-caption-key"]}
    _, row = next(read_delimited(Path(data)), (0, {}))
    here = not os.path.isabs(row.get(columns["image_column"], "/"))
    return {**columns, **({"images": "."} if here else {})}
