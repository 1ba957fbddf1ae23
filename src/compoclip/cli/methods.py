"""`compoclip methods [METHOD ...]`: every recipe with paper, texts, loss terms and defaults.

Of methods that are named also where their papers and released code differ, and what is done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.methods.registry import (
    load_recipe,
    method_names,
    method_origin,
    method_summaries,
)

if TYPE_CHECKING:
    from compoclip.methods.base import Method, PaperDifference


@dataclass(frozen=True)
class MethodsOptions:
    """List the training methods: paper, texts beside captions, loss terms, optimiser defaults.

    Args:
        methods: These alone, with the options over which paper and released code differ; all by
            default.
        json: Print JSON, with all settings.
    """

    methods: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")] = ()
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Print one row, or one JSON object, a method; of those that are named all differences."""
    options = parse(MethodsOptions, "methods", arguments)
    names = options.methods or tuple(method_names())
    methods = [load_recipe(name)() for name in names]
    if options.json:
        records = [_record(method) for method in methods]
        emit_json([{**each, "from": method_origin(n)} for n, each in zip(names, records)])
        return 0
    header = [
        "method",
        "paper",
        "texts",
        "images",
        "loss",
        "epochs",
        "batch",
        "lr",
        "decay",
        "from",
    ]
    rows = [[*_row(method), method_origin(name)] for name, method in zip(names, methods)]
    print(table(rows, header, left=5))
    for method in methods if options.methods else ():
        _print_differences(method)
    print("\ncompoclip train METHOD --help explains a method and its options; parts can be")
    print("recombined: --texts +METHOD, --terms +METHOD, --set terms.NAME.weight=0.5")
    return 0


def _record(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method_summaries().get(method.name, ""),
        "paper": method.paper,
        "kinds": list(method.kinds),
        **method.record(),
        "trains": asdict(method.trains),
        "lora": asdict(method.lora) if method.lora else None,
        "crop": method.crop,
        "optim": asdict(method.optim),
        "settings": dict(method.settings),
        "stand_ins": dict(method.stand_ins),
        "differences": [
            {**asdict(each), "default": method.value_of(each.option)} for each in method.differences
        ],
    }


def _print_differences(method: Method) -> None:
    """The options over which the paper and the released code differ, each with the default."""
    if not method.differences:
        print(f"\n{method.name}: no option over which paper and released code differ")
        return
    print(f"\n{method.name}: where the paper and the released code differ, or one is silent")
    for each in method.differences:
        print(
            f"  {_option(each.option)} {_shown(method.value_of(each.option))}{_sides(method, each)}"
        )
        print(f"      {each.why}")


def _sides(method: Method, difference: PaperDifference) -> str:
    """ " (as released; paper: batch)"."""
    default = method.value_of(difference.option)
    sides = {"paper": difference.paper, "released": difference.released}
    known = {side: value for side, value in sides.items() if value is not None}
    same = [{"paper": "in the paper"}.get(side, side) for side in known if known[side] == default]
    other = [f"{side}: {_shown(value)}" for side, value in known.items() if value != default]
    parts = ([f"as {' and '.join(same)}"] if same else []) + other
    return f" ({'; '.join(parts)})" if parts else ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: float | str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return (value or "none") if isinstance(value, str) else f"{value:g}"


def _row(method: Method) -> list[str]:

    optim = method.optim
    return [
        method.name,
        method.paper,
        _texts(method),
        method.images.name,
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
    names += ["units"] if plan.units else []
    names += ["noun phrases"] if plan.phrases else []
    own = [kind for kind in method.kinds if kind not in plan.kinds]
    return ", ".join([*own, *names]) or "-"


def _terms(method: Method) -> str:
    def shown(name: str, weight: float, on: str) -> str:
        weighted = name if weight == 1 else f"{weight:g} {name}"
        return f"{weighted} ({on})" if on == "single" else weighted

    losses = " + ".join(shown(term.name, term.weight, term.on) for term in method.losses)
    return f"{losses} (LoRA)" if method.lora else losses
