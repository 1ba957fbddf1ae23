"""Defaults of recipes against the published values in published_settings.yaml, written by hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from compoclip.methods.base import Method, listed_differences
from compoclip.methods.registry import load_recipe, method_names

ROOT = Path(__file__).resolve().parents[1]
_FILE = yaml.safe_load((ROOT / "tests/published_settings.yaml").read_text(encoding="utf-8"))
COMMON, RECIPES = _FILE["common"]["optim"], _FILE["recipes"]


def expected_optim(name: str) -> dict[str, float]:
    """Return the optimiser fields that the default recipe must have."""
    entry = RECIPES[name]
    departures = {k: v for k, v in entry.get("ours", {}).items() if k in COMMON}
    return {**COMMON, **entry.get("optim", {}), **departures}


def departures_of(method: Method) -> list[str]:
    """Return the fields in which a recipe departs from its entry, as "field: value, not value"."""
    entry, optim = RECIPES[method.name], asdict(method.optim)
    pairs: dict[str, tuple[Any, Any]] = {
        name: (optim[name], value) for name, value in expected_optim(method.name).items()
    }
    departures = {k: v for k, v in entry.get("ours", {}).items() if k not in COMMON}
    for name, value in {**entry.get("options", {}), **departures}.items():
        pairs[name] = (method.settings[name], value)
    weights = {term.name: round(term.weight, 6) for term in method.losses}
    pairs["losses"] = (weights, entry["losses"])
    adapters = {"rank": method.lora.rank, "alpha": method.lora.alpha} if method.lora else None
    pairs["lora"] = (adapters, entry.get("lora"))
    frozen = [name for name, learns in asdict(method.trains).items() if learns is False]
    pairs["frozen"] = (frozen, entry.get("frozen", []))
    decay = method.teacher.decay if method.teacher else None
    pairs["teacher"] = (decay, entry.get("teacher"))
    for name, rates in entry.get("heads", {}).items():
        head = method.heads[name].record()
        pairs[f"head {name}"] = ([head["lr"], head["weight_decay"]], rates)
    return [
        f"{name}: {is_now}, not {value}"
        for name, (is_now, value) in pairs.items()
        if is_now != value
    ]


def test_the_file_has_every_recipe() -> None:
    assert sorted(RECIPES) == sorted(method_names()), (
        "add the published values of a new recipe to tests/published_settings.yaml"
    )
    assert {*COMMON} == {*asdict(load_recipe("clip-ft")().optim)}


@pytest.mark.parametrize("name", RECIPES)
def test_defaults_are_the_published_ones(name: str) -> None:
    assert departures_of(load_recipe(name)()) == [], (
        "the paper's value stands in tests/published_settings.yaml; correct the recipe, or the "
        "file from the paper itself"
    )


@pytest.mark.parametrize("name", [name for name in RECIPES if "ours" in RECIPES[name]])
def test_every_departure_has_its_reason_in_the_list_of_differences(name: str) -> None:
    reasons = {difference.option for difference in listed_differences().get(name, ())}
    assert {*RECIPES[name]["ours"]} <= reasons


@pytest.mark.parametrize("name", RECIPES)
def test_a_stated_difference_is_one(name: str) -> None:
    """Values that differences.yaml calls the paper's or released are those of this file."""
    published = {**COMMON, **RECIPES[name].get("optim", {}), **RECIPES[name].get("options", {})}
    departures = RECIPES[name].get("ours", {})
    for difference in listed_differences().get(name, ()):
        stated = [v for v in (difference.paper, difference.released) if isinstance(v, float | int)]
        if difference.option in published and stated and difference.option not in departures:
            assert published[difference.option] in stated, (
                f"correct {difference.option} of {name} in src/compoclip/methods/differences.yaml"
            )


def test_a_changed_rate_is_noticed() -> None:
    """The check can fail: a doubled learning rate, a weight and a rank are named."""
    from dataclasses import replace

    method = load_recipe("fsc-clip-lora")()
    assert method.lora is not None
    spoilt = replace(
        method.scaled(2, "local_hn"),
        optim=replace(method.optim, lr=2 * method.optim.lr),
        lora=replace(method.lora, rank=8),
    )
    assert [line.partition(":")[0] for line in departures_of(spoilt)] == ["lr", "losses", "lora"]
