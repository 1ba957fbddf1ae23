"""`compoclip list KIND [NAME ...]`: methods, losses, rewrites, benchmarks, and their origin.

A name may also be a file of the user's own, which is shown in place of all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Annotated, Any, Literal

from compoclip import own
from compoclip.cli.options import parse
from compoclip.config import Shown
from compoclip.console import counted, emit_json, table
from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe, method_names, method_origin, method_summaries

if TYPE_CHECKING:
    from compoclip.methods.base import Method, PaperDifference

_MOST_TERMS = 4  # that a line names
_HINTS = {
    "rewrites": "compoclip train METHOD --texts +NAME adds one",
    "losses": "compoclip train METHOD --terms +METHOD.TERM adds a term",
    "benchmarks": "compoclip evaluate MODEL --on NAME measures",
}


@dataclass(frozen=True)
class ListOptions:
    """List methods, losses, rewrites or benchmarks by name, and where each comes from.

    Of methods that are named: also where their papers and released code differ.

    Args:
        kind: What to list.
        names: These alone; also files of yours, ./my_rewrite.py.
        json: Print JSON, with all settings of methods.
    """

    kind: Annotated[
        Literal["methods", "losses", "rewrites", "benchmarks"],
        Shown("methods|losses|rewrites|benchmarks", positional=True),
    ]
    names: Annotated[tuple[str, ...], Shown("NAME ...", positional=True)] = ()
    json: bool = False


@dataclass(frozen=True)
class _Listed:
    """One line of a list. kind: about it in a word or two. origin: where it comes from."""

    name: str
    kind: str
    summary: str
    origin: str


def main(argv: Sequence[str]) -> int:
    """Print one row, or one JSON object, per thing; return the exit code."""
    options = parse(ListOptions, "list", argv)
    if options.kind == "methods":
        return _methods(options.names, options.json)
    made = {"rewrites": _rewrites, "losses": _losses, "benchmarks": _benchmarks}[options.kind]
    header, rows = made(options.names)
    if options.json:
        emit_json([asdict(row) for row in rows])
        return 0
    cells = [[row.name, row.kind, _short(row.summary), row.origin] for row in rows]
    print(table(cells, [*header, "what it is", "from"], left=4))
    hint = "one of your own goes by its file, ./MY.py (compoclip new writes one)"
    print(f"\n{_HINTS[options.kind]}\n{hint}")
    return 0


def _rewrites(names: Sequence[str]) -> tuple[tuple[str, str], list[_Listed]]:
    from compoclip.rewrites import base

    added = own.installed("rewrites")
    rows = []
    for name in names or base.rewrite_names():
        own.refresh(name)
        each = base.get_rewrite(name)
        kind = f"{'positive' if each.keeps_meaning else 'negative'}, version {each.version}"
        about = getattr(each, "propose", type(each))
        about = _summary(getattr(about, "func", about))  # a function, perhaps in a partial
        rows.append(_Listed(each.name, kind, about, _origin(name, added)))
    for name in () if names else base.pair_rewrite_names():
        pair = base.get_pair_rewrite(name)
        kind = f"of two captions, version {pair.version}"
        rows.append(_Listed(name, kind, _summary(type(pair)), _origin(name, added)))
    return ("rewrite", "kind"), rows


def _losses(names: Sequence[str]) -> tuple[tuple[str, str], list[_Listed]]:
    from compoclip import losses
    from compoclip.losses.rows import OnlyKinds
    from compoclip.methods.compose import loss_named

    def function(loss: object) -> object:
        """Return the function or class of a loss, without what is bound to it."""
        while isinstance(loss, functools.partial | OnlyKinds):
            loss = loss.func if isinstance(loss, functools.partial) else loss.loss
        return loss if inspect.isroutine(loss) else type(loss)

    rows = []
    used: dict[object, list[str]] = {}
    for method in (load_recipe(name)() for name in ([] if names else method_names())):
        for term in method.losses:
            used.setdefault(function(term.loss), []).append(f"{method.name}.{term.name}")
    offered = {name: getattr(losses, name) for name in dir(losses)}
    heads = (each for each in used if inspect.isclass(each) and issubclass(each, losses.HeadPlan))
    offered |= {each.__name__: each for each in heads}
    for name, loss in sorted(offered.items()):
        if terms := used.get(loss, []):
            more = ["..."] if len(terms) > _MOST_TERMS else []
            kind = ", ".join([*terms[:_MOST_TERMS], *more])
            rows.append(_Listed(name, kind, _summary(loss), own.PACKAGE))
    added = own.installed("losses")
    for name in names or sorted(added):
        found = loss_named(name)
        if found is None:
            raise UsageError(f"no loss '{name}' of yours or another package; list losses shows all")
        called = found.name if own.is_file(name) else name
        about = _summary(function(found.loss))
        rows.append(_Listed(called, f"term {found.name}", about, _origin(name, added)))
    return ("loss", "terms"), rows


def _benchmarks(names: Sequence[str]) -> tuple[tuple[str, str], list[_Listed]]:
    from compoclip.benchmarks.registry import benchmark_names, benchmark_origin, meta

    rows = []
    for name in names or benchmark_names():
        about = meta(name)
        count = "by set" if about.family else counted(about.items, "item") if about.items else "-"
        rows.append(_Listed(about.id, count, about.title, benchmark_origin(name)))
    return ("benchmark", "items"), rows


def _origin(name: str, added: Mapping[str, EntryPoint]) -> str:
    return str(own.split(name)[0]) if own.is_file(name) else own.origin(added.get(name))


def _summary(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _short(text: str, most: int = 90) -> str:
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


# --- Methods. ---


def _methods(names: Sequence[str], as_json: bool) -> int:
    found = {name: load_recipe(name)() for name in names or method_names()}
    if as_json:
        emit_json([{**_record(m), "from": method_origin(n)} for n, m in found.items()])
        return 0
    header = ["method", "paper", "texts", "images", "loss", "epochs", "batch", "lr", "decay"]
    rows = [[*_row(method), method_origin(name)] for name, method in found.items()]
    print(table(rows, [*header, "from"], left=5))
    for method in found.values() if names else ():
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
        print(f"  {each.option} {_shown(method.value_of(each.option))}{_sides(method, each)}")
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


def _shown(value: float | str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return (value or "none") if isinstance(value, str) else f"{value:g}"


def _row(method: Method) -> list[str]:

    optim = method.optim
    return [
        method.name,
        method.paper,
        texts_of(method),
        method.images.name,
        terms_of(method),
        f"{optim.epochs:g}",
        str(optim.batch_size),
        f"{optim.lr:g}",
        f"{optim.weight_decay:g}",
    ]


def texts_of(method: Method) -> str:
    """Return the texts beside captions on one line."""
    plan = method.plan
    names = [each if isinstance(each, str) else "|".join(each.of) for each in plan.rewrites]
    names += [each.label for each in plan.texts if each.label]
    own = [kind for kind in method.kinds if kind not in plan.kinds]
    return ", ".join([*own, *names]) or "-"


def terms_of(method: Method) -> str:
    """Return the loss terms with their weights on one line."""

    def shown(name: str, weight: float, on: str) -> str:
        weighted = name if weight == 1 else f"{weight:g} {name}"
        return f"{weighted} ({on})" if on == "single" else weighted

    losses = " + ".join(shown(term.name, term.weight, term.on) for term in method.losses)
    return f"{losses} (LoRA)" if method.lora else losses
