"""Recipes: their table, options that reach the losses, differences from paper and code."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields, replace
from pathlib import Path

import list_recipes
import pytest
import torch

from compoclip.data.caption_plan import OneOf
from compoclip.data.texts import BagPlan
from compoclip.errors import UsageError
from compoclip.losses import Features, Layout, Role, clip_loss, negclip_loss
from compoclip.losses.rows import MissingHN
from compoclip.methods import fsc_clip, negclip, registry
from compoclip.methods.base import CaptionPlan, Lora, LossTerm, Method, Optim
from compoclip.methods.compose import _note_unread
from compoclip.methods.registry import load_recipe, method_names, method_summaries, recipe, variant
from compoclip.training.settings import RunSettings
from losses_oracle import CASES, features_for, layout_of

NAMES = method_names()
METHODS = [load_recipe(name)() for name in NAMES]


def _sum(method: Method, features: Features, layout: Layout) -> torch.Tensor:
    return torch.stack([t.weight * t.loss(features, layout) for t in method.losses]).sum()


def test_the_table_lists_every_recipe() -> None:
    folder = Path(registry.__file__).parent
    table = (folder / "recipes.json").read_text(encoding="utf-8")
    assert table == list_recipes.catalogue(), "run scripts/list_recipes.py"
    for name in NAMES:
        assert registry.recipe_card(name) == load_recipe(name).card


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe(name)
    method = recipe()
    assert isinstance(method, Method)
    assert method.name == name
    summary = method_summaries()[name]
    assert summary == inspect.getdoc(recipe).partition("\n")[0]  # type: ignore[union-attr]
    assert summary.endswith(".")
    for option in recipe.options.values():
        assert option.default is not inspect.Parameter.empty
        assert option.help.endswith("."), option.name
    assert len({t.name for t in method.losses}) == len(method.losses)
    _note_unread(method)
    unread = capsys.readouterr().err
    assert unread == "", "name the roles of the texts that a loss reads in `reads` of its LossTerm"
    other = recipe(optim=Optim(lr=0.25))
    assert other.optim.lr == 0.25
    assert other.plan == method.plan


@pytest.mark.parametrize("missing", ["mask", "zero"])
def test_negclip_contrasts_with_its_negatives(missing: MissingHN) -> None:
    method = negclip.negclip(missing_hn=missing)
    assert method.plan.rewrites == ("negclip",)
    assert method.settings == {"missing_hn": missing}
    layout = layout_of([t for t in CASES["ragged"] if t[2] < 1], method.kinds)
    features = features_for(layout)
    expected = negclip_loss(features, layout, missing, kinds=method.kinds)
    assert _sum(method, features, layout) == expected
    assert _sum(method, features, layout) != clip_loss(features, layout)


def test_fsc_clip_switches_reach_the_loss() -> None:
    layout = layout_of(CASES["ragged"], fsc_clip.PLAN.kinds)
    features = features_for(layout)
    usual = fsc_clip.fsc_clip()
    for option in (
        *({"gamma": 0.0}, {"beta": 0.5}, {"attention": "softmax"}, {"hn_reduction": "batch"}),
        *({"missing_hn": "zero"}, {"global_weight": 1.0}, {"local_weight": 1.0}),
    ):
        changed = fsc_clip.fsc_clip(**option)  # type: ignore[arg-type]
        assert changed.settings == {**usual.settings, **option}
        assert _sum(changed, features, layout) != _sum(usual, features, layout), option
    through = fsc_clip.fsc_clip(attention_grad=True)
    leaves = (features.tokens, features.patches)
    here, there = (
        torch.autograd.grad(_sum(method, features, layout), leaves)  # type: ignore[arg-type]
        for method in (usual, through)
    )
    assert not torch.allclose(here[0], there[0])


def test_effective_weights_are_recorded_beside_the_given_ones() -> None:
    method = load_recipe("fsc-clip-l14")(weights="effective", global_weight=0.25)
    assert [term.weight for term in method.losses] == [1.0, 1.0, 2.0]
    assert [term["weight"] for term in method.record()["terms"]] == [1.0, 1.0, 2.0]
    given = {"weights": "effective", "global_weight": 0.25, "local_weight": 0.5}
    assert given.items() <= method.settings.items()


def test_the_kinds_of_actions_are_rewrites_of_their_own() -> None:
    names = {"spatial": "tsvlc-rb-spatial", "verbs": "tsvlc-rb", "released": "tsvlc-rb-released"}
    for name in ("tsvlc", "tsvlc-pos", "tsvlc-llm", "dac"):
        recipe = load_recipe(name)
        assert recipe().kinds[0] == names["spatial"]
        for actions, rewrite in names.items():
            method = recipe(actions=actions)
            assert method.kinds[0] == rewrite
            assert method.settings["actions"] == actions
            assert method.kinds[1:] == recipe().kinds[1:]


def test_dac_draws_as_released_and_by_switches_as_the_rules_alone() -> None:
    method = load_recipe("dac")()
    either = ("tsvlc-rb-spatial", "replace")
    assert method.plan.rewrites == (OneOf("hard-negative", either),)
    (bags,) = method.plan.texts
    assert isinstance(bags, BagPlan)
    assert (bags.size, bags.draw, bags.negatives) == (10, "replacement", either)
    assert method.kinds == (*either, "bag", "bag-negative")
    rules = load_recipe("dac")(neg_type="rule_based", bag_draw="distinct")
    assert rules.kinds == ("tsvlc-rb-spatial", "bag", "bag-negative")
    assert rules.plan.texts == (replace(bags, draw="distinct", negatives=either[:1]),)
    # The same texts give the same losses, whatever their places among the kinds are.
    texts = [t for t in CASES["bags"] if t[1] != Role.NEGATIVE or t[2] == 0]
    layout = layout_of([(o, r, {3: 1, 0: 0}.get(k, k)) for o, r, k in texts], rules.kinds)
    moved = replace(layout, kinds=("bag", rules.kinds[0]), rewrite=1 - layout.rewrite)
    moved = replace(moved, rewrite=moved.rewrite.masked_fill(layout.rewrite == -1, -1))
    features = features_for(layout)
    assert _sum(rules, features, layout) == _sum(method, features, moved)
    other = replace(moved, kinds=("bag", either[1]))
    assert _sum(method, features, other) == _sum(method, features, moved)


def test_images_are_whole_where_the_released_code_shows_them_so() -> None:
    whole = {method.name for method in METHODS if not method.crop}
    listed = {method.name for method in METHODS for d in method.differences if d.option == "crop"}
    assert whole == listed


@pytest.mark.parametrize("name", NAMES)
def test_differences_name_options_with_their_values(name: str) -> None:
    recipe = load_recipe(name)
    method = recipe()
    options = [difference.option for difference in method.differences]
    assert len(set(options)) == len(options)
    for difference in method.differences:
        option, default = difference.option, method.value_of(difference.option)
        assert difference.why.endswith(".")
        if option in recipe.options:
            assert default == recipe.options[option].default
        for value in (difference.paper, difference.released):
            if value is None:
                continue
            # A value that is called the paper's or the code's can be given, and is recorded.
            if option in recipe.options:
                assert recipe(**{option: value}).value_of(option) == value
            elif option.startswith("lora_"):
                Lora(**{option.removeprefix("lora_"): value})
            elif option in {field.name for field in fields(RunSettings)}:
                assert RunSettings(out=Path(), **{option: value})  # type: ignore[arg-type]
            else:
                assert recipe(optim=replace(method.optim, **{option: value}))
            assert type(value) is type(default) or isinstance(value, int | float)
    with pytest.raises(ValueError, match="has no option"):
        method.value_of("nothing")


def test_stand_ins_are_rewrites_of_the_method() -> None:
    for method in METHODS:
        assert set(method.stand_ins) <= set(method.plan.rewrite_names), method.name
    assert {method.name for method in METHODS if method.stand_ins} == {
        *("ce-clip", "dac", "degla", "hard-positives", "read-clip", "read-clip-align"),
        "tsvlc-llm",
    }


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("fsc-clip", {"gamma": -1.0}, "gamma must be >= 0 and beta in .* not -1.0 and"),
        ("fsc-clip", {"beta": 1.5}, "beta in"),
        ("fsc-clip", {"beta": math.nan}, "beta in"),
        ("fsc-clip", {"gamma": math.inf}, "gamma must be"),
        ("fsc-clip", {"global_weight": -0.5}, "weight .* must be"),
        ("fsc-clip", {"local_weight": math.nan}, "weight .* must be"),
        ("compo", {"gamma": -1.0}, "gamma must be >= 0 and beta in .* not -1.0 and"),
        ("compo", {"gamma": math.nan}, "gamma must be"),
        ("compo", {"beta": -0.1}, "beta in"),
        ("compo", {"positive_share": 1.1}, "positive_share must be in .* not 1.1"),
        ("compo", {"positive_share": math.nan}, "positive_share must be"),
    ],
)
def test_impossible_values_are_refused(name: str, option: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(name)(**option)


OPTIM = Optim(lr=0.5)


@recipe
def mine(*, weight: float = 1.0, words: str = "", optim: Optim = OPTIM) -> Method:
    """A recipe of a user's own.

    More about it.

    Args:
        weight: Of the loss,
            in two lines.
        words: Not read.
        optim: Optimiser and schedule.
    """
    losses = (LossTerm("clip", clip_loss, weight=weight),)
    return Method(name="mine", plan=CaptionPlan(), losses=losses, optim=optim)


@variant(mine, weight=0.25)
def mine_twice(method: Method, *, times: int = 2) -> Method:
    """A variant of it.

    Args:
        words: Described anew.
        times: How often.
    """
    return method.scaled(times, "clip")


def test_a_recipe_records_what_it_is_called_with() -> None:
    assert mine().settings == {"weight": 1.0, "words": ""}
    assert mine(words="a").settings == {"weight": 1.0, "words": "a"}
    with pytest.raises(TypeError, match="wight"):
        mine(wight=1.0)  # type: ignore[call-arg]


def test_a_variant_is_a_recipe_of_its_own() -> None:
    method = mine_twice(words="b")
    assert (method.name, method.losses[0].weight, method.optim.lr) == ("mine-twice", 0.5, 0.5)
    assert method.settings == {"weight": 0.25, "times": 2, "words": "b"}
    found = [(o.name, o.kind, o.default, o.help) for o in mine_twice.options.values()]
    assert found == [
        ("weight", float, 0.25, "Of the loss, in two lines."),
        ("words", str, "", "Described anew."),
        ("times", int, 2, "How often."),
    ]
    assert mine_twice.card.about == "A variant of it."
    made = mine_twice(times=4, optim=Optim(lr=1e-3))
    assert (made.losses[0].weight, made.optim.lr) == (1.0, 1e-3)
    with pytest.raises(TypeError, match="wight"):
        mine_twice(wight=1.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fsc_clip", "no method 'fsc_clip'; did you mean fsc-clip"),
        ("NegCLIPP", "did you mean negclip"),
        ("zzz", r"known: (\S+, )*ce-clip, clic, clip"),
    ],
)
def test_an_unknown_method_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(name)
