"""`compoclip train METHOD`: fine-tune with a published method, or pre-train from scratch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import tyro

from compoclip import console
from compoclip.cli.options import joined, told_function, understood, value_of
from compoclip.config import (
    RELATIVE_TO,
    Option,
    checked,
    is_a,
    options_of,
    place_in,
    read_config,
)
from compoclip.errors import UsageError, shown
from compoclip.files import write_text
from compoclip.methods.registry import load_recipe, method_summaries
from compoclip.request import TrainRequest
from compoclip.run import CHOSEN, TrainOptions, push, train

if TYPE_CHECKING:
    from compoclip.methods.base import Method
    from compoclip.training.run import RunSummary

T = TypeVar("T")
ConfigFile = Annotated[
    Path | None,
    tyro.conf.arg(
        help="Read options from this YAML file, each under its name, and the method under "
        "'method'; the command line wins over the file."
    ),
]


def main(argv: Sequence[str]) -> int:
    """Parse the method's own options and the run's, train, print a summary."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    called = Called.by(argv)

    def parsed(
        run: TrainOptions,
        method: dict[str, Any],
        config: ConfigFile = None,
        save_config: Annotated[
            Path | None,
            tyro.conf.arg(help="Write all options to this file for --config, and do not train."),
        ] = None,
    ) -> int:
        request = called.request(run, method)
        if save_config is None:
            return start(request)
        request.composed()  # says what does not go together
        write_text(save_config, request.text())
        record = {"config": str(save_config)}
        return console.tell(run.json, record, f"{save_config}: the run as a file for --config")

    return called.understood(parsed, f"compoclip train {called.name}")


@dataclass(frozen=True)
class Called:
    """A call of a verb with a method, by name or in a configuration file.

    arguments: those behind the method. given: what the file says of the options of the run and of
    the method. rest: what else it says.
    """

    name: str
    recipe: Callable[..., Method]
    arguments: Sequence[str]
    given: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def by(
        cls,
        argv: Sequence[str],
        verb: str = "train",
        more: Mapping[str, Option] | None = None,
        held: Collection[str] = (),
    ) -> Self:
        """Read the arguments of `compoclip VERB` as far as the method and --config.

        more: Options that are of the verb, and not of the run or the method. held: those of the
        run that the verb does not have.
        """
        named, words = (None, argv) if argv[0].startswith("-") else (argv[0], argv[1:])
        file = value_of(words, "--config")
        values = read_config(Path(file)) if file else {}
        said = values.pop("method", None)
        if not is_a(said, str | None):
            raise UsageError(f"{file}: method: {shown(said)} is not the name of a method")
        if said and isinstance(values.get(RELATIVE_TO), str):
            said = place_in(said, Path(values[RELATIVE_TO]))
        name = named or said
        if name is None:
            where = f" or in {file} (method: NAME)" if file else ""
            raise UsageError(
                f"name a method first: compoclip {verb} METHOD ...{where}; see {verb} --help"
            )
        recipe = load_recipe(name)
        options = options_of(TrainOptions, recipe)
        options = {key: option for key, option in options.items() if key not in held}
        found = checked(Path(file or ""), values, {**options, **(more or {})}, name)
        rest = {key: found.pop(key) for key in more or {} if key in found}
        return cls(name, recipe, words, found, rest)

    def understood(
        self,
        function: Callable[..., T],
        program: str,
        about: str | None = None,
        held: Mapping[str, Any] | None = None,
        more: Mapping[str, Option] | None = None,
    ) -> T:
        """What a function of `run`, `method` and more makes of the arguments and the file.

        about: The head of the help. held: Values of the run's options that the verb does not have.
        more: Options of the verb itself.
        """
        # The options of a method are the parameters of its recipe, known only now.
        arguments: Callable[..., dict[str, Any]] = told_function(self.recipe, self.given, {}, dict)
        function.__annotations__["method"] = Annotated[
            dict[str, Any], tyro.conf.arg(constructor=arguments)
        ]
        words = _as_one(self.arguments, "--data")
        for name, option in {**options_of(TrainOptions), **(more or {})}.items():
            if tuple in option.types:
                words = joined(words, f"--{name.replace('_', '-')}")
        return understood(
            function,
            program,
            words,
            about,
            given={**self.given, **self.rest},
            words={"crop": "crop" if self.recipe().crop else "no-crop"},
            fixed=(TrainOptions, held or {}),
        )

    def request(self, run: TrainOptions, arguments: Mapping[str, Any]) -> TrainRequest:
        """What is to be trained, with these arguments of the recipe."""
        given = {
            name
            for name in CHOSEN
            if name in self.given
            or value_of(self.arguments, f"--{name.replace('_', '-')}") is not None
        }
        return TrainRequest(self.name, run, arguments, given)


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
        "       compoclip train --config FILE [options]    (docs/guide/configuration.md)",
        "       compoclip train METHOD --help lists the options of a method",
        "",
        console.columns([[f"  {name}", about] for name, about in method_summaries().items()]),
        "",
        "torchrun --nproc-per-node N -m compoclip train METHOD ... trains in N processes",
    ]
    return "\n".join(lines)


def start(request: TrainRequest) -> int:
    """Train, print a summary, and put the result on the hub where the options ask for it."""
    options = request.options
    model, summary = train(options, request.composed(), config=request.text(repeats=True))
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
    still = [f"{word} ({count:,} parameters)" for word, count in summary.frozen.items()]
    frozen = f", frozen: {', '.join(still)}" if still else ""
    where = summary.model or f"{options.out}/state (unfinished; go on with --resume)"
    print(
        f"{summary.method}: {console.counted(summary.steps, 'step')}, "
        f"{console.counted(summary.images, 'image')}, {console.counted(summary.texts, 'text')}, "
        f"{summary.seconds:.0f} s{frozen} -> {where}"
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
    """Return the step that the model is of and its score."""
    base = "" if best["base"] is None else f" (base {100 * best['base']:.1f})"
    return f"model of step {best['step']}: {best['by']} {100 * best['score']:.1f}{base}"
