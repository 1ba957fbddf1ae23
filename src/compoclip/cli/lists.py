"""`compoclip rewrites`, `losses`, `benchmarks`: what there is by name, and where it comes from.

Each also takes files of the user's own, and shows what they define.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from compoclip import own
from compoclip.cli.options import parse
from compoclip.console import counted, emit_json, table

_MOST_TERMS = 4  # that a line names


@dataclass(frozen=True)
class _Listed:
    """One line of a list. kind: about it in a word or two. origin: where it comes from."""

    name: str
    kind: str
    summary: str
    origin: str


@dataclass(frozen=True)
class RewritesOptions:
    """List the caption rewrites: what each makes, its version, and where it comes from.

    Args:
        files: Files of yours with rewrites, ./my_rewrite.py, to show in place of all.
        json: Print JSON.
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = ()
    json: bool = False


def rewrites_main(argv: Sequence[str]) -> int:
    """Print one row, or one JSON object, a rewrite; returns the exit code."""
    from compoclip.rewrites.base import (
        get_pair_rewrite,
        get_rewrite,
        pair_rewrite_names,
        rewrite_names,
    )

    options = parse(RewritesOptions, "rewrites", argv)
    added = own.installed("rewrites")
    rows = []
    for name in options.files or rewrite_names():
        own.refresh(name)
        each = get_rewrite(name)
        is_file = own.is_file(name)
        origin = str(own.split(name)[0]) if is_file else own.origin(added.get(name))
        kind = f"{'positive' if each.keeps_meaning else 'negative'}, version {each.version}"
        rows.append(_Listed(each.name, kind, _summary(type(each)), origin))
    for name in () if options.files else pair_rewrite_names():
        pair = get_pair_rewrite(name)
        kind = f"of two captions, version {pair.version}"
        rows.append(_Listed(name, kind, _summary(type(pair)), own.origin(added.get(name))))
    return _print(
        rows, ("rewrite", "kind"), options.json, "compoclip train METHOD --texts +NAME adds one"
    )


@dataclass(frozen=True)
class LossesOptions:
    """List the losses: what each is, the terms that use it, and where it comes from.

    Args:
        files: Files of yours with loss terms, ./my_loss.py, to show in place of all.
        json: Print JSON.
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = ()
    json: bool = False


def losses_main(argv: Sequence[str]) -> int:
    """Print one row, or one JSON object, a loss; returns the exit code."""
    from compoclip import losses
    from compoclip.losses.rows import OnlyKinds
    from compoclip.methods.compose import loss_named
    from compoclip.methods.registry import load_recipe, method_names

    def function(loss: object) -> object:
        """The function or class of a loss, without what is bound to it."""
        while isinstance(loss, functools.partial | OnlyKinds):
            loss = loss.func if isinstance(loss, functools.partial) else loss.loss
        return loss if inspect.isroutine(loss) else type(loss)

    options = parse(LossesOptions, "losses", argv)
    rows = []
    used: dict[object, list[str]] = {}
    for method in (load_recipe(name)() for name in ([] if options.files else method_names())):
        for term in method.losses:
            used.setdefault(function(term.loss), []).append(f"{method.name}.{term.name}")
    offered = {name: getattr(losses, name) for name in dir(losses)}
    heads = (each for each in used if inspect.isclass(each) and issubclass(each, losses.HeadPlan))
    offered |= {each.__name__: each for each in heads}
    for name, loss in () if options.files else sorted(offered.items()):
        if loss in used:
            terms = used[loss]
            more = ", ..." if len(terms) > _MOST_TERMS else ""
            kind = ", ".join(terms[:_MOST_TERMS]) + more
            rows.append(_Listed(name, kind, _summary(loss), own.PACKAGE))
    added = own.installed("losses")
    for name in options.files or sorted(added):
        found = loss_named(name)
        assert found is not None  # it is a file, or there
        origin = str(own.split(name)[0]) if own.is_file(name) else own.origin(added[name])
        called = found.name if own.is_file(name) else name
        rows.append(_Listed(called, f"term {found.name}", _summary(function(found.loss)), origin))
    return _print(
        rows,
        ("loss", "terms"),
        options.json,
        "compoclip train METHOD --terms +METHOD.TERM adds a term",
    )


@dataclass(frozen=True)
class BenchmarksOptions:
    """List the benchmarks: titles, numbers of items, and where each comes from.

    `compoclip data ls` says what each needs and what of it can be fetched.

    Args:
        files: Files of yours with a benchmark, ./my_benchmark.py, to show in place of all.
        json: Print JSON.
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = ()
    json: bool = False


def benchmarks_main(argv: Sequence[str]) -> int:
    """Print one row, or one JSON object, a benchmark; returns the exit code."""
    from compoclip.benchmarks.registry import benchmark_names, benchmark_origin, meta

    options = parse(BenchmarksOptions, "benchmarks", argv)
    rows = []
    for name in options.files or benchmark_names():
        about = meta(name)
        count = "by set" if about.family else counted(about.items, "item") if about.items else "-"
        rows.append(_Listed(about.id, count, about.title, benchmark_origin(name)))
    return _print(
        rows, ("benchmark", "items"), options.json, "compoclip evaluate MODEL --on NAME measures"
    )


def _print(rows: Sequence[_Listed], header: tuple[str, str], as_json: bool, note: str) -> int:
    if as_json:
        emit_json([asdict(row) for row in rows])
        return 0
    cells = [[row.name, row.kind, _short(row.summary), row.origin] for row in rows]
    print(table(cells, [*header, "what it is", "from"], left=4))
    print(f"\n{note}\none of your own goes by its file, ./MY.py (compoclip new writes one)")
    return 0


def _summary(thing: object) -> str:
    return next(iter(_paragraphs(inspect.getdoc(thing) or "")), "")


def _paragraphs(text: str) -> Iterable[str]:
    return (" ".join(part.split()) for part in text.split("\n\n"))


def _short(text: str, most: int = 90) -> str:
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."
