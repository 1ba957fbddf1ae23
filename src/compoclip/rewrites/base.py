"""The contract of a caption rewrite."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from compoclip import plugins
from compoclip import rewrites as package
from compoclip.captions.types import Caption
from compoclip.errors import CompoclipError, UsageError, closest


@dataclass(frozen=True, slots=True)
class Edit:
    """One edited place: characters [start, end) of the caption, those of the rewritten text."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A valid rewrite of a caption.

    Attributes:
        keeps_meaning: Whether it is a positive.
        rule: The rule of the rewrite that applied ("swap:noun").
        edits: The changed places. A text of a part of the caption (a sub-graph) lists the changes
            in that part.
    """

    text: str
    rewrite: str
    keeps_meaning: bool
    rule: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The caption has no valid rewrite, or the allowed draws gave none.

    `reason` is a short stable key such as "no-legal-pair", fit for counting.
    """

    reason: str


class Rewrite(Protocol):
    """A family of caption edits.

    A call never raises on odd captions, never returns the caption itself, and takes all randomness
    from `rng`. Without a valid text it returns `Refused`, not a placeholder.

    Attributes:
        name: Name for `get_rewrite`.
        version: Raised whenever its texts change.
        keeps_meaning: Whether it makes positives.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def keeps_meaning(self) -> bool: ...

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused: ...


def rng_for(seed: int, sample_id: str, epoch: int, name: str) -> random.Random:
    """Return the random generator of a sample, epoch and rewrite, for any worker and order.

    Seeded by BLAKE2b over the four (docs/decisions.md, rule 7).

    Args:
        seed: Seed of the run.
        sample_id: Id of the sample.
        epoch: Epoch, from 0.
        name: Name of the rewrite.
    """
    key = f"{seed}\x1f{sample_id}\x1f{epoch}\x1f{name}".encode("utf-8", "surrogatepass")
    return random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big"))


# --- Rewrites by name. ---
#
# A new rewrite is one new file in this folder with an instance of `SampledRewrite`, or with a class
# that satisfies `Rewrite`. A custom file holds the same, and goes by its path.

_MEMBERS = ("name", "version", "keeps_meaning")


@lru_cache(maxsize=1)
def _registered() -> dict[str, Rewrite]:
    """The rewrites by name: those of this package and installed ones."""
    rewrites: dict[str, Rewrite] = {}
    for name, point in plugins.installed("rewrites").items():
        rewrite = _rewrite_of(plugins.imported(point, "rewrite"))
        if rewrite is None:
            raise CompoclipError(
                f"entry point {point.value!r} of rewrite {name!r}: must name a class or object "
                f"with {', '.join(_MEMBERS)} and a call; update or uninstall that package"
            )
        rewrites[rewrite.name] = rewrite
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        rewrites |= _defined(vars(module))
    return dict(sorted(rewrites.items()))


def _defined(module: Mapping[str, Any]) -> dict[str, Rewrite]:
    """The rewrites of a module: an instance of each of its classes, and all its instances."""
    values = [
        value
        for value in module.values()
        if not inspect.isclass(value) or value.__module__ == module["__name__"]
    ]
    return {rewrite.name: rewrite for rewrite in map(_rewrite_of, values) if rewrite is not None}


def _rewrite_of(value: Any) -> Rewrite | None:
    """A rewrite, or an instance of a class of rewrites; None for anything else."""
    if not all(isinstance(getattr(value, member, None), str | bool) for member in _MEMBERS):
        return None
    rewrite = value() if inspect.isclass(value) else value
    return rewrite if callable(rewrite) else None


def rewrite_names() -> tuple[str, ...]:
    """Return the names of all rewrites, in alphabetical order."""
    return tuple(_registered())


def get_rewrite(name: str) -> Rewrite:
    """Return the rewrite with this name, with default settings.

    Args:
        name: One of `rewrite_names()`; or the path of a Python file with a custom rewrite, FILE.py,
            or FILE.py:NAME if it has several.

    Raises:
        UsageError: For an unknown name; the message gives the known ones.
        CompoclipError: When the file cannot be read or run.
    """
    registered = _registered()
    if not plugins.is_file(name):
        if name not in registered:
            raise UsageError(f"no rewrite '{name}'; {closest(name, registered)}")
        return registered[name]
    expected = f"a class with {', '.join(_MEMBERS)} and __call__(caption, rng)"
    rewrite = plugins.chosen(name, _defined(plugins.parts_of(name)), "rewrites", expected)
    if registered.get(rewrite.name, rewrite) is not rewrite:
        raise UsageError(
            f"{plugins.split(name)[0]}: '{rewrite.name}' is a rewrite already; give yours another "
            "name"
        )
    return rewrite


def kind_named(name: str) -> str:
    """Return what the texts of a rewrite are called: of a file the name of the rewrite in it."""
    return get_rewrite(name).name if plugins.is_file(name) else name


def rewrite_sources(names: Iterable[str]) -> dict[str, str]:
    """Return absolute path -> hash of the sources of custom rewrites."""
    registered = _registered()
    return plugins.sources_of(
        *(get_rewrite(n) for n in names if plugins.is_file(n) or n in registered)
    )


def rewrites_named(text: str) -> tuple[str, ...]:
    """Return the names in a list such as "negclip,./mine.py", each once, or all for "all".

    Args:
        text: Names, or custom files, joined by commas; or "all".

    Raises:
        UsageError: For an unknown name or an empty list.
        CompoclipError: When a file cannot be read or run.
    """
    if text.strip() == "all":
        return rewrite_names()
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise UsageError(f"--rewrites names none; choose from: {', '.join(rewrite_names())}")
    for name in names:
        plugins.refresh(name)
        get_rewrite(name)
    return names
