"""`compoclip train METHOD`: fine-tune with a published method, or pre-train from scratch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from compoclip import console
from compoclip.cli.options import MARKERS, joined
from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe, method_summaries
from compoclip.run import TrainOptions, composed_method, push, train

if TYPE_CHECKING:
    from compoclip.methods.base import Method
    from compoclip.training.run import RunSummary


def main(argv: Sequence[str]) -> int:
    """Parse the method's own options and the run's, train, print a summary."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise UsageError("name a method first: compoclip train METHOD ...; see train --help")
    from compoclip.methods.base import Method

    recipe = load_recipe(argv[0])

    # The names head the help.
    def parsed(run: TrainOptions, method: Method, crop: bool | None = None) -> int:
        own_lr = any(word == "--lr" or word.startswith("--lr=") for word in argv)
        return start(replace(run, crop=crop), composed_method(run, method, own_lr))

    # The options of a method are the parameters of its recipe, known only now; so is what it does
    # to images. Of --crop there are both forms, of all other flags one.
    one_form = tyro.conf.FlagCreatePairsOff
    parsed.__annotations__["run"] = Annotated[TrainOptions, one_form]
    parsed.__annotations__["method"] = Annotated[
        Method, tyro.conf.arg(constructor=recipe), one_form
    ]
    parsed.__annotations__["crop"] = Annotated[
        bool | None,
        tyro.conf.arg(
            help="Show random crops of 90 to 100 % of an image, or the whole image as evaluation "
            "does.",
            help_behavior_hint=f"(default: {'random crops' if recipe().crop else 'whole images'})",
        ),
    ]
    arguments = list(argv[1:])
    for option in ("--texts", "--terms", "--set", "--track", "--on", "--keep-best"):
        arguments = joined(arguments, option)
    arguments = _as_one(arguments, "--data")
    return tyro.cli(
        parsed,
        prog=f"compoclip train {argv[0]}",
        args=arguments,
        config=tuple(marker for marker in MARKERS if marker is not one_form),
    )


def _as_one(argv: Sequence[str], option: str) -> list[str]:
    """`argv` with all words behind an option as one: several data sets with their weights."""
    if argv.count(option) != 1:
        return list(argv)
    place = argv.index(option) + 1
    end = next((k for k in range(place, len(argv)) if argv[k].startswith("-")), len(argv))
    words = argv[place:end]
    return [*argv[:place], *([shlex.join(words)] if len(words) > 1 else words), *argv[end:]]


def usage() -> str:
    """The text of `compoclip train --help`: the methods."""
    lines = [
        "usage: compoclip train METHOD --data DATA --out RUN [options]",
        "       compoclip train METHOD --help lists the options of a method",
        "",
        console.columns([[f"  {name}", about] for name, about in method_summaries().items()]),
        "",
        "torchrun --nproc-per-node N -m compoclip train METHOD ... trains in N processes",
    ]
    return "\n".join(lines)


def start(options: TrainOptions, method: Method) -> int:
    """Train, print a summary, and put the result on the hub where the options ask for it."""
    model, summary = train(options, method)
    show(options, summary, model.tokenizer.context_length)
    push(options, summary)
    return 0


def show(options: TrainOptions, summary: RunSummary, context: int) -> None:
    """Print the summary of a run. context: the model's context length in tokens."""
    if options.json:
        data = asdict(summary)
        paths = {"model": summary.model, "adapter": summary.adapter}
        console.emit_json({**data, **{k: str(v) if v else None for k, v in paths.items()}})
        return
    where = summary.model or f"{options.out}/state (unfinished; go on with --resume)"
    print(
        f"{summary.method}: {console.counted(summary.steps, 'step')}, {summary.images} images, "
        f"{summary.texts} texts, {summary.seconds:.0f} s -> {where}"
    )
    if summary.ended_early:
        print(
            f"  ended early, before step {summary.total_steps}: {options.patience} measurements "
            "without a better one"
        )
    if summary.best is not None:
        print(f"  {_best(summary.best)}")
    for name, number in summary.drawn.items():
        print(f"  {console.counted(number, 'sample')} of {name}")
    for reason, count in summary.left_out.items():
        console.note(f"  left out of the data: {count} x {reason}")
    if summary.skipped:
        console.note(f"  unreadable images left out of batches: {summary.skipped}")
    if summary.skipped_steps:
        steps = console.counted(summary.skipped_steps, "step")
        console.note(
            f"  {steps} skipped: the loss or gradient was not finite (train.jsonl names them)"
        )
    if summary.truncated:
        cut = console.counted(summary.truncated, "text")
        console.note(f"  {cut} cut: longer than the model's context of {context} tokens")
    if summary.cut:
        long = console.counted(summary.cut, "caption")
        console.note(f"  {long} cut before parsing: longer than any model reads")
    for name, made in summary.rewrites.items():
        print(f"  {name}: a text for {made['coverage']:.1%} of the samples{_each(made)}")


def _each(made: dict[str, float]) -> str:
    """Texts per sample that has any, where there may be several; "" otherwise."""
    samples = made["samples"]
    return f", {made['made'] / samples:.1f} each" if samples < made["made"] else ""


def _best(best: Mapping[str, Any]) -> str:
    """The step that the model is of, what it scored, and where others of the front are."""
    base = best["base"]
    scores = ", ".join(
        f"{name} {100 * value:.1f}" + (f" (base {100 * base[name]:.1f})" if name in base else "")
        for name, value in best["scores"].items()
    )
    others = len(best["front"]) - 1
    more = f"; {console.counted(others, 'other')} that it does not beat in OUT/front"
    return f"model of step {best['step']}: {scores}" + (more if others else "")
