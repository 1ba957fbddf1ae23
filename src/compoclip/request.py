"""A run that can be written down, and be repeated from that."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from compoclip.config import OptionMark, config_text, flat, options_of
from compoclip.methods.registry import load_recipe
from compoclip.run import CHOSEN, TrainOptions, composed_method, require_options

if TYPE_CHECKING:
    from compoclip.methods.base import Method


@dataclass(frozen=True)
class TrainRequest:
    """What is to be trained: a method by name, its parameters, and the options of the run.

    Args:
        method: As on the command line: a name, or the file of a recipe of one's own.
        options: What is trained, on what and how.
        parameters: What the recipe is called with.
        given: Those of the options `CHOSEN` that were given for this run; see `composed_method`.
    """

    method: str
    options: TrainOptions
    parameters: Mapping[str, Any]
    given: Collection[str] = CHOSEN

    @classmethod
    def of(cls, method: str, values: Mapping[str, Any]) -> Self:
        """Make a request of values by name, as a configuration file has them.

        Args:
            method: As on the command line.
            values: Fields of `TrainOptions`, parameters of the recipe and fields of its optimiser.

        Returns:
            The request.

        Raises:
            UsageError: For a method that there is not.
            TypeError: For values that there are not, or lack.
        """
        of_run = {each.name for each in fields(TrainOptions)}
        options = TrainOptions(**{k: v for k, v in values.items() if k in of_run})
        parameters = recipe_arguments(load_recipe(method), values)
        return cls(method, options, parameters, {*CHOSEN}.intersection(values))

    def composed(self) -> Method:
        """Return the method to train with.

        Raises UsageError as recipes, `composed_method` and `require_options` do.
        """
        made = load_recipe(self.method)(**self.parameters)
        method = composed_method(self.options, made, self.given)
        require_options(self.options, method)
        return method

    def text(self, repeats: bool = False) -> str:
        """The request as a configuration file.

        Args:
            repeats: Leave out where the run was written to, and what else a repetition says anew.

        Returns:
            The text of the file.
        """
        kinds = options_of(TrainOptions)
        options = {
            name: getattr(self.options, name)
            for name, kind in kinds.items()
            if not (repeats and kind.marked(OptionMark.ONCE))
        }
        parameters = flat(self.parameters)
        if self.options.lora and "lr" not in self.given:
            del parameters["lr"]  # adapters raise the recipe's own
        for name in {"warmup", "warmup_share"}.difference(self.given):
            del parameters[name]  # the run bounds the recipe's own
        heading = "The options of a run: compoclip train --config FILE"
        if repeats:
            heading = (
                "The run of this folder; to repeat it:\ncompoclip train --config FILE --out RUN"
            )
        return config_text(heading, {"method": self.method, **options, **parameters})


def recipe_arguments(recipe: Callable[..., Method], values: Mapping[str, Any]) -> dict[str, Any]:
    """Make the arguments of a recipe from values by name.

    Args:
        recipe: With defaults for all.
        values: Its parameters and the fields of its optimiser; others are not looked at.

    Returns:
        All arguments, by name.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(recipe).parameters.items():
        default = parameter.default
        if is_dataclass(default) and not isinstance(default, type):
            own = {each.name for each in fields(default)}
            changed = {each: value for each, value in values.items() if each in own}
            arguments[name] = replace(default, **changed)
        else:
            arguments[name] = values.get(name, default)
    return arguments
