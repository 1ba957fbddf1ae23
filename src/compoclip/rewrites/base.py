"""The contract of a caption rewrite."""

from __future__ import annotations

import gzip
import hashlib
import html
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import ftfy
import regex

from compoclip import own
from compoclip import rewrites as package
from compoclip.captions.types import Caption
from compoclip.errors import UsageError, closest, require


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
def _found() -> dict[str, Rewrite]:
    """The rewrites by name: those of this package and installed ones."""
    found: dict[str, Any] = {}
    for name, point in own.installed("rewrites").items():
        value = own.imported(point, "rewrite")
        require(
            _is_rewrite(value, point.module.partition(".")[0]),
            f"entry point {point.value!r} of rewrite {name!r}",
            f"must name a class or object with {', '.join(_MEMBERS)} and a call; update or "
            "uninstall that package",
        )
        rewrite: Any = value() if inspect.isclass(value) else value
        found[rewrite.name] = rewrite
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        found |= _defined(vars(module), module.__name__, f"{package.__name__}.")
    return dict(sorted(found.items()))


def _defined(values: Mapping[str, Any], module: str, made_in: str) -> dict[str, Any]:
    """The rewrites of a module: an instance of each of its classes, and all its instances."""
    found = {}
    for value in values.values():
        kind = inspect.isclass(value)
        if _is_rewrite(value, made_in) and not (kind and value.__module__ != module):
            found[value.name] = value() if kind else value
    return found


def _is_rewrite(value: object, made_in: str) -> bool:
    """Return whether a value is a rewrite, or a class of rewrites, defined in these modules."""
    kind = value if inspect.isclass(value) else type(value)
    return (
        kind.__module__.startswith(made_in)
        and "__call__" in vars(kind)
        and all(isinstance(getattr(value, each, None), str | bool) for each in _MEMBERS)
    )


def rewrite_names() -> tuple[str, ...]:
    """Return the names of all rewrites, in alphabetical order."""
    return tuple(_found())


def get_rewrite(name: str) -> Rewrite:
    """Return the rewrite with this name, with default settings.

    Args:
        name: One of `rewrite_names()`; or the path of a Python file with a custom rewrite, FILE.py,
            or FILE.py:NAME if it has several.

    Raises:
        UsageError: For an unknown name; the message gives the known ones.
        CompoclipError: When the file cannot be read or run.
    """
    known = _found()
    if not own.is_file(name):
        if name not in known:
            raise UsageError(f"no rewrite '{name}'; {closest(name, known)}")
        return known[name]
    values = own.parts_of(name)
    module = str(values["__name__"])
    wanted = f"a class with {', '.join(_MEMBERS)} and __call__(caption, rng)"
    rewrite: Rewrite = own.chosen(name, _defined(values, module, ""), "rewrites", wanted)
    mine = type(rewrite).__module__ == module and rewrite.name in known
    taken = f"'{rewrite.name}' is a rewrite already; give yours another name"
    require(not mine, own.split(name)[0], taken, UsageError)
    return rewrite


def kind_named(name: str) -> str:
    """Return what the texts of a rewrite are called: of a file the name of the rewrite in it."""
    return get_rewrite(name).name if own.is_file(name) else name


def rewrite_sources(names: Iterable[str]) -> dict[str, str]:
    """Return absolute path -> hash of the sources of custom rewrites."""
    known = _found()
    return own.sources_of(*(get_rewrite(n) for n in names if own.is_file(n) or n in known))


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
        own.refresh(name)
        get_rewrite(name)
    return names


# --- When two texts are the same to CLIP, and how long a text is to it, without importing
# torch. ---
#
# CLIP's tokenizer repairs mojibake, resolves HTML entities, collapses whitespace, lower-cases,
# splits by one regular expression that ignores whitespace, and encodes each piece by itself,
# marking its end. So two texts get the same token ids exactly when their pieces are the same.

CONTEXT_LENGTH = 77
SPECIAL_TOKENS = 2
#: Bytes of the longest entry of CLIP's vocabulary (eight times the same emoji).
_LONGEST_TOKEN = 32
# Entries of CLIP's merge file in use: the vocabulary without 256 bytes, 256 word ends, 2 specials.
_MERGES = 49152 - 256 - 2
_PIECE = regex.compile(
    r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    regex.IGNORECASE,
)


def _clean(text: str) -> str:
    """The text after CLIP's cleaning: fixed, unescaped, whitespace collapsed, lower case."""
    if not (text.isascii() and text.isprintable() and "&" not in text):
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()


@lru_cache(maxsize=256)
def token_key(text: str) -> tuple[str, ...]:
    """Return the pieces of a text for CLIP's tokenizer, without importing torch.

    Keys are equal if and only if the token ids are; the 77-token limit is not applied. Case and
    blanks before punctuation are ignored: "A mat ." and "a mat." have the same key.

    Args:
        text: Any text.
    """
    return tuple(_PIECE.findall(_clean(text)))


def same_to_clip(a: str, b: str) -> bool:
    """Return whether two texts have the same token ids.

    Args:
        a: A text.
        b: Another text.
    """
    # The pieces hold every sign that is not blank, so those of unlike texts cannot be alike.
    return _signs(a) == _signs(b) and token_key(a) == token_key(b)


@lru_cache(maxsize=256)
def _signs(text: str) -> str:
    return _clean(text).replace(" ", "")


def fits_context(text: str, context: int = CONTEXT_LENGTH) -> bool:
    """Return whether a text with start and end token fits into the context.

    Args:
        text: Any text.
        context: Tokens of the context.
    """
    room = context - SPECIAL_TOKENS
    # A token stands for one byte at least, so short texts need neither pieces nor byte pairs.
    if len(text) <= room and text.isascii() and text.isprintable() and "&" not in text:
        return True
    pieces = token_key(text)
    if len(pieces) > room:
        return False
    size = sum(len(p.encode("utf-8", "surrogatepass")) for p in pieces)
    if size <= room or size > room * _LONGEST_TOKEN:
        return size <= room
    return sum(map(_pair_count, pieces)) <= room


@lru_cache(maxsize=1)
def _byte_pairs() -> tuple[dict[tuple[str, str], int], list[str]]:
    """CLIP's merges by rank, from open_clip's file, and the letter that stands for each byte."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("open_clip_torch is not installed")
    path = Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[1 : _MERGES + 1]
    ranks = {(a, b): rank for rank, (a, b) in enumerate(line.split() for line in lines)}
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return ranks, [chr(byte if byte in plain else next(others)) for byte in range(256)]


@lru_cache(maxsize=65536)
def _pair_count(piece: str) -> int:
    """How many tokens byte-pair encoding makes of one piece."""
    if piece in ("<start_of_text>", "<end_of_text>"):
        return 1
    ranks, letters = _byte_pairs()
    parts = [letters[byte] for byte in piece.encode("utf-8", "surrogatepass")]
    parts[-1] += "</w>"
    while len(parts) > 1:
        best = min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        merged = [parts[0]]
        for part in parts[1:]:
            if (merged[-1], part) == best:
                merged[-1] += part
            else:
                merged.append(part)
        parts = merged
    return len(parts)
