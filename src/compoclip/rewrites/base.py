"""The contract of a caption rewrite."""

from __future__ import annotations

import gzip
import hashlib
import html
import importlib
import importlib.util
import inspect
import pkgutil
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

import ftfy
import regex

from compoclip import own
from compoclip import rewrites as package
from compoclip.captions.types import Caption
from compoclip.errors import CompoclipError, UsageError


@dataclass(frozen=True, slots=True)
class Edit:
    """One edited place, in characters.

    Attributes:
        start: First character in the caption.
        end: Character after the last.
        new_start: First character in the rewritten text.
        new_end: Character after the last.
    """

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A valid rewrite of a caption.

    Attributes:
        text: The new text.
        rewrite: Name of the rewrite that made it.
        keeps_meaning: Whether it is a positive.
        rule: Which rule of the rewrite applied ("swap:noun").
        edits: The changed places. A text that keeps only a part of the caption (a sub-graph) lists
            what it changes in that part.
    """

    text: str
    rewrite: str
    keeps_meaning: bool
    rule: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """No valid rewrite exists, or none was found in the allowed draws.

    Attributes:
        reason: A short stable key such as "no-legal-pair", fit for counting.
    """

    reason: str


class Rewrite(Protocol):
    """A family of caption edits.

    Calling it never raises on odd captions, never returns the caption itself, and draws all
    randomness from `rng`. It returns `Refused` rather than a placeholder when nothing valid exists.

    Attributes:
        name: What `get_rewrite` finds it by.
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


class PairRewrite(Protocol):
    """A rewrite of two captions at once: what one loses, the other gains.

    As `Rewrite`; both texts are rewritten, or neither.

    Attributes:
        name: What `get_pair_rewrite` finds it by.
        version: Raised whenever its texts change.
        keeps_meaning: Whether it makes positives.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def keeps_meaning(self) -> bool: ...

    def __call__(
        self, first: Caption, second: Caption, rng: random.Random
    ) -> tuple[Rewritten, Rewritten] | Refused: ...


def rng_for(seed: int, sample_id: str, epoch: int, name: str) -> random.Random:
    """The random generator of one sample, epoch and rewrite, whatever the worker or order.

    Seeded by BLAKE2b over (seed, sample id, epoch, rewrite name): docs/decisions.md, rule 7.

    Args:
        seed: Of the run.
        sample_id: Id of the sample.
        epoch: From 0.
        name: Name of the rewrite.

    Returns:
        A generator of its own.
    """
    key = f"{seed}\x1f{sample_id}\x1f{epoch}\x1f{name}".encode("utf-8", "surrogatepass")
    return random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big"))


# --- Rewrites by name. ---
#
# A new rewrite is one new file in this folder with a class that satisfies `Rewrite` or
# `PairRewrite`; variants of it are instances at the top level of the file. A file of the user's own
# holds the same, and goes by its path.

_MEMBERS = ("name", "version", "keeps_meaning")
_Tables = tuple[dict[str, Rewrite], dict[str, PairRewrite]]


@lru_cache(maxsize=1)
def _found() -> _Tables:
    """The rewrites of one caption and of two, by name.

    They are one instance, with default settings, of every rewrite class in this package, and every
    instance that a module of it defines; and what other packages add.
    """
    single: dict[str, Rewrite] = {}
    pairs: dict[str, PairRewrite] = {}
    for name, point in own.installed("rewrites").items():
        value = own.imported(point, "rewrite")
        if not _is_rewrite(value, f"{point.module.partition('.')[0]}"):
            raise CompoclipError(
                f"entry point {point.value!r} of rewrite {name!r} must name a class or object with "
                f"{', '.join(_MEMBERS)} and a call; update or uninstall that package"
            )
        _file(value() if inspect.isclass(value) else value, single, pairs)
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        _collect(vars(module), module.__name__, f"{package.__name__}.", single, pairs)
    return dict(sorted(single.items())), dict(sorted(pairs.items()))


def _collect(
    values: Mapping[str, object],
    module: str,
    made_in: str,
    single: dict[str, Rewrite],
    pairs: dict[str, PairRewrite],
) -> None:
    """Take the rewrites of a module: those of its classes that are its own, and all instances."""
    for value in values.values():
        if not _is_rewrite(value, made_in):
            continue
        if inspect.isclass(value):
            if value.__module__ != module:
                continue
            value = value()
        _file(value, single, pairs)


def _file(value: Any, single: dict[str, Rewrite], pairs: dict[str, PairRewrite]) -> None:
    """Put a rewrite into the table that the number of its captions asks for."""
    if len(inspect.signature(value).parameters) == 2:
        single[value.name] = cast(Rewrite, value)
    else:
        pairs[value.name] = cast(PairRewrite, value)


def _is_rewrite(value: object, made_in: str) -> bool:
    """Whether it is a rewrite, or a class of which each instance is one, of these modules."""
    kind = value if inspect.isclass(value) else type(value)
    if not kind.__module__.startswith(made_in):
        return False
    return "__call__" in vars(kind) and all(
        isinstance(getattr(value, member, None), str | bool) for member in _MEMBERS
    )


def rewrite_names() -> tuple[str, ...]:
    """Names of the rewrites of one caption, in alphabetical order."""
    return tuple(_found()[0])


def pair_rewrite_names() -> tuple[str, ...]:
    """Names of the rewrites of two captions, in alphabetical order."""
    return tuple(_found()[1])


def get_rewrite(name: str) -> Rewrite:
    """The rewrite of one caption of a name.

    Args:
        name: One of `rewrite_names()`; or the path of a Python file of one's own with a rewrite in
            it, FILE.py, or FILE.py:NAME of several.

    Returns:
        The rewrite with its default settings.

    Raises:
        UsageError: For another name; the message lists the known ones.
        CompoclipError: When the file cannot be read or run.
    """
    if own.is_file(name):
        return _from_file(name)
    single, pairs = _found()
    rewrite = single.get(name)
    if rewrite is None and name in pairs:
        raise UsageError(f"the rewrite '{name}' takes two captions; use it where pairs are made")
    if rewrite is None:
        raise UsageError(f"no rewrite '{name}'; choose from: {', '.join(single)}")
    return rewrite


def _from_file(name: str) -> Rewrite:
    """The rewrite of one caption in a file of the user's own."""
    defined = own.parts_of(name)
    single: dict[str, Rewrite] = {}
    module = str(defined["__name__"])
    _collect(defined, module, "", single, {})
    rewrite = own.chosen(
        name, single, "rewrites", f"a class with {', '.join(_MEMBERS)} and __call__(caption, rng)"
    )
    if rewrite.name in _found()[0] and type(rewrite).__module__ == module:
        path = own.split(name)[0]
        raise UsageError(f"{path}: '{rewrite.name}' is a rewrite already; give yours another name")
    return rewrite


def kind_named(name: str) -> str:
    """What the texts of a rewrite are called: its own name, where it goes by a file.

    Args:
        name: As in a plan of texts; names of no rewrite stay as they are.

    Returns:
        The name, which draws and kinds of text depend on, and not on where the file lies.
    """
    return get_rewrite(name).name if own.is_file(name) else name


def rewrite_sources(names: Iterable[str]) -> dict[str, str]:
    """The sources of those rewrites that are not the package's.

    Args:
        names: As in a plan of texts; names of no rewrite are passed over.

    Returns:
        Absolute path -> hash.
    """
    known = _found()[0]
    return own.sources_of(*(get_rewrite(n) for n in names if own.is_file(n) or n in known))


def rewrites_named(text: str) -> tuple[str, ...]:
    """The names in a list such as "negclip,replace" or "all".

    Args:
        text: Names, or files of one's own, joined by commas; or "all".

    Returns:
        The names, each once.

    Raises:
        UsageError: For an unknown name, or none.
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


def get_pair_rewrite(name: str) -> PairRewrite:
    """The rewrite of two captions of a name.

    Args:
        name: One of `pair_rewrite_names()`.

    Returns:
        The rewrite with its default settings.

    Raises:
        UsageError: For another name; the message lists the known ones.
    """
    pairs = _found()[1]
    if name not in pairs:
        raise UsageError(f"no rewrite of two captions '{name}'; choose from: {', '.join(pairs)}")
    return pairs[name]


# --- When two texts are the same to CLIP, and how long a text is to it, without importing
# torch. ---
#
# CLIP's tokenizer repairs mojibake, resolves HTML entities, collapses whitespace, lower-cases,
# splits by one regular expression that ignores whitespace, and encodes each piece by itself,
# marking its end. So two texts get the same token ids exactly when their pieces are the same.

CONTEXT_LENGTH = 77
SPECIAL_TOKENS = 2
#: Bytes of the longest entry of CLIP's vocabulary (eight times the same emoji).
LONGEST_TOKEN = 32
# Entries of CLIP's merge file in use: the vocabulary without 256 bytes, 256 word ends, 2 specials.
_MERGES = 49152 - 256 - 2
_PIECE = regex.compile(
    r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    regex.IGNORECASE,
)


def clean(text: str) -> str:
    """The text after CLIP's cleaning: fixed, unescaped, whitespace collapsed, lower case."""
    if not (text.isascii() and text.isprintable() and "&" not in text):
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()


@lru_cache(maxsize=256)
def token_key(text: str) -> tuple[str, ...]:
    """The pieces that CLIP's tokenizer encodes, without importing torch.

    Case and blanks before punctuation do not show: "A mat ." and "a mat." have the same key. The
    77-token limit is not applied.

    Args:
        text: Any text.

    Returns:
        The pieces; equal keys if and only if equal token ids.
    """
    return tuple(_PIECE.findall(clean(text)))


def same_to_clip(a: str, b: str) -> bool:
    """Whether two texts are encoded to the same token ids.

    Args:
        a: A text.
        b: Another text.

    Returns:
        Whether CLIP cannot tell them apart.
    """
    # The pieces hold every sign that is not blank, so those of unlike texts cannot be alike.
    return _signs(a) == _signs(b) and token_key(a) == token_key(b)


@lru_cache(maxsize=256)
def _signs(text: str) -> str:
    return clean(text).replace(" ", "")


def fits_context(text: str, context: int = CONTEXT_LENGTH) -> bool:
    """Whether a text with its start and end token fits into the context uncut.

    Args:
        text: Any text.
        context: Tokens of the context, 77 for CLIP.

    Returns:
        Whether it does.
    """
    room = context - SPECIAL_TOKENS
    # A token stands for one byte at least, so short texts need neither pieces nor byte pairs.
    if len(text) <= room and text.isascii() and text.isprintable() and "&" not in text:
        return True
    pieces = token_key(text)
    if len(pieces) > room:
        return False
    size = sum(len(p.encode("utf-8", "surrogatepass")) for p in pieces)
    if size <= room or size > room * LONGEST_TOKEN:
        return size <= room
    return sum(map(_pair_count, pieces)) <= room


@lru_cache(maxsize=1)
def _merge_ranks() -> dict[tuple[str, str], int]:
    """CLIP's byte-pair merges by rank, from the file that open_clip ships."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("open_clip_torch is not installed")
    path = Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[1 : _MERGES + 1]
    pairs = (line.split() for line in lines)
    return {(first, second): rank for rank, (first, second) in enumerate(pairs)}


@lru_cache(maxsize=1)
def _byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in the merge file."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + n) for n, byte in enumerate(others)})
    return letters


@lru_cache(maxsize=65536)
def _pair_count(piece: str) -> int:
    """How many tokens byte-pair encoding makes of one piece."""
    if piece in ("<start_of_text>", "<end_of_text>"):
        return 1
    ranks, letters = _merge_ranks(), _byte_letters()
    parts = [letters[byte] for byte in piece.encode("utf-8", "surrogatepass")]
    parts[-1] += "</w>"
    never = len(ranks)
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda pair: ranks.get(pair, never))
        if best not in ranks:
            break
        merged: list[str] = []
        position = 0
        while position < len(parts):
            if tuple(parts[position : position + 2]) == best:
                merged.append(best[0] + best[1])
                position += 2
            else:
                merged.append(parts[position])
                position += 1
        parts = merged
    return len(parts)
