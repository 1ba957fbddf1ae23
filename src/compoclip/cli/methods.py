"""`compoclip methods [METHOD ...]`: every recipe with paper, texts, loss terms and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.methods.registry import load_recipe, method_names, method_summaries

if TYPE_CHECKING:
    from compoclip.methods.base import Method


@dataclass(frozen=True)
class Options:
    """List the training methods: paper, texts beside captions, loss terms, optimiser defaults."""

    methods: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")] = ()
    """these alone; all by default"""
    json: bool = False
    """print JSON, with all settings"""


def main(arguments: Sequence[str]) -> int:
    """Print one row, or one JSON object, a method."""
    options = parse(Options, "methods", arguments)
    names = options.methods or tuple(method_names())
    methods = [load_recipe(name)() for name in names]
    if options.json:
        emit_json([_record(method) for method in methods])
        return 0
    header = ["method", "paper", "texts", "images", "loss", "epochs", "batch", "lr", "decay"]
    print(table([_row(method) for method in methods], header, left=5))
    print("\ncompoclip train METHOD --help explains a method and its options; parts can be")
    print("recombined: --texts +METHOD, --terms +METHOD, --set terms.NAME.weight=0.5")
    return 0


def _record(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method_summaries()[method.name],
        "paper": method.paper,
        "kinds": list(method.kinds),
        **method.record(),
        "trains": asdict(method.trains),
        "lora": asdict(method.lora) if method.lora else None,
        "optim": asdict(method.optim),
        "settings": dict(method.settings),
    }


def _row(method: Method) -> list[str]:
    from compoclip.data.plans import image_name  # recipes, and torch with them, only when called

    optim = method.optim
    return [
        method.name,
        method.paper,
        _texts(method),
        image_name(method.images),
        _terms(method),
        f"{optim.epochs:g}",
        str(optim.batch_size),
        f"{optim.lr:g}",
        f"{optim.weight_decay:g}",
    ]


def _texts(method: Method) -> str:
    plan = method.plan
    names = [each if isinstance(each, str) else "|".join(each.of) for each in plan.rewrites]
    names += ["graph"] if plan.graph else []
    names += ["bags"] if plan.bags else []
    own = [kind for kind in method.kinds if kind not in plan.kinds]
    return ", ".join([*own, *names]) or "-"


def _terms(method: Method) -> str:
    def shown(name: str, weight: float, on: str) -> str:
        weighted = name if weight == 1 else f"{weight:g} {name}"
        return f"{weighted} ({on})" if on == "single" else weighted

    losses = " + ".join(shown(term.name, term.weight, term.on) for term in method.losses)
    return f"{losses} (LoRA)" if method.lora else losses
