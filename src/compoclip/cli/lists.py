"""`compoclip list KIND [NAME ...]`: methods, losses, rewrites, benchmarks, and their origin.

A name may also be a user's file, which is shown instead of the list.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Annotated, Literal

from compoclip import own
from compoclip.cli.options import Outcome, Printing
from compoclip.config import Shown
from compoclip.console import counted, table, without
from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe, method_names, method_origin, method_summaries

if TYPE_CHECKING:
    from compoclip.methods.base import Method

_MOST_TERMS = 4  # that a line names
_HINTS = {
    "rewrites": "compoclip train METHOD --texts +NAME adds one",
    "losses": "compoclip train METHOD --terms +METHOD.TERM adds a term",
    "benchmarks": "compoclip evaluate MODEL --on NAME measures",
}


@dataclass(frozen=True)
class ListOptions(Printing):
    """List methods, losses, rewrites or benchmarks by name, with their origin.

    For given methods, also list the differences between papers and released code.

    Args:
        kind: Kind to list.
        names: Names to list, or files such as ./my_rewrite.py; all by default.
    """

    kind: Annotated[
        Literal["methods", "losses", "rewrites", "benchmarks"],
        Shown("methods|losses|rewrites|benchmarks", positional=True),
    ]
    names: Annotated[tuple[str, ...], Shown("NAME ...", positional=True)] = ()


Listed = tuple[str, str, str, str]
"""A line of a list: name, its kind in a word or two, summary, origin."""


def main(options: ListOptions) -> Outcome:
    """Print one row, or one JSON object, per thing; return the exit code."""
    if options.kind == "methods":
        return _methods(options.names)
    made = {"rewrites": _rewrites, "losses": _losses, "benchmarks": _benchmarks}[options.kind]
    header, rows = made(options.names)
    shown = []
    for name, kind, about, origin in rows:
        short = about if len(about) <= 90 else f"{about[:87].rstrip()}..."
        shown.append([name, kind, short, origin])
    text = (
        f"{table(shown, [*header, 'what it is', 'from'], left=4)}\n\n{_HINTS[options.kind]}\n"
        "one of your own goes by its file, ./MY.py (compoclip new writes one)"
    )
    return [dict(zip(("name", "kind", "summary", "origin"), row)) for row in rows], text


def _rewrites(names: Sequence[str]) -> tuple[tuple[str, str], list[Listed]]:
    from compoclip.rewrites import base

    added = own.installed("rewrites")
    rows = []
    for name in names or base.rewrite_names():
        own.refresh(name)
        each = base.get_rewrite(name)
        kind = f"{'positive' if each.keeps_meaning else 'negative'}, version {each.version}"
        about = getattr(each, "propose", type(each))
        about = _summary(getattr(about, "func", about))  # a function, perhaps in a partial
        rows.append((each.name, kind, about, _origin(name, added)))
    return ("rewrite", "kind"), rows


def _losses(names: Sequence[str]) -> tuple[tuple[str, str], list[Listed]]:
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
            kind = ", ".join([*terms[:_MOST_TERMS], *["..."][: len(terms) > _MOST_TERMS]])
            rows.append((name, kind, _summary(loss), own.PACKAGE))
    added = own.installed("losses")
    for name in names or sorted(added):
        found = loss_named(name)
        if found is None:
            raise UsageError(f"no loss '{name}' of yours or another package; list losses shows all")
        called = found.name if own.is_file(name) else name
        about = _summary(function(found.loss))
        rows.append((called, f"term {found.name}", about, _origin(name, added)))
    return ("loss", "terms"), rows


def _benchmarks(names: Sequence[str]) -> tuple[tuple[str, str], list[Listed]]:
    from compoclip.benchmarks.registry import benchmark_names, benchmark_origin, meta

    rows = []
    for name in names or benchmark_names():
        about = meta(name)
        count = "by set" if about.family else counted(about.items, "item") if about.items else "-"
        rows.append((about.id, count, about.title, benchmark_origin(name)))
    return ("benchmark", "items"), rows


def _origin(name: str, added: Mapping[str, EntryPoint]) -> str:
    return str(own.split(name)[0]) if own.is_file(name) else own.origin(added.get(name))


def _summary(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


# --- Methods. ---


def _methods(names: Sequence[str]) -> Outcome:
    found = {name: load_recipe(name)() for name in names or method_names()}
    records, rows, lines = [], [], []
    for name, method in found.items():
        optim, origin = method.optim, method_origin(name)
        made = {
            "name": method.name,
            "summary": method_summaries().get(method.name, ""),
            "paper": method.paper,
            "kinds": list(method.kinds),
            **method.record(),
            "trains": asdict(method.trains),
            "lora": asdict(method.lora) if method.lora else None,
            "crop": method.crop,
            "optim": asdict(optim),
            "settings": dict(method.settings),
            "stand_ins": dict(method.stand_ins),
            "differences": [
                {**asdict(each), "default": method.value_of(each.option)}
                for each in method.differences
            ],
            "from": origin,
        }
        records.append(made)
        texts = [texts_of(method), method.images.name, terms_of(method)]
        numbers = [f"{n:g}" for n in (optim.epochs, optim.batch_size, optim.lr, optim.weight_decay)]
        rows.append([method.name, method.paper, *texts, *numbers, origin])
        if names:
            lines += ["", *_differences(method)]
    header = ["method", "paper", "texts", "images", "loss", "epochs", "batch", "lr", "decay"]
    lines += [
        "",
        "compoclip train METHOD --help explains a method and its options; parts can be",
        "recombined: --texts +METHOD, --terms +METHOD, --set terms.NAME.weight=0.5",
    ]
    narrower = [without(1), without(2, 8)]  # paper, then images and from
    text = "\n".join([table(rows, [*header, "from"], left=5, narrower=narrower), *lines])
    return records, text


def _differences(method: Method) -> Iterator[str]:
    """Yield the options over which paper and released code differ, each with the default."""

    def value(of: float | str) -> str:
        if isinstance(of, bool):
            return "on" if of else "off"
        return (of or "none") if isinstance(of, str) else f"{of:g}"

    if not method.differences:
        yield f"{method.name}: no option over which paper and released code differ"
        return
    yield f"{method.name}: where the paper and the released code differ, or one is silent"
    for each in method.differences:
        default = method.value_of(each.option)
        same, other = [], []  # "as released", "paper: batch"
        for side, at in (("paper", each.paper), ("released", each.released)):
            if at is not None and at == default:
                same.append("in the paper" if side == "paper" else side)
            elif at is not None:
                other.append(f"{side}: {value(at)}")
        parts = [f"as {' and '.join(same)}"] * bool(same) + other
        sides = f" ({'; '.join(parts)})" if parts else ""
        yield f"  {each.option} {value(default)}{sides}"
        yield f"      {each.why}"


def texts_of(method: Method) -> str:
    """Return the texts beside captions on one line."""
    plan = method.plan
    names = [each if isinstance(each, str) else "|".join(each.of) for each in plan.rewrites]
    names += [each.label for each in plan.texts if each.label]
    own = [kind for kind in method.kinds if kind not in plan.kinds]
    return ", ".join([*own, *names]) or "-"


def terms_of(method: Method) -> str:
    """Return the loss terms with their weights on one line."""
    terms = []
    for each in method.losses:
        weighted = each.name if each.weight == 1 else f"{each.weight:g} {each.name}"
        terms.append(f"{weighted} ({each.on})" if each.on == "single" else weighted)
    return f"{' + '.join(terms)}{' (LoRA)' * bool(method.lora)}"
