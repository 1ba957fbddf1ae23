"""The Hugging Face hub: models fetched from it, folders put on it, and their model card.

The card is README.md beside the weights, made from the checkpoint's own record.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import write_atomically
from compoclip.models.checkpoint import Above, Adapted, Format, LoadedModel, format_of, formats
from compoclip.models.config import MERGES, RECORD, ModelIdentity, as_json, read_config, read_record

HUB = "hf-hub:"
_PATIENCE = 5.0  # seconds for the hub to answer at all; the files may take as long as they do
_GATEWAYS = (502, 503, 504)  # what a proxy says of a server that it does not reach
_SMALL = ("*.json", "*.txt", "*.gz", "*.model")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    MERGES,
)


@dataclass(frozen=True)
class Pushed:
    """Where a folder was uploaded to, and the files."""

    url: str
    files: tuple[str, ...]


class HubRepository(Format):
    """`hf-hub:ORG/REPO`: a folder of any format on the Hugging Face hub."""

    kind = "repository of the Hugging Face hub"
    known_by = "the configuration in the repository"
    order = 3
    prefix = HUB

    def load(self, source: str, name: str, activation: str | None, above: Above) -> LoadedModel:
        """The model in the folder that is fetched."""
        folder = str(fetch(source))
        return format_of(folder).load(folder, name, activation, above)

    def load_on(self, source: str, base: str, activation: str | None) -> LoadedModel:
        """Adapters that are fetched, merged into the base that the user names."""
        folder = str(fetch(source))
        return format_of(folder).load_on(folder, base, activation)

    def has_adapter(self, source: str) -> bool:
        """Whether the folder that is fetched holds adapters."""
        folder = str(fetch(source))
        return format_of(folder).has_adapter(folder)

    def adapted(self, source: str, base: str | None, activation: str | None) -> Adapted:
        """The adapters in the folder that is fetched."""
        folder = str(fetch(source))
        return format_of(folder).adapted(folder, base, activation)


def fetch(spec: str) -> Path:
    """The folder with the files of hf-hub:ORG/REPO that a model needs, from the network or the
    cache. Raises CompoclipError when it cannot be had.
    """
    from huggingface_hub import snapshot_download

    repository = spec.removeprefix(HUB)
    with downloading(spec):
        folder = Path(snapshot_download(repository, allow_patterns=[*_SMALL]))
        for pattern in format_of(str(folder)).downloads:
            folder = Path(snapshot_download(repository, allow_patterns=[*_SMALL, pattern]))
            if any(folder.glob(pattern)):
                break
        return folder


@contextmanager
def downloading(spec: str) -> Iterator[None]:
    """Any failure to fetch weights as one line with the remedy. Where the hub does not answer, the
    cache is used at once, without the library's minute of trying again."""
    silence = "" if _offline() else _silence()
    try:
        with _cache_alone() if silence else nullcontext():
            yield
    except CompoclipError:
        raise
    except Exception as error:  # network libraries raise dozens of unrelated types
        if _offline():
            raise CompoclipError(
                f"{spec}: could not be downloaded: HF_HUB_OFFLINE forbids the network and the "
                "cache has it not; unset it, or fetch the model once where there is a network"
            ) from error
        first = silence or (str(error).splitlines() or [type(error).__name__])[0]
        raise CompoclipError(
            f"{spec}: could not be downloaded ({first}); connect to the network once, "
            "or give a file with ARCHITECTURE@FILE"
        ) from error


def _silence() -> str:
    """Why the hub cannot be asked; "" when it answers within HF_HUB_ETAG_TIMEOUT seconds (5)."""
    from huggingface_hub import constants, get_session

    set_by_user = "HF_HUB_ETAG_TIMEOUT" in os.environ
    try:
        found = get_session().head(
            constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT if set_by_user else _PATIENCE
        )
        if found.status_code in _GATEWAYS:
            return f"no answer from {constants.ENDPOINT}: HTTP {found.status_code}"
    except Exception as error:  # of whichever HTTP library the hub's client uses
        why = " ".join(str(error).split()) or type(error).__name__
        return f"no answer from {constants.ENDPOINT}: {why}"
    return ""


@contextmanager
def _cache_alone() -> Iterator[None]:
    """What HF_HUB_OFFLINE does, for a while, without the libraries' own words on failure."""
    from huggingface_hub import constants

    before = logging.root.manager.disable
    constants.HF_HUB_OFFLINE = True
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False
        logging.disable(before)


def publish(
    folder: Path,
    repository: str,
    *,
    results: Sequence[CardResult] = (),
    private: bool = False,
    message: str = "",
) -> Pushed:
    """Put a model folder on the Hugging Face hub in one commit: weights, configuration, tokenizer,
    card, and nothing else that lies in the folder.

    Args:
        folder: RUN/model, RUN/adapter, or any folder that `convert` wrote.
        repository: USER/NAME or ORGANISATION/NAME; made if it is not there.
        results: Rows written into the card first; without any, an existing card stays as it is.
        private: Make a new repository private.
        message: Message of the commit.

    Returns:
        Where it is, and the files.

    Raises:
        UsageError: `repository` is no possible name.
        CompoclipError: The folder is incomplete or no model's, or the hub cannot be reached or
            refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    names = model_files(folder)
    if results or (RECORD in names and CARD not in names):
        write_card(folder, results)
        names = model_files(folder)
    require_pushable(repository)
    api: Any = HfApi()
    try:
        api.create_repo(repository, private=True if private else None, exist_ok=True)
        made = api.create_commit(
            repository,
            [CommitOperationAdd(name, _portable(folder / name)) for name in names],
            commit_message=message or "Upload a model written by compoclip",
        )
    except Exception as error:  # no token, no right, no network: each has types of its own
        first = " ".join(str(error).split())[:200] or type(error).__name__
        raise CompoclipError(
            f"{repository}: could not be pushed ({first}); log in with `hf auth login` or set "
            "HF_TOKEN to a token that may write there"
        ) from error
    return Pushed(str(getattr(made, "repo_url", "") or made.commit_url), tuple(names))


def _portable(file: Path) -> Path | bytes:
    """A file, or its content without the place of the merges file on this machine."""
    if file.name != "open_clip_config.json" or not (file.parent / MERGES).is_file():
        return file
    return as_json(read_config(file).to_json()).encode()


def require_pushable(repository: str) -> None:
    """Find out before long work what would forbid to push after it, as far as is known here.

    Raises UsageError for an impossible name, CompoclipError when HF_HUB_OFFLINE is set.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(f"{repository}: not a name on the hub ({error})") from None
    if _offline():
        raise CompoclipError(f"{repository}: HF_HUB_OFFLINE forbids the network; unset it to push")


def model_files(folder: Path) -> list[str]:
    """The files of a model folder that belong on the hub.

    Raises CompoclipError when it is no folder that this program writes, or has no safetensors.
    """
    found = next((each for each in formats() if folder.is_dir() and each.sniff(str(folder))), None)
    if found is None:
        raise CompoclipError(
            f"{folder}: not a model folder; give RUN/model, RUN/adapter or what convert wrote"
        )
    needed, more = found.hub_files(folder)
    for name in needed:
        if not (folder / name).is_file():
            raise CompoclipError(f"{folder}: has no {name}; write the folder again with convert")
    return [*needed, *(n for n in (*more, RECORD, CARD) if (folder / n).is_file())]


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


CARD = "README.md"
_RUN = {"steps": "steps", "images": "images seen", "texts": "texts seen"}
_LOST = {"skipped": "unreadable images skipped", "truncated": "texts cut to the context"}


@dataclass(frozen=True)
class CardResult:
    """One row of the results table. value, chance in [0, 1]; low, high: the 95 %
    interval, None where there is none; n: items measured."""

    benchmark: str
    metric: str
    value: float
    low: float | None
    high: float | None
    chance: float
    n: int


def write_card(folder: Path, results: Sequence[CardResult] = ()) -> Path:
    """Write the model card of a checkpoint folder, in place of an older one.

    Args:
        folder: A folder with a `compoclip.json`.
        results: Rows of its table of results.

    Returns:
        The path of the card.

    Raises:
        CompoclipError: The folder has no readable record, or cannot be written.
    """
    text = card_of(folder, results)
    content = text.encode("utf-8", "backslashreplace")  # a lone surrogate is no UTF-8
    write_atomically(folder / CARD, lambda place: place.write_bytes(content))
    return folder / CARD


def card_of(folder: Path, results: Sequence[CardResult] = ()) -> str:
    """The card of a checkpoint folder, from its compoclip.json. results: rows of its table.

    Raises CompoclipError when the folder has no readable record.
    """
    identity, provenance = read_record(folder / RECORD)
    library, code = format_of(str(folder)).snippet(folder)
    return card_text(identity, provenance, results, library=library, code=code)


def card_text(
    identity: ModelIdentity,
    provenance: Mapping[str, Any],
    results: Sequence[CardResult] = (),
    *,
    library: str = "",
    code: str = "",
) -> str:
    """The card in Markdown, with the header that the Hugging Face hub reads.

    library: the one that loads the folder with `code`, by the hub's name for it; without, only
    compoclip does. Of an absolute path in the provenance only the last name is told, except in the
    description of the data, which is the user's own.
    """
    method = str(provenance.get("method") or "")
    title = f"{identity.architecture}, {method}" if method else identity.architecture
    parts = [
        _header(library, title, results),
        f"# {_inline(title)}",
        "A CLIP-style dual encoder: cosines of image and text features say how well they match. "
        "Written by compoclip; `compoclip.json` has this record for machines.",
        "## How to load",
        _loading(code),
        "## Identity",
        _table(("", ""), _identity_rows(identity)),
        "## How it was made",
        *_making(provenance),
        "## Results",
        _results(results),
    ]
    return "\n\n".join(parts) + "\n"


def _header(library: str, title: str, results: Sequence[CardResult]) -> str:
    lines = [
        *([f"library_name: {library}"] if library else []),
        "pipeline_tag: zero-shot-image-classification",
        "tags: [clip, compositionality, compoclip]",
        *_model_index(title, results),
    ]
    return "\n".join(["---", *lines, "---"])


def _model_index(title: str, results: Sequence[CardResult]) -> list[str]:
    """The results as the hub reads them; values are shares of 1. JSON is YAML, too."""
    if not results:
        return []
    lines = ["model-index:", f"- name: {json.dumps(title)}", "  results:"]
    for each in results:
        name = json.dumps(each.benchmark, ensure_ascii=False)
        metric = json.dumps(each.metric, ensure_ascii=False)
        lines += [
            "  - task: {type: zero-shot-image-classification}",
            f"    dataset: {{type: {json.dumps(each.benchmark.split(' ')[0])}, name: {name}}}",
            f"    metrics: [{{type: {metric}, name: {metric}, value: {round(each.value, 6)}}}]",
        ]
    return lines


def _loading(code: str) -> str:
    """Code for this folder, `code` and compoclip's own; FOLDER stands for where it lies."""
    own = (
        "from compoclip.models import load_model\n\n"
        'model = load_model("FOLDER")  # .encoder, .tokenizer, .preprocess; the identity is checked'
    )
    blocks = "\n\n".join(f"```python\n{each}\n```" for each in (code, own) if each)
    return (
        "`FOLDER` is where this file lies. Activation, tokenizer and image statistics come with "
        f"it.\n\n{blocks}\n\n"
        "On the command line: `compoclip evaluate FOLDER --on ...`, `compoclip play FOLDER`."
    )


def _identity_rows(identity: ModelIdentity) -> list[tuple[str, str]]:
    rows = [
        ("architecture", identity.architecture),
        ("activation", identity.activation),
        ("tokenizer", identity.tokenizer),
        ("context length", f"{identity.context_length} tokens"),
        ("image size", " x ".join(map(str, identity.image_size))),
        ("image mean", ", ".join(f"{v:.6g}" for v in identity.image_mean)),
        ("image deviation", ", ".join(f"{v:.6g}" for v in identity.image_std)),
        ("resizing", f"{identity.resize_mode}, {identity.interpolation}"),
        ("adapter", f"{identity.adapter} (merged)" if identity.adapter else "none"),
        ("trained from (hash)", identity.base or "not recorded"),
        ("weights (hash)", identity.weights),
    ]
    return [(name, f"`{_cell(value)}`") for name, value in rows]


def _making(provenance: Mapping[str, Any]) -> list[str]:
    """Tables of recipe, data and settings; keys that no table shows are told as they are."""
    if not provenance:
        return ["Not recorded."]
    left = {key: value for key, value in provenance.items() if value not in (None, {}, [], "")}
    rows: list[tuple[str, str]] = []
    if "method" in left:
        rows.append(("recipe", str(left.pop("method"))))
    if "data" in left:
        rows.append(("data", str(left.pop("data"))))
    if "terms" in left:
        rows.append(("losses", _terms(left.pop("terms"))))
    run = left.pop("run", None)
    if isinstance(run, Mapping):
        rows += [(text, _count(run[key])) for key, text in _RUN.items() if key in run]
        rows += [(text, _count(run[key])) for key, text in _LOST.items() if run.get(key)]
        left_out = run.get("left_out")
        if isinstance(left_out, Mapping):
            rows += [(f"left out: {why}", _count(n)) for why, n in left_out.items()]
    for key in ("seed", "precision", "torch"):
        if key in left:
            rows.append((key, str(left.pop(key))))
    parts = [_table(("", ""), [(_cell(a), _cell(b)) for a, b in rows])] if rows else []
    for key, value in left.items():
        parts += [f"{_inline(key)}:", _code(value)]
    return parts


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(_public(value))


def _terms(terms: Any) -> str:
    """Losses with their weights, as "1 x clip + 0.5 x global_hn"."""
    try:
        named = [
            f"{each['weight']:g} x {each['name']}" + (f" (on {each['on']})" if each["on"] else "")
            for each in terms
        ]
    except (KeyError, TypeError, ValueError):  # a record of another kind
        return json.dumps(_public(terms))
    return " + ".join(named)


def _results(results: Sequence[CardResult]) -> str:
    if not results:
        return "None recorded. Measure with `compoclip evaluate FOLDER --on BENCHMARK`."
    rows = [
        (
            _cell(each.benchmark),
            _cell(each.metric),
            f"{100 * each.value:.1f}",
            "-"
            if each.low is None or each.high is None
            else f"{100 * each.low:.1f} to {100 * each.high:.1f}",
            f"{100 * each.chance:.1f}",
            f"{each.n:,}",
        )
        for each in results
    ]
    head = ("benchmark", "metric", "value (%)", "95 % interval", "chance", "items")
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _public(value: Any) -> Any:
    """The value with absolute paths cut to their last name."""
    if isinstance(value, Mapping):
        return {str(key): _public(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_public(each) for each in value]
    if isinstance(value, str):
        name, at, file = value.rpartition("@")  # ARCHITECTURE@FILE
        for path in (PurePosixPath(file), PureWindowsPath(file)):
            if path.is_absolute():
                return f"{name}{at}{path.name}"
    return value


def _code(value: Any) -> str:
    text = json.dumps(_public(value), indent=2, ensure_ascii=False, default=str)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}json\n{text}\n{fence}"


def _inline(text: str) -> str:
    """On one line, without characters that mean something in Markdown."""
    return re.sub(r"([\\`*<>\[\]|#])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    """On one line, fit for a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
