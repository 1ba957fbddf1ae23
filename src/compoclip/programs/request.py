"""A training request: a method and its options, saved as YAML and rerun from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, get_type_hints

from compoclip.config import (
    Option,
    as_settings,
    config_text,
    is_part,
    options_of,
    require_with,
    typed,
)
from compoclip.errors import UsageError
from compoclip.methods.optim import Optim
from compoclip.methods.registry import load_recipe, recipe_card
from compoclip.methods.settings import converted, part_and_value, require_place
from compoclip.models.names import BUNDLED
from compoclip.programs.run import TrainOptions
from compoclip.typed import convert

if TYPE_CHECKING:
    from compoclip.methods.base import Method


@dataclass(frozen=True)
class TrainRequest:
    """A method, its parameters, and the options of the run.

    Args:
        method: As on the command line: a name, or the file of a recipe of one's own. Or a method.
        options: What is trained, on what and how.
        parameters: Those of the recipe that are given.
    """

    method: str | Method
    options: TrainOptions
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, method: str | Method, values: Mapping[str, Any]) -> Self:
        """Make a request of values by name, as a file, the command line or a notebook has them.

        A name with a dot, such as texts.graph.weights, sets a part of the method, as --set does.
        Raise UsageError for an unknown method or name, a value of another type, and options in
        conflict.
        """
        of_run = options_of(TrainOptions)
        values, of_parts = divided(values)
        parameter = next((name for name in values if name not in of_run), "")
        if parameter and not isinstance(method, str):
            raise UsageError(f"{method.name} is made already: leave {parameter} out")
        parameters = typed(values, known_options(method), owner=str(method))
        run = {name: parameters.pop(name) for name in of_run if name in parameters}
        if of_parts:
            run["set"] = (*run.get("set", ()), *of_parts)
        options = TrainOptions(**run)
        require_with(options, "from_scratch", "image_weights")
        require_with(options, "on", "eval_every", "keep_best", "eval_images", "allow_partial")
        require_with(options, "eval_every", "keep_best")
        require_with(options, "keep_best", "patience")
        if options.init_from and (options.from_scratch or options.model != BUNDLED):
            raise UsageError("--init-from replaces --model and --from-scratch: leave them out")
        return cls(method, options, parameters)

    def check(self) -> None:
        """Raise UsageError for settings that the method has not.

        `composed` refuses the same when it has made the method; torch is not loaded for it here.
        """
        options = self.options
        if not isinstance(self.method, str):
            return
        card = recipe_card(self.method)
        usual = {option.name: card.defaults[option.name] for option in fields(Optim)}
        optim = Optim(**{**usual, **options.optimiser()})
        if options.texts or options.terms or self.parameters:
            return  # which may change the parts
        for setting in options.set:
            try:
                part, rest, value = part_and_value(setting)
                require_place(part, rest, card.parts, self.method)
                if part == "terms":
                    converted(float, value)
                elif part == "optim":
                    optim = replace(optim, **{rest: converted(get_type_hints(Optim)[rest], value)})
            except UsageError as error:
                raise UsageError(f"--set {setting}: {error}") from None

    def composed(self) -> Method:
        """Return the method to train with: its parts, optimiser and adapters as the options say.

        Adapters scale the learning rate unless one is given; a warm-up that is not given is at most
        a tenth of the run. Raises UsageError for options that do not go together.
        """
        from compoclip.methods.base import Lora
        from compoclip.methods.compose import compose

        options, method = self.options, self.method
        if isinstance(method, str):
            method = load_recipe(method)(**self.parameters)
        optimiser = options.optimiser()
        method = replace(method, optim=replace(method.optim, **optimiser))
        method = compose(method, options.texts, options.terms, options.set)
        if method.optim.warmup_share == 1 and not {"warmup", "warmup_share"} & {*optimiser}:
            method = replace(method, optim=replace(method.optim, warmup_share=0.1))
        names = ("rank", "alpha", "towers", "targets", "init")
        lora = {name: getattr(options, f"lora_{name}") for name in names}
        lora = {name: value for name, value in lora.items() if value is not None}
        if options.lora or method.lora:
            if options.init_from:
                raise UsageError(
                    "--init-from averages weights, and adapters need a base that can be loaded "
                    "again from a file: leave --lora out"
                )
            if options.from_scratch:
                raise UsageError("LoRA adapts trained weights: leave --lora or --from-scratch out")
            lr = method.optim.lr if "lr" in optimiser else None
            method = method.with_lora(replace(method.lora or Lora(), **lora), lr)
        elif lora:
            raise UsageError(f"--lora-{next(iter(lora))} goes with --lora")
        elif not options.merge:
            raise UsageError("--no-merge goes with --lora")
        return method

    def text(self, repeats: bool = False) -> str:
        """Return the request as a configuration file.

        repeats: leave out where the run was written to, and what else a repetition says anew.
        """
        heading = "The options of a run: compoclip train --config FILE"
        if repeats:
            heading = (
                "The run of this folder; to repeat it:\ncompoclip train --config FILE --out RUN"
            )
        return config_text(heading, {"method": self.method, **self.values(repeats)})

    def values(self, repeats: bool = False) -> dict[str, Any]:
        """Return option -> value, with the recipe's value where none is given.

        repeats: as of `text`.
        """
        assert isinstance(self.method, str)
        train_options = options_of(TrainOptions)
        options = {
            name: getattr(self.options, name)
            for name, option in train_options.items()
            if not (repeats and option.usage.once)
        }
        card = recipe_card(self.method)
        # Adapters raise the method's own rate, and the run bounds its own warm-up.
        left = {"crop", "warmup", "warmup_share", *(["lr"] if self.options.lora else [])}
        usual = {
            name: convert(value, train_options[name].kind)
            for name, value in card.defaults.items()
            if name not in left
        }
        usual |= {name: option.default for name, option in card.options.items()}
        chosen = {**options, **self.parameters}
        return {**chosen, **{k: v for k, v in usual.items() if chosen.get(k) is None}}


def divided(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Divide values by name into those of options, and those of parts of the method as --set takes
    them: {"lr": 1e-5, "texts.graph.weights": [1, 0, 0]} has one of each."""
    parts = {name: value for name, value in values.items() if is_part(name)}
    options = {name: value for name, value in values.items() if name not in parts}
    return options, as_settings(parts)


def known_options(method: str | Method) -> dict[str, Option]:
    """Return the options of a run with a method, including the recipe's, by name."""
    recipe = recipe_card(method).options if isinstance(method, str) else {}
    return {**options_of(TrainOptions), **recipe}
