"""The rules of the house: which room may know of which, and what every file must have."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from compoclip.errors import pip_install

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "compoclip"
WORLD = ROOT / "world" / "src" / "compoclip_world"  # a distribution of its own
# Each room may import the rooms before it, itself, and the modules at the package's root.
ROOMS = (
    "captions",
    "rewrites",
    "language",
    "losses",
    "models",
    "data",
    "corpora",
    "methods",
    "training",
    "benchmarks",
    "evaluation",
    "analysis",
    "report",
    "search",
    "programs",
    "web",
    "cli",
)
LIGHT = ("captions", "rewrites", "language", "corpora", "benchmarks")  # rooms without torch
MOST_LINES = 600  # a file is a chapter, read in one sitting


@cache
def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name: str) -> str:
    """The room of a dotted module name; "" for the package itself and the modules at its root."""
    parts = name.split(".")
    inside = len(parts) > 2 or (len(parts) == 2 and (PACKAGE / parts[1]).is_dir())
    return parts[1] if inside else ""


@cache
def module_names() -> set[str]:
    return {name_of(path) for path in modules() if path.name != "__init__.py"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of every import of a module, wherever in the file it stands."""
    imports: list[tuple[int, str]] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            imports.append((node.lineno, node.module or ""))
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            imports += [(node.lineno, name) for name in names if name in module_names()]
    return imports


def in_room(room: str) -> list[Path]:
    return [path for path in modules() if room_of(name_of(path)) == room]


def test_every_folder_is_a_known_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(ROOMS)


def test_imports_run_downwards_only() -> None:
    wrong = []
    for path in modules():
        room = room_of(name_of(path))
        allowed = ROOMS[: ROOMS.index(room) + 1] if room else ()
        if name_of(path) == "compoclip.__main__":
            allowed = ROOMS
        if name_of(path) in ("compoclip.api", "compoclip.checks"):  # called by the command line
            allowed = ROOMS[: ROOMS.index("cli")]
        for line, name in imported(path):
            other = room_of(name) if name.split(".")[0] == "compoclip" else ""
            if other and other not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_no_modules_import_one_another_in_a_circle() -> None:
    imports = {name_of(path): needed_by(path) for path in modules()}
    assert circles(imports) == []


def test_circles_of_imports_are_found() -> None:
    imports = {"a": {"b", "os"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert circles(imports) == [["b", "c"]]
    assert circles(imports | {"e": {"a"}}) == [["a", "b", "c", "d", "e"]]


def needed_by(path: Path) -> set[str]:
    """The modules that a module imports when it runs, at its top or within a function."""
    for_types = {
        line
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for line in range(node.lineno, node.body[-1].end_lineno + 1)
    }
    return {name for line, name in imported(path) if line not in for_types}


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules of which each imports, by way of others, all the others."""
    reached = {module: targets & imports.keys() for module, targets in imports.items()}
    grows = True
    while grows:
        wider = {
            module: targets.union(*(reached[target] for target in targets))
            for module, targets in reached.items()
        }
        grows, reached = wider != reached, wider
    mutual = {
        tuple(sorted(other for other in targets if module in reached[other]))
        for module, targets in reached.items()
    }
    return [list(group) for group in sorted(mutual) if group]


def test_the_package_imports_nothing_of_the_world() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for line, name in imported(path)
        if name.split(".")[0] == WORLD.name
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("room", "other", "allowed"),
    [
        ("data", "losses", {"compoclip.losses.contract"}),  # owner and role of a text
        ("models", "losses", {"compoclip.losses.contract"}),  # what an encoder returns
        ("training", "methods", {"compoclip.methods.base"}),  # never a method by name
        ("report", "training", {"compoclip.training.log"}),
    ],
)
def test_rooms_know_only_the_contract_of_others(room: str, other: str, allowed: set[str]) -> None:
    found = {name for path in in_room(room) for _, name in imported(path) if room_of(name) == other}
    assert found == allowed


def test_the_front_door_and_light_rooms_leave_torch_out() -> None:
    names = ["compoclip.__main__", "compoclip.cli.main", "compoclip.api"]
    names += [name_of(path) for room in LIGHT for path in in_room(room)]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    heavy = [m for m in ('torch', 'torchvision', 'open_clip') if m in sys.modules]\n"
        "    if heavy: sys.exit(f'{name} imports {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_losses_know_nothing_but_tensors() -> None:
    allowed = {
        *("__future__", "collections", "contextlib", "dataclasses", "enum", "functools"),
        *("lazy_loader", "math", "numpy", "torch", "typing"),
    }
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in in_room("losses")
        for line, name in imported(path)
        if name.split(".")[0] not in allowed and not name.startswith("compoclip.losses")
    ]
    assert wrong == []


def test_recipes_import_no_tensor_library_and_compute_nothing() -> None:
    wrong = []
    for path in in_room("methods"):
        if path.parent != PACKAGE / "methods" and path.name != "__init__.py":
            continue
        for line, name in imported(path):
            if name.split(".")[0] in ("torch", "numpy", "scipy", "open_clip"):
                wrong.append(f"{path.name}:{line} imports {name}")
        if path.stem not in ("base", "compose", "optim", "registry"):
            arithmetic = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.BinOp))
            wrong += [f"{path.name}:{node.lineno} computes" for node in arithmetic]
    assert wrong == []


def documented(path: Path) -> Iterator[tuple[str, bool]]:
    """Every public class, function and method of a module, and whether it has a docstring.

    Special methods, and methods that a protocol only declares, need none.
    """

    def within(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, bool]]:
        for child in node.body:
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            body = child.body[0]
            declared = isinstance(body, ast.Expr) and getattr(body.value, "value", 0) is ...
            if child.name.startswith("_") or declared:
                continue
            yield f"{prefix}.{child.name}", ast.get_docstring(child) is not None
            if isinstance(child, ast.ClassDef):
                yield from within(child, f"{prefix}.{child.name}")

    tree = tree_of(path)
    yield name_of(path), ast.get_docstring(tree) is not None
    yield from within(tree, name_of(path))


def test_image_files_are_opened_at_one_door() -> None:
    openers = [path for path in modules() if re.search(r"\bImage\.(open\(|OPEN)", path.read_text())]
    assert openers == [PACKAGE / "data" / "decode.py"]


def test_endings_are_compared_at_one_door() -> None:
    """`has_ending` ignores capitals; another comparison would have to know that, too."""
    compared = re.compile(r"\.suffix(\.lower\(\))? *(==|!=|in\b|not in\b)|name\.endswith\(\"\\.")
    own = [path for path in modules() if compared.search(path.read_text())]
    assert own == [PACKAGE / "plugins.py"]  # a module of Python, whose ending has small letters


def test_everything_public_is_documented() -> None:
    assert [name for path in modules() for name, good in documented(path) if not good] == []


def test_files_stay_small() -> None:
    folders = (PACKAGE, WORLD, ROOT / "tests", ROOT / "scripts", ROOT / "bench", ROOT / "lab")
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for path in folder.rglob("*.py")
    }
    long = {name for name, lines in sizes.items() if lines > MOST_LINES}
    assert sorted(long) == [], f"split these files: they have more than {MOST_LINES} lines"


def test_a_class_name_means_one_thing() -> None:
    names = [
        node.name
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


FOUND = (
    "compoclip.methods",
    "compoclip.rewrites",
    "compoclip.benchmarks",
    "compoclip.models.formats",
)
"""Packages whose modules a registry finds: one file a thing, however few import it."""
LEAST_LINES = 150  # of a module that nobody but one neighbour asks for


def exports() -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a room's stub lists."""
    for stub in sorted(PACKAGE.rglob("*.pyi")):
        package = ".".join(stub.relative_to(PACKAGE.parent).parts[:-1])
        for node in tree_of(stub).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((f"{package}.{node.module}", alias.name) for alias in node.names)


def test_what_one_neighbour_alone_reads_is_part_of_it() -> None:
    importers: dict[str, set[str]] = {}
    for path in modules():
        for _, name in imported(path):
            importers.setdefault(name, set()).add(name_of(path))
    exported = {module for module, _ in exports()}
    small = []
    for path in (each for each in modules() if each.name != "__init__.py"):
        name, lines = name_of(path), len(path.read_text(encoding="utf-8").splitlines())
        only = importers.get(name, set())
        alone = len(only) == 1 and room_of(next(iter(only))) == room_of(name)
        found = name.rpartition(".")[0] in FOUND or name.startswith("compoclip.methods.")
        if alone and lines < LEAST_LINES and not found and name not in exported:
            small.append(f"{name}: {lines} lines, read by {next(iter(only))}")
    assert small == [], "move the code of these modules into the module that imports them"


def test_every_room_says_what_it_offers() -> None:
    assert {stub.parent.name for stub in PACKAGE.glob("*/__init__.pyi")} >= {*ROOMS} - {"cli"}


def test_hints_name_the_packages_of_an_extra() -> None:
    """No index has compoclip, so that installing `compoclip[hf]` from there fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, packages in project["optional-dependencies"].items():
        if extra not in ("dev", "docs"):
            names = sorted(re.split(r"[^\w-]", each)[0] for each in packages)
            assert pip_install(extra) == " ".join(["pip install", *names])
    named = re.compile(r"pip install ['\"]?compoclip\[(?!\.\.\.)")
    pages = [*modules(), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong = [path for path in pages if named.search(path.read_text(encoding="utf-8"))]
    assert wrong == []


def test_what_a_room_exports_exists_and_names_its_arguments() -> None:
    """Every exported function has `Args:` with all parameters; `Loss` has those of every loss."""
    wrong = []
    places = {name_of(path): path for path in modules()}
    for module, name in exports():
        tree = tree_of(places[module])
        found = [node for node in tree.body if name in names_bound(node)]
        assert found, f"{module} has no {name}"
        node = found[-1]
        if isinstance(node, ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            given = node.args
            takes = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            takes = takes[2 if takes[:2] == ["f", "layout"] else 0 :]
            lacking = [each for each in takes if f"\n    {each}: " not in text]
            if lacking or (takes and "Args:\n" not in text):
                wrong.append(f"{module}.{name}: {', '.join(lacking)}")
    assert wrong == []


def names_bound(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {each.id for each in targets if isinstance(each, ast.Name)}
