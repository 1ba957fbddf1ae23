"""Captions as token ids, and the tokenizer that a model's configuration asks for.

CLIP's own kind needs neither torch nor open_clip; both are imported where another kind does.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compoclip import plugins
from compoclip.bounds import MAX_CONTEXT, MAX_MERGES_BYTES, MAX_TOKENIZED_CHARACTERS
from compoclip.captions.clip_text import BytePairs, clip_byte_pairs
from compoclip.errors import CompoclipError, optional, quoted, require
from compoclip.files import disguised, reason
from compoclip.models.config import read_object, require_hub_name, section
from compoclip.typed import require_kind

if TYPE_CHECKING:
    import torch

_CACHE = 200_000  # distinct pieces cached, or texts of tokenizers that show no pieces
_CACHED_PIECE = 64  # characters of the longest piece that is cached
_START = 16  # characters for each token of the context, of a piece that is merged at first
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_FALLBACK = "<0x00>"  # in vocabularies that spell what they lack in bytes
_SPECIAL = re.compile(r"[\w<>-]+")
_HF_OPTIONS = ("clean", "strip_sep_token", "language")


class Tokenizer:
    """An open_clip tokenizer with an identity; called with texts it returns (T, context) int64 ids.

    CLIP's tokenizer encodes the pieces of a text (words, marks, digits) one by one, so the ids of
    pieces are cached: new texts are mostly known words. For other tokenizers, those of texts are.

    Attributes:
        vocab_size: Number of rows of the embedding (highest id + 1).
        context_length: Tokens per text, including start and end.
    """

    def __init__(self, inner: Any, context_length: int) -> None:
        self._inner = inner
        self.context_length = context_length
        self._byte_pairs = hasattr(inner, "bpe_ranks")
        # Ragged ids are only known for CLIP's BPE without random token dropping.
        self._simple = self._byte_pairs and getattr(inner, "reduction_fn", None) is None
        self.vocab_size = max(self._vocabulary.values()) + 1
        if self._simple:
            self._raw = copy(inner)
            self._raw.clean_fn = str  # of texts that are cleaned already, as a whole
            self._longest = max(map(len, inner.encoder))
        self._start_caches()

    @property
    def _vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = (
            self._inner.encoder if self._byte_pairs else self._inner.tokenizer.get_vocab()
        )
        return vocabulary

    @cached_property
    def id(self) -> str:
        """Return the kind, the vocabulary's size, and a hash of vocabulary and text cleaning."""
        inner, digest = self._inner, hashlib.blake2b(digest_size=6)
        for token, number in sorted(self._vocabulary.items(), key=lambda item: (item[1], item[0])):
            digest.update(f"{number}\t{token}\n".encode("utf-8", "surrogatepass"))
        digest.update(getattr(inner.clean_fn, "__name__", "").encode())
        digest.update(getattr(inner, "tokenizer_mode", "").encode())
        digest.update(getattr(getattr(inner, "reduction_fn", None), "__name__", "").encode())
        kind = "clip-bpe" if self._byte_pairs else "hf"
        return f"{kind}-{self.vocab_size}-{digest.hexdigest()}"

    def with_context(self, context_length: int) -> Tokenizer:
        """Return a tokenizer with another context length; no cache is shared."""
        tokenizer = copy(self)
        tokenizer._inner = copy(self._inner)
        tokenizer._inner.context_length = tokenizer.context_length = context_length
        return tokenizer

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Return (T, context) int64: start, text, end, zeros. As in open_clip, a long text is cut
        before the end token. Characters after the first 100,000 are not read."""
        import torch  # here: encoding without it takes a tenth of a second

        return torch.from_numpy(self.encode(texts)[0].astype(np.int64))

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], int]:
        """Return (T, context) ids, zeros behind each text, and the number of texts cut."""
        rows = [self._encoded(text) for text in texts]
        lengths = np.fromiter((len(row) for row, _ in rows), np.int64, len(rows))
        ids = np.zeros((len(rows), self.context_length), np.int32)
        flat = np.fromiter(chain.from_iterable(row for row, _ in rows), np.int32, lengths.sum())
        ids[np.arange(self.context_length) < lengths[:, None]] = flat
        return ids, sum(cut for _, cut in rows)

    @property
    def simple(self) -> BytePairs | None:
        """Return CLIP's byte-pair encoding inside, or None for another kind.

        With special tokens of its own or another cleaning it is open_clip's `SimpleTokenizer`.
        """
        return self._inner if self._simple else None

    def write_files(self, folder: Path) -> None:
        """Write the files of a Hugging Face tokenizer into an existing folder, for open_clip.
        CLIP's byte-pair encoding needs no files."""
        if not self._byte_pairs:
            self._inner.tokenizer.save_pretrained(folder)

    def truncated(self, texts: Sequence[str]) -> int:
        """Return the number of texts longer than the context."""
        return sum(self._encoded(text)[1] for text in texts)

    def words(self, text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return each word of the cleaned text (split at white space) with its ids. Joined, these
        are the ids between start and end of an uncut text.

        Raises CompoclipError for tokenizers other than CLIP's BPE.
        """
        if not self._simple:
            raise CompoclipError(
                f"tokenizer {self.id}: does not say which tokens are one word; only CLIP's own does"
            )
        words = self._inner.clean_fn(text[:MAX_TOKENIZED_CHARACTERS]).split()
        pieces = ((word, tuple(chain.from_iterable(self._pieces(word)))) for word in words)
        return tuple((word, ids) for word, ids in pieces if ids)

    def spelled(self, text: str) -> tuple[int, int] | None:
        """Return how many tokens of a text spell out a word, and how many tokens it has.

        A token of CLIP's BPE spells if it holds one character, or less, of a longer word; a token
        of a vocabulary with byte fallback (as SentencePiece has) if it is a byte. A text of which
        many tokens spell is in a language that the vocabulary was not made for. None for other
        tokenizers.
        """
        text = text[:MAX_TOKENIZED_CHARACTERS]
        if self._simple:
            pieces = list(self._pieces(self._inner.clean_fn(text)))
            parts = [number for piece in pieces if len(piece) > 1 for number in piece]
            return sum(map(self._spells, parts)), sum(map(len, pieces))
        inner = getattr(self._inner, "tokenizer", None)
        if inner is None or _FALLBACK not in inner.get_vocab():
            return None
        ids = inner(self._inner.clean_fn(text), add_special_tokens=False).input_ids
        tokens = inner.convert_ids_to_tokens(ids)
        return sum(bool(_BYTE.fullmatch(token)) for token in tokens), len(tokens)

    def _spells(self, number: int) -> bool:
        """Return whether a token of CLIP's BPE holds at most one character."""
        symbols = self._inner.decoder[number].removesuffix("</w>")
        values = bytes(self._inner.byte_decoder[symbol] for symbol in symbols)
        return sum(value >> 6 != 0b10 for value in values) <= 1  # those that begin one in UTF-8

    def bounded(self, ids: Sequence[int]) -> list[int]:
        """Return start, `ids`, end; not padded, not cut. For CLIP's BPE only."""
        return [self._inner.sot_token_id, *ids, self._inner.eot_token_id]

    def _ids(self, text: str) -> tuple[Sequence[int], bool]:
        """Return the ids of one text after cutting, and whether it was cut."""
        long, text = len(text) > MAX_TOKENIZED_CHARACTERS, text[:MAX_TOKENIZED_CHARACTERS]
        if self._simple:
            ids = [self._inner.sot_token_id]
            for piece in self._pieces(self._inner.clean_fn(text)):
                ids += piece
                if len(ids) >= self.context_length:
                    return [*ids[: self.context_length - 1], self._inner.eot_token_id], True
            return [*ids, self._inner.eot_token_id], long
        source = getattr(getattr(self._inner, "tokenizer", None), "name_or_path", self.id)
        place = f"tokenizer '{source}' cannot encode {quoted(text)}"
        with plugins.fence(place, "restore its files, or leave the text out"):
            row = self._inner([text], context_length=self.context_length)[0]
            if self._byte_pairs:
                full = len(self._inner.encode(text)) + 2
            else:
                full = len(self._inner.tokenizer(self._inner.clean_fn(text)).input_ids)
        return tuple(row.tolist()), long or full > self.context_length

    def _pieces(self, text: str) -> Iterator[Sequence[int]]:
        """Return the ids of each piece of a cleaned text: merges do not cross pieces."""
        for piece in self._inner.pat.findall(text):
            cached = len(piece) <= _CACHED_PIECE
            yield self._piece(piece) if cached else self._piece_ids(piece)

    def _piece_ids(self, piece: str) -> tuple[int, ...]:
        """Return the ids of a piece."""
        short = _START * self.context_length
        ids = self._raw.encode(piece[:short])
        if len(piece) > short and len(ids) <= 2 * self.context_length:
            ids = self._raw.encode(piece[: self._longest * self.context_length])
        return tuple(ids)

    def _start_caches(self) -> None:
        """Start with nothing cached: caches do not travel to other processes."""
        self._piece = lru_cache(_CACHE)(self._piece_ids)
        self._encoded = self._ids if self._simple else lru_cache(_CACHE)(self._ids)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_piece", "_encoded")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_caches()


def build_tokenizer(text_cfg: Mapping[str, Any], folder: Path | None = None) -> Tokenizer:
    """Return the tokenizer an open_clip text configuration asks for.

    CLIP's BPE by default; `tokenizer_kwargs.bpe_path` names another merges file, relative to
    `folder`; `hf_tokenizer_name` a Hugging Face tokenizer (read from `folder` when its files are
    there). Raises CompoclipError when a file or an optional package is missing.
    """
    context = text_cfg.get("context_length", 77)
    if not (isinstance(context, int) and 2 <= context <= MAX_CONTEXT):
        raise CompoclipError(
            f"context_length {str(context)[:80]}: must be a number of tokens from 2 to "
            f"{MAX_CONTEXT}"
        )
    options = section(text_cfg, "tokenizer_kwargs", "text_cfg")
    if text_cfg.get("hf_tokenizer_name"):
        return Tokenizer(_hf_tokenizer(text_cfg, options, context, folder), context)
    if not options:
        return _of_merges(None).with_context(context)
    if "bpe_path" in options:
        options["bpe_path"] = str(_merges_file(options["bpe_path"], folder))
        if len(options) == 1:
            return _of_merges(Path(options["bpe_path"]).read_bytes()).with_context(context)
    special = options.get("additional_special_tokens")
    remedy = "restore the original file"
    for token in require_kind("additional_special_tokens", special, list[str] | None, remedy) or ():
        if not _SPECIAL.fullmatch(token):
            raise CompoclipError(
                f"additional_special_tokens: {token[:80]!r} is not of letters, digits, _, - "
                "and angle brackets (open_clip reads it as a pattern)"
            )
    from open_clip.tokenizer import SimpleTokenizer

    try:
        return Tokenizer(SimpleTokenizer(context_length=context, **options), context)
    except Exception as error:  # open_clip takes the options for granted
        problem = f"tokenizer_kwargs of the model are not usable: {reason(error)}"
        raise CompoclipError(problem) from error


@lru_cache(maxsize=4)
def _of_merges(merges: bytes | None) -> Tokenizer:
    """CLIP's byte-pair encoding with the merges of a gzipped file, or with those that open_clip
    brings: reading merges and hashing the vocabulary take longer than all else that a small model
    is loaded with."""
    tokenizer = Tokenizer(clip_byte_pairs() if merges is None else BytePairs(merges), 77)
    _ = tokenizer.id  # copies of it have the identity, too
    return tokenizer


def _merges_file(stated: object, folder: Path | None) -> Path:
    """A gzipped merges file; of another folder it would be copied into the next checkpoint."""
    path = Path(str(stated))
    if folder is not None and (path.is_absolute() or ".." in path.parts):
        raise CompoclipError(
            f"{folder}: bpe_path {str(stated)[:200]} leads outside of the folder; copy the file "
            "into it and name it there"
        )
    path = (folder or Path()) / path
    if not path.is_file():
        raise CompoclipError(
            f"{path}: the tokenizer's merges file is missing; restore the original file"
        )
    other = disguised(path)
    require(not other, path, other)
    try:
        with path.open("rb") as file:
            malformed = _malformed_line(file.read(MAX_MERGES_BYTES))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CompoclipError(
            f"{path}: not a gzipped BPE merges file ({reason(error)}); restore the original file"
        ) from error
    # CLIP's own file has a tail that open_clip never reads; a short one is read to its end.
    if malformed is not None and malformed - 1 <= 49152 - 256 - 2:
        raise CompoclipError(f"{path}: line {malformed} is not a merge of two symbols")
    return path


@lru_cache(maxsize=4)
def _malformed_line(merges: bytes) -> int | None:
    """The first line of a gzipped merges file that is not a merge of two symbols."""
    with gzip.open(BytesIO(merges)) as file:
        content = file.read(MAX_MERGES_BYTES + 1)
    if len(content) > MAX_MERGES_BYTES:
        raise ValueError(f"unpacks to more than {MAX_MERGES_BYTES:,} bytes")
    lines = content.decode("utf-8").split("\n")
    return next((i for i, line in enumerate(lines[1:], 2) if len(line.split()) != 2), None)


def _hf_tokenizer(
    text_cfg: Mapping[str, Any], options: dict[str, Any], context: int, folder: Path | None
) -> Any:
    from open_clip.tokenizer import HFTokenizer

    from compoclip.models.formats.closed_list import TOKENIZER_FILES  # which reads YAML

    name = text_cfg["hf_tokenizer_name"]
    source = str(name)
    if folder is not None and (folder / "tokenizer_config.json").is_file():
        source = str(folder)
        for file in (folder / name for name in TOKENIZER_FILES):
            if file.is_file() and (problem := disguised(file)):
                raise CompoclipError(f"{file}: {problem}")
    else:
        require_hub_name(name, "hf_tokenizer_name")
    # Other options go to transformers, which runs code of the folder for some.
    for key in options:
        if key not in _HF_OPTIONS:
            raise CompoclipError(
                f"tokenizer_kwargs: '{key[:80]}' is not one of {', '.join(_HF_OPTIONS)}"
            )
    optional("transformers", "hf", f"tokenizer '{source}'")
    try:
        with plugins.fence(
            f"tokenizer '{source}' cannot be loaded", "check the name, or restore its files"
        ):
            tokenizer = HFTokenizer(
                source,
                context_length=context,
                tokenizer_mode=text_cfg.get("tokenizer_mode"),
                trust_remote_code=False,  # without it the user is asked
                **options,
            )
            last = max(tokenizer.tokenizer.get_vocab().values())
            for text in ("a", "\u2603 qzj"):  # what its files lack shows only then
                highest = max(
                    [*tokenizer([text])[0].tolist(), *tokenizer.tokenizer(text).input_ids]
                )
                if highest > last:
                    raise ValueError(f"gives the id {highest}, and its vocabulary ends at {last}")
    except CompoclipError as error:
        _require_tokenizer_files(Path(source), error)
        raise
    return tokenizer


def _require_tokenizer_files(folder: Path, error: CompoclipError) -> None:
    """Name the entries that are malformed in the files of a tokenizer that cannot be loaded."""
    from compoclip.models.formats.closed_list import malformed

    for file in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        if file.is_file():
            data = read_object(file)
            sentences = list(islice(malformed(data, file.name, data), 3))
            if sentences:
                raise CompoclipError(f"{file}: {'; '.join(sentences)}; {error}") from error
