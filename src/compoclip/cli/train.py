"""`compoclip train METHOD`, `compoclip sweep METHOD`."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compoclip import console, plugins
from compoclip.checks import check_options, check_values
from compoclip.cli import from_open_clip
from compoclip.cli.options import OptionParser, help_text
from compoclip.config import (
    RELATIVE_TO,
    Option,
    OutputFile,
    as_settings,
    checked,
    is_part,
    no_option,
    of_setting,
    of_text,
    options_of,
    place_in,
    read_config,
    typed,
)
from compoclip.data.options import naming_options
from compoclip.errors import UsageError, typed_repr
from compoclip.files import only_writer, write_text
from compoclip.methods.registry import RecipeCard, is_method, method_summaries, recipe_card
from compoclip.printed import Table, tell
from compoclip.programs.request import TrainRequest, divided, known_options
from compoclip.programs.run import TrainOptions, evaluate, open_inputs, push, train
from compoclip.ranks import launched
from compoclip.typed import is_a

if TYPE_CHECKING:
    from compoclip.programs.sweep import SweepOptions
    from compoclip.training.run import RunSummary


USUAL = (
    *("data", "model", "images", "out", "epochs", "batch_size", "lr", "seed", "device"),
    *("lora", "texts", "terms", "set", "on", "resume"),
)
"""Options that the help of every method shows; --help-all shows the others."""

_KEYS = """
quoting orientation held_out split_seed fraction templates image_weights activation warmup_lr
min_lr beta1 beta2 eps warmup_share clip_grad max_logit_scale contrast features layer_decay lr_image
lr_text draft allow_no_negatives max_bad log_every save_every stop_after compile grad_checkpointing
mask_duplicates near_margin matryoshka teacher merge ema patience eval_images allow_partial
lora_alpha lora_towers lora_targets lora_init
"""
KEYS = frozenset(_KEYS.split())
"""Options that are keys of a file, or --set NAME=VALUE, and no flags."""

_GROUPS = {
    "DataOptions": "data",
    "TrainingInputs": "data and model",
    "OptimOptions": "optimiser",
    "RunSettings": "run",
    "WatchSettings": "evaluation while training",
    "TrainOptions": "adapters and parts of other methods",
}
CONFIG_FILE = Option(
    "config",
    Path | None,
    None,
    "Read options from this YAML file, each under its name, and the method under 'method'; the "
    "command line overrides it.",
)
SAVE_CONFIG = Option(
    "save_config",
    OutputFile | None,
    None,
    "Write all options to this file for --config; do not train.",
)


_FLAG = re.compile(r'--([a-z][a-z0-9-]*)( (?=-?[A-Z\d"]))?')


def as_keys(text: str) -> str:
    """Return a message that names keys as --set takes them: other verbs have them as flags."""

    def spell(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        return f"--set {name}{'=' if flag[2] else ''}" if name in KEYS else flag[0]

    return _FLAG.sub(spell, text)


@naming_options(as_keys)
def train_main(argv: Sequence[str]) -> int:
    """Parse the method's options and the run's, and train or write the file of --save-config."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    words = from_open_clip.our_words(argv, KEYS)
    method, values = called(words, "train", (CONFIG_FILE, SAVE_CONFIG))
    file = values.pop("save_config", None)
    request = TrainRequest.of(method, values)
    options = request.options
    if file is not None:
        check_values([(SAVE_CONFIG, file)], options)
        request.check()
        request.composed()  # says what does not go together
        write_text(file, request.text())
        text = f"{file}: the run as a file for --config"
        return tell(options.json, {"config": str(file)}, text)
    return start(request)


def start(request: TrainRequest) -> int:
    """Train, print a summary, and upload the result where the options ask for it."""
    options = request.options
    check_request(request)
    request.check()
    options.require_new((options.out / "model").exists())
    # A mistake in the data is said before torch is loaded; ranks fail together later.
    inputs = open_inputs(options) if launched()[1] == 1 else None
    model, summary = train(
        options, request.composed(), config=request.text(repeats=True), inputs=inputs
    )
    show(options, summary, model.tokenizer.context_length)
    push(options, summary)
    return 0


def called(
    argv: Sequence[str], verb: str, of_verb: Sequence[Option], without: Collection[str] = ()
) -> tuple[str, dict[str, Any]]:
    """Read the arguments of `compoclip VERB METHOD ...` and the file that --config names.

    The command line overrides the file. of_verb: options of the verb. without: options of a run
    that it does not have.
    """
    named, words = ([], argv) if argv[0].startswith("-") else (argv[:1], argv[1:])
    program = f"compoclip {verb}"
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument(CONFIG_FILE.flag, type=lambda text: of_text(text, Path), nargs="?")
    file = early.parse_known_args(words)[0].config  # what the parser is made of
    values, of_parts = divided(read_config(file) if file else {})
    for key, value in values.items():
        if isinstance(value, dict):
            values[key] = as_settings(value)
    stated = values.pop("method", None)
    if not is_a(stated, str | None):
        raise UsageError(f"{file}: method: {typed_repr(stated)} is not the name of a method")
    if stated and isinstance(values.get(RELATIVE_TO), str):
        stated = place_in(stated, Path(values[RELATIVE_TO]))
    method = named[0] if named else stated
    if not method:
        in_file = f" or in {file} (method: NAME)" if file else ""
        raise UsageError(
            f"name a method first: {program} METHOD ...{in_file}; see {program} --help"
        )
    is_known = plugins.is_file(method) or is_method(method)
    if not is_known and Path(method).exists():
        raise UsageError(
            f"{method}: is no method; write the method before it: {program} METHOD --data {method}"
        )
    card = recipe_card(method)
    run = {k: option for k, option in options_of(TrainOptions).items() if k not in without}
    verbs = {option.name: option for option in of_verb}
    options_of_file = {k: option for k, option in verbs.items() if option.group}
    values = checked(file or Path(), values, {**run, **card.options, **options_of_file}, method)
    if of_parts:
        values["set"] = (*values.get("set", ()), *of_parts)

    defaults = {**card.defaults, **values}
    all_options = {
        name: replace(option, default=defaults.get(name, option.default))
        for name, option in {**run, **card.options, **verbs}.items()
    }
    everything = "--help-all" in words
    parser = _parser(f"{program} {method}", card, all_options, verbs, everything)
    parsed = parser.read(["--help"] if everything else words)
    set_keys, options = {}, {**run, **card.options}
    parts = []  # settings of the method's parts, which stay under `set`
    for setting in parsed.pop("set", ()):
        path, equals, text = setting.partition("=")
        name = path.strip().replace("-", "_")
        if is_part(name) or not (name and equals):
            parts.append(setting)
        elif name in options:
            set_keys[name] = of_setting(text, options[name].kind)
        else:
            raise UsageError(f"--set {setting}: {no_option(name, options, method)}")
    values |= {**parsed, **typed(set_keys, options, "--set ")}
    if parts or set_keys:
        values["set"] = tuple(parts)
    values.pop("config", None)
    lacking = [
        option.flag
        for name, option in all_options.items()
        if option.default is MISSING and name not in values
    ]
    if lacking:
        needs = " and ".join(lacking)
        raise UsageError(
            f"give {needs}, such as {program} {method} --data captions.csv --images photos/ --out "
            f"runs/first; see {program} {method} --help"
        )
    return method, values


def _parser(
    program: str,
    card: RecipeCard,
    all_options: Mapping[str, Option],
    of_verb: Collection[str],
    everything: bool,
) -> OptionParser:
    """Return the parser of a method, whose help shows the usual options, or all and the keys."""
    _, verb, method = program.split(" ", 2)
    keys = {name: option for name, option in all_options.items() if name in KEYS}
    groups: dict[str, list[Option]] = {}
    if everything:
        for name, option in all_options.items():
            if name not in card.options and name not in keys:
                groups.setdefault(_GROUPS.get(option.group, verb), []).append(option)
    else:
        names = dict.fromkeys((*USUAL, *of_verb))
        groups["usual options"] = [all_options[name] for name in names if name in all_options]
    groups[f"options of {method}"] = [all_options[name] for name in card.options]
    usual = {option.name for options in groups.values() for option in options}
    hidden = {name: option for name, option in keys.items() if name not in card.options}
    groups[""] = [option for name, option in all_options.items() if name not in {*usual, *hidden}]
    parser = OptionParser(program, card.about, groups, hidden)
    parser.add_argument(
        "--help-all", action="store_true", help="show all options and keys and exit"
    )
    if everything:
        lines = ["keys of a --config file, or --set NAME=VALUE:"]
        for option in keys.values():
            about = help_text(option).replace("%%", "%").replace(f"no-{option.flag[2:]}", "false")
            about = textwrap.fill(about, console.help_width() - 26)
            lines += [f"  {option.name}", textwrap.indent(about, " " * 24)]
        parser.epilog = "\n".join(lines)
    return parser


def usage() -> str:
    """Return the text of `compoclip train --help`: the methods."""
    width = console.help_width()
    methods = [[f"  {name}", about] for name, about in method_summaries().items()]
    file = "docs/guide/configuration.md explains the file of options. To train in N processes:"
    return f"""\
usage: compoclip train METHOD --data DATA --out RUN
       compoclip train METHOD --help
       compoclip train --config FILE
       compoclip train {from_open_clip.FLAG} "COMMAND OF OPEN_CLIP"

{console.columns(methods, width)}

{console.refilled(file, width)}
    torchrun --nproc-per-node N -m compoclip train METHOD ..."""


def check_request(request: TrainRequest) -> None:
    """Raise UsageError or CompoclipError for what the options of run and recipe name and is not
    there; torch is not loaded for it."""
    check_options(request.options)
    options = known_options(request.method)
    check_values([(options[k], v) for k, v in request.parameters.items()], request.options)


def show(options: TrainOptions, summary: RunSummary, context: int) -> None:
    """Print the summary of a run. context: the model's context length in tokens."""
    if options.json:
        paths = {"model": summary.model, "adapter": summary.adapter}
        places = {name: str(path) if path else None for name, path in paths.items()}
        console.emit_json({**asdict(summary), **places})
        return
    count = console.counted
    still = [f"{word} ({number:,} parameters)" for word, number in summary.frozen.items()]
    frozen = f", frozen: {', '.join(still)}" if still else ""
    place = summary.model or f"{options.out}/state (unfinished; go on with --resume)"
    lines = [
        f"{summary.method}: {count(summary.steps, 'step')}, {count(summary.images, 'image')}, "
        f"{count(summary.texts, 'text')}, {summary.seconds:.0f} s{frozen} -> {place}"
    ]
    if summary.ended_early:
        lines.append(
            f"  ended early, before step {summary.total_steps}: "
            f"{count(options.patience, 'measurement')} without a better one"
        )
    if best := summary.best:
        base = "" if best["base"] is None else f" (base {100 * best['base']:.1f})"
        score = f"{best['by']} {100 * best['score']:.1f}{base}"
        lines.append(f"  model of step {best['step']}: {score}")
    lines += [f"  {count(number, 'sample')} of {name}" for name, number in summary.drawn.items()]
    for name, counts in summary.rewrites.items():
        several = counts["samples"] < counts["made"]
        mean = f", {counts['made'] / counts['samples']:.1f} each" if several else ""
        lines.append(f"  {name}: made for {counts['coverage']:.1%} of the samples{mean}")
    print("\n".join(lines))
    for listed in console.reasons_listed(summary.left_out):
        console.note(f"  left out of the data: {listed}")
    if summary.skipped:
        console.note(f"  unreadable images left out of batches: {summary.skipped}")
    not_finite = "the loss or gradient was not finite (train.jsonl names them)"
    for number, noun, outcome in (
        (summary.skipped_steps, "step", f"skipped: {not_finite}"),
        (summary.truncated, "text", f"cut: longer than the model's context of {context} tokens"),
        (summary.cut, "caption", "cut before parsing: longer than any model reads"),
    ):
        if number:
            console.note(f"  {count(number, noun)} {outcome}")


_SWEEP_USAGE = """\
usage: compoclip sweep METHOD --data DATA --grid NAME=VALUE,VALUE --out OUT
       compoclip sweep METHOD --help

Train with every combination of values and compare the runs.

Example:
    compoclip sweep fsc-clip --data coco.csv --grid lr=1e-6,5e-6 --out sweeps/lr"""
_IN_A_SWEEP = {  # option of train -> its help in a sweep
    "out": "Folder of the sweep. OUT/runs holds the run folders, OUT/results the results of all "
    "runs, and OUT/sweep.csv the table.",
    "on": "Benchmarks on which each run and the base are measured, named as for evaluate.",
}


@naming_options(as_keys)
def sweep_main(argv: Sequence[str]) -> int:
    """Parse, train and measure every run, print the table; 1 when a run failed."""
    if not argv or argv[0] in ("-h", "--help"):
        print(console.refilled(_SWEEP_USAGE, console.help_width()))
        return 0 if argv else 2
    from compoclip.programs.sweep import SweepOptions

    of_sweep = options_of(SweepOptions)
    without = ("resume", "stop_after", "push_to_hub")
    of_train = options_of(TrainOptions)
    shared = [replace(of_train[name], help=text) for name, text in _IN_A_SWEEP.items()]
    of_verb = (CONFIG_FILE, *of_sweep.values(), *shared)
    method, values = called(argv, "sweep", of_verb, without)
    options = SweepOptions(**{name: values.pop(name) for name in of_sweep if name in values})
    return start_sweep(options, TrainRequest.of(method, values))


def start_sweep(options: SweepOptions, request: TrainRequest) -> int:
    """Execute the sweep; write OUT/sweep.csv and OUT/report.html, print the table."""
    from compoclip.programs.sweep import spaces_of, sweep

    run, out = request.options, request.options.out
    spaces_of(options, request)  # says what does not fit
    check_request(request)
    measuring = run.measuring(out / "results")
    names = [benchmark.name for benchmark in measuring.benchmarks()] if run.on else []
    by = options.sort_by or next(iter(names), "loss")
    if by not in (*names, "loss"):
        raise UsageError(f"--sort-by {by}: there is {', '.join([*names, 'loss'])}")

    def rank(line: dict[str, Any]) -> tuple[bool, float, str]:
        score = line["loss"] if by == "loss" else -line["scores"].get(by, 0)
        return bool(line["error"]), score or 0.0, line["name"]

    with only_writer(out, folder=True):
        lines = sorted(sweep(options, request, by), key=rank)
        scored = ["base", *(line["name"] for line in lines if line["scores"])]
        if len(scored) > 1:
            from compoclip.report.write import write_report

            evaluate(measuring, {"base": run.model})
            runs = [out / "runs" / name for name in scored[1:]]
            results = [out / "results" / name for name in scored]
            write_report(results, out / "report.html", runs=runs, base="base", title="Sweep")
    varied = [*lines[0]["point"]]
    rows = []
    for line in lines:
        values = [str(line["point"][name]) for name in varied]
        loss = "failed" if line["error"] else f"{line['loss']:.4f}"
        scores = line["scores"]
        rows.append(
            [*values, loss, *(f"{100 * scores[n]:.1f}" if n in scores else "-" for n in names)]
        )
    header = [*varied, "loss", *names]
    table = Table(rows, header, left=len(varied))
    of_runs = [[line["name"], *row, line["error"]] for line, row in zip(lines, rows)]
    write_text(out / "sweep.csv", f"{Table(of_runs, ['run', *header, 'error']).csv()}\n")
    failed = [line for line in lines if line["error"]]
    best = f"best by {by}: {out / 'runs' / lines[0]['name']}"
    tell(run.json, {"runs": lines, "sorted_by": by}, f"{table}\n{best}")
    if failed:
        console.note(f"{console.counted(len(failed), 'run')} failed; the same command tries again")
    return 1 if failed else 0
