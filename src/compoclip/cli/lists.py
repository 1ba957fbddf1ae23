"""`compoclip list KIND [NAME ...]`, `compoclip new KIND NAME`, `compoclip cache`."""

from __future__ import annotations

import functools
import inspect
import keyword
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from compoclip import plugins
from compoclip.cli.options import Outcome, Printing
from compoclip.config import Shown
from compoclip.console import columns, counted, help_width, prose
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import cache_folder, write_text, writing
from compoclip.methods.registry import (
    TERMS,
    load_recipe,
    method_names,
    method_origin,
    method_summaries,
)
from compoclip.printed import Table, without

if TYPE_CHECKING:
    from compoclip.methods.base import Method


_MOST_TERMS = 4  # that a line names
_MOST_LINES = 2  # of a method in the list of all; else only names and summaries are listed
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
        kind: Kind to list; without one, the kinds and how many there are of each.
        names: Names to list, or files such as ./my_rewrite.py; all by default.
    """

    kind: Annotated[
        Literal["methods", "losses", "rewrites", "benchmarks"] | None,
        Shown("methods|losses|rewrites|benchmarks", positional=True),
    ] = None
    names: Annotated[tuple[str, ...], Shown("NAME ...", positional=True)] = ()


Listed = tuple[str, str, str, str]
"""A line of a list: name, its kind in a word or two, summary, origin."""


def list_main(options: ListOptions) -> Outcome:
    """Print one row, or one JSON object, per thing; return the exit code."""
    if options.kind == "methods":
        return _methods(options.names)
    if options.kind is None:
        return _kinds()
    listing = {"rewrites": _rewrites, "losses": _losses, "benchmarks": _benchmarks}[options.kind]
    header, rows = listing(options.names)
    shortened = []
    for name, kind, about, origin in rows:
        short = about if len(about) <= 90 else f"{about[:87].rstrip()}..."
        shortened.append([name, kind, short, origin])
    custom = "one of your own goes by its file, ./MY.py (compoclip new writes one)"
    table = Table(shortened, [*header, "what it is", "from"], left=4)
    records = [dict(zip(("name", "kind", "summary", "origin"), row)) for row in rows]
    return records, (table, f"{_HINTS[options.kind]}\n{custom}")


def _kinds() -> Outcome:
    """Return the kinds with their numbers, where these are known without torch."""
    from compoclip.benchmarks.names import benchmark_names
    from compoclip.rewrites.base import rewrite_names

    of_kind = {"methods": method_names, "benchmarks": benchmark_names, "rewrites": rewrite_names}
    counts = {kind: len(names()) for kind, names in of_kind.items()}
    lines = [[f"{count} {kind}", f"compoclip list {kind}"] for kind, count in counts.items()]
    return counts, columns([*lines, ["losses", "compoclip list losses"]])


def _rewrites(names: Sequence[str]) -> tuple[tuple[str, str], list[Listed]]:
    from compoclip.rewrites import base

    added = plugins.installed("rewrites")
    rows = []
    for name in names or base.rewrite_names():
        plugins.refresh(name)
        rewrite = base.get_rewrite(name)
        kind = f"{'positive' if rewrite.keeps_meaning else 'negative'}, version {rewrite.version}"
        about = getattr(rewrite, "propose", type(rewrite))
        about = _summary(getattr(about, "func", about))  # a function, perhaps in a partial
        rows.append((rewrite.name, kind, about, plugins.origin(name, added.get(name))))
    return ("rewrite", "kind"), rows


def _losses(names: Sequence[str]) -> tuple[tuple[str, str], list[Listed]]:
    added = plugins.installed("losses")
    for name in names:
        if plugins.is_file(name):
            plugins.require_file(name)
        elif name not in (*TERMS, *added):
            raise UsageError(
                f"unknown loss '{name}' in your files and packages; list losses shows all"
            )
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
    classes = filter(inspect.isclass, used)
    offered |= {kind.__name__: kind for kind in classes if issubclass(kind, losses.HeadPlan)}
    for name, loss in sorted(offered.items()):
        if terms := used.get(loss, []):
            more = ["..."] if len(terms) > _MOST_TERMS else []
            kind = ", ".join([*terms[:_MOST_TERMS], *more])
            rows.append((name, kind, _summary(loss), plugins.PACKAGE))
    for name in names or sorted(added):
        custom = loss_named(name)
        assert custom is not None
        about = _summary(function(custom.loss))
        label = custom.name if plugins.is_file(name) else name
        rows.append((label, f"term {custom.name}", about, plugins.origin(name, added.get(name))))
    return ("loss", "terms"), rows


def _benchmarks(names: Sequence[str]) -> tuple[tuple[str, str], list[Listed]]:
    from compoclip.benchmarks.names import benchmark_names
    from compoclip.benchmarks.registry import benchmark_origin, meta

    rows = []
    for name in names or benchmark_names():
        about = meta(name)
        count = "by set" if about.family else counted(about.items, "item") if about.items else "-"
        rows.append((about.id, count, about.title, benchmark_origin(name)))
    return ("benchmark", "items"), rows


def _summary(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _methods(names: Sequence[str]) -> Outcome:
    methods = {name: load_recipe(name)() for name in names or method_names()}
    records, rows, lines = [], [], []
    for name, method in methods.items():
        optim, origin = method.optim, method_origin(name)
        record = {
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
                {**asdict(difference), "default": method.value_of(difference.option)}
                for difference in method.differences
            ],
            "from": origin,
        }
        records.append(record)
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
    full = str(Table(rows, [*header, "from"], left=5, narrower=narrower))
    if names or len(full.splitlines()) <= _MOST_LINES * len(rows):
        return records, "\n".join([full, *lines])
    brief = columns([[row["name"], row["summary"]] for row in records], help_width())
    more = "compoclip list methods NAME shows its texts, loss and settings."
    return records, "\n".join([brief, "", more, *lines[1:]])


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
    for difference in method.differences:
        default = method.value_of(difference.option)
        same, other = [], []  # "as released", "paper: batch"
        for side, at in (("paper", difference.paper), ("released", difference.released)):
            if at is not None and at == default:
                same.append("in the paper" if side == "paper" else side)
            elif at is not None:
                other.append(f"{side}: {value(at)}")
        parts = [f"as {' and '.join(same)}", *other] if same else other
        sides = f" ({'; '.join(parts)})" if parts else ""
        yield f"  {difference.option} {value(default)}{sides}"
        yield prose([difference.why], "      ")


def texts_of(method: Method) -> str:
    """Return the texts beside captions on one line."""
    plan = method.plan
    names = [
        rewrite if isinstance(rewrite, str) else "|".join(rewrite.of) for rewrite in plan.rewrites
    ]
    names += [part.label for part in plan.texts if part.label]
    further = [kind for kind in method.kinds if kind not in plan.kinds]
    return ", ".join([*further, *names]) or "-"


def terms_of(method: Method) -> str:
    """Return the loss terms with their weights on one line."""
    terms = []
    for term in method.losses:
        weighted = term.name if term.weight == 1 else f"{term.weight:g} {term.name}"
        terms.append(f"{weighted} ({term.on})" if term.on == "single" else weighted)
    return f"{' + '.join(terms)}{' (LoRA)' if method.lora else ''}"


_PACKAGE = Path(__file__).parents[1]
_CUSTOM = Path("examples", "custom")  # inside the package of a wheel, at the root of a checkout
_USES = {
    "method": "compoclip train {} --data DATA --out RUN",
    "rewrite": "compoclip train negclip --texts +{} --data DATA --out RUN",
    "loss": "compoclip train negclip --terms +{} --data DATA --out RUN",
    "benchmark": "compoclip evaluate MODEL --on {}",
    "model": "compoclip evaluate {} --on BENCHMARK",
}
"""Kind -> the command that takes the file."""


@dataclass(frozen=True)
class NewOptions(Printing):
    """Write a working template and a test of it that passes.

    Examples:
        compoclip new method my-method
        compoclip new rewrite opposites --out ideas
        pytest ideas/test_opposites.py

    Args:
        kind: Kind of template.
        name: The name: letters, digits, - and _. The files are NAME.py and test_NAME.py, with _
            for -.
        out: Folder for the files; created if missing.
    """

    kind: Annotated[
        Literal["method", "rewrite", "loss", "benchmark", "model"],
        Shown("method|rewrite|loss|benchmark|model", positional=True),
    ]
    name: Annotated[str, Shown("NAME", positional=True)]
    out: Path = Path()


def new_main(options: NewOptions) -> Outcome:
    """Copy both files. Return the exit code."""
    plain = options.name.lower().replace("-", "_")
    if not plain.isidentifier() or keyword.iskeyword(plain) or not plain.isascii():
        raise UsageError(
            f"{options.name!r:.80}: a name has letters, digits, - and _, and begins with a letter"
        )
    from compoclip.benchmarks.names import benchmark_names
    from compoclip.rewrites.base import rewrite_names

    taken = {
        "method": method_names(),
        "rewrite": rewrite_names(),
        "benchmark": benchmark_names(),
        "loss": plugins.installed("losses"),
        "model": plugins.installed("models"),
    }
    if plain in {name.replace("-", "_") for name in taken[options.kind]}:
        raise UsageError(f"{options.name}: there is a {options.kind} of that name; choose another")
    paths = (options.out / f"{plain}.py", options.out / f"test_{plain}.py")
    for path in paths:
        if path.exists():
            raise CompoclipError(f"{path}: exists; choose another name or --out")
    folder = next(f for f in (_PACKAGE / _CUSTOM, _PACKAGE.parents[1] / _CUSTOM) if f.is_dir())
    words = {
        f"my_{options.kind}": plain,
        f"my-{options.kind}": plain.replace("_", "-"),
        f"My{options.kind.capitalize()}": plain.title().replace("_", ""),
    }
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
    for path, start in zip(paths, ("", "test_")):
        text = (folder / f"{start}my_{options.kind}.py").read_text(encoding="utf-8")
        for mark, word in words.items():
            text = text.replace(mark, word)
        write_text(path, text)
    use = _USES[options.kind].format(paths[0] if paths[0].parent != Path() else f"./{paths[0]}")
    record = {"file": str(paths[0]), "test": str(paths[1]), "use": use}
    return record, f"{paths[0]}\n{paths[1]}    (pytest {paths[1]})\nnext: {use}"


_CACHED = {  # kind -> what it is
    "parses": "parses of captions, made anew when they are asked for",
    "features": "features of frozen towers, written by train --cache-frozen",
    "indexes": "where samples begin in large data files, and which photos are copies",
}


@dataclass(frozen=True)
class CacheOptions(Printing):
    """Show the size of the cache; --clear empties it.

    The cache holds no results; commands compute missing entries again. Clear it while no command
    runs. It is in $XDG_CACHE_HOME/compoclip, else ~/.cache/compoclip. Folders given to a command
    (--set features=, --cache) are not part of it.

    Args:
        clear: Entries to remove: parses, features, indexes or all.
    """

    clear: Literal["parses", "features", "indexes", "all"] | None = None


def cache_main(options: CacheOptions) -> Outcome:
    """Print one row per kind, after removing what is asked for; returns the exit code."""
    folder = cache_folder()
    places: dict[str, list[Path]] = {kind: [] for kind in _CACHED}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = path.name.partition(".sqlite")[0]  # parses.sqlite has its log and index beside it
        places[name if name in _CACHED else "indexes"].append(path)
    sizes = {}
    for kind, paths in places.items():
        files = (file for path in paths for file in (path, *path.rglob("*")) if file.is_file())
        sizes[kind] = sum(file.stat().st_size for file in files)
    cleared = [kind for kind in _CACHED if options.clear in (kind, "all")]
    for path in (path for kind in cleared for path in places[kind]):
        with writing(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    record = {"folder": str(folder), "bytes": sizes, "cleared": cleared}
    rows = [
        [kind, f"{size / 1e6:.1f} MB", "removed" if kind in cleared else "", _CACHED[kind]]
        for kind, size in sizes.items()
    ]
    overview = Table(rows, ["kind", "size", "state", "holds"], left=4)
    return record, (overview, f"{sum(sizes.values()) / 1e6:.1f} MB in {folder}")
