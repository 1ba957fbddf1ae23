"""Recipes: published values, switches that reach the losses, worker processes, command line."""

from __future__ import annotations

import inspect
import math
import pickle
import subprocess
import sys

import pytest
import torch
import tyro

from compoclip.errors import UsageError
from compoclip.losses.contract import Features, Layout
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.local import local_hn_loss
from compoclip.methods import fsc_clip, negclip
from compoclip.methods.base import Method, Optim
from compoclip.methods.registry import load_recipe, method_names, method_summaries
from losses_oracle import CASES, features_for, layout_of

NAMES = method_names()


def _sum(method: Method, features: Features, layout: Layout) -> torch.Tensor:
    return torch.stack([t.weight * t.loss(features, layout) for t in method.losses]).sum()


def test_names() -> None:
    published = {"clip", "clip-ft", "negclip", "fsc-clip"}
    published |= {"fsc-clip-cc3m", "fsc-clip-b16", "fsc-clip-l14"}
    assert published <= set(NAMES)
    assert sorted(NAMES) == NAMES
    assert not {"base", "registry"} & set(NAMES)


def test_listing_imports_no_torch() -> None:
    code = (
        "import sys; from compoclip.methods.registry import method_summaries as s;"
        "assert len(s()) > 3; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name: str) -> None:
    recipe = load_recipe(name)
    method = recipe()
    assert isinstance(method, Method)
    assert method.name == name
    summary = method_summaries()[name]
    assert summary == inspect.getdoc(recipe).partition("\n")[0]  # type: ignore[union-attr]
    assert summary.endswith(".")
    for parameter in inspect.signature(recipe).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is not inspect.Parameter.empty
        assert f"        {parameter.name}: " in (recipe.__doc__ or ""), parameter.name
    assert len({t.name for t in method.losses}) == len(method.losses)
    other = recipe(optim=Optim(lr=0.25))
    assert other.optim.lr == 0.25
    assert other.plan == method.plan


@pytest.mark.parametrize("name", ["clip", "clip-ft", "negclip", "fsc-clip", "fsc-clip-b16"])
def test_losses_survive_a_trip_to_another_process(name: str) -> None:
    layout = layout_of(CASES["ragged"])
    features = features_for(layout)
    method = load_recipe(name)()
    copy = pickle.loads(pickle.dumps(method))  # noqa: S301
    assert _sum(copy, features, layout) == _sum(method, features, layout)
    assert (copy.optim, copy.plan, copy.settings) == (method.optim, method.plan, method.settings)


def test_clip_ft() -> None:
    method = load_recipe("clip-ft")()
    assert method.plan.rewrites == ()
    assert not method.needs_local
    optim = method.optim
    assert (optim.epochs, optim.batch_size, optim.lr, optim.weight_decay, optim.warmup) == (
        5, 256, 5e-6, 0.1, 50,
    )  # fmt: skip
    layout = layout_of(CASES["full"])
    features = features_for(layout)
    assert _sum(method, features, layout) == clip_loss(features, layout)


def test_clip_pretrains() -> None:
    optim = load_recipe("clip")().optim
    assert 5e-4 <= optim.lr <= 1e-3
    assert (optim.weight_decay, optim.warmup) == (0.1, 500)


@pytest.mark.parametrize("missing", ["mask", "zero"])
def test_negclip(missing) -> None:  # type: ignore[no-untyped-def]
    method = negclip.recipe(missing_hn=missing)
    assert method.plan.rewrites == ("negclip",)
    assert method.settings == {"missing_hn": missing}
    layout = layout_of([t for t in CASES["ragged"] if t[2] < 1])
    features = features_for(layout)
    expected = negclip_loss(features, layout, missing, rewrites=1)
    assert _sum(method, features, layout) == expected
    assert _sum(method, features, layout) != clip_loss(features, layout)


def test_fsc_clip_is_the_weighted_sum_of_the_paper() -> None:
    method = fsc_clip.recipe()
    assert method.plan.rewrites == ("negclip", "replace", "bigram-shuffle")
    assert method.needs_local
    layout = layout_of(CASES["ragged"])
    features = features_for(layout)
    scr = {"gamma": 2.0, "beta": 0.02}
    expected = (
        clip_loss(features, layout)
        + 0.5 * global_hn_loss(features, layout, **scr)
        + 0.2 * local_hn_loss(features, layout, **scr)
    )
    torch.testing.assert_close(_sum(method, features, layout), expected)


@pytest.mark.parametrize(
    "option",
    [
        {"gamma": 0.0},
        {"beta": 0.5},
        {"attention": "softmax"},
        {"hn_reduction": "batch"},
        {"missing_hn": "zero"},
        {"global_weight": 1.0},
        {"local_weight": 1.0},
    ],
    ids=str,
)
def test_fsc_clip_switches_reach_the_loss(option) -> None:  # type: ignore[no-untyped-def]
    layout = layout_of(CASES["ragged"])
    features = features_for(layout)
    changed = fsc_clip.recipe(**option)
    assert changed.settings == {**fsc_clip.recipe().settings, **option}
    assert _sum(changed, features, layout) != _sum(fsc_clip.recipe(), features, layout)


def test_fsc_clip_attention_gradient_switch() -> None:
    layout = layout_of(CASES["ragged"])
    features = features_for(layout)
    leaves = (features.tokens, features.patches)
    plain, through = (
        torch.autograd.grad(_sum(fsc_clip.recipe(attention_grad=on), features, layout), leaves)  # type: ignore[arg-type]
        for on in (False, True)
    )
    assert not torch.allclose(plain[0], through[0])


def test_fsc_clip_without_local_needs_no_local_features() -> None:
    method = fsc_clip.recipe(local_weight=0.0)
    assert [t.name for t in method.losses] == ["clip", "global_hn"]
    assert not method.needs_local


@pytest.mark.parametrize(
    ("name", "global_weight", "local_weight", "batch"),
    [("cc3m", 1.0, 0.2, 256), ("b16", 0.5, 0.5, 128), ("l14", 0.5, 0.5, 256)],
)
def test_released_settings(
    name: str, global_weight: float, local_weight: float, batch: int
) -> None:
    method = load_recipe(f"fsc-clip-{name}")()
    assert {t.name: t.weight for t in method.losses} == {
        "clip": 1.0,
        "global_hn": global_weight,
        "local_hn": local_weight,
    }
    assert method.optim.batch_size == batch
    assert (method.settings["gamma"], method.settings["beta"]) == (2.0, 0.02)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"gamma": -1.0}, "gamma must be"),
        ({"beta": 1.5}, "beta in"),
        ({"beta": math.nan}, "beta in"),
        ({"global_weight": -0.5}, "weights must be"),
        ({"local_weight": math.nan}, "weights must be"),
    ],
)
def test_fsc_clip_refuses_impossible_values(option, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        fsc_clip.recipe(**option)


def test_unknown_method() -> None:
    with pytest.raises(UsageError, match="no method 'fsc_clip'; did you mean fsc-clip"):
        load_recipe("fsc_clip")
    with pytest.raises(UsageError, match="did you mean negclip"):
        load_recipe("NegCLIPP")
    with pytest.raises(UsageError, match="known: ce-clip, clic, clip"):
        load_recipe("zzz")


def test_command_line_from_the_signature() -> None:
    arguments = ["--gamma", "0", "--attention", "softmax", "--attention-grad", "--optim.lr", "1e-4"]
    method = tyro.cli(fsc_clip.recipe, args=arguments)
    assert method.optim.lr == 1e-4
    assert method.settings["attention"] == "softmax"
    assert method.settings["attention_grad"] is True
